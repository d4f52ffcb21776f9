// The first screen: what is wrong, where, since when; what was not seen; how to see it elsewhere.

// What `diagnose` says of a run.
class Side {
  // `letter`: "A" or "B" of two runs, else "".
  constructor(report, number, letter) {
    this.report = report;
    this.number = number;
    this.letter = letter;
    this.findings = report.diagnosis.findings;
    this.verdict = report.verdict_at === null ? null : this.findings[report.verdict_at];
  }
  id(name) { return this.letter ? `${name}_${this.letter.toLowerCase()}` : name; }
  titled(key) { return this.letter ? `${say("run_n", this.letter)}: ${say(key)}` : say(key); }

  path() { return this.letter ? el("p", { class: "quiet" }, this.report.run) : null; }

  tensorsOf(at) {
    const names = this.findings[at].tensors;
    if (names.length === 0) return say("none_named");
    const all = this.report.words[at].tensors;
    if (names.length > 1 && /^(both|all [\d,]+) tensors$/.test(all)) return language === 0 ? all : say("all_tensors", names.length);
    const shown = this.report.words[at].names.join(", ");
    return names.length > 3 ? `${shown} ${say("and_more", names.length - 3)}` : shown;
  }

  // The place in the words of `diagnose`, or the same in Chinese.
  placeOf(at) {
    const one = this.findings[at];
    if (language === 0) return this.report.words[at].place;
    const parts = [`第 ${one.step} 步`, say(one.stage)];
    if (one.ranks.length > 0) parts.push(`rank ${ranksText(one)}`);
    if (one.tensors.length > 0) parts.push(this.tensorsOf(at));
    return parts.join("，");
  }

  // The norm before, at the step of the verdict and at last, of each rank that is named.
  normsOfVerdict() {
    if (!this.report.evidence) return [];
    const { kind, lines } = this.report.evidence;
    return lines.map(({ rank, before, at, last }) => {
      const all = [before, at, last].filter((one) => one !== null);
      const values = new Set(all.map((one) => one.norm));
      if (values.size === 1 && all.length > 1) return null;  // it tells nothing
      let digits = 3;
      while (digits < 9 && new Set([...values].map((one) => number(one, digits))).size < values.size) ++digits;
      const norms = all.map((one) => say("at_step", number(one.norm, digits), one.step));
      return `${say("rank_n", rank)}, ${say("norm_at", kind)}: ${norms.join(" \u2192 ")}`;
    }).filter((one) => one !== null);
  }

  // The later steps of a finding that are one with it.
  laterSteps(at) {
    return this.findings.filter((_, i) => i !== at && this.report.words[i].first_alike === at).map((one) => one.step);
  }

  // Until when the verdict lasted, where that is known.
  lasted() {
    const [, end] = this.spanOfSteps() || [0, 0];
    const { spread } = this.report;
    if (spread) {
      if (spread.last === null) return null;
      const [first, last] = spread.last;
      if (first <= this.verdict.step) return last < end ? say("bad_alone") : null;
      return say(last < end ? "bad_until" : "bad_to_the_end", stepsText(spread.last));
    }
    const steps = this.laterSteps(this.report.verdict_at);
    if (steps.length === 0) return null;
    const isOver = this.report.diagnosis.left_out === 0 && steps[steps.length - 1] < end;
    return isOver ? say("last_time", alsoText(steps)) : alsoText(steps);
  }

  // Where a NaN went from the verdict.
  spreadLines() {
    const { spread } = this.report;
    if (!spread || this.report.is_selection || this.report.record.left_out_lines > 0) return [];
    if (spread.others === 0) return [say("no_others_bad")];
    const more = spread.others - spread.names.length;
    return [say("others_bad", grouped(spread.others), stepsText(spread.first),
      spread.names.join(", ") + (more > 0 ? ` ${say("and_more", grouped(more))}` : ""))];
  }

  verdictCard() {
    const at = this.report.verdict_at;
    const words = this.report.words[at];
    const lasted = this.lasted();
    const fact = (label, text) => el("div", { class: "fact" }, el("dt", {}, label), el("dd", {}, text));
    return el("section", { id: this.id("verdict"), class: "verdict bad" },
      el("p", { class: "label" }, this.titled("first_wrong")),
      this.path(),
      el(this.letter ? "h2" : "h1", {}, this.placeOf(at)),
      language === 1 ? el("p", { class: "says" }, CHECKS_ZH[this.verdict.check]) : null,
      el("p", { class: language === 0 ? "says" : "quiet" }, words.text),
      lasted && el("p", { class: "lasted" }, lasted),
      this.normsOfVerdict().map((one) => el("p", { class: "norms" }, one)),
      isExact(this.verdict) ? el("p", {}, say("exact")) : null,
      el("p", { class: "quiet" }, words.check),
      this.lookedAt("quiet"),
      this.letter ? null : el("dl", { class: "facts" },
        fact(say("step"), String(this.verdict.step)),
        fact(say("stage"), say(this.verdict.stage)),
        fact(say("rank"), ranksText(this.verdict) || say("none_named")),
        fact(say("tensor"), this.tensorsOf(at)),
        sizesOf(this.verdict).map(([label, text]) => fact(say(label), text))));
  }

  isWhole() {
    const record = this.report.record;
    return !record.missing && record.incomplete.length + record.damage.length + record.dropped.length === 0;
  }

  spanOfSteps() {
    const kinds = this.report.record.kinds;
    if (kinds.length === 0) return null;
    return [Math.min(...kinds.map((k) => k.first_step)), Math.max(...kinds.map((k) => k.last_step))];
  }

  lookedAt(style) {
    const span = this.spanOfSteps();
    return span && el("p", { class: style }, say("looked_at", grouped(this.report.rows), this.report.ranks.length, span[0], span[1]));
  }

  // ", 1 of 2 ranks is missing"
  missingText() {
    const { length } = this.report.record.missing_ranks;
    return length === 0 ? "" : say("ranks_missing", length, length + this.report.ranks.length);
  }

  soundCard() {
    const left = this.report.diagnosis.left_history;
    const state = this.report.rows === 0 ? "empty" : this.isWhole() && this.findings.length === 0 && !left ? "fine" : "unsure";
    const empty = this.report.is_selection && this.findings.length === 0 ? "nothing_matches" : "nothing_recorded";
    return el("section", { id: this.id("verdict"), class: `verdict ${state}` },
      this.letter ? el("p", { class: "label" }, say("run_n", this.letter)) : null,
      this.path(),
      el(this.letter ? "h2" : "h1", {}, say(this.report.rows === 0 ? empty : "nothing_wrong") + this.missingText()),
      this.lookedAt("says"),
      this.isWhole() ? null : el("p", {}, say("not_whole")),
      this.report.record.skipped.map((one) => el("p", {}, one)),
      this.findings.length === 0 ? null : el("p", {}, this.lineOf(0)),
      this.findings.length === 0 || left ? el("p", { id: this.id("left_history") }, left && this.leftHistoryText(left)) : null);
  }

  // What no check judges: a tensor that left its own history.
  leftHistoryText(left) {
    const change = `left_history_${left.measure}`;  // no matter of size, where there are words for it
    const isChange = change in WORDS;
    const what = isChange || ["norm", "value"].includes(left.measure) ? left.kind : `${left.kind} (${left.measure})`;
    return [say(isChange ? change : "left_history", what, left.ranks.join(", "), left.step, number(left.norm, 3), number(left.before, 3)), " ",
      isChange ? "" : (left.stays ? say("left_history_stays") : say("left_history_far", number(left.unusual, 3))) + " ",
      left.again ? say("left_history_again", left.again) + " " : "",
      left.beside === null ? "" : say("left_history_beside", left.beside) + " ",
      left.lines > 1 ? say("left_history_lines", left.lines - 1) + " " : "",
      left.module ? say("left_history_module", left.module) + " " : "",
      left.next.length > 0 ? say("left_history_next", left.next.map((one) => `${one.kind} ${tensorLabel([one.name, one.chunk, one.element])}`).join(", ")) + " " : "",
      left.loss ? say("left_history_loss", left.loss.name, number(left.loss.value, 3), number(left.loss.before, 3)) + " " : "",
      el("span", {}, left.element === "all tensors" ? say("tensors_together") : tensorLabel([left.name, left.chunk, left.element]))];
  }

  // Its name leads to its line, where the page has that. The numbers come behind this script.
  linkLeftHistory() {
    const left = this.report.diagnosis.left_history;
    const at = left && document.getElementById(this.id("left_history"));
    const kind = at && data.rows.kinds.get(left.kind);
    const isIts = (line) => {
      const [name, chunk, element] = data.rows.identities[line.tensor];
      const known = (this.number === 1 && data.renamed[left.name]) || left.name;
      return line.run === this.number && line.rank === left.rank && name === known && chunk === left.chunk && element === left.element;
    };
    const line = kind && kind.lines.find(isIts);
    if (!line) return;
    const bin = binOfStep(left.step);
    at.lastChild.replaceWith(el("button", { class: "link", onclick: () => goTo(line, bin) }, data.rows.tensors[line.tensor]));
  }

  lineOf(at) {
    const { text } = this.report.words[at];
    return `${this.placeOf(at)}: ${language === 1 ? `${CHECKS_ZH[this.findings[at].check]} (${text})` : text}`;
  }

  // Findings that say the same are one; `said` comes before them.
  findingsList(id, title, all, said = []) {
    const most = 5;
    const chosen = all.filter((at) => this.report.words[at].first_alike === at);
    const also = (at) => [alsoText(this.laterSteps(at))].filter((one) => one !== "").map((one) => `, ${one}`).join("");
    const lines = chosen.slice(0, most).map((at) => this.lineOf(at) + also(at));
    const isLast = id === (this.verdict ? "consequences" : "noticed");
    const more = chosen.length - lines.length + (isLast ? this.report.diagnosis.left_out : 0);
    if (more > 0) lines.push(say("and_more", grouped(more)));
    lines.unshift(...said);
    return lines.length === 0 ? null : block(this.id(id), title, lines);
  }

  otherFindings() {
    const others = this.findings.map((_, at) => at).filter((at) => at !== this.report.verdict_at);
    if (!this.verdict) return [this.findingsList("noticed", this.titled("noticed"), others)];
    const here = others.filter((at) => this.findings[at].step === this.verdict.step);
    const before = others.filter((at) => this.findings[at].step < this.verdict.step);
    const later = others.filter((at) => this.findings[at].step > this.verdict.step);
    return [this.findingsList("candidates", this.titled("candidates"), here),
      this.findingsList("consequences", this.titled("consequences"), later, this.spreadLines()), this.findingsList("noticed", this.titled("noticed"), before)];
  }

  changed() {
    const lines = [...this.report.changes];
    // Within the steps in which a declared value is told.
    const isNear = ({ restart, first_step: step }) => !this.verdict || (step !== null && restart <= this.verdict.restart
      && step <= this.verdict.step && step >= this.verdict.step - STEPS_BEFORE);
    for (const one of this.report.restarts) {
      if (one.restart > 0 && one.first_step !== null && isNear(one)) {
        lines.push(say("restart_here", one.restart, one.first_step));
      }
    }
    for (let i = 1; i < this.report.restarts.length; ++i) {
      const [before, now] = [this.report.restarts[i - 1], this.report.restarts[i]];
      if (before.world_size !== now.world_size && isNear(now)) {
        lines.push(say("world_changed", before.world_size, now.world_size, now.restart));
      }
    }
    return lines.length === 0 ? null : block(this.id("changed"), this.titled("changed"), lines);
  }

  // Where a kind lacks steps at the begin or the end of the run: where one more would have come.
  endsOf(kind) {
    const [first, last] = this.report.record.steps;
    const pace = kind.steps > 1 ? Math.ceil((kind.last_step - kind.first_step) / (kind.steps - 1)) : 1;
    return (kind.first_step - pace >= first ? say("begins_late", first) : "")
      + (kind.last_step + pace <= last ? say("ends_early", last) : "");
  }

  // Ranks that recorded less of a kind than others did.
  fewerOnRanks() {
    const alike = new Map();
    for (const kind of this.report.record.kinds) {
      for (const one of kind.fewer) {
        const given = one.of_rows > 0 ? ["fewer_rows", one.rows, one.of_rows] : ["fewer_steps", one.steps, kind.steps];
        const key = JSON.stringify([given, one.ranks]);
        if (!alike.has(key)) alike.set(key, { given, ranks: one.ranks, kinds: [] });
        alike.get(key).kinds.push(kind.kind);
      }
    }
    return [...alike.values()].map(({ given: [key, count, all], ranks, kinds }) =>
      say(key, ranges(ranks), grouped(count), grouped(all), ranks.length, kinds.join(", ")));
  }

  // Tensors that were not there in steps in which others of their kind were.
  lackingTensors() {
    const most = 5;
    const all = this.report.record.lacking;
    const lines = all.slice(0, most).map(({ kinds, names, tensors, columns, steps }) => {
      const more = tensors - names.length;
      const when = steps.slice(0, most).map(stepsText).join(" ") + (steps.length > most ? ` ${say("and_more", grouped(steps.length - most))}` : "");
      return say(this.report.record.step_width === 1 ? "lacking" : "lacking_some", grouped(tensors), kinds.join(", "), grouped(columns), names.join(", ") + (more > 0 ? ` ${say("and_more", grouped(more))}` : ""), when);
    });
    const more = all.slice(most).reduce((sum, one) => sum + one.tensors, 0);
    return more > 0 ? [...lines, say("lacking_more", grouped(more))] : lines;
  }

  notSeen() {
    const record = this.report.record;
    const lines = [];
    const shared = (key, list) => {
      for (const [sentence, ranks] of list) {
        const where = this.report.ranks.length > 1 ? ` ${say("on_ranks", ranges(ranks), ranks.length)}` : "";
        lines.push(say(key, sentence) + where);
      }
    };
    if (record.missing) lines.push(language === 0 ? record.missing : say("missing", ranges(record.missing_ranks)));
    lines.push(...record.expired, ...record.incomplete, ...record.earlier, ...record.killed);
    shared("dropped_rows", record.dropped);
    for (const one of record.damage.slice(0, 5)) lines.push(say("damage", one.file, one.offset, one.what));
    if (record.damage.length > 5) lines.push(say("and_more", record.damage.length - 5));
    if (record.torn_tails > 0) lines.push(say("torn", record.torn_tails));
    if (record.running > 0) lines.push(say("running", record.running));
    if (this.report.is_selection) lines.push(say("selected"));
    if (lines.length === 0) lines.push(say("all_seen"));
    shared("not_covered", record.not_covered);
    shared("not_measured", record.not_measured);
    if (record.kinds.length === 0) lines.push(say("no_kinds"));
    const alike = new Map();  // kinds that have the same steps share a sentence
    for (const one of record.kinds) {
      const key = `${one.steps} ${one.first_step} ${one.last_step}`;
      alike.set(key, [...(alike.get(key) || []), one]);
    }
    for (const [one, ...others] of alike.values()) {
      const kinds = [one, ...others].map((k) => k.kind).join(", ");
      const all = one.last_step - one.first_step + 1;
      lines.push((all === 1 ? say("recorded_one", kinds, one.first_step)
        : say("recorded", kinds, grouped(one.steps), one.first_step, one.last_step, grouped(all))) + this.endsOf(one));
    }
    lines.push(...this.fewerOnRanks(), ...this.lackingTensors());
    if (this.verdict && this.report.changes.length === 0) lines.push(say(this.report.has_declared ? "no_change" : "no_declared"));
    if (record.step_width > 1) lines.push(say("shared_columns", record.step_width));
    if (record.left_out_lines > 0) lines.push(say("left_out_lines", grouped(record.left_out_lines)));
    return block(this.id("not_seen"), this.titled("not_seen"), lines);
  }

  checked() {
    const made = Object.entries(this.report.diagnosis.checked);
    const lines = made.length === 0 ? [] : [made.map(([check, times], i) => [i > 0 ? ", " : "", el("abbr", { title: CHECKS[check] && CHECKS[check][language] }, check), ` ${grouped(times)}`])];
    const reasons = new Map();
    for (const one of this.report.diagnosis.not_checked) {
      if (one.check === "what was not recorded") continue;  // notSeen() names it, and its ranks
      reasons.set(one.why, [...(reasons.get(one.why) || []), one.check]);
    }
    for (const [why, checks] of reasons) lines.push(say("not_checked", checks.join(", "), why));
    return block(this.id("checked"), this.titled("checked"), lines);
  }

  card() { return this.verdict ? this.verdictCard() : this.soundCard(); }
  blocks() { return [...this.otherFindings(), this.changed(), this.notSeen(), this.checked()].filter((one) => one !== null); }
}

const STEPS_BEFORE = 10;  // as setting_changes() has it

// "7" or "7-12" of the first and the last step.
function stepsText([first, last]) {
  return first === last ? String(first) : `${first}-${last}`;
}

// Further steps of a finding in words; "" of none.
function alsoText(steps) {
  const [first, last] = [steps[0], steps[steps.length - 1]];
  if (steps.length < 2) return steps.length === 0 ? "" : say("also_in_step", first);
  return say(last - first === steps.length - 1 ? "also_in_steps" : "also_in_some", first, last, grouped(steps.length));
}

// By how much a check failed, as [label, text]: nothing of checks that are exact.
function sizesOf(one) {
  if (one.check === "finite") return [["bad_elements", grouped(one.value)]];
  if (one.check === "config") return one.value !== 0 || one.bound !== 0 ? [["value", number(one.value, 3)]] : [];
  return one.bound > 0 ? [["off_by", number(one.value, 3)], ["explained", number(one.bound, 3)]] : [];
}

// Whether a check compared what must be equal to the last bit.
function isExact(one) {
  return !["finite", "config", "start", "zero", "present", "norm", "input"].includes(one.check) && !(one.bound > 0);
}

function ranksText(one) {
  if (!one.one_of_ranks) return ranges(one.ranks);
  return one.ranks.length === 2 ? say("one_or_other", ...one.ranks) : say("some_of", ranges(one.ranks));
}

function block(id, title, sentences) {
  return el("section", { id, class: "block" }, el("h2", {}, title),
    el("ul", {}, sentences.map((one) => el("li", {}, one))));
}

let report = null;  // the first screen as JSON
let sides = [];     // one run, or two

function takeReport() {
  report = JSON.parse(document.getElementById("report").textContent);
  sides = report.other ? [new Side(report, 0, "A"), new Side(report.other, 1, "B")] : [new Side(report, 0, "")];
}
takeReport();

function blocksOf(blocks) {
  return el("div", { class: `blocks of${Math.min(3, blocks.length)}` }, blocks);
}

function firstScreen() {
  return report.other ? firstScreenOfTwo() : [sides[0].card(), blocksOf(sides[0].blocks())];
}

function reproduce() {
  const commands = sides.flatMap((side) => ["verdict", "diagnose", "doctor", "declared"].map((name) => {
    const key = name === "verdict" && !side.verdict ? "c_rows" : `c_${name}`;
    return [side.titled(key), side.report.commands[name]];
  }));
  if (report.other) commands.unshift([say("c_compare"), report.comparison.command]);
  return el("section", { id: "reproduce", class: "block" }, el("h2", {}, say("reproduce")),
    el("table", {}, commands.map(([label, words]) => el("tr", {}, el("th", {}, label), el("td", {}, el("code", {}, words))))));
}
