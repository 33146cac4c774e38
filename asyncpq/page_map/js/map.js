// The map: four levels, from the lake to the pages of one chunk, with one cursor that keys and pointer move.

const LEVELS = ["lake", "file", "group", "chunk"];
const map = { level: "file", file: 0, group: 0, column: 0, page: 0, tile: 0, areas: {} };
let layouts = [];
let lake = [];

function startMap() {
  layouts = PICTURE.layouts.map((packed) => {
    const layout = openLayout(packed);
    layout.requests = requestsOf(layout);
    return layout;
  });
  lake = openLake();
  if (!layouts.length && !lake.length) return false;
  map.level = lake.length > 1 || !layouts.length ? "lake" : "file";
  map.tile = Math.max(0, lake.findIndex((file) => file.layout >= 0));
  if (layouts.length) enterFile(0, map.level);
  byId("map").hidden = false;
  listen();
  return true;
}

function openLake() {
  const files = PICTURE.files.map(([url, size, rows, fate, layout]) => ({ url, size, rows, fate: fate || "file", layout }));
  for (const [fate, number] of PICTURE.more_files) {
    for (let index = 0; index < number; index += 1) files.push({ url: null, fate, layout: -1 });
  }
  return files;
}

function enterFile(file, level) {
  map.file = file;
  map.level = level;
  const chunk = firstRead(layouts[file]);
  if (!chunk) return;
  map.group = chunk.group;
  map.column = chunk.column;
  map.page = firstReadPage(chunk);
}

function firstRead(layout) {
  return layout.chunks.find((chunk) => rank(chunkFate(chunk) || "plain") >= 8) || layout.chunks[0];
}

function firstReadPage(chunk) {
  const run = chunk.runs.find(({ fate }) => rank(fate) >= 8);
  return run ? run.from : 0;
}

function layoutNow() {
  return layouts[map.file];
}

function chunkNow() {
  const layout = layoutNow();
  return layout.groups[map.group] && layout.groups[map.group].chunks[map.column];
}

// -- drawing ----------------------------------------------------------------------------------------

function drawMap() {
  const stage = byId("stage");
  const width = stage.clientWidth;
  const still = stage.querySelector(".still");
  map.areas = measure(width);
  const context = sized(still, width, map.areas.height);
  sized(stage.querySelector(".cursor"), width, map.areas.height);
  if (map.level === "lake") drawLake(context);
  else drawFile(context, layoutNow(), width);
  drawCursor();
}

// Files that open have an outline.
function drawLake(context) {
  const fates = (index) => lake[index].fate;
  drawTiles(context, lake.length, 0, map.areas.tiles, fates, bySize() ? sizeShare : null);
  context.strokeStyle = variable("text");
  context.lineWidth = 1.5;
  lake.forEach((file, index) => {
    if (file.layout < 0) return;
    const [x, y, side] = square(tileBox(index, 0, map.areas.tiles));
    context.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
  });
}

// Where no read has given files a fate, the size of a tile is that of its file.
function bySize() {
  return lake.every((file) => file.fate === "file" && file.size >= 0);
}

function sizeShare(index) {
  map.largest = map.largest || lake.reduce((most, file) => Math.max(most, file.size), 1);
  return Math.sqrt(lake[index].size / map.largest);
}

function measure(width) {
  if (map.level === "lake") {
    const tiles = tileLayout(lake.length, width, 420);
    return { tiles, height: tiles.height };
  }
  const layout = layoutNow();
  const top = ribbonHeight(map.level !== "file") + 14;
  if (map.level === "chunk") {
    const tiles = tileLayout(pageCount(chunkNow()), width, 420);
    return { top, tiles, height: top + tiles.height + 4 };
  }
  const groups = map.level === "group" ? [layout.groups[map.group]] : layout.groups;
  const tall = map.level === "group" ? 380 : clamp(groups.length * 30, 150, 460);
  const grid = gridLayout(layout, groups, width, top, tall);
  return { top, grid, height: grid.top + tall + 4 };
}

function drawFile(context, layout, width) {
  const upper = drawRibbon(context, layout, layout.requests, 0, layout.size, 2, width);
  map.areas.bands = [upper];
  const zoomed = zoomedBytes();
  if (zoomed) {
    const top = drawLens(context, upper, ...zoomed);
    map.areas.bands.push(drawRibbon(context, layout, layout.requests, ...zoomed, top, width));
  }
  if (map.areas.grid) drawGrid(context, layout, map.areas.grid);
  else drawPages(context);
}

function zoomedBytes() {
  if (map.level === "group") {
    const group = layoutNow().groups[map.group];
    return [group.start, group.stop];
  }
  return map.level === "chunk" ? [chunkNow().start, chunkNow().stop] : null;
}

function drawPages(context) {
  const chunk = chunkNow();
  const run = { at: 0 };
  drawTiles(context, pageCount(chunk), map.areas.top, map.areas.tiles, (page) => {
    while (page >= chunk.runs[run.at].to) run.at += 1;
    return chunk.runs[run.at].fate;
  });
}

function drawCursor() {
  const stage = byId("stage");
  const canvas = stage.querySelector(".cursor");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (const box of cursorBoxes()) outline(context, box);
}

function outline(context, [left, y, wide, height]) {
  const x = Math.max(2, left);
  const width = wide - (x - left);
  context.strokeStyle = variable("surface");
  context.lineWidth = 4;
  context.strokeRect(x - 1, y - 1, width + 2, height + 2);
  context.strokeStyle = variable("text");
  context.lineWidth = 2;
  context.strokeRect(x - 1, y - 1, width + 2, height + 2);
}

function cursorBoxes() {
  const { tiles, grid, bands, top } = map.areas;
  if (map.level === "lake") return [square(tileBox(map.tile, 0, tiles))];
  const boxes = [];
  if (grid) boxes.push(cellBox(grid, layoutNow(), map, map.level === "group"));
  else boxes.push(square(tileBox(map.page, top, tiles)));
  const band = bands[bands.length - 1];
  if (chunkNow()) boxes.push(byteBox(band, map.level === "file" ? null : map.page));
  return boxes.filter(Boolean);
}

function square([x, y, side]) {
  return [x, y, Math.max(2, side), Math.max(2, side)];
}

function byteBox(band, page) {
  const chunk = chunkNow();
  const [start, stop] = page === null ? [chunk.start, chunk.stop] : runBytes(chunk, { from: page, to: page + 1 });
  const width = (stop - start) * band.scale;
  const room = Math.max(7, width); // around a thing of a pixel, which must not hide below its own frame
  return [(start - band.from) * band.scale - (room - width) / 2, band.top, room, RIBBON.strip];
}

// -- words around it --------------------------------------------------------------------------------

const CAPTIONS = {
  lake: "Each tile is a file, by what became of it. Those with an outline open.",
  sizes: "Each tile is a file; its area is its size, beside the largest. Those with an outline open.",
  file: "Above: every byte of the object, to scale, and the ranges that were requested. Below: row groups by columns; what is read is drawn larger.",
  whole: "Above: every byte of the object, to scale. Below: row groups by columns; the wider a column, the more of the bytes it takes.",
  group: "One row group: its bytes, and its columns with their pages, from the first row to the last.",
  chunk: "One column chunk: its bytes, and each of its pages as a tile.",
};

function captionName() {
  if (map.level === "lake") return bySize() ? "sizes" : "lake";
  return map.level === "file" && !layoutNow().drawn ? "whole" : map.level;
}

const HEADINGS = { lake: "The lake", file: "The object, to scale", group: "One row group", chunk: "One column chunk" };

function describeMap() {
  byId("map-title").textContent = HEADINGS[map.level];
  byId("map-caption").textContent = CAPTIONS[captionName()];
  fillLegend(byId("legend"), map.level === "lake" ? lakeLegend() : fileLegend());
  drawCrumbs();
  describeCursor();
}

function lakeLegend() {
  const counts = new Map();
  for (const { fate } of lake) counts.set(fate, (counts.get(fate) || 0) + 1);
  return [...counts].sort((a, b) => rank(b[0]) - rank(a[0])).map(([fate, number]) => [fate, counted(number, "file")]);
}

function fileLegend() {
  const layout = layoutNow();
  layout.tally = layout.tally || tally(layout);
  return Object.keys(PALETTE).filter((name) => layout.tally.has(name)).map((name) => [name, tallied(layout.tally.get(name))]);
}

function tallied({ pages, size }) {
  return pages ? `${counted(pages, "page")}, ${bytes(size)}` : bytes(size);
}

function crumbs() {
  const found = [];
  if (lake.length > 1) found.push(["lake", counted(lake.length, "file")]);
  if (map.level === "lake") return found;
  found.push(["file", layoutNow().url.split("/").pop()]);
  if (map.level === "file") return found;
  found.push(["group", `row group ${map.group}`]);
  if (map.level === "chunk") found.push(["chunk", layoutNow().columns[map.column].name]);
  return found;
}

function drawCrumbs() {
  const items = crumbs().map(([level, text], index, all) => {
    const item = element("li");
    const last = index === all.length - 1;
    const crumb = element(last ? "span" : "button", "", shortened(text, 40));
    if (last) crumb.setAttribute("aria-current", "true");
    else crumb.addEventListener("click", () => zoomTo(level));
    item.append(crumb);
    return item;
  });
  byId("crumbs").replaceChildren(...items);
}

function describeCursor() {
  showDetails(byId("details"), describedAt(map), nextZoom());
}

function describedAt(place) {
  if (map.level === "lake") {
    const file = lake[place.tile];
    return file.url === null ? describeUnnamed(file.fate) : describeFile(file);
  }
  const layout = layoutNow();
  const group = layout.groups[place.group];
  if (!group) return { title: layout.url.split("/").pop(), fate: null, rows: [["Size", bytes(layout.size)], ...layout.facts] };
  const chunk = group.chunks[place.column];
  if (!chunk) return describeGroup(layout, group);
  if (map.level === "file" && place.column === undefined) return describeGroup(layout, group);
  return map.level === "file" ? describeChunk(layout, chunk) : describePage(layout, chunk, place.page);
}

function nextZoom() {
  if (map.level === "lake") {
    const file = lake[map.tile];
    return file.layout < 0 ? null : { label: "Open the file", go: zoomIn };
  }
  if (map.level === "file" && layoutNow().groups.length) return { label: `Zoom into row group ${map.group}`, go: zoomIn };
  return map.level === "group" && chunkNow() && chunkNow().pages ? { label: "Zoom into this chunk", go: zoomIn } : null;
}

// -- moves ------------------------------------------------------------------------------------------

function zoomIn() {
  if (!nextZoom()) return;
  if (map.level === "lake") enterFile(lake[map.tile].layout, "file");
  else {
    if (map.level === "file" && chunkNow()) map.page = firstReadPage(chunkNow());
    map.level = LEVELS[LEVELS.indexOf(map.level) + 1];
  }
  showLevel();
}

function zoomOut() {
  const least = lake.length > 1 ? "lake" : "file";
  if (map.level !== least && map.level !== "lake") zoomTo(LEVELS[LEVELS.indexOf(map.level) - 1]);
}

function zoomTo(level) {
  map.level = level;
  showLevel();
}

function showLevel() {
  drawMap();
  describeMap();
  byId("stage").focus({ preventScroll: true });
}

function moveBy(key) {
  if (map.level === "lake") map.tile = movedTile(map.tile, key, lake.length, map.areas.tiles);
  else if (map.level === "chunk") map.page = movedTile(map.page, key, pageCount(chunkNow()), map.areas.tiles);
  else moveInGrid(key);
  drawCursor();
  describeCursor();
}

function moveInGrid(key) {
  const layout = layoutNow();
  const ends = { Home: -layout.columns.length, End: layout.columns.length };
  const across = { ArrowLeft: -1, ArrowRight: 1, ...ends }[key] || 0;
  const down = { ArrowUp: -1, ArrowDown: 1 }[key] || 0;
  map.column = clamp(map.column + across, 0, Math.max(0, layout.columns.length - 1));
  const chunk = chunkNow();
  const inGroup = map.level === "group" && chunk;
  if (inGroup) map.page = clamp(map.page + down, 0, pageCount(chunk) - 1);
  else map.group = clamp(map.group + down, 0, Math.max(0, layout.groups.length - 1));
}

function onMapKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter") zoomIn();
  else if (event.key === "Escape") zoomOut();
  else if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") moveBy(event.key);
  else return;
  event.preventDefault();
}

// -- pointer ----------------------------------------------------------------------------------------

function pointed(event) {
  const box = byId("stage").getBoundingClientRect();
  return placeAt(event.clientX - box.left, event.clientY - box.top);
}

// What lies under a point: {tile}, {group, column, page}, or {structure}.
function placeAt(x, y) {
  const { tiles, grid, bands, top } = map.areas;
  if (map.level === "lake") return found("tile", tileAt(x, y, lake.length, 0, tiles));
  const band = (bands || []).find((one) => y >= one.top && y < one.bottom);
  if (band) return inBytes(atByte(layoutNow(), Math.floor(band.from + x / band.scale)));
  if (grid) return cellAt(x, y, grid, layoutNow());
  const page = tileAt(x, y, pageCount(chunkNow()), top, tiles);
  return page < 0 ? null : { group: map.group, column: map.column, page };
}

function found(name, index) {
  return index < 0 ? null : { [name]: index };
}

function inBytes(thing) {
  if (!thing) return null;
  if (thing.name !== "page") return { structure: thing };
  return { group: thing.chunk.group, column: thing.chunk.column, page: thing.page, exact: true };
}

function describedPlace(place) {
  if (!place) return null;
  if (place.structure) return describeStructure(layoutNow(), place.structure);
  if (place.exact) return describePage(layoutNow(), layoutNow().groups[place.group].chunks[place.column], place.page);
  return describedAt(place);
}

function onMapClick(event) {
  const place = pointed(event);
  if (!place) return;
  if (place.structure) {
    showDetails(byId("details"), describedPlace(place), null);
    return;
  }
  const same = Object.entries(place).every(([name, value]) => name === "exact" || name === "page" || map[name] === value);
  if (map.level === "group" && place.group !== map.group) return;
  if (map.level === "chunk" && (place.group !== map.group || place.column !== map.column)) return;
  if (same && event.detail >= 2) return zoomIn();
  Object.assign(map, { ...place, exact: undefined });
  drawCursor();
  describeCursor();
}

function listen() {
  const stage = byId("stage");
  stage.addEventListener("keydown", onMapKey);
  stage.addEventListener("click", onMapClick);
  stage.addEventListener("pointermove", (event) => event.pointerType !== "touch" && showTip(event, describedPlace(pointed(event))));
  stage.addEventListener("pointerleave", (event) => showTip(event, null));
}
