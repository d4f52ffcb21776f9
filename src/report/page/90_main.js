// Puts the page together: the first screen at once, pictures when their numbers are unpacked.
const place = (id) => document.getElementById(id);
let tensorMap = null;
let rankMap = null;
let differenceMap = null;  // of two runs
let layerChart = null;
const render = {};

render.first = () => {
  document.documentElement.lang = language === 0 ? "en" : "zh";
  place("page").replaceChildren(
    el("header", {}, el("span", { class: "run" }, sides.map((side) => side.report.run).join(" | ")),
      el("button", { id: "language", onclick: switchLanguage }, say("other_language"))),
    el("main", {}, firstScreen(), el("div", { id: "strip_place" }), reproduce(), el("div", { id: "pictures" })),
    el("footer", {}, el("p", {}, say("keys")), sides.map((side) => side.report.restarts.map((one) => el("p", {},
      (side.letter ? `${say("run_n", side.letter)}: ` : "") + say("began", one.restart, one.started, one.host, one.world_size)))),
      el("p", {}, say("made_by", report.version, sides.map((side) => side.report.run_id).filter((one) => one !== "").join(" | ")))));
};

render.strip = () => {
  if (data.axis.length > 0 && sides.some((side) => side.report.ranks.length > 0)) place("strip_place").replaceChildren(strip());
};

render.layers = () => {
  const kind = kindInSight();
  if (layerChart === null || !kind) return;
  const bin = view.cursor ?? data.axis.length - 1;
  layerChart.set(kind, bin);
  const part = partInSight();
  const what = part === null ? kind.name : `${kind.name} ${part}`;
  const title = say("layers_at", stepsOfBin(bin), what, statName());
  place("layers_title").textContent = kind.places[bin] < 0 ? `${title}: ${say("m_not_recorded")}` : title;
  place("layers_command").replaceChildren(...command(`SELECT name, rank, ${view.stat} FROM stats WHERE kind = ${sqlText(kind.name)} AND step = ${data.axis[bin][1]}${report.commands.where}`));
  place("layers_left").textContent = layerChart.leftOut > 0 ? say("layers_left_out", grouped(layerChart.leftOut)) : "";
  repaint();
};

// What is about the step of the cursor.
render.atCursor = () => {
  render.strip();
  render.layers();
};

// The rows of both maps; the charts themselves stay.
render.maps = () => {
  if (tensorMap === null) return;
  const rows = tensorRows(view.run);
  tensorMap.setRows(groupedRows(rows));
  if (differenceMap !== null) differenceMap.setRows(differenceRows());
  const kind = kindInSight();
  place("found").textContent = say("found", grouped(rows.length), grouped(kind ? kind.byTensor.size : 0));
  rankMap.setRows(rankRows());
  render.layers();
  repaint();
};

function tensorTitle() {
  const part = partInSight();
  const title = view.group === "" ? say("map_tensors") : part === null ? say("map_layers") : `${say("map_layers")}: ${part}`;
  return sides.length > 1 ? `${say("run_n", sides[view.run].letter)}: ${title}` : title;
}

function statName() { return say(`stat_${view.stat}`); }

function history() {
  const kind = kindInSight();
  const lines = kind ? kind.byTensor.get(view.tensor) || [] : [];
  const title = lines.length > 0 ? `${say("line")}: ${data.rows.tensors[view.tensor]}, ${kind.name}, ${statName()}` : say("line");
  const { shown, leftOut } = seriesOf(lines, false);
  const chart = new LineChart(title, 220, shown, false);
  return el("section", { id: "history", class: "block" },
    el("h2", {}, title, " ", seriesKeys(shown), chart.note),
    lines.length === 0 ? el("p", { class: "quiet" }, say("pick"))
      : [mounted(chart), cellTable(kind, lines),
        command(`SELECT step, rank, ${view.stat} FROM stats WHERE kind = ${sqlText(kind.name)} AND name = ${sqlText(data.rows.names[view.tensor])}${report.commands.where}`)],
    el("p", { class: "quiet" }, [say("line_says", statName()), hasBand(shown) ? say("band_says") : null, view.stat === "norm" ? null : say("about_three")]
      .filter((one) => one !== null).join("; ")),
    leftOut > 0 ? el("p", { class: "quiet" }, say("left_out_ranks", leftOut)) : null);
}

render.pictures = () => {
  const back = focusInSight();
  unmountAll();
  if (data.axis.length === 0) return;
  const chosen = data.rows.tensors[view.tensor];
  const parts = [];
  if (data.rows.kinds.size > 0) {
    if (partInSight() !== null && !partsInSight().some(([part]) => part === view.group)) view.group = "";
    const pick = (row) => { view.tensor = row.tensor; render.pictures(); };
    tensorMap = new HeatMap(say(view.group === "" ? "map_tensors" : "map_layers"), pick);
    differenceMap = report.other ? new DifferenceMap(say("map_difference"), pick) : null;
    for (const map of [tensorMap, differenceMap]) if (map) map.isChosen = (row) => row.tensors.includes(view.tensor);
    rankMap = new HeatMap(say("map_ranks", chosen || ""), () => render.pictures());
    parts.push(el("section", { id: "maps", class: "block" },
      differenceMap ? [el("h2", {}, say("map_difference"), el("span", { class: "line-note" }, say("difference_says", statName()))), differenceLegend(), mounted(differenceMap)] : null,
      el("h2", {}, tensorTitle()), controls(), legend(), mounted(tensorMap),
      el("h2", {}, say("map_ranks", chosen || "")), mounted(rankMap),
      command(`SELECT step, rank, name, ${view.stat} FROM stats WHERE kind = ${sqlText(view.kind)}${report.commands.where}`)));
    parts.push(history(), layers());
  }
  parts.push(features(), histograms(), overview());
  if (data.rows.kinds.size > 0) parts.push(apart(), worst());
  place("pictures").replaceChildren(...parts.filter((one) => one !== null));
  for (const side of sides) side.linkLeftHistory();
  render.strip();
  render.maps();
  back();
};

function switchLanguage() {
  language = 1 - language;
  render.first();
  render.pictures();
}

// The first rows that somebody sees: those of the first difference, of a verdict, or of the most
// unusual line.
function choose() {
  const kinds = [...data.rows.kinds.values()];
  wholeRun();
  const marked = markedPlaces();
  if (marked.length > 0) view.cursor = binOfStep(marked[0].step);
  else if (sides[0].findings.length > 0) view.cursor = binOfStep(sides[0].findings[0].step);
  if (kinds.length === 0) return;
  const side = sides.find((one) => one.verdict) || sides[0];
  const found = side.verdict || side.findings[0];
  const differing = report.other && report.comparison.found && report.comparison.found.first;
  const ofStage = (stage) => kinds.filter((kind) => kind.stage === stage);
  const liked = ["param_origin", "grad_reduced", "actv"];
  const first = (some) => some.find((kind) => found && kind.name === found.check)
    || some.find((kind) => liked.includes(kind.name)) || some[0];
  let kind = found && ofStage(found.stage).length > 0 ? first(ofStage(found.stage)) : null;
  const element = side.verdict ? side.report.words[side.report.verdict_at].element : "";
  let isWanted = (line) => (element === "" || data.rows.identities[line.tensor][2] === element) && found.tensors.some((name) => data.rows.names[line.tensor] === ((side.number === 1 && data.renamed[name]) || name));
  if (differing) {
    kind = data.rows.kinds.get(differing.kind) || null;
    isWanted = (line) => isAt(differing, line);
  }
  if (kind !== null) {
    const line = kind.lines.find(isWanted);
    view.tensor = line ? line.tensor : null;
  }
  const worstOne = worstLines()[0];
  if (kind === null) kind = (worstOne && worstOne.line.kind) || first(ofStage("grad_reduced")) || kinds[0];
  if (view.tensor === null && worstOne && worstOne.line.kind === kind) view.tensor = worstOne.line.tensor;
  if (view.tensor === null) view.tensor = kind.lines[0].tensor;
  view.kind = kind.name;
  view.run = differing ? 1 : side.number;
}

function moveRow(by) {
  const rows = tensorMap ? tensorMap.rows : [];
  if (rows.length === 0) return;
  const now = rows.findIndex((row) => row.tensors.includes(view.tensor));
  view.tensor = rows[Math.max(0, Math.min(rows.length - 1, now + by))].tensor;
  rankMap.setRows(rankRows());
  repaint();
}

const KEYS = {
  ArrowLeft: () => { moveCursor((view.cursor ?? Math.ceil(view.to)) - 1); render.atCursor(); },
  ArrowRight: () => { moveCursor((view.cursor ?? Math.floor(view.from) - 1) + 1); render.atCursor(); },
  ArrowUp: () => moveRow(-1),
  ArrowDown: () => moveRow(1),
  Enter: () => render.pictures(),
  "+": () => zoom(0.5, view.cursor ?? (view.from + view.to) / 2),
  "=": () => zoom(0.5, view.cursor ?? (view.from + view.to) / 2),
  "-": () => zoom(2, view.cursor ?? (view.from + view.to) / 2),
  0: () => { wholeRun(); repaint(); },
  n: goToNextWorst,
  "/": () => place("search").focus(),
  l: switchLanguage,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches("input, select, textarea");
  if (isTyping && event.key === "Escape") event.target.blur();
  if (isTyping || (event.key === "Enter" && event.target.matches("button"))) return;
  const isArrow = event.key.startsWith("Arrow");
  if (isArrow && !event.target.matches("canvas")) return;  // the page scrolls
  const act = KEYS[event.key];
  if (act === undefined || data.axis.length === 0 && act !== switchLanguage) return;
  event.preventDefault();
  act();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render.pictures());
for (const [name, is] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(name, () => {
    isPrinting = is;
    if (data.axis.length > 0) render.pictures();
    paintNow();
  });
}

// When the numbers are there, which come behind this script: the first screen need not wait for them.
function start() {
  unpacked().then((bytes) => {
    load(bytes);
    choose();
    render.pictures();
  }).catch((error) => {
    place("pictures").replaceChildren(el("p", { class: "quiet" }, say("pictures_failed", error.message)));
  }).finally(() => {
    document.body.dataset.ready = "yes";
    if (document.querySelector("meta[name=live]")) follow();
  });
}

render.first();
