// What all pictures share: the steps in sight, one cursor, colours, and when they are drawn.
const MOST_CHARTS = 20;
const GAPS = Array.from({ length: 24 }, (_, i) => [1, 2, 5][i % 3] * Math.pow(10, Math.floor(i / 3)));  // columns between two texts
const view = { kind: null, stat: "norm", run: 0, rank: null, order: "model", color: "history", search: "", group: "",
  from: 0, to: 1, cursor: null, tensor: null, row: 0 };
let charts = [];
let isWaiting = false;
let isPrinting = false;

function isDark() {
  return !isPrinting && matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme() {
  return isDark()
    ? { ink: "#e6e9ed", quiet: "#9aa5b1", line: "#363d46", paper: [20, 23, 27], middle: [43, 49, 56], less: [74, 163, 255],
      more: [255, 166, 77], dot: [130, 142, 156], drop: [205, 212, 220], nan: [255, 64, 255], inf: [240, 243, 246], accent: "#7ab7ff", bad: "#ff8a80",
      lines: ["#7ab7ff", "#ffb454", "#5fd7a7", "#ff8ac4", "#d7d75f", "#b79cff", "#ff8a80", "#8fd3ff"] }
    : { ink: "#16191d", quiet: "#5b6470", line: "#d5dae0", paper: [255, 255, 255], middle: [236, 239, 242], less: [33, 102, 172],
      more: [217, 95, 2], dot: [120, 128, 138], drop: [60, 66, 74], nan: [204, 0, 204], inf: [22, 25, 29], accent: "#1a5fb4", bad: "#b3261e",
      lines: ["#1a5fb4", "#c25e00", "#1b7f5c", "#b0288a", "#7a6a00", "#6a4fb3", "#b3261e", "#2b8fbd"] };
}

function css([r, g, b]) {
  return `rgb(${r}, ${g}, ${b})`;
}

// t from -1 to 1 or, of sizes, from 0 to 1.
function shade(colors, t) {
  const end = t < 0 ? colors.less : colors.more;
  const part = Math.pow(Math.min(1, Math.abs(t)), 0.6);
  return colors.middle.map((from, i) => Math.round(from + (end[i] - from) * part));
}

// What the page is about: the verdict of each run, and where two runs begin to differ.
function markedPlaces() {
  const places = sides.filter((side) => side.verdict).map(({ verdict, number, report: { words, verdict_at: at } }) => {
    const { element } = words[at];
    const names = new Set(verdict.tensors.map((name) => (number === 1 && data.renamed[name]) || name));
    return { step: verdict.step, isDifference: false, verdict, takes: (line) => line.run === number
      && line.kind.stage === verdict.stage && names.has(data.rows.names[line.tensor])
      && (element === "" || data.rows.identities[line.tensor][2] === element) && (verdict.ranks.length === 0 || verdict.ranks.includes(line.rank)) };
  });
  const found = report.other && report.comparison.found && report.comparison.found.first;
  if (found) places.unshift({ step: found.step, isDifference: true, takes: (line) => isAt(found, line) });
  return places;
}

// Whose a line is: "A, rank 0" of two runs, or "rank 0".
function ownerText(run, ranks) {
  const text = say("rank_n", ranks);
  return sides.length > 1 ? `${sides[run].letter}, ${text}` : text;
}

function repaint() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(paintNow);
}

function paintNow() {
  isWaiting = false;
  for (const chart of charts) chart.draw();
}

function wholeRun() {
  view.from = 0;
  view.to = Math.max(1, data.axis.length);
}

function zoom(factor, around) {
  const length = Math.max(1, Math.min(data.axis.length, (view.to - view.from) * factor));
  const share = (around - view.from) / (view.to - view.from);
  show(around - share * length, length);
}

// Columns from `from` on, so many; inside the run.
function show(from, length) {
  view.from = Math.max(0, Math.min(from, data.axis.length - length));
  view.to = Math.min(Math.max(1, data.axis.length), view.from + length);
  repaint();
}

function moveCursor(bin) {
  view.cursor = Math.max(0, Math.min(data.axis.length - 1, bin));
  const length = view.to - view.from;
  if (view.cursor < view.from) show(view.cursor, length);
  if (view.cursor + 1 > view.to) show(view.cursor + 1 - length, length);
  repaint();
}

// A canvas over the width of its place; x is the axis of steps. `draw()` draws it. `makeCanvas`: where
// something else has made the canvas, which then stands in `element`.
class Chart {
  constructor(label, height, gutter, makeCanvas = () => el("canvas")) {
    this.widest = gutter;
    this.height = height;
    this.canvas = makeCanvas(this);
    for (const [name, value] of [["role", "img"], ["aria-label", label], ["tabindex", "0"]]) this.canvas.setAttribute(name, value);
    this.canvas.style.height = `${height}px`;
    this.mouse = null;
    this.drag = null;
    this.canvas.addEventListener("mousemove", (event) => this.onMove(event));
    this.canvas.addEventListener("mouseleave", () => this.onLeave());
    this.canvas.addEventListener("mousedown", (event) => { this.drag = this.at(event); });
    this.canvas.addEventListener("mouseup", (event) => this.onUp(event));
    this.canvas.addEventListener("dblclick", () => { wholeRun(); repaint(); });
    this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    new ResizeObserver(repaint).observe(this.element);
  }
  get element() { return this.canvas; }
  get width() { return this.element.clientWidth; }
  unmount() {}

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }
  get gutter() { return Math.min(this.widest, Math.floor(this.width * 0.35)); }
  get plot() { return Math.max(1, this.width - this.gutter - 8); }
  placeOf(x) { return view.from + (x - this.gutter) / this.plot * (view.to - view.from); }
  x(place) { return this.gutter + (place - view.from) / (view.to - view.from) * this.plot; }

  onMove(event) {
    this.mouse = this.at(event);
    const place = this.placeOf(this.mouse.x);
    if (this.drag === null && place >= view.from && place < view.to && data.axis.length > 0) {
      view.hover = Math.floor(place);
    }
    tip(event, this.says());
    repaint();
  }
  onLeave() {
    this.mouse = this.drag = null;
    view.hover = null;
    tip(null, []);
    repaint();
  }
  onUp(event) {
    const [from, to] = [this.drag, this.at(event)];
    this.drag = null;
    if (from === null) return;
    if (Math.abs(to.x - from.x) > 6) {
      const [a, b] = [this.placeOf(from.x), this.placeOf(to.x)].sort((p, q) => p - q);
      show(Math.floor(a), Math.max(1, Math.ceil(b) - Math.floor(a)));
    } else {
      this.onClick(to);
    }
    repaint();
  }
  // Only where somebody has clicked before, so that a page that is scrolled goes on to scroll.
  onWheel(event) {
    if (document.activeElement !== this.canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, this.placeOf(this.at(event).x));
  }
  onClick({ x }) {
    moveCursor(Math.floor(this.placeOf(x)));
    render.atCursor();
  }
  says() { return []; }

  // A pen on an empty canvas, in CSS pixels.
  pen() {
    const scale = devicePixelRatio || 1;
    const width = Math.round(this.width * scale);
    const height = Math.round(this.height * scale);
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  // Steps below, and what `drawPlaces` draws.
  drawAxis(pen, top, bottom, colors) {
    pen.fillStyle = colors.quiet;
    pen.textAlign = "center";
    let free = -Infinity;
    const gap = GAPS.find((one) => one >= (view.to - view.from) / (this.plot / 70));
    for (let bin = Math.ceil(view.from / gap) * gap; bin < Math.min(view.to, data.axis.length); bin += gap) {
      const x = this.x(bin + 0.5);
      const text = String(data.axis[bin][0]);
      const half = pen.measureText(text).width / 2;
      if (x - half < free || x + half > this.gutter + this.plot + 8) continue;
      pen.fillRect(x - 0.5, bottom, 1, 4);
      pen.fillText(text, x, bottom + 11);
      free = x + half + 10;
    }
    this.drawPlaces(pen, top, bottom, colors);
  }

  // The verdict, restarts, the cursor, the range that is dragged.
  drawPlaces(pen, top, bottom, colors) {
    const rule = (place, color, dash) => {
      if (place < view.from || place > view.to) return;
      pen.strokeStyle = color;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(Math.round(this.x(place)) + 0.5, top);
      pen.lineTo(Math.round(this.x(place)) + 0.5, bottom);
      pen.stroke();
      pen.setLineDash([]);
    };
    for (const step of data.restarts) rule(placeOfStep(step), colors.ink, [4, 4]);
    for (const { step, isDifference } of data.axis.length > 0 ? markedPlaces() : []) {
      const x = this.x(binOfStep(step) + 0.5);
      if (x >= this.gutter && x <= this.gutter + this.plot) {
        pen.fillStyle = isDifference ? colors.accent : colors.bad;
        pen.beginPath();
        pen.moveTo(x - 6, top - 9);
        pen.lineTo(x + 6, top - 9);
        pen.lineTo(x, top);
        pen.fill();
      }
    }
    const cursor = view.hover ?? view.cursor;
    if (cursor !== null && cursor !== undefined) rule(cursor + 0.5, colors.accent, []);
    if (this.drag !== null && this.mouse !== null) {
      pen.fillStyle = colors.accent;
      pen.globalAlpha = 0.2;
      pen.fillRect(Math.min(this.drag.x, this.mouse.x), top, Math.abs(this.drag.x - this.mouse.x), bottom - top);
      pen.globalAlpha = 1;
    }
  }
}

function tip(event, lines) {
  const box = document.getElementById("tip");
  box.hidden = lines.length === 0;
  if (lines.length === 0) return;
  box.replaceChildren(...lines.map((line) => el("div", {}, line)));
  const right = event.clientX + 16 + box.offsetWidth > innerWidth;
  box.style.left = `${right ? event.clientX - box.offsetWidth - 12 : event.clientX + 14}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 4)}px`;
}
