// Requests, one row each: over time where they were sent, by their bytes where they are only planned.

const fall = { rows: [], at: -1, box: null };

function startWaterfall() {
  if (!PICTURE.requests) return;
  byId("requests").hidden = false;
  fall.rows = PICTURE.requests.rows.map(openRequest);
  for (const layout of layouts) nameColumns(layout);
  const timed = PICTURE.requests.timed;
  byId("requests-caption").textContent = timed
    ? "Each line is a request, in the order of sending: waiting for the first byte, then receiving. Shades are rounds: each waits for the one before."
    : "Each line is a range that would be requested, as long as its bytes.";
  fillLegend(byId("requests-legend"), fallLegend());
  listenToFall();
}

// Requests that were sent do not know whom they served; the layout does.
function nameColumns(layout) {
  const sent = new Map(layout.requests.map((request) => [request.index, request]));
  fall.rows.forEach((request, index) => {
    const range = sent.get(index);
    if (!range || request.columns || request.purpose !== "data") return;
    const names = new Set();
    for (const chunk of layout.chunks) {
      if (names.size < 4 && chunk.start < range.stop && chunk.stop > range.start && chunk.wanted) names.add(layout.columns[chunk.column].name);
    }
    request.columns = [...names].slice(0, 3).join(", ") + (names.size > 3 ? " and more" : "");
  });
}

function fallLegend() {
  const found = new Map();
  for (const request of fall.rows) {
    const name = requestMeaning(request);
    found.set(name, (found.get(name) || 0) + 1);
  }
  const names = { read: "data", metadata: "footer, indexes, listings", bloom: "Bloom filters" };
  return [...found].map(([name, number]) => [name, counted(number, "request"), names[name]]);
}

function requestMeaning({ purpose }) {
  if (purpose === "data") return "read";
  return purpose === "bloom" ? "bloom" : "metadata";
}

function drawWaterfall() {
  if (!fall.rows.length) return;
  const stage = byId("waterfall");
  const width = stage.clientWidth;
  const step = clamp(440 / fall.rows.length, 0.05, 22);
  const height = Math.max(26, Math.ceil(step * fall.rows.length)) + 44;
  const context = sized(stage.querySelector(".still"), width, height);
  sized(stage.querySelector(".cursor"), width, height);
  const most = Math.max(1, ...extremes());
  const left = width < 480 ? 64 : clamp(width * 0.22, 150, 230);
  fall.box = { left, top: 22, step, width, scale: (width - left - 8) / most, height, most };
  drawRounds(context);
  drawTimeAxis(context);
  fall.rows.forEach((request, index) => drawRequest(context, request, index));
  drawFallCursor();
}

function extremes() {
  let most = 1;
  for (const request of fall.rows) most = Math.max(most, extent(request)[1]);
  return [most];
}

// Where a request begins and ends: in time, or from nothing to its bytes.
function extent(request) {
  return PICTURE.requests.timed ? [request.began, request.began + request.took] : [0, Math.abs(request.stop - request.start)];
}

function drawRounds(context) {
  const { left, top, step, width, scale } = fall.box;
  const rounds = new Map();
  fall.rows.forEach((request, index) => {
    const [start, stop] = extent(request);
    const seen = rounds.get(request.round) || { first: index, last: index, start, stop };
    seen.last = index;
    seen.start = Math.min(seen.start, start);
    seen.stop = Math.max(seen.stop, stop);
    rounds.set(request.round, seen);
  });
  for (const [round, seen] of rounds) {
    context.fillStyle = variable(round % 2 ? "band" : "band-even");
    const x = left + seen.start * scale;
    const room = PICTURE.requests.timed ? (seen.stop - seen.start) * scale : width - left;
    context.fillRect(x, top - 18, Math.max(2, room), step * fall.rows.length + 18);
    context.fillStyle = variable("muted");
    if (room > 52) context.fillText(`round ${round}`, x + 4, top - 9);
    else if (room > 14) context.fillText(`${round}`, x + 3, top - 9);
  }
}

function drawRequest(context, request, index) {
  const { left, top, step, scale } = fall.box;
  const [start, stop] = extent(request);
  const y = top + index * step;
  const tall = Math.max(1, step > 6 ? step - 5 : step * 0.8);
  const x = left + start * scale;
  const wait = request.first > 0 ? Math.min(request.first, stop - start) : 0;
  const meaning = requestMeaning(request);
  const middle = y + step / 2 - tall / 2;
  if (wait) drawWait(context, meaning, x, middle, wait * scale, tall);
  fillBox(context, meaning, x + wait * scale, middle, Math.max(1.5, (stop - start - wait) * scale), tall);
  if (step >= 12) drawRequestLabel(context, request, y + step / 2, x + (stop - start) * scale + 6);
}

function drawWait(context, meaning, x, y, width, tall) {
  context.globalAlpha = 0.28;
  context.fillStyle = variable(meaning);
  context.fillRect(x, y, width, tall);
  context.globalAlpha = 1;
  context.fillStyle = variable(`${meaning}-ink`);
  context.fillRect(x, y + tall / 2 - 0.5, width, 1);
}

function drawRequestLabel(context, request, y, end) {
  context.fillStyle = variable("text");
  const size = bytes(request.received || Math.abs(request.stop - request.start));
  const narrow = fall.box.left < 100;
  textIn(context, request.columns || request.purpose, 6, y, fall.box.left - (narrow ? 10 : 80));
  if (!narrow) {
    context.textAlign = "right";
    context.fillStyle = variable("muted");
    context.fillText(size, fall.box.left - 8, y);
    context.textAlign = "left";
  }
  if (request.marks) {
    context.fillStyle = variable("text");
    const room = fall.box.width - end;
    if (room > 60) textIn(context, request.marks, end, y, room);
  }
}

function drawTimeAxis(context) {
  const { left, width, scale, height, most } = fall.box;
  const y = height - 11;
  const step = axisStep(most / (width < 480 ? 3 : 7));
  context.textAlign = "center";
  for (let at = 0; at <= most; at += step) {
    const x = left + at * scale;
    context.fillStyle = variable("line");
    context.fillRect(x, 4, 1, height - 24);
    context.fillStyle = variable("muted");
    const text = PICTURE.requests.timed ? seconds(at) : bytes(at);
    context.fillText(at ? text : "0", clamp(x, 20, width - 26), y);
  }
  context.textAlign = "left";
}

// A round number of microseconds (1, 2 or 5 and zeros) or of bytes (a power of two), not below `least`.
function axisStep(least) {
  if (!PICTURE.requests.timed) return 2 ** Math.ceil(Math.log2(Math.max(1, least)));
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least) || power * 10;
}

function drawFallCursor() {
  const canvas = byId("waterfall").querySelector(".cursor");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (fall.at < 0 || !fall.box) return;
  const { top, step, width } = fall.box;
  outline(context, [1, top + fall.at * step, width - 3, Math.max(2, step - 1)]);
}

function rangeText({ start, stop, received }) {
  if (start < 0) return received < -start ? "the whole object" : `the last ${bytes(-start)}`;
  return stop > start ? `${bytes(stop - start)} at ${count(start)}` : "none";
}

function describeRequest(request) {
  const rows = [["Range", rangeText(request)], ["Round", count(request.round)]];
  if (request.columns) rows.push(["Columns", request.columns]);
  if (request.useful >= 0 && request.stop > request.start) {
    rows.push(["Asked for", percent(request.useful / (request.stop - request.start))]);
  }
  if (PICTURE.requests.timed) {
    const first = request.first >= 0 ? `, first byte after ${seconds(request.first)}` : "";
    rows.push(["Time", `${seconds(request.took)}${first}`], ["Sent", `after ${seconds(request.began)}`]);
    rows.push(["Status", `${request.status || "none"}${request.marks ? `, ${request.marks}` : ""}`], ["Received", bytes(request.received)]);
  }
  rows.push(["Url", request.url]);
  return { title: `${request.purpose[0].toUpperCase()}${request.purpose.slice(1)} request`, fate: null, rows };
}

function selectRequest(index) {
  fall.at = clamp(index, 0, fall.rows.length - 1);
  drawFallCursor();
  const { title, rows } = describeRequest(fall.rows[fall.at]);
  byId("request").textContent = `${fall.at + 1} of ${fall.rows.length}. ${title}. ${rows.map(([name, text]) => `${name}: ${text}`).join("; ")}.`;
}

function requestAt(event) {
  const stage = byId("waterfall").getBoundingClientRect();
  const index = Math.floor((event.clientY - stage.top - fall.box.top) / fall.box.step);
  return index >= 0 && index < fall.rows.length ? index : -1;
}

function onFallKey(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -fall.rows.length, End: fall.rows.length };
  if (!(event.key in steps)) return;
  selectRequest(fall.at + steps[event.key]);
  event.preventDefault();
}

function listenToFall() {
  const stage = byId("waterfall");
  stage.addEventListener("keydown", onFallKey);
  stage.addEventListener("focus", () => fall.at < 0 && selectRequest(0));
  stage.addEventListener("click", (event) => requestAt(event) >= 0 && selectRequest(requestAt(event)));
  stage.addEventListener("pointermove", (event) => {
    const index = requestAt(event);
    if (event.pointerType !== "touch") showTip(event, index < 0 ? null : describeRequest(fall.rows[index]));
  });
  stage.addEventListener("pointerleave", (event) => showTip(event, null));
}
