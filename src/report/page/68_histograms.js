// Recorded histograms of a tensor over steps: a column of the picture is a histogram.

// The histograms of a page: lines of bytes, for each column the shares below, above, NaN and of all bins.
class Histograms {
  constructor({ steps, lines, bins, left_out: leftOut }, columns, at) {
    Object.assign(this, { steps, leftOut });
    let begin = at;
    this.lines = lines.map(([kind, name, chunk, element, run, rank, low, high]) => {
      const width = bins + 3;
      const bytes = columns.subarray(begin, begin + width * steps.length);
      begin += width * steps.length;
      return { kind, name, element, chunk, label: tensorLabel([name, chunk, element]), run, rank, low, high, bins, width, bytes };
    });
  }
}

// Whether the NaN of a column is a ratio of 0 and 0: there is none in what the optimizer's step was then.
function isUndefined(line, column) {
  if (line.element !== "ratio") return false;
  const isStep = (one) => one.element === "update" && ["kind", "name", "chunk", "run", "rank"].every((key) => one[key] === line[key]);
  const step = data.histograms.lines.find(isStep);
  return step !== undefined && step.bytes[column * step.width + 2] === 0;
}

// A share of the elements as it is drawn; one byte is its square root.
const shareOfByte = (byte) => Math.pow(byte / 255, 2);

class HistogramChart extends Chart {
  constructor(line) {
    super(`${say("histograms")}: ${line.label}`, 150, 230);
    this.line = line;
  }
  // Where a column of the histograms lies on the axis.
  spanOf([first, last]) { return [placeOfStep(first), Math.max(placeOfStep(last), placeOfStep(first)) + 1]; }
  draw() {
    if (this.width === 0) return;
    const colors = theme();
    const pen = this.pen();
    const { line } = this;
    const [top, bottom] = [12, this.height - 20];
    const each = (bottom - top) / line.bins;
    pen.textAlign = "right";
    pen.fillStyle = colors.quiet;
    for (const share of [0, 0.5, 1]) pen.fillText(number(line.low + share * (line.high - line.low)), this.gutter - 6, bottom - share * (bottom - top));
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, 0, this.plot, this.height);
    pen.clip();
    data.histograms.steps.forEach((steps, column) => {
      const [from, to] = this.spanOf(steps);
      if (to <= view.from || from >= view.to) return;
      const [left, right] = [this.x(from), this.x(to)];
      const bytes = line.bytes.subarray(column * line.width, (column + 1) * line.width);
      for (let bin = 0; bin < line.bins; ++bin) {
        if (bytes[3 + bin] === 0) continue;
        pen.fillStyle = css(shade(colors, bytes[3 + bin] / 255));
        pen.fillRect(left, bottom - (bin + 1) * each, Math.max(1, right - left), Math.ceil(each));
      }
      const outside = [[bytes[0], bottom - 3, colors.more], [bytes[1], top, colors.more], [bytes[2], top, isUndefined(line, column) ? colors.dot : colors.nan]];
      for (const [byte, y, color] of outside) {
        if (byte === 0) continue;
        pen.fillStyle = css(color);
        pen.fillRect(left, y, Math.max(1, right - left), 3);
      }
    });
    pen.restore();
    pen.strokeStyle = colors.line;
    pen.strokeRect(this.gutter - 0.5, top - 0.5, this.plot + 1, bottom - top + 1);
    this.drawAxis(pen, top, bottom, colors);
  }
  says() {
    const place = this.placeOf(this.mouse.x);
    const column = data.histograms.steps.findIndex((steps) => place >= this.spanOf(steps)[0] && place < this.spanOf(steps)[1]);
    if (column < 0 || this.mouse.x < this.gutter) return [this.line.label];
    const { line } = this;
    const bytes = line.bytes.subarray(column * line.width, (column + 1) * line.width);
    const [first, last] = data.histograms.steps[column];
    const lines = [line.label, `${say("step")} ${first === last ? first : `${first}-${last}`}`];
    if (bytes.every((one) => one === 0)) return [...lines, say("m_absent")];
    const bin = Math.floor((this.height - 20 - this.mouse.y) / (this.height - 32) * line.bins);
    const percent = (byte) => `${number(100 * shareOfByte(byte), 2)} %`;
    const edge = (i) => number(line.low + i / line.bins * (line.high - line.low), 3);
    if (bin >= 0 && bin < line.bins) lines.push(`${edge(bin)} .. ${edge(bin + 1)}: ${percent(bytes[3 + bin])}`);
    for (const [i, key] of [[0, "below"], [1, "above"], [2, isUndefined(line, column) ? "m_undefined" : "m_nan"]]) if (bytes[i] > 0) lines.push(`${say(key)}: ${percent(bytes[i])}`);
    return lines;
  }
}

// Those of the tensor in sight, or of the first that has any.
function histograms() {
  const all = data.histograms.lines;
  if (all.length === 0) return null;
  const names = [...new Set(all.map((line) => line.name))];
  const chosen = data.rows.names[view.tensor];
  const name = names.includes(view.histogram ?? chosen) ? view.histogram ?? chosen : names[0];
  const lines = all.filter((line) => line.name === name);
  const shown = lines.slice(0, Math.min(4, Math.max(0, MOST_CHARTS - charts.length)));
  const figures = shown.map((line) => el("figure", {},
    el("figcaption", {}, `${line.kind} ${line.label}, ${ownerText(line.run, line.rank)}`), mounted(new HistogramChart(line))));
  return el("section", { id: "histograms", class: "block" }, el("h2", {}, say("histograms")),
    el("p", { id: "histogram_choice" }, choice(say("tensor"), names.map((one) => [one, printable(one)]), name, (one) => { view.histogram = one; render.pictures(); })),
    figures,
    lines.length > shown.length ? el("p", { class: "quiet" }, say("left_out_ranks", lines.length - shown.length)) : null,
    sides.map((side) => el("p", {}, el("code", {}, `${side.report.commands.plot} --what histogram --name ${shellWord(name)}`))),
    data.histograms.leftOut > 0 ? el("p", { class: "quiet" }, say("histograms_left_out", grouped(data.histograms.leftOut))) : null,
    el("p", { class: "quiet" }, say("histograms_say")));
}
