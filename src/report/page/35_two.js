// The first screen of two runs, in the words of `compare`.

function differenceCard() {
  const { found, words, not_compared: why } = report.comparison;
  if (!found) {
    return el("section", { id: "difference", class: "verdict unsure" },
      el("h1", {}, say("not_compared")), el("p", { class: "says" }, why));
  }
  const { first } = found;
  if (!first) {
    return el("section", { id: "difference", class: "verdict fine" },
      el("h1", {}, say("no_difference")),
      el("p", { class: "says" }, language === 0 ? words.extent : say("compared", grouped(found.rows), grouped(found.tensors))));
  }
  // The words of `compare`, or the same in Chinese.
  const tensor = tensorLabel([first.name, first.chunk, first.element]);
  const place = `第 ${first.step} 步，${first.rank < 0 ? say("merged") : say("rank_n", first.rank)}，${printable(first.kind)} ${tensor}`;
  const size = say("apart_by", first.stat, number(first.a, 5), number(first.b, 5), number(first.difference, 3), number(first.ratio, 3));
  const extent = say("beyond", grouped(found.rows_beyond), grouped(found.rows), grouped(found.tensors_beyond), grouped(found.tensors));
  return el("section", { id: "difference", class: "verdict bad" },
    el("p", { class: "label" }, say("first_difference")),
    el("h1", {}, language === 0 ? words.place : place),
    el("p", { class: "says" }, language === 0 ? words.size : size),
    el("p", { class: "quiet" }, language === 0 ? words.extent : extent));
}

// Lists in a block, the rest of each behind a click. `left`: how many the page does not have; `count`: of
// what a list tells, null where its lines say so.
function longBlock(id, title, lists) {
  const most = 5;
  const parts = lists.filter(({ lines }) => lines.length > 0).map(({ label, lines, left = 0, count = lines.length + left }) => {
    const all = lines.length + left;
    const item = (one) => el("li", {}, one);
    return [el("p", {}, count === null ? label : `${label}: ${grouped(count)}`), el("ul", {}, lines.slice(0, most).map(item)),
      all > most ? el("details", {}, el("summary", {}, say("and_more", grouped(all - most))),
        el("ul", {}, lines.slice(most).map(item), left > 0 ? item(say("others_left_out", grouped(left))) : null)) : null];
  });
  return parts.length === 0 ? null : el("section", { id, class: "block" }, el("h2", {}, title), parts);
}

// Ranks and kinds that one run alone has.
function alone(here, there, key) {
  return here[key].filter((one) => !there[key].includes(one));
}

function onlyInOne() {
  const { found, left_out: left } = report.comparison;
  if (!found) return null;
  const sets = [["a", found.a, found.b], ["b", found.b, found.a]];
  const lists = sets.flatMap(([side, here, there]) => {
    const letter = side.toUpperCase();
    const list = (key, name) => ({ label: say(key, letter), lines: here[name], left: left[`${side}.${name}`] });
    const ranks = alone(here, there, "ranks").filter((rank) => rank >= 0);
    const steps = here.first_step < there.first_step || here.last_step > there.last_step
      ? [say("has_steps", here.first_step, here.last_step)] : [];
    return [{ label: say("only_ranks", letter), lines: ranks.length > 0 ? [ranges(ranks)] : [], count: ranks.length },
      { label: say("other_steps", letter), lines: steps, count: null },
      list("only_tensors", "only_here"), list("only_rows", "rows_only_here")];
  });
  const unmatched = sets.filter(([, here]) => here.unmatched > 0)
    .map(([side, here]) => say("unmatched", grouped(here.unmatched), grouped(here.rows), side.toUpperCase()));
  return longBlock("only_in_one", say("only_in_one"), [{ label: say("unmatched_rows"), lines: unmatched, count: null }, ...lists]);
}

function differsOtherwise() {
  const { found, words, left_out: left } = report.comparison;
  if (!found) return null;
  return longBlock("differs", say("differs"), [
    { label: say("declared_differ"), lines: words.declared, left: left.declared },
    { label: say("sizes_differ"), lines: found.different_size, left: left.different_size },
    { label: say("types_differ"), lines: found.different_dtype, left: left.different_dtype },
    { label: say("remarks"), lines: found.remarks },
    ...["a", "b"].map((side) => ({ label: say("not_used", side.toUpperCase()), lines: found[side].not_used, left: left[`${side}.not_used`] })),
  ]);
}

function firstScreenOfTwo() {
  const blocks = [onlyInOne(), differsOtherwise(), ...sides.flatMap((side) => side.blocks())].filter((one) => one !== null);
  return [differenceCard(), el("div", { class: "sides" }, sides.map((side) => side.card())), blocksOf(blocks)];
}

// What `compare` found furthest apart, each tensor once.
function apart() {
  const found = report.other && report.comparison.found;
  if (!found || !found.worst.some((one) => one.ratio !== 0)) return null;
  const head = el("tr", {}, ["tensor", "kind", "rank", "step", "statistic"].map((key) => el("th", {}, say(key))),
    ["A", "B"].map((one) => el("th", {}, one)), ["difference", "of_tolerance"].map((key) => el("th", {}, say(key))));
  const rows = found.worst.map((one) => {
    const label = tensorLabel([one.name, one.chunk, one.element]);
    const line = lineOf(one);
    return el("tr", {}, el("td", {}, line ? el("button", { class: "link", onclick: () => goTo(line, binOfStep(one.step)) }, label) : label),
      [one.kind, one.rank < 0 ? say("merged") : one.rank, one.step, one.stat, number(one.a), number(one.b), number(one.difference, 3), number(one.ratio, 3)]
        .map((text) => el("td", {}, text)));
  });
  return el("section", { id: "apart", class: "block" }, el("h2", {}, say("apart")), el("p", { class: "quiet" }, say("apart_says")),
    el("div", { class: "scroll" }, el("table", { class: "numbers" }, head, rows)));
}

// The line in A of what `compare` names; null: the page has none.
function lineOf(found) {
  const kind = data.rows.kinds.get(found.kind);
  return (kind && kind.lines.find((line) => line.run === 0 && isAt(found, line))) || null;
}

// Whether a difference is of this tensor and rank.
function isAt(found, line) {
  const [name, chunk, element] = data.rows.identities[line.tensor];
  return line.kind.name === found.kind && name === found.name && chunk === found.chunk && element === found.element
    && (found.rank < 0 || line.rank === found.rank);
}
