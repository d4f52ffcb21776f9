// What was recorded of attention, routers and spectra: of each kind the least, the median and the
// largest over all modules and ranks, over steps.
const FEATURES = ["attn_entropy", "attn_max", "attn_max_logit", "router_entropy", "router_similarity", "stable_rank", "spectral_norm", "mg_direction"];

// All lines of a kind in one run as points of one line.
function spreadOf(kind, run) {
  const lines = kind.lines.filter((line) => line.run === run);
  const [values, marks, width] = [kind.values("mean").value, kind.column("marks"), kind.bins.length];
  const points = { count: 0, place: [], low: [], high: [], value: [], marks: [] };
  for (let i = 0; i < width; ++i) {
    const found = [];
    let seen = 0;
    for (const line of lines) {
      const at = line.own * width + i;
      seen |= marks[at];
      if (Number.isFinite(values[at])) found.push(values[at]);
    }
    if (seen === 0) continue;
    found.sort((a, b) => a - b);
    points.place.push(kind.bins[i] + 0.5);
    points.low.push(found.length > 0 ? found[0] : NaN);
    points.high.push(found.length > 0 ? found[found.length - 1] : NaN);
    points.value.push(found.length > 0 ? medianOf(found) : NaN);
    points.marks.push(seen);
    ++points.count;
  }
  return points;
}

function features() {
  const kinds = FEATURES.map((name) => data.rows.kinds.get(name)).filter((kind) => kind !== undefined);
  if (kinds.length === 0) return null;
  const figures = kinds.map((kind) => {
    const series = sides.map(({ number, letter }) => ({ label: letter ? say("run_n", letter) : say("all_modules", kind.byTensor.size),
      color: 0, isDashed: number === 1, points: spreadOf(kind, number) })).filter((one) => one.points.count > 0);
    const chart = new LineChart(kind.name, 130, series, false);
    const open = () => {
      Object.assign(view, { kind: kind.name, stat: "mean", tensor: kind.lines[0].tensor, search: "" });
      render.pictures();
    };
    return el("figure", {}, el("figcaption", {}, el("button", { class: "link", onclick: open }, kind.name), " ", seriesKeys(series), chart.note), mounted(chart));
  });
  return el("section", { id: "features", class: "block" }, el("h2", {}, say("features")),
    el("div", { class: "figures" }, figures), el("p", { class: "quiet" }, say("features_say")),
    command(`SELECT kind, step, rank, name, mean FROM stats WHERE kind IN (${kinds.map((kind) => sqlText(kind.name)).join(", ")})${report.commands.where}`));
}
