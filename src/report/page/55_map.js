// A heat map: rows of lines over the columns of steps. Each pixel shows the extreme of all that lies
// under it: zooming out loses no spike.
const LEVEL = { notRecorded: 0, absent: 1, oneRun: 2, value: 3, dropped: 4, far: 5, inf: 6, nan: 7 };
const FAR = 1;  // a tenth or tenfold
const PATTERN = 1;  // no pixel: none is as transparent

// What a map shows of a cell, as a number: the largest of several is the extreme of them. A level, how
// far from the middle (12 bits), and whether it is below.
const [LEVEL_UNIT, MOST_FAR] = [1 << 13, (1 << 12) - 1];
function codeOf(level, tone) {
  return level * LEVEL_UNIT + 2 * Math.round(Math.min(1, Math.abs(tone)) * MOST_FAR) + (tone < 0 ? 1 : 0);
}
const levelOf = (code) => Math.floor(code / LEVEL_UNIT);
const toneOf = (code) => (code % 2 === 1 ? -1 : 1) * ((code % LEVEL_UNIT) >> 1) / MOST_FAR;

// The codes of all cells of a kind, line after line, as they are coloured now.
function codesOf(kind) {
  const { low, high } = kind.values(view.stat);
  const marks = kind.column("marks");
  const far = kind.deviations(view.stat);
  const [least, most] = kind.sizes(view.stat);
  const isHistory = view.color === "history";
  const codes = new Uint16Array(marks.length);
  for (let at = 0; at < marks.length; ++at) {
    const mark = marks[at];
    const away = far[at];
    let level = LEVEL.value;
    if (mark === 0) level = LEVEL.absent;
    else if (mark & MARK.nan) level = LEVEL.nan;
    else if (mark & MARK.inf) level = LEVEL.inf;
    else if (mark & MARK.dropped) level = LEVEL.dropped;
    else if (away >= FAR || away <= -FAR) level = LEVEL.far;
    let tone = 0;
    if (away === away && (mark & MARK.value)) {
      const size = Math.log10(Math.max(Math.abs(low[at]), Math.abs(high[at]), 1e-45));
      tone = isHistory ? away / 9 : Math.max(0.02, (size - least) / Math.max(1e-9, most - least));
    }
    codes[at] = codeOf(level, tone);
  }
  return codes;
}

// Which of a kind's columns had rows of a rank that were lost; null: none.
function lostColumns(line) {
  if (!data.losses.some((one) => one.run === line.run && one.rank === line.rank)) return null;
  return Uint8Array.from(line.kind.bins, (bin) => (isLost(line, bin) ? 1 : 0));
}

// What a map draws of a line: {kind, codes, begin, lost}.
function cellsOf(line) {
  const { kind } = line;
  const key = `${view.stat} ${view.color}`;
  if (kind.codeKey !== key) [kind.codeKey, kind.codes] = [key, codesOf(kind)];
  if (line.lost === undefined) line.lost = lostColumns(line);
  return { kind, codes: kind.codes, begin: line.own * kind.bins.length, lost: line.lost };
}

// The extreme of many lines in each column of the axis from `from` on.
function extremesOf(cells, from, to) {
  if (cells.length === 0) return new Uint16Array(to - from);
  const { bins } = cells[0].kind;
  if (cells.length === 1 && cells[0].lost === null && bins.length === data.axis.length) {
    const { codes, begin } = cells[0];
    return codes.subarray(begin + from, begin + to);
  }
  const best = new Uint16Array(to - from);
  let first = 0;
  while (first < bins.length && bins[first] < from) ++first;
  let last = first;
  while (last < bins.length && bins[last] < to) ++last;
  for (const { codes, begin, lost } of cells) {
    for (let i = first; i < last; ++i) {
      let code = codes[begin + i];
      if (lost !== null && lost[i] === 1 && code < 2 * LEVEL_UNIT) code = LEVEL.dropped * LEVEL_UNIT;
      const at = bins[i] - from;
      if (code > best[at]) best[at] = code;
    }
  }
  return best;
}

// How cells look, as pixels of four bytes.
class Palette {
  constructor(colors) {
    const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    for (const name of ["paper", "drop", "dot", "nan", "inf"]) this[name] = packed(colors[name]);
    this.shades = Uint32Array.from({ length: 513 }, (_, i) => packed(shade(colors, (i - 256) / 256)));
  }
  // Of a tone from -1 to 1, at a place of the pixels.
  pixel(level, tone, x, y) {
    switch (level) {
      case LEVEL.nan: return this.nan;
      case LEVEL.inf: return this.inf;
      case LEVEL.dropped: return (x + y) % 6 < 2 ? this.drop : this.paper;
      case LEVEL.absent: return x % 3 === 0 && y % 3 === 0 ? this.dot : this.paper;
      case LEVEL.oneRun: return y % 4 === 0 ? this.dot : this.paper;
      default: return this.shades[Math.round((Math.max(-1, Math.min(1, tone)) + 1) * 256)];
    }
  }
  // Of a level whose pixels are not all alike.
  static isPattern(level) { return level === LEVEL.dropped || level === LEVEL.absent || level === LEVEL.oneRun; }
  // Pixels from `top` to `bottom` of the column x.
  fill(pixels, width, x, top, bottom, level, tone) {
    if (level === LEVEL.notRecorded) return;
    for (let y = top, at = top * width + x; y < bottom; ++y, at += width) pixels[at] = this.pixel(level, tone, x, y);
  }
}

class HeatMap extends Chart {
  // onPick(row, bin)
  constructor(label, onPick) {
    super(label, 60, 230);
    this.top = 12;
    this.onPick = onPick;
    this.rows = [];
    this.framed = [];  // {step, isDifference, rows}: those that a marked place names
    this.key = "";
  }
  // [{label, lines, seen}]: all lines, and those of them that are drawn
  setRows(rows) {
    this.rows = rows;
    this.key = "";
    this.framed = markedPlaces().map((place) =>
      ({ ...place, rows: rows.flatMap((row, i) => (row.lines.some(place.takes) ? [i] : [])) }));
    const each = rows.length <= 30 ? 15 : rows.length <= 60 ? 9 : 5;
    this.body = Math.max(15, Math.min(500, rows.length * each));
    this.height = this.body + this.top + 20;
    this.canvas.style.height = `${this.height}px`;
  }
  rowAt(y) {
    const row = Math.floor((y - this.top) / this.body * this.rows.length);
    return row >= 0 && row < this.rows.length ? row : -1;
  }
  y(row) { return this.top + Math.round(row / this.rows.length * this.body); }

  // What is drawn of a line of a row, and how far a tone lies from the middle of the colours.
  cellsOf(line) { return cellsOf(line); }
  shownTone(tone) { return view.color === "history" ? 3 * tone : tone; }

  // The pixel of each code; PATTERN where the place of the pixel decides.
  looks(palette) {
    const key = `${isDark()} ${view.color}`;
    if (this.looksKey !== key) {
      this.looksKey = key;
      this.looksOf = Uint32Array.from({ length: 8 * LEVEL_UNIT }, (_, code) => {
        const level = levelOf(code);
        if (Palette.isPattern(level)) return PATTERN;
        return level === LEVEL.notRecorded ? 0 : palette.pixel(level, this.shownTone(toneOf(code)), 0, 0);
      });
    }
    return this.looksOf;
  }

  // The pixels of the plot; made anew when what is in sight has changed.
  pixels(colors, scale) {
    const [width, height] = [Math.round(this.plot * scale), Math.round(this.body * scale)];
    const key = [width, height, view.from, view.to, view.color, view.stat, isDark(), this.rows.length].join();
    if (key === this.key) return this.image;
    this.key = key;
    if (!this.image || this.image.width !== width || this.image.height !== height) this.image = new ImageData(width, height);
    const pixels = new Uint32Array(this.image.data.buffer).fill(0);
    const palette = new Palette(colors);
    const begin = Math.floor(view.from);
    const end = Math.min(data.axis.length, Math.max(begin + 1, Math.ceil(view.to)));
    // The columns under a pixel: from one to before another.
    const from = Int32Array.from({ length: width }, (_, x) => Math.floor(view.from + x / width * (view.to - view.from)) - begin);
    const to = Int32Array.from({ length: width }, (_, x) => Math.min(end - begin,
      Math.max(from[x] + 1, Math.ceil(view.from + (x + 1) / width * (view.to - view.from) - 1e-9) - begin)));
    const line = new Uint32Array(width);
    const looks = this.looks(palette);
    const count = this.rows.length;
    const bands = Math.min(count, height);
    const rowCells = this.rows.map((row) => row.seen.map((one) => this.cellsOf(one)));
    for (let band = 0; band < bands; ++band) {
      const first = Math.floor(band / bands * count);
      const last = Math.max(first + 1, Math.floor((band + 1) / bands * count));
      const cells = last === first + 1 ? rowCells[first] : rowCells.slice(first, last).flat();
      const best = extremesOf(cells, begin, end);
      const [top, bottom] = [Math.floor(band / bands * height), Math.floor((band + 1) / bands * height)];
      const edge = bottom - top >= 6 * scale ? bottom - 1 : bottom;
      const patterns = [];  // places and levels of pixels whose column is not all alike
      for (let x = 0; x < width; ++x) {
        let code = 0;
        const until = to[x];
        for (let at = from[x]; at < until; ++at) if (best[at] > code) code = best[at];
        line[x] = looks[code];
        if (looks[code] === PATTERN) patterns.push(x, levelOf(code));
      }
      for (let y = top; y < edge; ++y) {
        pixels.set(line, y * width);
        for (let i = 0; i < patterns.length; i += 2) pixels[y * width + patterns[i]] = palette.pixel(patterns[i + 1], 0, patterns[i], y);
      }
    }
    return this.image;
  }

  draw() {
    if (this.width === 0) return;
    const colors = theme();
    const pen = this.pen();
    const scale = devicePixelRatio || 1;
    if (this.rows.length > 0) {
      pen.putImageData(this.pixels(colors, scale), Math.round(this.gutter * scale), Math.round(this.top * scale));
    }
    pen.strokeStyle = colors.line;
    pen.strokeRect(this.gutter - 0.5, this.top - 0.5, this.plot + 1, this.body + 1);
    pen.textAlign = "right";
    let free = 0;
    const middleOf = (row) => (this.y(row) + this.y(row + 1)) / 2;
    const chosen = this.rows.findIndex((row) => this.isChosen(row));
    const kept = chosen < 0 ? -Infinity : middleOf(chosen);
    for (let row = 0; row < this.rows.length; ++row) {
      const middle = middleOf(row);
      const isChosen = row === chosen;
      if (!isChosen && (middle < free || Math.abs(middle - kept) < 13)) continue;
      pen.fillStyle = isChosen ? colors.accent : colors.quiet;
      pen.fillText(fitted(pen, this.rows[row].label, this.gutter - 12), this.gutter - 6, middle);
      free = middle + 13;
      if (!isChosen) continue;
      pen.strokeStyle = colors.accent;
      pen.strokeRect(this.gutter - 0.5, this.y(row) - 0.5, this.plot + 1, Math.max(3, this.y(row + 1) - this.y(row)));
    }
    this.drawFrames(pen, colors);
    this.drawAxis(pen, this.top, this.top + this.body, colors);
  }
  // A frame around the cells that a marked place names.
  drawFrames(pen, colors) {
    if (data.axis.length === 0) return;
    for (const { step, isDifference, rows } of this.framed) {
      const bin = binOfStep(step);
      if (bin + 1 <= view.from || bin >= view.to) continue;
      const left = Math.max(this.gutter, this.x(bin));
      const width = Math.max(6, Math.min(this.gutter + this.plot, this.x(bin + 1)) - left);
      const tops = [...new Map(rows.map((row) => [this.y(row), this.y(row + 1)]))];
      // Of two colours, for one of them differs from any shade.
      for (const [color, thick] of [[css(colors.paper), 4], [isDifference ? colors.accent : colors.ink, 2]]) {
        pen.strokeStyle = color;
        pen.lineWidth = thick;
        const out = isDifference ? 3 : 0;  // around the frame of a verdict
        for (const [top, bottom] of tops) pen.strokeRect(left - out, top - out, width + 2 * out, Math.max(5, bottom - top) + 2 * out);
      }
      pen.lineWidth = 1;
    }
  }
  isChosen() { return false; }

  says() {
    const row = this.rowAt(this.mouse.y);
    const bin = Math.floor(this.placeOf(this.mouse.x));
    if (row < 0 || bin < 0 || bin >= data.axis.length || this.mouse.x < this.gutter) {
      return row < 0 ? [] : [this.rows[row].label];
    }
    const lines = [this.rows[row].label, `${say("step")} ${stepsOfBin(bin)}`];
    const told = this.rows[row].lines.slice(0, 8);
    const named = (line) => (this.rows[row].tensors?.length > 1 ? `${data.rows.tensors[line.tensor]}, ` : "");
    for (const line of told) lines.push(named(line) + this.lineText(line, bin));
    const more = this.rows[row].lines.length - told.length;
    return more > 0 ? [...lines, say("left_out_ranks", more)] : lines;
  }
  lineText(line, bin) { return `${ownerText(line.run, line.rank)}: ${cellText(line, bin)}`; }
  onClick({ x, y }) {
    const row = this.rowAt(y);
    const bin = Math.floor(this.placeOf(x));
    if (bin >= 0 && bin < data.axis.length && x >= this.gutter) view.cursor = bin;
    if (row >= 0) this.onPick(this.rows[row]);
  }
}

function cellText(line, bin) { return valueText(line, bin, view.stat); }
function normText(line, bin) { return valueText(line, bin, "norm"); }

function valueText(line, bin, stat) {
  const { kind } = line;
  if (kind.places[bin] < 0) return say("m_not_recorded");
  const cell = kind.cell(line, bin, stat);
  if (cell === null) return say(isLost(line, bin) ? "m_dropped" : "m_absent");
  if (cell.marks === MARK.dropped) return say("m_dropped");
  let text = cell.low < cell.high ? `${number(cell.low)} .. ${number(cell.high)}` : number(cell.value);
  if (cell.marks & MARK.sampled) {
    text = Number.isNaN(cell.value) ? say("m_sampled") : `${text}, ${say("m_sampled")}`;
    if (cell.marks & MARK.nan) text += ", NaN";
    if (cell.marks & MARK.inf) text += ", inf";
    return text;
  }
  if (cell.nans > 0) text += `, ${grouped(cell.nans)} NaN`;
  if (cell.infs > 0) text += `, ${grouped(cell.infs)} inf`;
  return text;
}

// A text in so many pixels, its middle left out.
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text.length - 1;
  const cut = () => `${text.slice(0, Math.floor(kept / 3))}\u2026${text.slice(text.length - Math.ceil(kept * 2 / 3))}`;
  while (kept > 3 && pen.measureText(cut()).width > width) --kept;
  return cut();
}
