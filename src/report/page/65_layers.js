// The distribution of a statistic over layers, at one step: a bar for each layer, over its tensors and
// ranks; or one part of all layers, over their numbers.
const MOST_LAYERS = 120;

// [{layer, run, values (ascending), marks, count}] at a column of the axis; the search chooses tensors.
function layersAt(kind, bin) {
  const layers = new Map();
  const values = kind.values(view.stat).value;
  const rows = tensorRows(null);
  if (partInSight() !== null) rows.sort((a, b) => data.rows.depths[a.tensor] - data.rows.depths[b.tensor]);
  for (const row of rows) {
    const layer = groupOf(row.tensor);
    for (const line of row.lines) {
      const key = `${layer}\n${line.run}`;
      if (!layers.has(key)) layers.set(key, { layer, run: line.run, values: [], marks: 0, lacking: 0, tensors: new Set() });
      const one = layers.get(key);
      one.tensors.add(row.tensor);
      const cell = kind.cell(line, bin);
      if (cell === null) { ++one.lacking; continue; }
      one.marks |= cell.marks;
      if (Number.isFinite(values[cell.at])) one.values.push(values[cell.at]);
    }
  }
  for (const one of layers.values()) one.values.sort((a, b) => a - b);
  return [...layers.values()];
}

function medianOf(values) {
  const middle = values.length >> 1;
  return values.length % 2 === 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

function badColor(marks, colors) {
  return marks & MARK.nan ? colors.nan : marks & MARK.inf ? colors.inf : marks & MARK.dropped ? colors.drop : null;
}

class LayerChart extends Chart {
  constructor(onPick) {
    super(say("layers"), 60, 230);
    this.onPick = onPick;
    this.note = el("span", { class: "line-note" });
    this.rows = [];
  }
  set(kind, bin) {
    const all = kind.places[bin] < 0 ? [] : layersAt(kind, bin);
    const names = [...new Set(all.map((one) => one.layer))];
    this.rows = names.slice(0, MOST_LAYERS).map((layer) => {
      const bars = all.filter((one) => one.layer === layer);
      return { layer, bars, tensors: bars.flatMap((bar) => [...bar.tensors]) };
    });
    this.leftOut = names.length - this.rows.length;
    const each = this.rows.length <= 30 ? 16 : this.rows.length <= 60 ? 10 : 6;
    this.body = Math.max(16, this.rows.length * each);
    this.height = this.body + 28;
    this.canvas.style.height = `${this.height}px`;
    const shown = this.rows.flatMap((row) => row.bars).flatMap((bar) => [bar.values[0], bar.values[bar.values.length - 1]]).filter(Number.isFinite);
    const positive = Math.min(...this.rows.flatMap((row) => row.bars).map((bar) => bar.values.find((v) => v > 0) ?? Infinity));
    this.scale = scaleOf(Math.min(...shown), Math.max(...shown), positive);
    this.note.textContent = this.rows.length > 0 && !this.scale.hasValues ? say("no_finite") : this.scale.isLog ? say("log_scale") : "";
  }
  rowUnder({ y }) { return this.rows[Math.floor((y - 6) / this.body * this.rows.length)]; }

  draw() {
    if (this.width === 0) return;
    const colors = theme();
    const pen = this.pen();
    const x = (value) => this.gutter + shareOf(this.scale, value) * this.plot;
    const bottom = 6 + this.body;
    pen.textAlign = "center";
    for (const [value, text] of ticksOf(this.scale)) {
      pen.fillStyle = colors.line;
      pen.fillRect(x(value), 6, 0.5, this.body);
      pen.fillStyle = colors.quiet;
      pen.fillText(text, x(value), bottom + 11);
    }
    const each = this.body / Math.max(1, this.rows.length);
    let free = 0;
    this.rows.forEach(({ layer, bars }, row) => {
      const top = 6 + row * each;
      if (top + each / 2 >= free) {
        pen.fillStyle = colors.quiet;
        pen.textAlign = "right";
        pen.fillText(fitted(pen, layer, this.gutter - 12), this.gutter - 6, top + each / 2);
        free = top + each / 2 + 13;
      }
      bars.forEach((bar) => this.drawBar(pen, bar, colors, top + each * (0.12 + 0.76 * bar.run / sides.length), each * 0.76 / sides.length, x));
    });
  }
  drawBar(pen, { values, marks, run }, colors, top, height, x) {
    const color = colors.lines[run];
    if (values.length > 0) {
      const [left, right] = [x(values[0]), x(values[values.length - 1])];
      pen.fillStyle = color;
      pen.globalAlpha = 0.35;
      pen.fillRect(left, top, Math.max(2, right - left), height);
      pen.globalAlpha = 1;
      pen.fillRect(x(medianOf(values)) - 1, top, 3, height);
    }
    const bad = badColor(marks, colors);
    if (bad === null) return;
    pen.fillStyle = css(bad);
    pen.fillRect(this.gutter + 1, top, 7, height);
  }

  barText({ run, values, marks, lacking, tensors }) {
    const of = sides.length > 1 ? `${sides[run].letter}: ` : "";
    const words = [say("bar_of", tensors.size, grouped(values.length))];
    if (values.length > 0) words.push(say("bar_values", ...[values[0], medianOf(values), values[values.length - 1]].map((one) => number(one, 3))));
    for (const [mark, key] of [[MARK.nan, "m_nan"], [MARK.inf, "m_inf"], [MARK.dropped, "m_dropped"]]) if (marks & mark) words.push(say(key));
    if (lacking > 0) words.push(`${say("m_absent")}: ${lacking}`);
    return of + words.join("; ");
  }
  onMove(event) {
    this.mouse = this.at(event);
    const row = this.rowUnder(this.mouse);
    tip(event, row ? [row.layer, ...row.bars.map((bar) => this.barText(bar))] : []);
  }
  onUp(event) {
    this.drag = null;
    const row = this.rowUnder(this.at(event));
    if (row) this.onPick(row);
  }
  onWheel() {}
}

// One part of all layers: layer numbers on x, a bar from the least to the largest, and a line through
// the medians.
class DepthChart extends LayerChart {
  set(kind, bin) {
    super.set(kind, bin);
    this.height = 220;
    this.canvas.style.height = `${this.height}px`;
  }
  get each() { return this.plot / Math.max(1, this.rows.length); }
  middle(row) { return this.gutter + (row + 0.5) * this.each; }
  rowUnder({ x }) { return this.rows[Math.floor((x - this.gutter) / this.each)]; }

  draw() {
    if (this.width === 0) return;
    const colors = theme();
    const pen = this.pen();
    const [top, bottom] = [14, this.height - 22];
    const y = (value) => bottom - shareOf(this.scale, value) * (bottom - top);
    pen.textAlign = "right";
    for (const [value, text] of ticksOf(this.scale)) {
      pen.fillStyle = colors.line;
      pen.fillRect(this.gutter, y(value), this.plot, 0.5);
      pen.fillStyle = colors.quiet;
      pen.fillText(text, this.gutter - 6, y(value), this.gutter - 8);
    }
    pen.textAlign = "center";
    let free = -Infinity;
    this.rows.forEach(({ tensors }, row) => {
      const text = String(data.rows.depths[tensors[0]]);
      const half = pen.measureText(text).width / 2 + 4;
      if (this.middle(row) - half < free) return;
      pen.fillStyle = colors.quiet;
      pen.fillText(text, this.middle(row), bottom + 12);
      free = this.middle(row) + half;
    });
    sides.forEach((_, run) => this.drawRun(pen, run, colors, y, top));
  }
  drawRun(pen, run, colors, y, top) {
    const width = Math.max(2, Math.min(18, this.each * 0.6 / sides.length));
    pen.strokeStyle = pen.fillStyle = colors.lines[run];
    pen.beginPath();
    this.rows.forEach(({ bars }, row) => {
      const bar = bars.find((one) => one.run === run);
      if (!bar) return;
      const left = this.middle(row) + (run - (sides.length - 1) / 2) * width - width / 2;
      const bad = badColor(bar.marks, colors);
      if (bad !== null) {
        pen.fillStyle = css(bad);
        pen.fillRect(left, top - 12, width, 9);
        pen.fillStyle = colors.lines[run];
      }
      const { values } = bar;
      if (values.length === 0) return;
      const [low, high, middle] = [values[0], values[values.length - 1], medianOf(values)].map(y);
      pen.globalAlpha = 0.35;
      pen.fillRect(left, high, width, Math.max(2, low - high));
      pen.globalAlpha = 1;
      pen.fillRect(left, middle - 1, width, 3);
      pen.lineTo(left + width / 2, middle);
    });
    pen.stroke();
  }
}

// The section, whose chart stays while the cursor moves.
function layers() {
  const Chosen = partInSight() === null ? LayerChart : DepthChart;
  layerChart = new Chosen((row) => { view.tensor = row.tensors[0]; render.pictures(); });
  return el("section", { id: "layers", class: "block" },
    el("h2", {}, el("span", { id: "layers_title" }), layerChart.note), mounted(layerChart),
    el("p", { class: "quiet" }, say(partInSight() === null ? "layers_say" : "depth_say"), sides.length > 1 ? sides.map((side) => {
      const key = el("span", { class: "line-key" }, say("run_n", side.letter));
      key.style.setProperty("--color", theme().lines[side.number]);
      return key;
    }) : null),
    el("p", { id: "layers_left", class: "quiet" }), el("div", { id: "layers_command" }));
}
