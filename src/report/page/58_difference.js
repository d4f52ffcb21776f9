// Where two runs differ, tensor x step: each cell of A against that of B, rank by rank.
const LEAST_DIFFERENCE = 1e-8;  // what is below it has the faintest colour

// The relative difference of two numbers.
function relativeDifference(a, b) {
  return a === b ? 0 : Math.abs(a - b) / Math.max(Math.abs(a), Math.abs(b));
}

// The cell of a pair, as a code.
function differenceCode(a, b, values, marks) {
  const [markA, markB] = [marks[a], marks[b]];
  if (markA === 0 || markB === 0) return markA === markB ? LEVEL.absent * LEVEL_UNIT : LEVEL.oneRun * LEVEL_UNIT;
  const mark = markA | markB;
  if (mark & MARK.nan) return LEVEL.nan * LEVEL_UNIT;
  if (mark & MARK.inf) return LEVEL.inf * LEVEL_UNIT;
  if (mark & MARK.dropped) return LEVEL.dropped * LEVEL_UNIT;
  const { value, low, high, error } = values;
  const apart = Math.max(relativeDifference(value[a], value[b]), relativeDifference(low[a], low[b]), relativeDifference(high[a], high[b]));
  if (!(apart > error)) return LEVEL.value * LEVEL_UNIT;
  return codeOf(LEVEL.value, Math.max(0.08, 1 - Math.log10(apart) / Math.log10(LEAST_DIFFERENCE)));
}

class DifferenceMap extends HeatMap {
  // A line of a row is that of A, and `other` that of B.
  cellsOf(line) {
    const { kind, own, other } = line;
    if (line.codeKey !== view.stat) {
      const [values, marks, count] = [kind.values(view.stat), kind.column("marks"), kind.bins.length];
      line.codes = Uint16Array.from({ length: count }, (_, i) => differenceCode(own * count + i, other.own * count + i, values, marks));
      line.codeKey = view.stat;
    }
    return { kind, codes: line.codes, begin: 0, lost: null };
  }
  shownTone(tone) { return tone; }
  lineText(line, bin) {
    const [a, b] = [line, line.other].map((one) => line.kind.cell(one, bin, view.stat));
    const apart = a && b ? `; ${say("difference")} ${number(relativeDifference(a.value, b.value), 3)}` : "";
    return `${say("rank_n", line.rank)}: A ${cellText(line, bin)}, B ${cellText(line.other, bin)}${apart}`;
  }
}

// Tensors that both runs have on a rank.
function differenceRows() {
  return tensorRows(null).flatMap((row) => {
    const others = new Map(row.lines.filter((line) => line.run === 1).map((line) => [line.rank, line]));
    const lines = row.lines.filter((line) => line.run === 0 && others.has(line.rank)).map((line) => ({ ...line, other: others.get(line.rank) }));
    return lines.length === 0 ? [] : [{ ...row, lines, seen: lines }];
  });
}

function differenceLegend() {
  const palette = new Palette(theme());
  return el("p", { id: "difference_legend", class: "quiet" },
    colorBar(palette, false, [say("equal"), number(Math.sqrt(LEAST_DIFFERENCE), 2), "1"]),
    markedPlaces().some((one) => one.isDifference) ? frameKey(true, say("outlined_difference")) : null,
    swatch(palette, LEVEL.nan, say("m_nan")), swatch(palette, LEVEL.inf, say("m_inf")), swatch(palette, LEVEL.dropped, say("m_dropped")),
    swatch(palette, LEVEL.oneRun, say("m_one_run")), swatch(palette, LEVEL.absent, say("m_absent")));
}
