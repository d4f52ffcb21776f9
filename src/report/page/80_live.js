// A page that `trainmon serve` gave follows the run: it asks for the state each second, and for the
// page where there is a newer one. Whoever looks keeps their place.
Object.assign(WORDS, {
  live_open: ["Live. The last rows were written %1 ago.", "实时。最近的行写于 %1前。"],
  live_none: ["Live. No rows were written yet.", "实时。还没有写入任何行。"],
  live_newest: ["Newest step %1, rank %2: %3", "最新一步 %1，rank %2：%3"],
  live_pictures: ["The pictures end at step %1; they follow.", "图片到第 %1 步为止，随后更新。"],
  live_closed: ["The run has ended. Nothing has come since %1.", "运行已结束。自 %1 起没有新内容。"],
  live_gone: ["The process that wrote the run is gone, and it did not stop in order. Nothing has come since %1.",
    "写入该运行的进程已不在，且没有正常停止。自 %1 起没有新内容。"],
  live_deleted: ["The run is not there any more. This page keeps what it has.", "该运行已不存在。本页保留已有内容。"],
  live_away: ["The server has not answered since %1. This page keeps what it has.", "服务器自 %1 起没有应答。本页保留已有内容。"],
  live_failed: ["The page could not be made anew: %1", "无法重新生成页面：%1"],
  live_held: ["There are newer pictures. They come when no menu, text or range is selected.",
    "有更新的图片。菜单、文本或范围的选择结束后显示。"],
  live_bad: ["%1 {1|element is|elements are} NaN or infinite", "%1 个元素为 NaN 或无穷"],
  seconds: ["%1 s", "%1 秒"],
  minutes: ["%1 min", "%1 分钟"],
  hours: ["%1 h", "%1 小时"],
});

const LIVE_MS = 1000;
const LIVE_AWAY_MS = 5000;  // between two questions where nobody answers
const live = { page: null, tag: null, state: null, now: 0, awaySince: null, isHeld: false };

// Where a place on the axis is, in steps: the reverse of placeOfStep().
function stepOfPlace(place) {
  const bins = data.axis;
  const at = Math.max(0, Math.min(bins.length - 1, Math.floor(place)));
  const pace = Math.max(1, (bins[bins.length - 1][0] - bins[0][0]) / Math.max(1, bins.length - 1));
  const next = at + 1 < bins.length ? bins[at + 1][0] : bins[at][0] + pace;
  return bins[at][0] + (place - at) * Math.max(1, next - bins[at][0]);
}

// Columns and the numbers of tensors change from page to page; steps and names stay.
function placeInSight() {
  const isWhole = view.from <= 0 && view.to >= data.axis.length;
  return {
    steps: isWhole ? null : [stepOfPlace(view.from), stepOfPlace(view.to)],
    cursor: view.cursor === null ? null : data.axis[view.cursor][0],
    tensor: view.tensor === null ? null : data.rows.tensors[view.tensor],
  };
}

function goBackTo(kept) {
  const tensor = data.rows.tensors.indexOf(kept.tensor);
  view.tensor = tensor < 0 ? null : tensor;
  if (view.tensor === null || !data.rows.kinds.has(view.kind)) choose();
  view.cursor = kept.cursor === null ? null : binOfStep(kept.cursor);
  wholeRun();
  if (kept.steps) {
    const [from, to] = kept.steps.map(placeOfStep);
    show(Math.max(0, from), Math.max(1, Math.min(data.axis.length, to - from)));
  }
}

// What has the focus, to give it to what stands in its place later. A menu that gets it so is not open.
function focusInSight() {
  const one = document.activeElement;
  const chart = charts.findIndex(({ canvas }) => canvas === one);
  const { id, selectionStart, selectionEnd } = one;
  const label = one.tagName === "SELECT" ? one.getAttribute("aria-label") : null;
  return () => {
    const now = chart >= 0 ? charts[chart] && charts[chart].canvas : label === null ? id && place(id)
      : [...document.querySelectorAll("select")].find((menu) => menu.getAttribute("aria-label") === label);
    if (!now || now === document.body) return;
    if (label !== null) now.dataset.chosen = "yes";
    now.focus({ preventScroll: true });
    if (id === "search") now.setSelectionRange(selectionStart, selectionEnd);
  };
}

function isOpened(event) {
  delete event.currentTarget.dataset.chosen;
}

function isInUse() {
  const one = document.activeElement;
  return charts.some(({ drag }) => drag !== null) || !getSelection().isCollapsed || (one !== null && one.tagName === "SELECT" && !one.dataset.chosen);
}

// The text of an element of a page, which has no "<" of its own.
function contentOf(html, id) {
  const begin = `id="${id}">`;
  const at = html.indexOf(begin) + begin.length;
  return html.slice(at, html.indexOf("<", at));
}

async function showPage(html) {
  place("data").textContent = contentOf(html, "data");
  const bytes = await unpacked();
  const wasEmpty = data.axis.length === 0;
  const kept = wasEmpty ? null : placeInSight();
  const back = focusInSight();
  const top = scrollY;
  place("report").textContent = contentOf(html, "report");
  takeReport();
  load(bytes);
  view.hover = null;
  tip(null, []);
  render.first();
  if (kept === null || data.axis.length === 0) choose();
  else goBackTo(kept);
  render.pictures();
  paintNow();
  scrollTo(0, top);
  back();
}

async function takePage() {
  const answer = await fetch("./", { cache: "no-store" });
  if (answer.status !== 200) return;
  const html = await answer.text();
  const nonce = /'nonce-([0-9a-f]{32})'/.exec(html);
  if (!html.includes('<meta name="live">') || nonce === null || isInUse()) return;
  live.page = nonce[1];
  await showPage(html);
}

async function askState() {
  const answer = await fetch("state", { cache: "no-store", headers: live.tag ? { "If-None-Match": live.tag } : {} });
  live.now = Date.parse(answer.headers.get("Date"));
  live.awaySince = null;
  if (answer.status !== 200) return;  // 304: as it was
  live.tag = answer.headers.get("ETag");
  live.state = await answer.json();
}

function ago(seconds) {
  if (seconds < 120) return say("seconds", Math.max(0, Math.round(seconds)));
  return seconds < 7200 ? say("minutes", Math.round(seconds / 60)) : say("hours", Math.round(seconds / 3600));
}

function timeText(milliseconds) {
  return new Date(milliseconds).toLocaleString(language === 0 ? "en" : "zh", { dateStyle: "medium", timeStyle: "medium" });
}

function newestText({ step, rank, non_finite: bad, norms, logged }) {
  const parts = [...Object.entries(logged).map(([name, value]) => `${name} ${number(value)}`),
    ...Object.entries(norms).map(([kind, value]) => `${say("norm_at", kind)} ${number(value)}`)];
  return say("live_newest", step, rank, [bad > 0 ? say("live_bad", bad) : null, ...parts].filter((one) => one !== null).join(", "));
}

function liveLines() {
  const { state, awaySince, now, isHeld } = live;
  const lines = [];
  if (awaySince !== null) lines.push([say("live_away", timeText(awaySince)), true]);
  if (state === null) return lines;
  const written = state.last_write === null ? null : state.last_write * 1000;
  const since = written === null ? "" : timeText(written);
  if (state.state === "deleted") lines.push([say("live_deleted"), true]);
  else if (state.state !== "open") lines.push([say(`live_${state.state}`, since), true]);
  else if (awaySince === null) lines.push([written === null ? say("live_none") : say("live_open", ago((now - written) / 1000)), false]);
  if (state.error !== null) lines.push([say("live_failed", state.error), true]);
  if (isHeld) lines.push([say("live_held"), true]);
  if (state.newest !== null) {
    lines.push([newestText(state.newest), false]);
    const drawn = data.axis.length > 0 ? data.axis[data.axis.length - 1][1] : -1;
    if (drawn >= 0 && drawn < state.newest.step) lines.push([say("live_pictures", drawn), false]);
  }
  return lines;
}

function sayState() {
  place("live").replaceChildren(...liveLines().map(([line, isSaid]) => el("p", { class: isSaid ? "said" : null }, line)));
}

async function lookOnce() {
  try {
    await askState();
    const isNewer = live.state !== null && live.state.page !== null && live.state.page !== live.page;
    live.isHeld = isNewer && isInUse();
    if (isNewer && !live.isHeld) await takePage();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;  // fetch() says so that nobody answers
    live.awaySince = live.awaySince ?? Date.now();
  }
  sayState();
}

// A page that nobody sees asks nothing.
function follow() {
  live.page = document.querySelector("script[nonce]").nonce;
  document.body.prepend(el("div", { id: "live" }));
  const look = async () => {
    if (!document.hidden) await lookOnce();
    setTimeout(look, live.awaySince === null ? LIVE_MS : LIVE_AWAY_MS);
  };
  look();
}
