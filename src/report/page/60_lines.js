// Lines over steps: the history of a tensor, and the curves of the run.
const MOST_LINES = 8;

// The points of a line of a table as columns, by their place on the axis, which ascends.
function pointsOf(line, isCurve) {
  const { kind } = line;
  const width = kind.bins.length;
  const { low, high, value } = kind.values(isCurve ? "norm" : view.stat);
  const marks = kind.column("marks");
  const begin = line.own * width;
  const there = [...Array(width).keys()].filter((i) => marks[begin + i] !== 0);
  const of = (column) => Float32Array.from(there, (i) => column[begin + i]);
  return { count: there.length, low: of(low), high: of(high), value: of(value), marks: Uint8Array.from(there, (i) => marks[begin + i]),
    place: Float64Array.from(there, (i) => 0.5 + (isCurve ? placeOfStep(kind.table.bins[kind.bins[i]][0]) : kind.bins[i])) };
}

// The least point of a place that is not before `place`.
function pointFrom({ place: places, count }, place) {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] < place) low = middle + 1; else high = middle;
  }
  return low;
}

// Lines of ranks that hold the same are one: [{label, ranks, line, points, color, isDashed}]. The second
// of two runs is dashed, in the colours of the first.
function seriesOf(lines, isCurve) {
  const byOwn = new Map();
  for (const line of lines) {
    const key = `${line.run} ${line.own}`;
    if (!byOwn.has(key)) byOwn.set(key, { ranks: [], run: line.run, line });
    byOwn.get(key).ranks.push(line.rank);
  }
  const shown = [];
  let leftOut = 0;
  for (const { number } of sides) {
    const all = [...byOwn.values()].filter((one) => one.run === number);
    const most = Math.floor(MOST_LINES / sides.length);
    all.slice(0, most).forEach((one, color) => shown.push({ ...one, color, isDashed: number === 1,
      label: ownerText(number, ranges(one.ranks)), points: pointsOf(one.line, isCurve) }));
    leftOut += all.slice(most).reduce((sum, one) => sum + one.ranks.length, 0);
  }
  return { shown, leftOut };
}

// Where values lie on an axis, from the least to the most, and whether it is logarithmic. `positive`: the
// least above 0.
function scaleOf(least, most, positive) {
  if (!(least <= most)) return { least: 0, most: 1, isLog: false, hasValues: false };
  const isLog = least >= 0 && positive < Infinity && most / positive > 50;
  if (isLog) return { least: Math.log10(positive) - 0.05, most: Math.log10(most) + 0.05, isLog, hasValues: true };
  const pad = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
  return { least: least - pad, most: most + pad, isLog, hasValues: true };
}

// Which share of an axis lies before a value.
function shareOf({ least, most, isLog }, value) {
  const v = isLog ? Math.log10(Math.max(value, Math.pow(10, least))) : value;
  return (Math.max(least, Math.min(most, v)) - least) / (most - least);
}

// Values of an axis that are round, and their texts, which differ: [[value, text]]. `room`: for so many texts.
function ticksOf({ least, most, isLog, hasValues }, room = Infinity) {
  if (!hasValues) return [];
  const fine = (most - least) / 4;
  const power = Math.pow(10, Math.floor(Math.log10(fine)));
  const round = [1, 2, 5, 10].find((one) => one * power >= fine) * power;
  const pace = isLog ? Math.max(1, Math.round(round)) : round;
  let values = [];
  for (let i = Math.ceil(least / pace); i * pace <= most; ++i) values.push(isLog ? Math.pow(10, i * pace) : i * pace);
  if (isLog && pace === 1 && 3 * (most - least) < room) {
    values = values.flatMap((one) => [one / 5, one / 2, one, 2 * one, 5 * one])
      .filter((one) => Math.log10(one) >= least && Math.log10(one) <= most);
    values = [...new Set(values.map((one) => Number(one.toPrecision(1))))];
  }
  for (let digits = 3; ; ++digits) {
    const texts = values.map((one) => number(one, digits));
    const isNear = values.every((one, i) => isLog || Math.abs(Number(texts[i]) - one) < pace / 10);
    if ((isNear && new Set(texts).size === values.length) || digits > 16) return values.map((one, i) => [one, texts[i]]);
  }
}

// What uPlot draws: lines, points, gaps and axes. Its x is columns of the axis, whole numbers in their
// middle; its y is a share of the axis, which may be logarithmic and reach 1e38 (`chart.scale`).
function uplotOf(chart, series, isHeld) {
  const colors = theme();
  const font = "12px system-ui, sans-serif";
  const text = { font, stroke: colors.quiet, gap: 6 };
  const lineOf = ({ color, isDashed }) => {
    const stroke = colors.lines[color % colors.lines.length];
    return { stroke, width: 1.5, dash: isDashed ? [5, 4] : [], paths: isHeld ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { size: 4, width: 0, fill: stroke } };
  };
  return new uPlot({
    width: 0, height: chart.height, padding: [12, 8, 0, 0], cursor: { show: false }, select: { show: false }, legend: { show: false },
    scales: { x: { time: false, range: () => [view.from - 0.5, view.to - 0.5] }, y: { range: [0, 1] } },
    series: [{}, ...series.map(lineOf)],
    axes: [
      { ...text, size: 20, space: 70, incrs: GAPS, values: (_, bins) => bins.map((bin) => chart.stepAt(bin)), grid: { show: false }, ticks: { size: 4, width: 1, stroke: colors.quiet } },
      { ...text, size: () => chart.gutter, incrs: [1], space: 0, splits: () => chart.ticks().map(([value]) => shareOf(chart.scale, value)),
        values: () => chart.ticks().map(([, value]) => value), grid: { width: 1, stroke: colors.line }, ticks: { show: false } },
    ],
    hooks: { drawSeries: [(_, i) => chart.drawMarks(series[i - 1], colors)], draw: [() => chart.withPen((pen) => chart.drawPlaces(pen, 12, chart.height - 20, colors))] },
  }, [[]]);
}

class LineChart extends Chart {
  // `isHeld`: a value holds until the next one.
  constructor(label, height, series, isHeld) {
    super(label, height, 70, (chart) => (chart.uplot = uplotOf(chart, series, isHeld)).ctx.canvas);
    this.note = el("span", { class: "line-note" });
    this.label = label;
    this.series = series;
    this.isHeld = isHeld;
    this.drawn = "";  // the steps in sight and the width
    this.scale = this.range();
  }
  get element() { return this.uplot.root; }
  get width() { return this.uplot ? this.element.clientWidth : 0; }  // uPlot asks while it is made
  unmount() { this.uplot.destroy(); }

  // The scale of what is in sight.
  range() {
    let [least, most, positive] = [Infinity, -Infinity, Infinity];
    for (const { points } of this.series) {
      const { low, high } = points;
      const end = this.isHeld ? points.count : pointFrom(points, view.to + 1e-9);
      for (let i = this.isHeld ? 0 : pointFrom(points, view.from); i < end; ++i) {
        if (Number.isFinite(low[i]) && low[i] < least) least = low[i];
        if (low[i] > 0 && low[i] < positive) positive = low[i];
        if (Number.isFinite(high[i]) && high[i] > most) most = high[i];
      }
    }
    return scaleOf(least, most, positive);
  }

  ticks() { return ticksOf(this.scale, (this.height - 32) / 14); }
  y(value) { return this.height - 20 - shareOf(this.scale, value) * (this.height - 32); }
  // The step of a column, where its text has room.
  stepAt(bin) {
    const step = data.axis[bin] ? String(data.axis[bin][0]) : "";
    return this.x(bin + 0.5) + 4 * step.length > this.width ? null : step;
  }

  // Columns for uPlot: places, then of each line shares of the axis; null where a value is not finite.
  columns() {
    const shareAt = (value) => (Number.isFinite(value) ? shareOf(this.scale, value) : null);
    const tables = this.series.map(({ points: { place: places, value } }) => {
      const [xs, ys] = [Array.from(places, (one) => one - 0.5), Array.from(value, shareAt)];
      return this.isHeld ? [[...xs, data.axis.length - 0.5], [...ys, ys[ys.length - 1]]] : [xs, ys];
    });
    return tables.length > 0 ? uPlot.join(tables) : [[]];
  }

  draw() {
    const { width, height, uplot } = this;
    if (width === 0) return;
    const now = `${view.from} ${view.to} ${width}`;
    uplot.batch(() => {
      if (now === this.drawn) { uplot.redraw(false); return; }
      this.drawn = now;
      this.scale = this.range();
      const isEmpty = this.series.length > 0 && !this.scale.hasValues;
      this.note.textContent = isEmpty ? say("no_finite") : this.scale.isLog ? say("log_scale") : "";
      uplot.setSize({ width, height });
      uplot.setData(this.columns());
    });
  }

  // A pen in CSS pixels over what uPlot has drawn.
  withPen(act) {
    const pen = this.canvas.getContext("2d");
    const scale = this.canvas.width / this.width;
    pen.save();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.lineWidth = 1;
    act(pen);
    pen.restore();
  }

  // Of each point its band, a dot where nothing beside it is finite, and above it what is not finite.
  drawMarks({ points, color }, colors) {
    const { place: places, low, high, value, marks } = points;
    const end = pointFrom(points, view.to + 1e-9);
    this.withPen((pen) => {
      const box = (fill, alpha, x, top, width, height) => {
        pen.fillStyle = fill;
        pen.globalAlpha = alpha;
        pen.fillRect(x - width / 2, top, width, height);
      };
      const line = colors.lines[color % colors.lines.length];
      for (let i = pointFrom(points, view.from); i < end; ++i) {
        if (low[i] < high[i]) box(line, 0.35, this.x(places[i]), this.y(high[i]), 2, Math.max(1, this.y(low[i]) - this.y(high[i])));
        const isAlone = Number.isFinite(value[i]) && !Number.isFinite(value[i - 1]) && !Number.isFinite(value[i + 1]);
        if (isAlone) box(line, 1, this.x(places[i]), this.y(value[i]) - 1.5, 3, 3);
        const bad = badColor(marks[i], colors);
        if (bad !== null) box(css(bad), 1, this.x(places[i]), 12, 4, 9);
      }
    });
  }

  says() {
    const place = this.placeOf(this.mouse.x);
    if (this.mouse.x < this.gutter || data.axis.length === 0) return [this.label];
    const lines = [this.label];
    for (const one of this.series) {
      const { points } = one;
      if (points.count === 0) continue;
      let at = Math.min(points.count - 1, pointFrom(points, place));
      if (at > 0 && place - points.place[at - 1] < Math.abs(points.place[at] - place)) --at;
      const bin = Math.max(0, Math.min(data.axis.length - 1, Math.floor(points.place[at] - 0.5)));
      const range = points.low[at] < points.high[at] ? ` (${number(points.low[at])} .. ${number(points.high[at])})` : "";
      lines.push(`${one.label}, ${say("step")} ${stepsOfBin(bin)}: ${number(points.value[at])}${range}`);
    }
    return lines;
  }
}

// Whether a column of a line has a least and a largest value.
function hasBand(series) {
  return series.some(({ points }) => points.low.some((low, i) => low < points.high[i]));
}

function seriesKeys(series) {
  const colors = theme();
  return el("span", { class: "keys" }, series.map((one) => {
    const key = el("span", { class: one.isDashed ? "line-key dashed" : "line-key" }, one.label);
    key.style.setProperty("--color", colors.lines[one.color % colors.lines.length]);
    return key;
  }));
}

// The command that gives the numbers of a picture, of each run.
function command(sql) {
  return sides.map((side) => el("p", {}, el("code", {}, `${side.report.commands.query} ${shellWord(sql)}`)));
}

function shellWord(text) {
  if (printable(text) !== text) {
    const codes = text.replace(/['\\]/g, "\\$&").split("").map((c) => (printable(c) === c ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`));
    return `$'${codes.join("")}'`;
  }
  if (!/["$`\\!]/.test(text)) return `"${text}"`;
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function sqlText(text) {
  return `'${text.replaceAll("'", "''")}'`;
}

function mounted(chart) {
  charts.push(chart);
  return chart.element;
}

function unmountAll() {
  for (const chart of charts) chart.unmount();
  charts = [];
}

// What the row that was chosen holds at the cursor, of each rank.
function cellTable(kind, lines) {
  const bin = view.cursor;
  if (bin === null) return null;
  const columns = ["norm", ...["low", "high"].filter((name) => kind.columns.has(name)), "mean", "std", "min", "max", "zeros",
    ...["nans", "infs"].filter((name) => kind.columns.has(name))];
  const head = el("tr", {}, el("th", {}, `${say("step")} ${stepsOfBin(bin)}`),
    columns.map((name) => el("th", {}, name === "low" || name === "high" ? `norm ${name}` : name)));
  const valueOf = (name, { at }) => (STATISTICS.includes(name) ? kind.values(name).value : kind.column(name))[at];
  // What the check of a verdict compared, where it is of one tensor.
  const sizesAt = (line) => markedPlaces().filter(({ verdict, step, takes }) => verdict && verdict.check !== "finite"
    && verdict.tensors.length === 1 && binOfStep(step) === bin && takes(line)).flatMap(({ verdict }) => sizesOf(verdict));
  const labels = (lines.map(sizesAt).find((sizes) => sizes.length > 0) || []).map(([label]) => say(label));
  head.append(...labels.map((label) => el("th", {}, label)));
  const rows = lines.slice(0, MOST_LINES).map((line) => {
    const cell = kind.cell(line, bin);
    return el("tr", {}, el("th", {}, ownerText(line.run, line.rank)),
      cell === null ? el("td", { colspan: columns.length }, cellText(line, bin))
        : columns.map((name) => el("td", {}, number(valueOf(name, cell), ["norm", "low", "high"].includes(name) ? 4 : 3))),
      sizesAt(line).map(([, text]) => el("td", {}, text)));
  });
  return el("div", { class: "scroll" }, el("table", { class: "numbers" }, head, rows));
}

function curveGroups() {
  const groups = [];
  for (const name of ["logged", "norm", "declared"]) {
    const kind = data.curves.kinds.get(name);
    if (!kind) continue;
    for (const [tensor, lines] of kind.byTensor) {
      const label = data.curves.tensors[tensor];
      const values = name === "declared" ? new Set(lines.flatMap((line) => [...pointsOf(line, true).value])) : null;
      groups.push({ isHeld: name === "declared", label: name === "norm" ? say("norm_of", label) : label, lines,
        constant: values !== null && values.size === 1 ? [...values][0] : null,
        place: name === "logged" ? (/loss/i.test(label) ? 0 : 3) : name === "norm" ? 1 : /^lr /.test(label) ? 2 : 4 });
    }
  }
  return groups.sort((a, b) => a.place - b.place);
}

function overview() {
  const all = curveGroups();
  const constant = all.filter((one) => one.constant !== null);
  const varying = all.filter((one) => one.constant === null);
  const room = Math.max(0, MOST_CHARTS - charts.length);
  const cards = varying.slice(0, room).map((group) => {
    const { shown, leftOut } = seriesOf(group.lines, true);
    const chart = new LineChart(group.label, 130, shown, group.isHeld);
    return el("figure", {}, el("figcaption", {}, group.label, " ", seriesKeys(shown), chart.note),
      mounted(chart),
      leftOut > 0 ? el("p", { class: "quiet" }, say("left_out_ranks", leftOut)) : null);
  });
  const notes = [];
  const dropped = varying.slice(room);
  if (dropped.length > 0) {
    const named = dropped.slice(0, 30).map((one) => one.label).join(", ");
    notes.push(say("left_out_charts", dropped.length, dropped.length > 30 ? `${named}, ...` : named));
  }
  if (constant.length > 0) {
    notes.push(say("constant", constant.map((one) => `${one.label} ${number(one.constant)}`).join(", ")));
  }
  for (const side of sides) {
    const starts = side.report.restarts.filter((one) => one.first_step !== null).map((one) => one.first_step);
    const of = side.letter ? `${say("run_n", side.letter)}: ` : "";
    if (starts.length > 1) notes.push(of + say("restarts", starts.length, starts.join(", ")));
    const cost = side.report.record.own_cost;
    if (cost) notes.push(of + say("own_cost", number(100 * cost.share, 2), cost.rank, number(100 * cost.budget, 2)));
  }
  return el("section", { id: "overview", class: "block" }, el("h2", {}, say("overview")),
    el("div", { class: "figures" }, cards), notes.map((one) => el("p", { class: "quiet" }, one)),
    data.curves.kinds.has("logged") ? command("SELECT step, rank, name, value FROM logged") : null,
    data.curves.kinds.has("declared") ? command("SELECT step, rank, name, value FROM declared") : null);
}
