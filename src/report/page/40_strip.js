// One step, stage by stage, rank by rank.
const STAGES = ["input", "weights", "forward", "loss", "grad_unreduced", "grad_reduced", "moments", "update"];
const STRIP_RANKS = 64;
const SIGNS = { red: "\u2715", amber: "!", green: "\u2713", grey: "\u2013" };

function stateOfLoss(run, rank, bin) {
  const logged = data.curves.kinds.get("logged");
  if (!logged) return "grey";
  const [first, last] = data.axis[bin];
  let state = "grey";
  for (const line of logged.lines) {
    if (line.run !== run || line.rank !== rank || !/loss/i.test(data.curves.tensors[line.tensor])) continue;
    data.curves.bins.forEach(([begin, end], at) => {
      if (begin > last || end < first) return;
      const cell = logged.cell(line, at);
      if (cell) state = state === "red" || cell.marks & (MARK.nan | MARK.inf) ? "red" : "green";
    });
  }
  return state;
}

// The ranks of the certain finding that names fewest: a finding that has these among others, for it
// cannot tell them apart, holds nothing against the others.
function blamedIn(findings, first, last) {
  const sets = findings.filter((one) => one.certain && one.step >= first && one.step <= last && one.ranks.length > 0)
    .map((one) => one.ranks);
  return sets.reduce((least, ranks) => (least === null || ranks.length < least.length ? ranks : least), null);
}

// [state, why]
function stateOf({ findings, report: { words }, number: run }, stage, rank, bin) {
  const [first, last] = data.axis[bin];
  const here = findings.map((one, at) => [one, at]).filter(([one]) => one.stage === stage
    && one.step >= first && one.step <= last && (one.ranks.length === 0 || one.ranks.includes(rank)));
  const blamed = blamedIn(findings, first, last);
  const isSpared = (one) => blamed !== null && !blamed.includes(rank) && blamed.every((other) => one.ranks.includes(other));
  const certain = here.find(([one]) => one.certain && !isSpared(one));
  if (certain) return ["red", words[certain[1]].text];
  if (here.length > 0) return ["amber", words[here[0][1]].text];
  if (stage === "loss") return [stateOfLoss(run, rank, bin), ""];
  const seen = [];
  for (const kind of data.rows.kinds.values()) {
    if (kind.stage !== stage || kind.places[bin] < 0) continue;
    for (const line of kind.lines) {
      if (line.run !== run || line.rank !== rank) continue;
      const cell = kind.cell(line, bin);
      if (!cell) continue;
      if (cell.marks & (MARK.nan | MARK.inf)) return ["red", `${kind.name} ${data.rows.tensors[line.tensor]}`];
      if (!seen.includes(kind.name)) seen.push(kind.name);
    }
  }
  return [seen.length > 0 ? "green" : "grey", seen.join(", ")];
}

function strip() {
  const bin = view.cursor ?? data.axis.length - 1;
  const ranks = sides.flatMap((side) => {
    const bad = new Set(side.findings.filter((one) => one.step === (side.verdict ? side.verdict.step : -1)).flatMap((one) => one.ranks));
    const missing = side.report.record.missing_ranks.map((rank) => ({ side, rank, isBad: false, isMissing: true }));
    return [...side.report.ranks.map((rank) => ({ side, rank, isBad: bad.has(rank) })), ...missing];
  });
  const inOrder = (a, b) => a.side.number - b.side.number || a.rank - b.rank;
  ranks.sort((a, b) => b.isBad - a.isBad || inOrder(a, b));
  const shown = ranks.slice(0, STRIP_RANKS).sort(inOrder);
  const stages = sides.flatMap((side) => side.findings).some((one) => one.stage === "start") ? ["start", ...STAGES] : STAGES;
  const head = el("tr", {}, el("th", {}), stages.map((stage) => el("th", {}, el("span", {}, say(stage)))));
  const rows = shown.map(({ side, rank, isMissing }) => el("tr", {}, el("th", {}, ownerText(side.number, rank)), stages.map((stage) => {
    const [state, why] = isMissing ? ["grey", say("rank_missing")] : stateOf(side, stage, rank, bin);
    return el("td", { class: `state ${state}`, title: why ? `${say(`s_${state}`)}: ${printable(why)}` : say(`s_${state}`) },
      SIGNS[state], el("span", { class: "word" }, ` ${say(`s_${state}`)}`));
  })));
  return el("section", { id: "strip", class: "block" },
    el("h2", {}, say("strip", stepsOfBin(bin))),
    el("div", { class: "scroll" }, el("table", {}, head, rows)),
    ranks.length > shown.length ? el("p", { class: "quiet" }, say("left_out_ranks", ranks.length - shown.length)) : null,
    el("p", { class: "quiet" }, say("strip_says")));
}
