// Colours and patterns of each meaning, on canvases and in legends. A pattern has the fill and the ink of its meaning.

const PALETTE = JSON.parse(byId("palette").textContent);
let paints = new Map();

function label(name) {
  return PALETTE[name] ? PALETTE[name][0] : name;
}

function rank(name) {
  return PALETTE[name] ? PALETTE[name][2] : 0;
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name.replaceAll(" ", "-")}`).trim();
}

function forgetPaints() {
  paints = new Map();
}

// What things of this meaning are filled with; `small` things have no room for a pattern.
function paint(context, name, small) {
  const key = `${name} ${small}`;
  if (!paints.has(key)) paints.set(key, makePaint(context, name, small));
  return paints.get(key);
}

function makePaint(context, name, small) {
  const fill = variable(name);
  const pattern = PALETTE[name] ? PALETTE[name][1] : "solid";
  if (pattern === "solid" || pattern === "empty") return fill;
  if (small) return mixed(fill, variable(`${name}-ink`));
  const made = context.createPattern(patternTile(pattern, fill, variable(`${name}-ink`)), "repeat");
  made.setTransform(new DOMMatrix().scale(1 / pixelRatio()));
  return made;
}

function pixelRatio() {
  return Math.min(3, window.devicePixelRatio || 1);
}

function mixed(fill, ink) {
  const [a, b] = [fill, ink].map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  return `rgb(${a.map((part, at) => Math.round(part * 0.6 + b[at] * 0.4)).join(",")})`;
}

const STROKES = {
  rise: [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
  fall: [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
  rows: [[0, 2, 8, 2], [0, 6, 8, 6]],
  columns: [[2, 0, 2, 8], [6, 0, 6, 8]],
  cross: [[0, 0, 8, 8], [8, 0, 0, 8]],
  dots: [],
};

function patternTile(pattern, fill, ink) {
  const ratio = pixelRatio();
  const tile = element("canvas");
  tile.width = tile.height = Math.round(8 * ratio);
  const context = tile.getContext("2d");
  context.scale(tile.width / 8, tile.width / 8);
  context.fillStyle = fill;
  context.fillRect(0, 0, 8, 8);
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = 1.2;
  context.beginPath();
  for (const [x0, y0, x1, y1] of STROKES[pattern]) {
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
  }
  context.stroke();
  if (pattern === "dots") for (const [x, y] of [[2, 2], [6, 6]]) dot(context, x, y);
  return tile;
}

function dot(context, x, y) {
  context.beginPath();
  context.arc(x, y, 1.1, 0, 7);
  context.fill();
}

function fillBox(context, name, x, y, width, height) {
  context.fillStyle = paint(context, name, width < 6 || height < 6);
  context.fillRect(x, y, width, height);
}

// A canvas as wide as its box and `height` high, in device pixels, drawn in CSS pixels.
function sized(canvas, width, height) {
  const ratio = pixelRatio();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  return context;
}

function swatch(name) {
  const canvas = element("canvas", "swatch");
  canvas.setAttribute("aria-hidden", "true");
  canvas.dataset.meaning = name;
  drawSwatch(canvas);
  return canvas;
}

function drawSwatch(canvas) {
  const name = canvas.dataset.meaning;
  const ratio = pixelRatio();
  canvas.width = 18 * ratio;
  canvas.height = 14 * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = paint(context, name, false);
  context.fillRect(0, 0, 18, 14);
  context.strokeStyle = variable(`${name}-ink`);
  context.strokeRect(0.5, 0.5, 17, 13);
}

function fillLegend(list, entries) {
  list.replaceChildren(
    ...entries.map(([name, note, text]) => {
      const item = element("li");
      item.append(swatch(name), element("span", "", text || label(name)));
      if (note) item.append(element("span", "note", note));
      return item;
    }),
  );
}

// Text in a box, cut to its width; nothing where even three letters have no room.
function textIn(context, text, x, y, width) {
  const letter = context.measureText("m").width * 0.62;
  const room = Math.floor(width / letter);
  if (room >= 3) context.fillText(shortened(text, room), x, y, width);
}
