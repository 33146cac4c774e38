// The rows that the writers of this folder write.
export const ROWS = 1000
const some = (i, every, value) => (i % every === every - 1 ? null : value)
export const double = i => (i % 97 === 3 ? NaN : i % 89 === 5 ? -0 : (i - 500) * 0.75)

export const flat = Array.from({ length: ROWS }, (_, i) => ({
  id: BigInt(i),
  shuffled: (i * 7919) % ROWS,
  runs: some(Math.floor(i / 100), 3, Math.floor(i / 100)),
  flag: some(i, 13, i % 3 === 0),
  float: some(i, 10, Math.fround(double(i))),
  double: double(i),
  category: some(i, 6, `kind-${i % 12}`),
  word: `z\u4e2d${(i * 31) % 400}`,
  long: some(i, 8, 'prefix'.repeat(14) + String((i * 37) % ROWS).padStart(5, '0')),
  binary: Uint8Array.of(i % 256, 255, 0, (i / 4) % 256),
  at: new Date(1704067200000 + i * 60000),
  empty: null,
}))

export const nested = Array.from({ length: ROWS }, (_, i) => ({
  id: BigInt(i),
  numbers: Array.from({ length: i % 6 }, (_, j) => i + j),
  words: Array.from({ length: i % 4 }, (_, j) => `w${(i + j) % 40}`),
  point: { name: some(i, 4, `p${i % 50}`), size: i % 100 },
  items: Array.from({ length: i % 5 }, (_, j) => ({ name: `n${i % 30}`, size: j })),
}))
