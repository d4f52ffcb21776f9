// The columns of the page as tables. docs/report.md has the layout.
const SIZES = { marks: 1, zeros: 1, min: 2, max: 2, balance: 2 };  // bytes; 4 of all others
const STATISTICS = ["norm", "mean", "std", "absmax", "zeros"];  // as `trainmon show` names them
const MARK = { value: 1, nan: 2, inf: 4, dropped: 8, sampled: 16 };

async function unpacked() {
  const packed = atob(document.getElementById("data").textContent);
  const blob = new Blob([Uint8Array.from(packed, (c) => c.charCodeAt(0))]);
  const stream = blob.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The lines of one kind: `own` ones have cells, others share those of one.
class Kind {
  constructor(description, columns, table) {
    this.name = description.kind;
    this.stage = description.stage;
    this.bins = description.bins;
    this.table = table;
    this.columns = new Map();
    this.made = new Map();  // statistics, by name
    this.ownCount = description.lines.length;
    const cells = this.ownCount * this.bins.length;
    let at = description.at;
    for (const name of description.columns) {
      const size = SIZES[name] || 4;
      this.columns.set(name, { name, bytes: columns.subarray(at, at + cells * size), values: null });
      at += cells * size;
    }
    this.lines = description.lines.map(([tensor, rank, score, worst, run, count, order], own) =>
      ({ kind: this, tensor, run, rank, own, count, score: score === "inf" ? Infinity : score, worst, order }));
    for (const [tensor, rank, own, run] of description.same) {
      this.lines.push({ ...this.lines[own], tensor, run, rank });
    }
    this.byTensor = new Map();
    for (const line of this.lines) {
      if (!this.byTensor.has(line.tensor)) this.byTensor.set(line.tensor, []);
      this.byTensor.get(line.tensor).push(line);
    }
    for (const lines of this.byTensor.values()) lines.sort((a, b) => a.run - b.run || a.rank - b.rank);
    this.places = new Int32Array(table.bins.length).fill(-1);  // of the table's columns
    this.bins.forEach((bin, i) => { this.places[bin] = i; });
  }

  // All values of a column, line after line; null: every value is as where the column is missing.
  column(name) {
    const column = this.columns.get(name);
    if (column === undefined) return null;
    if (column.values === null) {
      const { bytes } = column;
      const size = SIZES[name] || 4;  // a number of two bytes is the upper half of a float
      if (size === 1) return (column.values = bytes);
      const count = bytes.length / size;
      const whole = new Uint8Array(4 * count);
      for (let plane = 0; plane < size; ++plane) {
        for (let i = 0; i < count; ++i) whole[4 * i + 4 - size + plane] = bytes[plane * count + i];
      }
      const view = ["count", "nans", "infs"].includes(name) ? Uint32Array : Float32Array;
      column.values = new view(whole.buffer);
    }
    return column.values;
  }

  get low() { return this.column("low") || this.column("value"); }
  get high() { return this.column("high") || this.column("value"); }

  // A statistic of all cells: the last one of a column, and of a norm the least and the largest.
  // `error`: by which share of itself a number may be off.
  values(name) {
    if (!this.made.has(name)) this.made.set(name, this.make(name));
    return this.made.get(name);
  }

  make(name) {
    const norm = this.column("value");
    if (name === "norm") return { value: norm, low: this.low, high: this.high, error: 0 };
    const of = { mean: () => this.parts(true), std: () => this.parts(false), absmax: () => this.absmax(), zeros: () => this.zeros() };
    const value = of[name]();
    return { value, low: value, high: value, error: 1 / 128 };
  }

  // The means or the standard deviations: `balance` is the one over the other, and their squares add
  // up to that of the norm over the number of elements.
  parts(isMean) {
    const [norm, balance, counts] = [this.column("value"), this.column("balance"), this.column("count")];
    const width = this.bins.length;
    const made = new Float32Array(norm.length);
    for (let at = 0; at < norm.length; ++at) {
      const size = norm[at] / Math.sqrt(counts ? counts[at] : this.lines[(at / width) | 0].count);
      const share = balance[at];
      const deviation = size / Math.sqrt(1 + share * share);  // 0 where the share is infinite
      if (!isMean) made[at] = deviation;
      else made[at] = share === Infinity ? size : share === -Infinity ? -size : share * deviation;
    }
    return made;
  }
  absmax() {
    const max = this.column("max");
    return this.column("min").map((least, at) => Math.max(Math.abs(least), Math.abs(max[at])));
  }
  zeros() {
    const [shares, norm, marks] = [this.column("zeros"), this.column("value"), this.column("marks")];
    const isKnown = (one, at) => !(marks[at] & MARK.sampled) && !(Number.isNaN(one) && marks[at] === 0);
    return Float32Array.from(norm, (one, at) => (!isKnown(one, at) ? NaN : shares ? shares[at] / 255 : 0));
  }

  // log10 of the size of a statistic over the median of its line, of the extreme that is further away;
  // NaN: none.
  deviations(name) {
    const made = this.values(name);
    if (made.far) return made.far;
    const width = this.bins.length;
    const { value, low, high } = made;
    made.far = new Float32Array(value.length);
    for (let own = 0; own < this.ownCount; ++own) {
      const begin = own * width;
      const sorted = Float32Array.from(value.subarray(begin, begin + width).map(Math.abs).filter((v) => v > 0 && v < Infinity)).sort();
      const middle = sorted.length > 0 ? sorted[sorted.length >> 1] : 1;
      const of = (v) => (Number.isFinite(v) ? Math.max(-9, Math.min(9, Math.log10(Math.abs(v) / middle))) : NaN);
      for (let i = begin; i < begin + width; ++i) {
        const [a, b] = [of(low[i]), of(high[i])];
        made.far[i] = Number.isNaN(a) || Math.abs(b) >= Math.abs(a) ? b : a;
      }
    }
    return made.far;
  }

  // The least and the largest finite log10 of the size of a statistic that is not 0.
  sizes(name) {
    const made = this.values(name);
    if (!made.size) {
      let [least, most] = [Infinity, 0];
      for (const one of made.high) {
        const v = Math.abs(one);
        if (v > 0 && v < least) least = v;
        if (v > most && v < Infinity) most = v;
      }
      made.size = least <= most ? [Math.log10(least), Math.log10(most)] : [0, 1];
    }
    return made.size;
  }

  // The cell of a line in a column of the table, with a statistic; null: there is none.
  cell(line, bin, name = "norm") {
    const place = this.places[bin];
    if (place === undefined || place < 0) return null;
    const at = line.own * this.bins.length + place;
    const marks = this.column("marks")[at];
    if (marks === 0) return null;
    const of = (name) => { const values = this.column(name); return values ? values[at] : undefined; };
    const { value, low, high } = this.values(name);
    return { marks, value: value[at], low: low[at], high: high[at], at, nans: of("nans") || 0, infs: of("infs") || 0 };
  }
}

class Table {
  constructor(description, columns) {
    this.width = description.width;
    this.bins = description.bins;
    this.identities = description.tensors;  // name, chunk, element; null: nothing is left of it
    this.names = description.tensors.map((one) => one && one[0]);
    this.tensors = description.tensors.map((one) => one && tensorLabel(one));
    const [layers, parts] = [description.layers || [], description.parts || []];
    this.layers = description.tensors.map((one) => one && (printable(layers[one[3]] || "") || say("root")));
    this.parts = description.tensors.map((one) => (one && one.length > 4 ? printable(parts[one[4]]) : null));  // in each layer
    this.depths = description.tensors.map((one) => (one && one.length > 4 ? one[5] : null));  // numbers of layers
    this.leftOut = description.left_out;
    this.kinds = new Map(description.kinds.map((one) => [one.kind, new Kind(one, columns, this)]));
  }
}

function tensorLabel([name, chunk, element]) {
  return printable((name || "(root)") + (element ? ` ${element}` : "")) + (chunk ? ` [chunk ${chunk}]` : "");
}

const data = { rows: null, curves: null, histograms: null, losses: [], axis: [], restarts: [], renamed: {} };

// The numbers of the pictures, out of the bytes of a page.
function load(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const description = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = bytes.subarray(4 + length);
  data.rows = new Table(description.rows, columns);
  data.curves = new Table(description.curves, columns);
  data.histograms = new Histograms(description.histograms, columns, description.histograms.at);
  data.losses = description.losses.map(([rank, restart, first, last, rows, reason, run]) =>
    ({ run, rank, restart, first, last, rows, reason }));
  data.renamed = description.renamed;
  data.axis = data.rows.bins.length > 0 ? data.rows.bins : data.curves.bins;
  data.restarts = sides.flatMap((side) => side.report.restarts).filter((one) => one.restart > 0 && one.first_step !== null).map((one) => one.first_step);
}

// Where a step is on the axis, in columns: between two columns where it is between their steps.
function placeOfStep(step) {
  const bins = data.axis;
  if (bins.length === 0) return 0;
  let [low, high] = [0, bins.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bins[middle][0] <= step) low = middle + 1; else high = middle;
  }
  const at = low - 1;
  const pace = Math.max(1, (bins[bins.length - 1][0] - bins[0][0]) / Math.max(1, bins.length - 1));
  if (at < 0) return (step - bins[0][0]) / pace;
  const next = at + 1 < bins.length ? bins[at + 1][0] : bins[at][0] + pace;
  return at + (step - bins[at][0]) / Math.max(1, next - bins[at][0]);
}

function binOfStep(step) {
  return Math.max(0, Math.min(data.axis.length - 1, Math.floor(placeOfStep(step))));
}

function stepsOfBin(bin) {
  const [first, last] = data.axis[bin];
  return first === last ? String(first) : `${first}-${last}`;
}

// Whether rows of a rank were lost in the steps of a column.
function isLost({ run, rank }, bin) {
  const [first, last] = data.axis[bin];
  return data.losses.some((one) => one.run === run && one.rank === rank && one.first <= last && one.last >= first);
}
