// Which rows are looked at: search, order, and the list of the most unusual ones.
const WORST = 20;

// Words of any script, each with one typing error at the most behind its first letter.
const fuzzy = new uFuzzy({ unicode: true, intraMode: 1, compare: () => 0, interSplit: "[^\\p{L}\\d]+", intraSplit: "\\p{Ll}\\p{Lu}",
  interBound: "[^\\p{L}\\d]", intraBound: "\\p{L}\\d|\\d\\p{L}|\\p{Ll}\\p{Lu}", intraChars: "[\\p{L}\\d]", intraContr: "'\\p{L}{1,2}\\b" });

// How far each name is from the search, Infinity where it does not match: 0 of those that have all words.
// Where none has, those with a typing error in a word match; where none does, those with its letters in order.
function distances(names, search) {
  const words = search.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const lower = names.map((name) => (name || "").toLowerCase());
  const where = (takes) => lower.map((name) => (words.every((word) => takes(name, word)) ? 0 : Infinity));
  const whole = where((name, word) => name.includes(word));
  if (whole.includes(0)) return whole;
  const found = names.map(() => Infinity);
  const [places, info] = fuzzy.search(names.map((name) => name || ""), search, 5, names.length);
  if (places !== null && places.length > 0) {
    if (info === null) for (const at of places) found[at] = 0;
    else info.idx.forEach((at, i) => { found[at] = info.intraIns[i] / 1000 - info.chars[i]; });  // letters as they were typed
    return found;
  }
  return where((name, word) => {
    let at = 0;
    for (const letter of name) if (letter === word[at]) ++at;
    return at >= word.length;
  });
}

function kindInSight() {
  return data.rows.kinds.get(view.kind);
}

// How rows of tensors are grouped: each by itself, those of a layer together, or one part of all
// layers, layer by layer.
const BY_LAYER = "layer";
const MOST_PARTS = 200;
function partInSight() { return view.group === "" || view.group === BY_LAYER ? null : view.group; }

// Parts of the kind in sight that several layers have: [label, number of layers].
function partsInSight() {
  const kind = kindInSight();
  const depths = new Map();
  for (const tensor of kind ? kind.byTensor.keys() : []) {
    const part = data.rows.parts[tensor];
    if (part === null) continue;
    if (!depths.has(part)) depths.set(part, new Set());
    depths.get(part).add(data.rows.depths[tensor]);
  }
  return [...depths].filter(([, layers]) => layers.size > 1).map(([part, layers]) => [part, layers.size]);
}

function groupOf(tensor) {
  return partInSight() === null ? data.rows.layers[tensor] : say("layer_n", data.rows.depths[tensor]);
}

// Rows of tensors as the map shows them.
function groupedRows(rows) {
  if (view.group === "") return rows;
  const groups = new Map();
  for (const row of rows) {
    const label = groupOf(row.tensor);
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(row);
  }
  const order = (row) => Math.min(...row.lines.map((line) => line.order));
  return [...groups].map(([label, all]) => {
    const furthest = all.reduce((a, b) => (order(b) < order(a) ? b : a));
    return rowOf(label, all.flatMap((row) => row.lines), { tensor: furthest.tensor, tensors: all.map((row) => row.tensor) });
  });
}

function rowOf(label, lines, more) {
  const isAlone = data.losses.length === 0;  // of lines that are equal one is enough
  const seen = isAlone ? [...new Map(lines.map((line) => [line.own, line])).values()] : lines;
  return { label, lines, seen, ...more };
}

// Of the run in sight; null: of both.
function tensorRows(run) {
  const kind = kindInSight();
  if (!kind) return [];
  const far = distances(data.rows.tensors, view.search);
  const part = partInSight();
  const rows = [];
  for (const [tensor, all] of kind.byTensor) {
    const lines = all.filter((line) => (run === null || line.run === run) && (view.rank === null || line.rank === view.rank));
    if (lines.length === 0 || far[tensor] === Infinity || (part !== null && data.rows.parts[tensor] !== part)) continue;
    rows.push(rowOf(data.rows.tensors[tensor], lines, { tensor, tensors: [tensor] }));
  }
  const depth = (row) => (part === null ? 0 : data.rows.depths[row.tensor]);
  const order = (row) => (view.order === "unusual" ? Math.min(...row.lines.map((line) => line.order)) : row.tensor);
  rows.sort((a, b) => far[a.tensor] - far[b.tensor] || (view.order === "unusual" ? 0 : depth(a) - depth(b)) || order(a) - order(b));
  return rows;
}

function rankRows() {
  const kind = kindInSight();
  const lines = kind ? kind.byTensor.get(view.tensor) || [] : [];
  return lines.map((line) => rowOf(ownerText(line.run, line.rank), [line], { rank: line.rank }));
}

// The most unusual lines of all kinds, those of marked places at their steps first; equal ones of
// several ranks once.
function worstLines() {
  const all = [];
  const places = markedPlaces();
  for (const kind of data.rows.kinds.values()) {
    const seen = new Map();
    const add = (line, bin, place) => {
      const key = `${line.run} ${line.own} ${bin}`;
      if (seen.has(key)) seen.get(key).ranks.push(line.rank);
      else seen.set(key, { line, ranks: [line.rank], bin, place });
    };
    for (const line of kind.lines) {
      const bin = line.score === null ? -1 : kind.bins[line.worst];
      const place = places.find((one) => one.takes(line) && kind.cell(line, binOfStep(one.step)) !== null);
      if (place) add(line, binOfStep(place.step), place);
      if (bin >= 0 && !(place && bin === binOfStep(place.step))) add(line, bin);
    }
    for (const one of seen.values()) all.push(one);
  }
  return all.sort((a, b) => !a.place - !b.place || a.line.order - b.line.order);
}

function goTo(line, bin) {
  view.kind = line.kind.name;
  view.run = line.run;
  view.tensor = line.tensor;
  if (view.rank !== null) view.rank = line.rank;
  view.search = view.group = "";
  moveCursor(bin);
  render.pictures();
  document.getElementById("history").scrollIntoView({ block: "nearest" });
}

let nextWorst = 0;
function goToNextWorst() {
  const all = worstLines();
  if (all.length === 0) return;
  const one = all[nextWorst++ % Math.min(all.length, WORST)];
  goTo(one.line, one.bin);
}

function worst() {
  const all = worstLines();
  const head = el("tr", {}, ["tensor", "kind", "rank", "step", "unusual", "value"].map((key) => el("th", {}, say(key))));
  const scoreText = ({ line, bin, place }) => [place ? say(place.isDifference ? "outlined_difference" : "of_verdict") : "",
    line.score === null || bin !== line.kind.bins[line.worst] ? "" : line.score === Infinity ? say("not_finite") : number(line.score, 3)]
    .filter((one) => one !== "").join(", ");
  const rows = all.slice(0, WORST).map((one) => ({ ...one, score: scoreText(one) })).map(({ line, ranks, bin, score }) => el("tr", {},
    el("td", {}, el("button", { class: "link", onclick: () => goTo(line, bin) }, data.rows.tensors[line.tensor])),
    [line.kind.name, sides.length > 1 ? `${sides[line.run].letter} ${ranges(ranks)}` : ranges(ranks), stepsOfBin(bin), score, normText(line, bin)].map((text) => el("td", {}, text))));
  return el("section", { id: "worst", class: "block" }, el("h2", {}, say("worst")),
    el("p", { class: "quiet" }, say("worst_says"), sides.some((side) => side.verdict) ? null : `. ${say("worst_ordinary")}`),
    rows.length === 0 ? el("p", {}, say("no_values"))
      : el("div", { class: "scroll" }, el("table", { class: "numbers" }, head, rows)),
    all.length > WORST ? el("p", { class: "quiet" }, say("others_left_out", grouped(all.length - WORST))) : null,
    sides.map((side) => el("p", {}, el("code", {}, side.report.commands.top))));
}

function choice(label, options, chosen, choose) {
  const made = el("select", { "aria-label": label, onchange: (event) => choose(event.target.value), onmousedown: isOpened, onkeydown: isOpened },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, `${label} `, made);
}

function controls() {
  const set = (name, value) => { view[name] = value; render.pictures(); };
  const kinds = [...data.rows.kinds.keys()].map((name) => [name, name]);
  const numbers = [...new Set(sides.flatMap((side) => side.report.ranks))].sort((a, b) => a - b);
  const runs = sides.map((side) => [String(side.number), side.letter]);
  const parts = partsInSight();
  const groups = [["", say("each_tensor")], [BY_LAYER, say("by_layer")],
    ...parts.slice(0, MOST_PARTS).map(([part, layers]) => [part, say("part_of", part, layers)])];
  const ranks = [["", say("all_ranks")], ...numbers.map((rank) => [String(rank), say("rank_n", rank)])];
  return el("div", { id: "controls" },
    el("input", { id: "search", type: "search", placeholder: say("search"), "aria-label": say("search"), value: view.search,
      oninput: (event) => { view.search = event.target.value; render.maps(); } }),
    choice(say("kind"), kinds, view.kind, (value) => set("kind", value)),
    choice(say("group"), groups, view.group, (value) => set("group", value)),
    parts.length > MOST_PARTS ? el("span", { class: "quiet" }, say("parts_left_out", grouped(parts.length - MOST_PARTS))) : null,
    runs.length > 1 ? choice(say("run"), runs, String(view.run), (value) => set("run", Number(value))) : null,
    choice(say("statistic"), STATISTICS.map((name) => [name, say(`stat_${name}`)]), view.stat, (value) => set("stat", value)),
    choice(say("rank"), ranks, view.rank === null ? "" : String(view.rank), (value) => set("rank", value === "" ? null : Number(value))),
    choice(say("color_by"), [["history", say("by_history")], ["size", say("by_size")]], view.color, (value) => set("color", value)),
    choice(say("order"), [["model", say("by_model")], ["unusual", say("by_unusual")]], view.order, (value) => set("order", value)),
    el("span", {}, el("button", { id: "closer", "aria-label": "+", onclick: () => zoom(0.5, view.cursor ?? (view.from + view.to) / 2) }, "+"),
      el("button", { id: "further", "aria-label": "-", onclick: () => zoom(2, view.cursor ?? (view.from + view.to) / 2) }, "\u2212"),
      el("button", { id: "whole", onclick: () => { wholeRun(); repaint(); } }, say("reset"))),
    el("span", { id: "found", class: "quiet", role: "status" }));
}
