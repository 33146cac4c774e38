// The words and bars of the page: headline, facts, time, causes, funnel, bytes and notes.

function tellHeadline() {
  byId("title").textContent = PICTURE.title;
  byId("url").textContent = PICTURE.url;
  byId("headline").textContent = PICTURE.headline;
  const verdict = byId("verdict");
  verdict.hidden = !PICTURE.verdict;
  verdict.classList.add(PICTURE.tone);
  verdict.append(element("span", "icon", { good: "✓", fair: "!", poor: "▲", plain: "i" }[PICTURE.tone]), element("span", "", PICTURE.verdict));
  for (const [name, value, note] of PICTURE.facts) {
    const fact = element("div", value.length > 11 ? "fact long" : "fact");
    fact.append(element("dt", "", name), element("dd", "value", value), element("dd", "note", note));
    byId("facts").append(fact);
  }
}

function tellTime() {
  const total = PICTURE.time.reduce((sum, [, part]) => sum + part, 0);
  if (!total) return;
  const box = byId("time");
  box.hidden = false;
  const bar = element("div", "stack");
  for (const [name, part] of PICTURE.time) if (part > 0) bar.append(stackPart(name, part / total));
  const list = element("ul", "legend");
  fillLegend(list, PICTURE.time.filter(([, part]) => part > 0).map(([name, part]) => [name, `${seconds(part * 1e6)}, ${percent(part / total)}`]));
  box.append(bar, list);
}

// A canvas has the same pattern as the legend.
function stackPart(name, share) {
  const part = element("canvas", "part");
  part.dataset.meaning = name;
  part.style.flexGrow = share;
  part.setAttribute("aria-hidden", "true");
  return part;
}

function drawParts() {
  for (const part of document.querySelectorAll("canvas.part")) {
    const ratio = pixelRatio();
    const width = part.clientWidth;
    const height = part.clientHeight;
    part.width = Math.max(1, Math.round(width * ratio));
    part.height = Math.max(1, Math.round(height * ratio));
    const context = part.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = paint(context, part.dataset.meaning, false);
    context.fillRect(0, 0, width, height);
  }
}

// -- causes -----------------------------------------------------------------------------------------

function tellCauses() {
  if (!PICTURE.causes.length) return;
  byId("causes").hidden = false;
  byId("causes").querySelector("ol").append(...PICTURE.causes.map(causeItem));
}

function causeItem(cause) {
  const item = element("li", `cause ${cause.severity}`);
  const mark = element("span", "severity", { high: "▲", medium: "■", low: "●" }[cause.severity]);
  mark.title = `${cause.severity} cost`;
  const title = element("h3");
  title.append(mark, element("span", "", cause.title));
  item.append(title, element("p", "", cause.detail));
  const saved = savings(cause);
  if (saved) item.append(element("p", "saves", `Would save ${saved}`));
  const snippets = element("div", "snippets");
  snippets.append(...Object.entries(cause.snippets).map(snippet));
  item.append(element("p", "cure", cause.cure), snippets);
  return item;
}

function savings(cause) {
  const parts = [];
  if (cause.saves_seconds) parts.push(seconds(cause.saves_seconds * 1e6));
  if (cause.saves_requests) parts.push(counted(cause.saves_requests, "request"));
  if (cause.saves_bytes) parts.push(bytes(cause.saves_bytes));
  return parts.join(" · ");
}

function snippet([writer, code]) {
  const box = element("details", "snippet");
  const pre = element("pre");
  pre.append(element("code", "", code));
  box.append(element("summary", "", writer), pre);
  return box;
}

// -- funnel -----------------------------------------------------------------------------------------

function tellFunnel() {
  const steps = PICTURE.funnel.filter((step) => step.total > 0);
  if (!steps.length) return;
  byId("funnel").hidden = false;
  byId("funnel").querySelector(".steps").append(...steps.map(funnelStep));
}

function funnelStep(step) {
  const box = element("div", "step");
  const head = element("p", "step-head");
  head.append(element("b", "", capital(step.level)), element("span", "", `${count(step.kept)} of ${count(step.total)}`));
  const bar = element("div", "stack thin");
  const kept = element("div", "kept");
  kept.style.flexGrow = step.kept / step.total;
  if (step.kept > 0) bar.append(kept);
  for (const part of step.ruled_out) if (part.count > 0) bar.append(stackPart(fateOf(part.by), part.count / step.total));
  box.append(head, bar, ...step.ruled_out.filter((part) => part.count > 0).map(ruledOut));
  return box;
}

function fateOf(by) {
  return by === "filter" ? "late" : by;
}

function ruledOut({ by, count: number, detail }) {
  const line = element("p", "ruled-out");
  const text = by === "filter" ? "do not match the filter" : label(by);
  line.append(swatch(fateOf(by)), element("span", "", `${count(number)} ${text}`));
  if (detail) line.append(element("span", "note", detail));
  return line;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

// -- bytes and tiers --------------------------------------------------------------------------------

function tellCost() {
  const most = Math.max(0, ...PICTURE.bytes.map(([, size]) => size));
  const parts = PICTURE.tiers.reduce((sum, [, number]) => sum + number, 0);
  if (!most && !parts) return;
  byId("cost").hidden = false;
  const bars = byId("cost").querySelector(".bars");
  if (most) bars.append(...PICTURE.bytes.map(([name, size, note]) => costBar(name, size, most, note)), element("p", "caption", "Bars are on a logarithmic scale."));
  else byId("cost-title").textContent = `Where ${counted(parts, "part")} came from`;
  if (parts) bars.append(tierBar(most ? `Where ${counted(parts, "part")} came from` : "", parts));
}

function costBar(name, size, most, note) {
  const box = element("div", name === "This read" ? "bar this" : "bar");
  const head = element("p", "step-head");
  head.append(element("span", "", name), element("b", "", bytes(size)));
  const track = element("div", "track");
  const fill = element("div", "fill");
  fill.style.width = `${size > 0 ? Math.max(2, (100 * Math.log10(1 + size)) / Math.log10(1 + most)) : 0}%`;
  track.append(fill);
  box.append(head, track, element("p", "note", note || comparedTo(name, size)));
  return box;
}

function comparedTo(name, size) {
  const read = PICTURE.bytes.find(([other]) => other === "This read");
  if (!read || name === "This read" || !read[1] || !size) return "";
  const ratio = size / read[1];
  if (ratio > 1.05) return `${digits(ratio)} times this read`;
  return ratio < 0.95 ? `this read fetched ${digits(1 / ratio)} times as much` : "as this read";
}

function tierBar(title, total) {
  const box = element("div", "bar tiers");
  box.append(element("p", "step-head", title));
  const bar = element("div", "stack");
  for (const [name, number] of PICTURE.tiers) if (number) bar.append(stackPart(name, number / total));
  const list = element("ul", "legend");
  fillLegend(list, PICTURE.tiers.filter(([, number]) => number).map(([name, number]) => [name, counted(number, "part")]));
  box.append(bar, list);
  return box;
}

function tellNotes() {
  if (!PICTURE.notes.length && !PICTURE.text) return;
  byId("notes").hidden = false;
  byId("notes").querySelector("ul").append(...PICTURE.notes.map((note) => element("li", "", note)));
  byId("text").hidden = !PICTURE.text;
  byId("text").querySelector("pre").textContent = PICTURE.text || "";
  byId("notes-title").hidden = !PICTURE.notes.length;
}
