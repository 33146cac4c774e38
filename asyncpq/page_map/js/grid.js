// Row groups by columns, as in a table: each cell is a chunk, its pages lie in it by their rows. What is read is drawn
// larger than it is: the ribbon is to scale, the grid is for telling rows and columns apart.

function gridLayout(layout, groups, width, top, tall) {
  const gutter = width < 480 ? 34 : 68;
  const wish = width < 480 ? 34 : 92;
  const columns = spread(layout.columns.length, readColumns(layout), width - gutter, wish, 0.7, columnWeights(layout));
  const rows = spread(groups.length, readGroups(groups), tall, 110, 0.75, groups.map((group) => group.rows));
  const names = columnLabels(layout, columns);
  return { gutter, columns, rows, names, top: top + names.height, left: gutter, groups, tall };
}

// In the map of a file that was not read, columns are as wide as their bytes, but for a third, which all share.
function columnWeights(layout) {
  const number = layout.columns.length;
  if (layout.drawn) return null;
  const sizes = new Array(number).fill(0);
  for (const chunk of layout.chunks) sizes[chunk.column] += chunk.stop - chunk.start;
  const total = sizes.reduce((sum, size) => sum + size, 0) || 1;
  return sizes.map((size) => (2 * size) / total + 1 / number);
}

function readColumns(layout) {
  const wanted = new Set();
  if (layout.drawn) for (const chunk of layout.chunks) if (chunk.wanted && chunk.runs[0].fate !== "unread") wanted.add(chunk.column);
  return wanted.size === layout.columns.length ? new Set() : wanted;
}

function readGroups(groups) {
  const read = new Set();
  groups.forEach((group, index) => rank(group.fate) >= 8 && read.add(index));
  return read.size === groups.length ? new Set() : read;
}

// Edges of `number` things in `room` pixels. Those in `large` share up to `most` of the room, `wish` pixels each.
function spread(number, large, room, wish, most, weights) {
  const total = weights ? weights.reduce((sum, weight) => sum + weight, 0) || 1 : number;
  const share = (index) => (weights ? weights[index] : 1) / total;
  const extra = Math.min(most * room, wish * large.size);
  const plain = large.size ? room - extra : room;
  const edges = new Float64Array(number + 1);
  for (let index = 0; index < number; index += 1) {
    edges[index + 1] = edges[index] + share(index) * plain + (large.has(index) ? extra / large.size : 0);
  }
  return edges;
}

function columnLabels(layout, edges) {
  const widest = Math.max(...layout.columns.slice(0, 2000).map((column) => column.name.length), 1) * 7;
  const shown = [];
  for (let column = 0; column < layout.columns.length; column += 1) {
    if (edges[column + 1] - edges[column] >= 15) shown.push(column);
  }
  const room = (column) => edges[column + 1] - edges[column];
  const upright = shown.every((column) => room(column) >= Math.min(layout.columns[column].name.length * 7 + 6, 52));
  return { shown, upright, height: shown.length ? (upright ? 20 : clamp(widest, 30, 96)) : 4 };
}

function drawGrid(context, layout, grid) {
  drawColumnNames(context, layout, grid);
  drawThin(context, grid);
  grid.groups.forEach((group, index) => {
    const y = grid.top + grid.rows[index];
    const height = grid.rows[index + 1] - grid.rows[index];
    if (height < 1) return;
    drawGroupName(context, group, y, height, grid.gutter);
    drawCells(context, group, grid, y, height > 6 ? height - 1.5 : height);
  });
}

// Row groups thinner than a pixel: each pixel shows what most of its chunks are, and pixels alike are one box.
function drawThin(context, grid) {
  const pixels = thinPixels(grid);
  for (let column = 0; pixels.length && column + 1 < grid.columns.length; column += 1) {
    const room = grid.columns[column + 1] - grid.columns[column];
    const width = room > 4 ? room - 1.5 : Math.max(room, 0.5);
    let box = null;
    for (const { top, bottom, groups } of pixels) {
      const fate = mostOf(groups, column);
      if (box && box.fate === fate && box.bottom === top) box.bottom = bottom;
      else {
        fillThin(context, grid, column, width, box);
        box = { fate, top, bottom };
      }
    }
    fillThin(context, grid, column, width, box);
  }
}

function fillThin(context, grid, column, width, box) {
  if (!box || !box.fate) return;
  fillBox(context, box.fate, grid.left + grid.columns[column], grid.top + box.top, width, box.bottom - box.top);
}

function thinPixels(grid) {
  const pixels = [];
  grid.groups.forEach((group, index) => {
    if (grid.rows[index + 1] - grid.rows[index] >= 1) return;
    const top = Math.floor(grid.rows[index]);
    const before = pixels[pixels.length - 1];
    if (before && before.top === top) before.groups.push(group);
    else pixels.push({ top, bottom: top + 1, groups: [group] });
  });
  return pixels;
}

function mostOf(groups, column) {
  const counts = new Map();
  let most = null;
  for (const group of groups) {
    const chunk = group.chunks[column];
    if (!chunk) continue;
    const fate = bestFate(chunk);
    if (rank(fate) >= 8) return fate; // what is read is never hidden
    counts.set(fate, (counts.get(fate) || 0) + 1);
    if (most === null || counts.get(fate) > counts.get(most)) most = fate;
  }
  return most;
}

function drawColumnNames(context, layout, { names, columns, left, top }) {
  context.fillStyle = variable("text");
  for (const column of names.shown) {
    const x = left + columns[column];
    const width = columns[column + 1] - columns[column];
    const { name } = layout.columns[column];
    if (names.upright) {
      textIn(context, name, x + 2, top - 10, width - 4);
      continue;
    }
    context.save();
    context.translate(x + width / 2, top - 6);
    context.rotate(-Math.PI / 2);
    textIn(context, name, 0, 0, names.height - 8);
    context.restore();
  }
}

function drawGroupName(context, group, y, height, gutter) {
  if (height < 11) return;
  context.fillStyle = variable("muted");
  context.textAlign = "right";
  context.fillText(gutter < 50 || group.ordinal > 999 ? count(group.ordinal) : `group ${group.ordinal}`, gutter - 6, y + Math.min(height / 2, 40));
  context.textAlign = "left";
}

// Plain cells first: at a fraction of a pixel for each column, what is read must lie on top.
function drawCells(context, group, grid, y, height) {
  const late = [];
  for (const chunk of group.chunks) {
    if (!chunk) continue;
    if (chunk.runs.length === 1 && rank(chunk.runs[0].fate) < 8) drawCell(context, chunk, group, grid, y, height);
    else late.push(chunk);
  }
  for (const chunk of late) drawCell(context, chunk, group, grid, y, height);
}

function drawCell(context, chunk, group, grid, y, height) {
  const x = grid.left + grid.columns[chunk.column];
  const room = grid.columns[chunk.column + 1] - grid.columns[chunk.column];
  const width = room > 4 ? room - 1.5 : Math.max(room, chunk.runs.length > 1 ? 2 : 0.5);
  const scale = height / Math.max(1, group.rows);
  const runs = chunk.runs.length > 1 ? [...chunk.runs].sort((a, b) => rank(a.fate) - rank(b.fate)) : chunk.runs;
  for (const run of runs) {
    const [first, last] = runRows(chunk, run, group.rows);
    const tall = Math.max((last - first) * scale, rank(run.fate) >= 8 ? Math.min(3, height) : 0.5);
    fillBox(context, run.fate, x, y + Math.min(first * scale, height - tall), width, tall);
  }
  drawPageEdges(context, chunk, x, y, width, scale, height);
}

function drawPageEdges(context, chunk, x, y, width, scale, height) {
  if (chunk.pageCount < 2 || width < 12 || height / chunk.pageCount < 4) return;
  context.fillStyle = variable("surface");
  for (let page = 1; page < chunk.pages.length; page += 1) {
    context.fillRect(x, y + chunk.pages.firstRows[page] * scale - 0.4, width, 0.8);
  }
}

function cellAt(x, y, grid, layout) {
  if (x < grid.left || y < grid.top || y >= grid.top + grid.tall) return null;
  const column = clamp(lastAtMost(grid.columns, x - grid.left), 0, layout.columns.length - 1);
  const index = clamp(lastAtMost(grid.rows, y - grid.top), 0, grid.groups.length - 1);
  const group = grid.groups[index];
  const height = grid.rows[index + 1] - grid.rows[index];
  const row = ((y - grid.top - grid.rows[index]) / Math.max(1, height)) * group.rows;
  const chunk = group.chunks[column];
  const page = chunk && chunk.pages && chunk.pages.length ? lastAtMost(chunk.pages.firstRows, row) : 0;
  return { group: group.ordinal, column, page };
}

// The box of a chunk, or of one page of it.
function cellBox(grid, layout, place, withPage) {
  const index = grid.groups.findIndex((group) => group.ordinal === place.group);
  const group = grid.groups[index];
  if (!group) return null;
  const x = grid.left + grid.columns[place.column];
  const width = Math.max(3, grid.columns[place.column + 1] - grid.columns[place.column]);
  const y = grid.top + grid.rows[index];
  const height = grid.rows[index + 1] - grid.rows[index];
  const chunk = group.chunks[place.column];
  if (!withPage || !chunk || !chunk.pages) return [x, y, width, Math.max(3, height)];
  const [first, last] = runRows(chunk, { from: place.page, to: place.page + 1 }, group.rows);
  const scale = height / Math.max(1, group.rows);
  return [x, y + first * scale, width, Math.max(3, (last - first) * scale)];
}
