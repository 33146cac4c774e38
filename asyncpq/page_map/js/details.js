// What is known of the thing under the cursor: {title, fate, rows of label and text}.

function describeFile(file) {
  const rows = [["Url", file.url]];
  if (file.size >= 0) rows.push(["Size", bytes(file.size)]);
  if (file.rows >= 0) rows.push(["Rows", count(file.rows)]);
  if (file.layout < 0 && file.fate === "read") rows.push(["Layout", "not in this report"]);
  return { title: file.url.split("/").pop(), fate: file.fate === "file" ? null : file.fate, rows };
}

function describeUnnamed(fate) {
  return { title: "A file that is not named here", fate, rows: [] };
}

function describeGroup(layout, group) {
  return {
    title: `Row group ${group.ordinal}`,
    fate: group.fate === "plain" ? null : group.fate,
    rows: [
      ["Rows", `${count(group.rows)}, from ${count(group.firstRow)}`],
      ["Bytes", `${bytes(group.stop - group.start)} at ${count(group.start)}`],
      ["Columns", count(group.chunks.length)],
      ...requestRow(layout, group.start, group.stop),
    ],
  };
}

function describeChunk(layout, chunk) {
  const column = layout.columns[chunk.column];
  const located = chunk.pages ? `${count(chunk.pages.length)}${readPages(chunk)}` : "not located: no page index";
  const rows = [
    ["Row group", count(chunk.group)],
    ["Type", column.type],
    ["Bytes", `${bytes(chunk.stop - chunk.start)} of ${bytes(chunk.uncompressed)} decoded`],
    ["Pages", located],
    ["Coding", chunk.coding],
  ];
  if (chunk.dictionary) rows.push(["Dictionary", bytes(chunk.dictionary[1] - chunk.dictionary[0])]);
  if (chunk.min !== 0 || chunk.max !== 0) rows.push(["Values", `${chunk.min === 0 ? "?" : chunk.min} to ${chunk.max === 0 ? "?" : chunk.max}`]);
  rows.push(["Nulls", chunk.nulls === null ? "not stated" : count(chunk.nulls)]);
  if (column.sorted) rows.push(["Sorted", column.sorted]);
  rows.push(["Indexes", indexNames(chunk)]);
  rows.push(...requestRow(layout, chunk.start, chunk.stop));
  return { title: column.name, fate: chunkFate(chunk), rows };
}

function readPages(chunk) {
  const read = chunk.runs.filter((run) => rank(run.fate) >= 8).reduce((sum, run) => sum + run.to - run.from, 0);
  return chunk.wanted && chunk.runs.length > 1 ? `, ${count(read)} read` : "";
}

function chunkFate(chunk) {
  const best = bestFate(chunk);
  return best === "plain" ? null : best;
}

function indexNames(chunk) {
  const names = [["column index", chunk.columnIndex], ["offset index", chunk.offsetIndex], ["Bloom filter", chunk.bloom]];
  return names.filter(([, range]) => range).map(([name, range]) => `${name} ${bytes(range[1] - range[0])}`).join(", ") || "none";
}

function describePage(layout, chunk, page) {
  if (!chunk.pages || !chunk.pages.length) return describeChunk(layout, chunk);
  const { starts, sizes, rows, firstRows } = chunk.pages;
  const fate = fateOfPage(chunk, page);
  const first = layout.groups[chunk.group].firstRow + firstRows[page];
  return {
    title: `${layout.columns[chunk.column].name}, page ${count(page)}`,
    fate: fate === "plain" ? null : fate,
    rows: [
      ["Row group", count(chunk.group)],
      ["Rows", `${count(rows[page])}, from ${count(first)}`],
      ["Bytes", `${bytes(sizes[page])} at ${count(starts[page])}`],
      ["Of", counted(chunk.pages.length, "page")],
      ...requestRow(layout, starts[page], starts[page] + sizes[page]),
    ],
  };
}

function describeStructure(layout, found) {
  const rows = [["Bytes", `${bytes(found.stop - found.start)} at ${count(found.start)}`]];
  if (found.chunk) rows.unshift(["Column", layout.columns[found.chunk.column].name], ["Row group", count(found.chunk.group)]);
  rows.push(...requestRow(layout, found.start, found.stop));
  return { title: found.title, fate: found.chunk && rank(found.name) !== 4 ? found.name : null, rows };
}

function requestRow(layout, start, stop) {
  if (!PICTURE.requests) return [];
  const found = layout.requests.filter((request) => request.start < stop && request.stop > start);
  const shown = found.slice(0, 3).map((request) => `${request.purpose} in round ${request.round}`);
  const more = found.length > 3 ? ` and ${count(found.length - 3)} more` : "";
  return [["Requests", [...new Set(shown)].join(", ") + more || "none"]];
}

// -- into the page ----------------------------------------------------------------------------------

function showDetails(panel, described, zoom) {
  panel.replaceChildren(element("h3", "", described.title), ...fateLine(described.fate), detailList(described.rows));
  if (zoom) {
    const button = element("button", "", zoom.label);
    button.type = "button";
    button.addEventListener("click", zoom.go);
    panel.append(button);
  }
}

function fateLine(fate) {
  if (!fate) return [];
  const line = element("p", "fate");
  line.append(swatch(fate), element("span", "", label(fate)));
  return [line];
}

function detailList(rows) {
  const list = element("dl");
  for (const [name, text] of rows) list.append(element("dt", "", name), element("dd", "", text));
  return list;
}

// A few words beside the pointer; the panel has the rest.
function showTip(event, described) {
  const tip = byId("tip");
  if (!described) {
    tip.hidden = true;
    return;
  }
  const lines = described.rows.slice(0, 4).map(([name, text]) => `${name}: ${text}`);
  tip.replaceChildren(element("b", "", described.title), ...fateLine(described.fate), ...lines.map((line) => element("p", "", line)));
  tip.hidden = false;
  const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
  const below = event.clientY + 16 + tip.offsetHeight > window.innerHeight;
  tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16)}px`;
  tip.style.top = `${Math.max(4, below ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16)}px`;
}
