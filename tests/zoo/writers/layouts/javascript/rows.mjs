// The rows of every layout, as columns.
export const ROWS = 1_000_000
const hex = number => (number >>> 0).toString(16).padStart(8, '0')
const column = make => Array.from({ length: ROWS }, (_, i) => make(i))
const text = i => String(i).padStart(8, '0') + [0, 1, 2, 3, 4, 5, 6, 7].map(j => hex(Math.imul(i, 2654435761 + 2 * j))).join('')

export const columns = () => ({
  id: column(i => BigInt(i)),
  key: column(i => 'k' + String((i * 7919) % ROWS).padStart(8, '0')),
  text: column(text),
  category: column(i => `c${i % 50}`),
  x: column(i => (i % 1000 === 7 ? NaN : i / 4)),
  zero: column(i => (i % 2 ? -0 : 0)),
  n: column(i => (i % 3 ? BigInt(i % 1000) : null)),
  at: column(i => new Date(1_767_225_600_000 + i * 1000)),
})
