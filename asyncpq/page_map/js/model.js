// The picture, unpacked: files with chunks, whose pages lie in typed arrays and whose fates are runs of pages.

const PICTURE = JSON.parse(byId("picture").textContent);

function openLayout(packed) {
  const layout = {
    url: packed.url,
    size: packed.size,
    facts: packed.facts,
    footer: packed.footer,
    columns: packed.columns.map(([name, type, sorted]) => ({ name, type, sorted })),
    groups: packed.groups.map(openGroup),
    chunks: openChunks(packed),
    drawn: packed.fates !== null,
  };
  for (const chunk of layout.chunks) layout.groups[chunk.group].chunks[chunk.column] = chunk;
  applyFates(layout, packed.fates);
  return layout;
}

function openGroup([firstRow, rows, start, stop], ordinal) {
  return { ordinal, firstRow, rows, start, stop, chunks: [], fate: "plain" };
}

// Chunks come as a list for each field, or one value for all of them; pages are opened when they are looked at.
class Chunk {
  constructor(get, at, start, words) {
    this.group = get("group", at);
    this.column = get("column", at);
    this.start = start;
    this.stop = start + get("bytes_length", at);
    const length = get("dictionary_length", at);
    const begin = start + get("dictionary_at", at);
    this.dictionary = length ? [begin, begin + length] : 0;
    this.offsetIndex = this.columnIndex = this.bloom = 0;
    this.coding = words[get("coding", at)];
    this.uncompressed = get("uncompressed", at);
    this.values = get("values", at);
    this.nulls = get("nulls", at);
    this.distinct = get("distinct", at);
    this.min = get("min", at);
    this.max = get("max", at);
    this.packed = get("pages", at);
    this.pageCount = !this.packed ? 0 : this.packed === 1 ? 1 : this.packed[0].length;
    this.rows = 0;
    this.opened = null;
    this.runs = NO_RUNS;
    this.wanted = false;
    this.whole = false;
  }

  get pages() {
    if (!this.packed) return null;
    const one = () => [[this.stop - dataStart(this)], [this.rows], [dataStart(this)]];
    this.opened = this.opened || openPages(this.packed === 1 ? one() : this.packed);
    return this.opened;
  }
}

const NO_RUNS = [];

function openChunks(packed) {
  const fields = packed.chunks;
  const get = (name, at) => (Array.isArray(fields[name]) ? fields[name][at] : fields[name]);
  const stops = { bytes: 0, offset_index: 0, column_index: 0, bloom: 0 };
  const start = (name, at) => stops[name] + get(`${name}_at`, at);
  const chunks = new Array(packed.number);
  for (let at = 0; at < packed.number; at += 1) {
    const chunk = new Chunk(get, at, start("bytes", at), packed.words);
    stops.bytes = chunk.stop;
    chunk.rows = packed.groups[chunk.group][1];
    for (const [name, field] of INDEXES) {
      const length = get(`${name}_length`, at);
      if (!length) continue;
      const begin = start(name, at);
      stops[name] = begin + length;
      chunk[field] = [begin, begin + length];
    }
    chunks[at] = chunk;
  }
  return chunks;
}

const INDEXES = [["offset_index", "offsetIndex"], ["column_index", "columnIndex"], ["bloom", "bloom"]];

function openPages([sizes, rows, starts]) {
  const length = sizes.length;
  const pages = { length, sizes, rows, starts: new Float64Array(length), firstRows: new Float64Array(length) };
  let at = starts.length ? starts[0] : 0;
  let row = 0;
  for (let page = 0; page < length; page += 1) {
    pages.starts[page] = starts.length === length ? starts[page] : at;
    pages.firstRows[page] = row;
    at += sizes[page];
    row += rows[page];
  }
  return pages;
}

// -- fates: each chunk gets runs of pages, {from, to, fate}, that cover all of it ---------------------

function applyFates(layout, fates) {
  if (!fates) {
    for (const chunk of layout.chunks) chunk.runs = wholeRuns(chunk, chunk.packed ? "plain" : "unlocated");
    return;
  }
  fates.groups.forEach((fate, ordinal) => (layout.groups[ordinal].fate = fate));
  const wanted = new Set(fates.chunks.map(([, column]) => column));
  for (const [group, column, whole, predicate, ...runs] of fates.chunks) {
    const chunk = layout.groups[group] && layout.groups[group].chunks[column];
    if (!chunk) continue;
    chunk.whole = Boolean(whole);
    chunk.predicate = Boolean(predicate);
    chunk.runs = readRuns(chunk, runs, whole);
  }
  for (const chunk of layout.chunks) {
    chunk.wanted = wanted.size === 0 || wanted.has(chunk.column);
    if (!chunk.runs.length) chunk.runs = wholeRuns(chunk, unreadFate(layout, chunk));
  }
}

function pageCount(chunk) {
  return chunk.packed ? chunk.pageCount : 1;
}

// Chunks of one fate and as many pages share their run.
const shared = new Map();

function wholeRuns(chunk, fate) {
  const to = pageCount(chunk);
  const key = `${to} ${fate}`;
  if (!shared.has(key)) shared.set(key, [{ from: 0, to, fate }]);
  return shared.get(key);
}

function unreadFate(layout, chunk) {
  const fate = layout.groups[chunk.group].fate;
  if (!chunk.wanted) return "unread";
  return rank(fate) >= 8 ? "late" : fate;
}

// Pages between those that are read were ruled out, by the page index or by the rows that matched.
function readRuns(chunk, packed, whole) {
  const length = pageCount(chunk);
  const between = chunk.packed && !whole ? "page index" : null;
  const runs = [];
  let at = 0;
  for (let index = 0; index < packed.length; index += 3) {
    const from = packed[index];
    const to = packed[index + 1] < 0 ? length : Math.min(length, packed[index + 1]);
    if (!between) return wholeRuns(chunk, packed[index + 2]);
    if (from > at) runs.push({ from: at, to: from, fate: between });
    runs.push({ from, to, fate: packed[index + 2] });
    at = to;
  }
  if (at < length) runs.push({ from: at, to: length, fate: between });
  return runs;
}

function fateOfPage(chunk, page) {
  return chunk.runs.find((run) => page >= run.from && page < run.to).fate;
}

// -- where things are -------------------------------------------------------------------------------

function dataStart(chunk) {
  return chunk.dictionary ? chunk.dictionary[1] : chunk.start;
}

function runBytes(chunk, run) {
  if (chunk.pageCount < 2) return [dataStart(chunk), chunk.stop];
  const last = run.to - 1;
  return [chunk.pages.starts[run.from], chunk.pages.starts[last] + chunk.pages.sizes[last]];
}

// First and last row of a run, in the row group.
function runRows(chunk, run, rows) {
  if (chunk.pageCount < 2) return [0, rows];
  return [chunk.pages.firstRows[run.from], run.to < chunk.pages.length ? chunk.pages.firstRows[run.to] : rows];
}

// Visits dictionaries, indexes and the footer, with meaning, start, stop, chunk and what it is called.
function eachStructure(layout, visit) {
  const add = (name, range, chunk, title) => range && visit(name, range[0], range[1], chunk, title);
  for (const chunk of layout.chunks) {
    if (chunk.dictionary) add(layout.drawn ? dictionaryFate(chunk) : "dictionary page", chunk.dictionary, chunk, "Dictionary");
    add("bloom filter", chunk.bloom, chunk, "Bloom filter");
    add("column index", chunk.columnIndex, chunk, "Column index");
    add("offset index", chunk.offsetIndex, chunk, "Offset index");
  }
  add("footer", layout.footer, null, "Footer");
}

// A dictionary shares the fate of its chunk: any page needs all of it.
function dictionaryFate(chunk) {
  const fate = bestFate(chunk);
  return fate === "read" ? "fetched dictionary" : fate;
}

function bestFate(chunk) {
  return chunk.runs.reduce((a, b) => (rank(b.fate) > rank(a.fate) ? b : a)).fate;
}

// Pages and bytes of each fate, and bytes of each structure: what the legend lists.
function tally(layout) {
  const found = new Map();
  const add = (name, pages, size) => {
    const sum = found.get(name) || { pages: 0, size: 0, known: true };
    sum.pages += pages;
    sum.size += size;
    found.set(name, sum);
  };
  for (const chunk of layout.chunks) {
    for (const run of chunk.runs) {
      const [start, stop] = runBytes(chunk, run);
      add(run.fate, chunk.packed ? run.to - run.from : 0, stop - start);
    }
  }
  eachStructure(layout, (name, start, stop) => add(name, 0, stop - start));
  return found;
}

// Requests of one file, with suffix ranges as ranges.
function requestsOf(layout) {
  const sent = PICTURE.requests;
  if (!sent) return [];
  const alone = PICTURE.layouts.length === 1 && sent.urls.length === 1;
  return sent.rows
    .map((row, index) => ({ ...openRequest(row), index }))
    .filter((request) => alone || request.url === layout.url)
    .map((request) => absolute(request, layout.size))
    .filter((request) => request.stop > request.start);
}

function openRequest(row) {
  const { words, urls, timed } = PICTURE.requests;
  const [url, purpose, start, stop, round, columns, useful] = row;
  const opened = {
    url: urls[url], purpose: words[purpose], start, stop, round, columns: columns < 0 ? "" : words[columns], useful,
  };
  if (timed) {
    const [began, first, took, status, received, marks] = row.slice(7);
    Object.assign(opened, { began, first, took, status, received, marks: marks < 0 ? "" : words[marks] });
  }
  return opened;
}

function absolute(request, size) {
  if (request.start >= 0) return request;
  return { ...request, start: Math.max(0, size + request.start), stop: size };
}
