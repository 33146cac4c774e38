// Many equal things as tiles in rows: the files of a lake, the pages of a chunk.

// The largest tiles, between 3 and 34 pixels, of which `number` fit.
function tileLayout(number, width, most) {
  let side = clamp(Math.floor(Math.sqrt((width * most) / Math.max(1, number))), 2, 34);
  const gap = side >= 8 ? 2 : side >= 4 ? 1 : 0;
  while (side > 2 && Math.ceil(number / Math.max(1, Math.floor(width / side))) * side > most) side -= 1;
  const across = Math.max(1, Math.floor(width / side));
  return { side, gap, across, height: Math.max(1, Math.ceil(number / across)) * side };
}

function drawTiles(context, number, top, box, fateAt, shareAt) {
  for (let index = 0; index < number; index += 1) {
    const [x, y, side] = tileBox(index, top, box);
    const drawn = shareAt ? Math.max(1.5, side * shareAt(index)) : side;
    context.fillStyle = paint(context, fateAt(index), side < 12);
    context.fillRect(x, y + side - drawn, drawn, drawn);
  }
}

function tileBox(index, top, { side, gap, across }) {
  return [(index % across) * side, top + Math.floor(index / across) * side, side - gap];
}

function tileAt(x, y, number, top, { side, across }) {
  const column = Math.floor(x / side);
  const index = Math.floor((y - top) / side) * across + column;
  return y >= top && column < across && index >= 0 && index < number ? index : -1;
}

function movedTile(index, key, number, { across }) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -number, End: number };
  return clamp(index + steps[key], 0, number - 1);
}
