// Texts of numbers, and small helpers for elements. Nothing here makes markup of text.

function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

function counted(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

function bytes(number) {
  let size = number;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 999.5) return unit === "B" ? `${count(size)} B` : `${digits(size)} ${unit}`;
    size /= 1024;
  }
  return `${digits(size)} TiB`;
}

function digits(number) {
  return number >= 100 ? count(number) : number.toPrecision(3).replace(/\.?0+$/, "");
}

function seconds(microseconds) {
  if (microseconds >= 1e6) return `${digits(microseconds / 1e6)} s`;
  if (microseconds >= 1000) return `${digits(microseconds / 1000)} ms`;
  return `${count(microseconds)} µs`;
}

function percent(share) {
  if (share <= 0) return "0 %";
  if (share < 0.01) return "below 1 %";
  return share > 0.99 && share < 1 ? "99 %" : `${Math.round(share * 100)} %`;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

// The last position whose value is not above `wanted`, in rising `values`.
function lastAtMost(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The end of a long name matters as much as its beginning.
function shortened(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (length - 1 - head))}`;
}
