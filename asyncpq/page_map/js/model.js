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
    chunks: packed.chunks.map((row) => openChunk(row, packed.words)),
    drawn: packed.fates !== null,
  };
  for (const chunk of layout.chunks) layout.groups[chunk.group].chunks[chunk.column] = chunk;
  applyFates(layout, packed.fates);
  return layout;
}

function openGroup([firstRow, rows, start, stop], ordinal) {
  return { ordinal, firstRow, rows, start, stop, chunks: [], fate: "plain" };
}

function openChunk(row, words) {
  const [group, column, start, stop, dictionary, offsetIndex, columnIndex, bloom, coding] = row;
  const [uncompressed, values, nulls, distinct, min, max, pages] = row.slice(9);
  return {
    group, column, start, stop, dictionary, offsetIndex, columnIndex, bloom, coding: words[coding], uncompressed,
    values, nulls, distinct, min, max, pages: pages ? openPages(pages) : null, runs: [], wanted: false, whole: false,
  };
}

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
    for (const chunk of layout.chunks) chunk.runs = [wholeRun(chunk, chunk.pages ? "plain" : "unlocated")];
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
    if (!chunk.runs.length) chunk.runs = [wholeRun(chunk, unreadFate(layout, chunk))];
  }
}

function pageCount(chunk) {
  return chunk.pages ? chunk.pages.length : 1;
}

function wholeRun(chunk, fate) {
  return { from: 0, to: pageCount(chunk), fate };
}

function unreadFate(layout, chunk) {
  const fate = layout.groups[chunk.group].fate;
  if (!chunk.wanted) return "unread";
  return rank(fate) >= 8 ? "late" : fate;
}

// Pages between those that are read were ruled out, by the page index or by the rows that matched.
function readRuns(chunk, packed, whole) {
  const length = pageCount(chunk);
  const between = chunk.pages && !whole ? "page index" : null;
  const runs = [];
  let at = 0;
  for (let index = 0; index < packed.length; index += 3) {
    const from = packed[index];
    const to = packed[index + 1] < 0 ? length : Math.min(length, packed[index + 1]);
    if (!chunk.pages || !between) return [wholeRun(chunk, packed[index + 2])];
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
  if (!chunk.pages || !chunk.pages.length) return [dataStart(chunk), chunk.stop];
  const last = run.to - 1;
  return [chunk.pages.starts[run.from], chunk.pages.starts[last] + chunk.pages.sizes[last]];
}

// First and last row of a run, in the row group.
function runRows(chunk, run, rows) {
  if (!chunk.pages || !chunk.pages.length) return [0, rows];
  return [chunk.pages.firstRows[run.from], run.to < chunk.pages.length ? chunk.pages.firstRows[run.to] : rows];
}

// Dictionaries, indexes and the footer: meaning, start, stop, chunk and what it is called.
function structures(layout) {
  const found = [];
  const add = (name, range, chunk, title) => range && found.push([name, range[0], range[1], chunk, title]);
  for (const chunk of layout.chunks) {
    add(layout.drawn ? dictionaryFate(chunk) : "dictionary page", chunk.dictionary, chunk, "Dictionary");
    add("bloom filter", chunk.bloom, chunk, "Bloom filter");
    add("column index", chunk.columnIndex, chunk, "Column index");
    add("offset index", chunk.offsetIndex, chunk, "Offset index");
  }
  add("footer", layout.footer, null, "Footer");
  return found;
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
      add(run.fate, chunk.pages ? run.to - run.from : 0, stop - start);
    }
  }
  for (const [name, start, stop] of layout.structures) add(name, 0, stop - start);
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
