// A strip of bytes, to scale: pages by fate, dictionaries, indexes and the footer; below it the requests.

const RIBBON = { strip: 40, lane: 19, labels: 16, lens: 22 };

function ribbonHeight(zoomed) {
  const one = RIBBON.strip + RIBBON.lane + RIBBON.labels + 6;
  return zoomed ? one * 2 + RIBBON.lens : one;
}

// Draws the bytes [from, to) and returns the band, for finding what is under the pointer.
function drawRibbon(context, layout, requests, from, to, top, width) {
  const scale = width / Math.max(1, to - from);
  const band = { from, to, top, width, scale, bottom: top + RIBBON.strip };
  context.fillStyle = variable("unread");
  context.fillRect(0, top, width, RIBBON.strip);
  for (const box of ribbonBoxes(layout, band)) {
    fillBox(context, box.name, box.x, top, box.width, RIBBON.strip);
  }
  drawEdges(context, layout, band);
  drawLane(context, requests, band);
  drawScale(context, band);
  return band;
}

// Each pixel shows what most of its bytes are. At the scale of a large file a page that is read is less than a pixel:
// pages that are read, and the footer, lie on top and are never thinner than two.
function ribbonBoxes(layout, band) {
  const shares = new Map();
  const onTop = [];
  const add = (name, start, stop) => {
    if (stop <= band.from || start >= band.to) return;
    const x = Math.max(0, (start - band.from) * band.scale);
    const end = Math.min(band.width, (stop - band.from) * band.scale);
    if (rank(name) >= 8) addOnTop(onTop, name, x, end, band.width);
    else addShare(shares, name, x, end, band.width);
  };
  for (const chunk of layout.chunks) {
    if (chunk.stop <= band.from || chunk.start >= band.to) continue;
    for (const run of chunk.runs) add(run.fate, ...runBytes(chunk, run));
  }
  eachStructure(layout, add);
  return [...largestShares(shares, band.width), ...onTop];
}

function addOnTop(boxes, name, x, end, width) {
  const before = boxes[boxes.length - 1];
  if (before && before.name === name && x <= before.x + before.width + 0.05 && x >= before.x) {
    before.width = Math.max(before.width, end - before.x);
    return;
  }
  boxes.push({ name, x: Math.min(x, width - 2.5), width: Math.max(2.5, end - x) });
}

function addShare(shares, name, x, end, width) {
  if (!shares.has(name)) shares.set(name, new Float32Array(Math.ceil(width) + 1));
  const pixels = shares.get(name);
  for (let pixel = Math.floor(x); pixel < end; pixel += 1) {
    pixels[pixel] += Math.min(end, pixel + 1) - Math.max(x, pixel);
  }
}

function largestShares(shares, width) {
  const boxes = [];
  for (let pixel = 0; pixel < width; pixel += 1) {
    let name = null;
    let most = 0.02;
    for (const [other, pixels] of shares) if (pixels[pixel] > most) [name, most] = [other, pixels[pixel]];
    const before = boxes[boxes.length - 1];
    if (before && before.name === name) before.width += 1;
    else boxes.push({ name, x: pixel, width: 1 });
  }
  return boxes.filter((box) => box.name);
}

// Thin lines between row groups, chunks and pages, where they are far enough apart to be told.
function drawEdges(context, layout, band) {
  context.fillStyle = variable("surface");
  const edges = [];
  for (const group of layout.groups) if ((group.stop - group.start) * band.scale > 6) edges.push([group.stop, 1.5]);
  for (const chunk of layout.chunks) {
    if (chunk.stop <= band.from || chunk.start >= band.to) continue;
    if ((chunk.stop - chunk.start) * band.scale > 6) edges.push([chunk.start, 1]);
    if (!chunk.pageCount || ((chunk.stop - chunk.start) * band.scale) / chunk.pageCount < 6) continue;
    for (const start of chunk.pages.starts) edges.push([start, 0.75]);
  }
  for (const [at, width] of edges) {
    const x = (at - band.from) * band.scale;
    if (x > 0 && x < band.width) context.fillRect(x - width / 2, band.top, width, RIBBON.strip);
  }
}

function drawLane(context, requests, band) {
  const top = band.bottom + 4;
  context.strokeStyle = context.fillStyle = variable("text");
  context.lineWidth = 1.25;
  for (const { start, stop, round } of requests) {
    if (stop <= band.from || start >= band.to) continue;
    const x = Math.max(0.5, (start - band.from) * band.scale);
    const end = Math.min(band.width - 0.5, Math.max(x + 2, (stop - band.from) * band.scale));
    drawBracket(context, x, end, top);
    context.textAlign = "center";
    if (end - x > 60) context.fillText(`round ${round}`, (x + end) / 2, top + 11);
    else if (end - x > 16) context.fillText(`${round}`, (x + end) / 2, top + 11);
  }
  context.textAlign = "left";
}

function drawBracket(context, x, end, top) {
  if (end - x < 5) {
    context.fillRect(x, top, Math.max(2, end - x), 6);
    return;
  }
  context.beginPath();
  context.moveTo(x, top - 1);
  context.lineTo(x, top + 4);
  context.lineTo(end, top + 4);
  context.lineTo(end, top - 1);
  context.stroke();
}

function drawScale(context, band) {
  const y = band.bottom + RIBBON.lane + RIBBON.labels / 2 + 3;
  context.fillStyle = variable("muted");
  context.fillText(band.from === 0 ? "byte 0" : `byte ${count(band.from)}`, 0, y);
  context.textAlign = "right";
  context.fillText(`${bytes(band.to - band.from)}`, band.width, y);
  context.textAlign = "left";
}

// The part of the upper ribbon that the lower one shows.
function drawLens(context, upper, from, to) {
  const left = (from - upper.from) * upper.scale;
  const right = Math.max(left + 2, (to - upper.from) * upper.scale);
  const top = upper.bottom + RIBBON.lane + RIBBON.labels + 6;
  context.fillStyle = variable("lens");
  context.beginPath();
  context.moveTo(left, top - RIBBON.labels - RIBBON.lane);
  context.lineTo(right, top - RIBBON.labels - RIBBON.lane);
  context.lineTo(upper.width, top + RIBBON.lens - 3);
  context.lineTo(0, top + RIBBON.lens - 3);
  context.fill();
  context.strokeStyle = variable("accent");
  context.lineWidth = 2;
  context.strokeRect(left, upper.top - 1, right - left, RIBBON.strip + 2);
  return top + RIBBON.lens;
}

// What lies at byte `at`: {group, column, page} of a data page, or the name of a structure.
function atByte(layout, at) {
  let found = null;
  eachStructure(layout, (name, start, stop, chunk, title) => {
    if (at >= start && at < stop) found = { name, start, stop, chunk, title };
  });
  if (found) return found;
  const chunk = layout.chunks.find(({ start, stop }) => at >= start && at < stop);
  if (!chunk) return null;
  const page = chunk.pages && chunk.pages.length ? lastAtMost(chunk.pages.starts, at) : 0;
  return { name: "page", chunk, page };
}
