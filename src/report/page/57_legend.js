// What the colours and marks of a map stand for.

// All shades, with what the least, the middle and the largest stand for.
function colorBar(palette, isTwoSided, labels) {
  const [width, height] = [300, 14];
  const canvas = el("canvas", { class: "swatch bar", width, height });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let x = 0; x < width; ++x) {
    const part = x / (width - 1);
    palette.fill(pixels, width, x, 0, height, LEVEL.value, isTwoSided ? 2 * part - 1 : part);
  }
  pen.putImageData(image, 0, 0);
  return el("span", { class: "bar-key" }, canvas, el("span", {}, labels.map((one) => el("span", {}, one))));
}

function swatch(palette, level, label) {
  const canvas = el("canvas", { class: "swatch", width: "28", height: "14" });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(28, 14);
  const pixels = new Uint32Array(image.data.buffer);
  for (let x = 0; x < 28; ++x) palette.fill(pixels, 28, x, 0, 14, level, 0);
  pen.putImageData(image, 0, 0);
  return el("span", { class: "key" }, canvas, label);
}

function frameKey(isDifference, label) {
  return el("span", { class: "key" }, el("span", { class: isDifference ? "frame difference" : "frame" }), label);
}

function legend() {
  const palette = new Palette(theme());
  const isHistory = view.color === "history";
  const [least, most] = kindInSight().sizes(view.stat);
  const labels = isHistory ? [say("less"), say("median"), say("more")]
    : [least, (least + most) / 2, most].map((size) => number(Math.pow(10, size), 2));
  return el("p", { id: "legend", class: "quiet" }, colorBar(palette, isHistory, labels),
    sides.some((side) => side.verdict) ? frameKey(false, say("outlined")) : null,
    markedPlaces().some((one) => one.isDifference) ? frameKey(true, say("outlined_difference")) : null,
    swatch(palette, LEVEL.nan, say("m_nan")), swatch(palette, LEVEL.inf, say("m_inf")), swatch(palette, LEVEL.dropped, say("m_dropped")),
    swatch(palette, LEVEL.absent, say("m_absent")), swatch(palette, LEVEL.notRecorded, say("m_not_recorded")));
}
