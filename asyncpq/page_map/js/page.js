// The page begins here: words first, then the drawings, which follow the width and the theme.

const THEMES = ["automatic", "light", "dark"];
let theme = "automatic";

function redraw() {
  forgetPaints();
  for (const canvas of document.querySelectorAll("canvas.swatch")) drawSwatch(canvas);
  drawParts();
  if (!byId("map").hidden) drawMap();
  drawWaterfall();
}

function setTheme(chosen) {
  theme = chosen;
  if (theme === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  redraw();
}

function followWidth() {
  let waiting = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // phones change the height as they scroll
    width = window.innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
}

function start() {
  tellHeadline();
  tellTime();
  tellCauses();
  tellFunnel();
  tellCost();
  tellNotes();
  if (startMap()) describeMap();
  startWaterfall();
  redraw();
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  followWidth();
  document.documentElement.dataset.ready = "yes";
}

start();
