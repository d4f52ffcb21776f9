// What the page says, in English and Chinese; %1, %2 stand for what is put in, {1|rank|ranks} for one
// word of two: the first where %1 is 1.
const WORDS = {
  first_wrong: ["First wrong", "最先出错"],
  first_difference: ["First difference", "第一处差异"],
  no_difference: ["No difference beyond rounding", "没有超出舍入的差异"],
  compared: ["%1 rows of %2 tensors", "比较了 %2 个张量的 %1 行"],
  apart_by: ["%1 is %2 in A, %3 in B: relative difference %4, %5 times what is tolerated there",
    "A 的 %1 为 %2，B 为 %3：相对差异 %4，是该处容许值的 %5 倍"],
  beyond: ["%1 of %2 rows and %3 of %4 tensors are beyond tolerance", "%2 行中的 %1 行、%4 个张量中的 %3 个超出容许值"],
  not_compared: ["The runs have nothing to compare", "两次运行没有可比较的内容"],
  run_n: ["Run %1", "运行 %1"],
  only_in_one: ["What one run alone has", "只有一次运行有的内容"],
  only_ranks: ["Ranks of %1 alone", "只有 %1 有的 rank"],
  other_steps: ["Steps of %1 beyond the other", "%1 多出的步"],
  has_steps: ["it has steps %1 to %2", "它有第 %1 到第 %2 步"],
  only_tensors: ["Tensors of %1 alone", "只有 %1 有的张量"],
  only_rows: ["Rows of %1 alone", "只有 %1 有的行"],
  unmatched_rows: ["Rows without a counterpart", "没有对应行的行"],
  unmatched: ["%1 of %2 rows of %3", "%3 的 %2 行中有 %1 行"],
  differs: ["What else differs, or was not compared", "其他差异，或没有比较的内容"],
  declared_differ: ["Declared values", "声明的值"],
  sizes_differ: ["Not compared, for sizes differ", "大小不同，没有比较"],
  types_differ: ["Types", "类型"],
  remarks: ["Remarks", "说明"],
  not_used: ["Not used of %1", "%1 中没有使用的部分"],
  apart: ["Furthest apart", "差异最大"],
  apart_says: ["each tensor where it is furthest apart for what rounding may do there", "每个张量相对于该处舍入允许值差异最大的位置"],
  statistic: ["Statistic", "统计量"],
  difference: ["Relative difference", "相对差异"],
  of_tolerance: ["Of what is tolerated", "与容许值之比"],
  merged: ["merged", "已合并"],
  map_difference: ["Difference of A and B, tensor x step", "A 与 B 的差异，张量 x 步"],
  difference_says: ["relative difference of %1, rank by rank", "%1 的相对差异，逐个 rank"],
  stat_norm: ["norm", "范数"],
  stat_mean: ["mean", "均值"],
  stat_std: ["standard deviation", "标准差"],
  stat_absmax: ["largest size", "最大绝对值"],
  stat_zeros: ["share of zeros", "零的比例"],
  about_three: ["about three digits, of the last step of a column", "约三位数字，取一列中最后一步"],
  m_one_run: ["in one run alone", "只有一次运行有"],
  equal: ["equal", "相等"],
  run: ["Run", "运行"],
  c_compare: ["the first difference", "第一处差异"],
  nothing_wrong: ["Nothing certainly wrong", "没有确定的错误"],
  nothing_matches: ["Nothing matches the selection", "没有与选择匹配的内容"],
  nothing_recorded: ["Nothing was recorded", "没有任何记录"],
  not_whole: ["The record is not complete: what was not seen may be wrong.", "记录不完整：没有看到的部分可能有错。"],
  looked_at: ["%1 {1|row|rows} of %2 {2|rank|ranks}, steps %3 to %4", "%2 个 rank，%1 行，第 %3 步到第 %4 步"],
  selected: ["A selection of the run: other rows were not looked at.", "只选了运行的一部分：其余各行没有查看。"],
  step: ["Step", "步"],
  stage: ["Stage", "阶段"],
  rank: ["Rank", "Rank"],
  tensor: ["Tensor", "张量"],
  kind: ["Kind", "种类"],
  value: ["Value", "值"],
  also_in_step: ["also in step %1", "第 %1 步也有"],
  also_in_steps: ["also in steps %1 to %2", "第 %1 到第 %2 步也有"],
  also_in_some: ["also in %3 steps from %1 to %2", "第 %1 到第 %2 步中另有 %3 步"],
  last_time: ["%1, and in no later step", "%1，之后没有"],
  bad_alone: ["NaN or infinite in this step alone", "只有这一步有 NaN 或无穷"],
  bad_until: ["NaN or infinite until step %1", "NaN 或无穷直到第 %1 步"],
  bad_to_the_end: ["NaN or infinite until the last step, %1", "NaN 或无穷直到最后一步（第 %1 步）"],
  others_bad: ["%1 other {1|tensor has|tensors have} a NaN or an infinity, the first in step %2: %3",
    "另有 %1 个张量出现 NaN 或无穷，最早在第 %2 步：%3"],
  no_others_bad: ["No other tensor has a NaN or an infinity in this step or later.", "这一步及之后没有其他张量出现 NaN 或无穷。"],
  off_by: ["Off by", "偏差"],
  explained: ["Rounding explains", "舍入可解释"],
  bad_elements: ["NaN or infinite elements", "NaN 或无穷元素"],
  exact: ["What is compared must be equal, and it is not.", "所比较的必须相等，实际不相等。"],
  norm_at: ["norm of %1", "%1 的范数"],
  at_step: ["%1 (step %2)", "%1（第 %2 步）"],
  none_named: ["none in particular", "没有特定的"],
  one_or_other: ["%1 or %2", "%1 或 %2"],
  some_of: ["some of %1", "%1 中的一部分"],
  and_more: ["and %1 more", "还有 %1 个"],
  all_tensors: ["all %1 {1|tensor|tensors}", "全部 %1 个张量"],
  candidates: ["Also at this step", "同一步的其他发现"],
  consequences: ["Then, perhaps because of it", "之后，可能由它引起"],
  noticed: ["Noticed, and perhaps meant", "注意到，可能是有意的"],
  changed: ["What changed there", "当时改变了什么"],
  no_change: ["No declared value changed in the ten steps before.", "之前十步内没有声明的值改变。"],
  no_declared: ["The optimizer declared no values.", "优化器没有声明任何值。"],
  restart_here: ["Restart %1 began at step %2.", "第 %1 次重启从第 %2 步开始。"],
  restarts: ["%1 restarts; they begin at steps %2.", "%1 次重启，起始步：%2。"],
  world_changed: ["The world size changed from %1 to %2 in restart %3.", "第 %3 次重启时 world size 从 %1 变为 %2。"],
  not_seen: ["What was seen, and what was not", "看到了什么，没有看到什么"],
  all_seen: ["All ranks wrote a complete record.", "所有 rank 的记录都完整。"],
  ranks_missing: [", %1 of %2 ranks {1|is|are} missing", "，%2 个 rank 中缺少 %1 个"],
  rank_missing: ["left no record", "没有留下记录"],
  lacking: ["%1 {1|tensor|tensors} of %2 {1|lacks|lack} %3 {3|step|steps}: %4, %5", "%2 的 %1 个张量缺少 %3 步：%4，%5"],
  lacking_some: ["%1 {1|tensor|tensors} of %2 {1|lacks|lack} steps: %4, %5", "%2 的 %1 个张量缺少一些步：%4，%5"],
  lacking_more: ["%1 more {1|tensor lacks|tensors lack} steps", "另有 %1 个张量缺少一些步"],
  missing: ["Missing ranks: %1", "缺少的 rank：%1"],
  dropped_rows: ["dropped: %1", "丢弃：%1"],
  not_covered: ["not covered: %1", "未覆盖：%1"],
  not_measured: ["not measured: %1", "未测量：%1"],
  damage: ["damaged: %1 at byte %2: %3", "损坏：%1，字节 %2：%3"],
  torn: ["%1 {1|file ends|files end} in the middle of a record.", "%1 个文件在一条记录中间结束。"],
  running: ["%1 {1|rank still writes|ranks still write}: this is the run so far.", "%1 个 rank 仍在写入：这是目前为止的运行。"],
  on_ranks: ["({2|rank|ranks} %1)", "（rank %1）"],
  recorded: ["Recorded: %2 of the %5 steps from %3 to %4: %1", "第 %3 到第 %4 步共 %5 步中记录了 %2 步：%1"],
  recorded_one: ["Recorded: step %2: %1", "只记录了第 %2 步：%1"],
  begins_late: ["; the first step of the run is %1", "；运行的第一步是第 %1 步"],
  ends_early: ["; the last step of the run is %1", "；运行的最后一步是第 %1 步"],
  fewer_steps: ["{4|Rank|Ranks} %1: %2 of %3 {3|step|steps}: %5", "rank %1：%3 步中有 %2 步：%5"],
  fewer_rows: ["{4|Rank|Ranks} %1: %2 of %3 {3|row|rows}: %5", "rank %1：%3 行中有 %2 行：%5"],
  shared_columns: ["%1 steps share a column away from the verdict; each column keeps their extremes. --max-size makes room.",
    "除结论附近外，每 %1 步共用一列，列中保留极值。用 --max-size 可放宽。"],
  left_out_lines: ["{1|%1 line, the least unusual, is|%1 lines, the least unusual, are} left out. --name chooses, --max-size makes room.",
    "省略了最不异常的 %1 条线。用 --name 选择，用 --max-size 放宽。"],
  checked: ["What was checked, and how often", "检查了什么，多少次"],
  not_checked: ["Not checked: %1: %2", "未检查：%1：%2"],
  no_kinds: ["No rows of tensors.", "没有张量的行。"],
  reproduce: ["Reproduce in a terminal", "在终端中复现"],
  own_cost: ["Own cost: %1 % of the step's time, rank %2; the budget is %3 %.", "自身开销：占每步时间的 %1 %，rank %2；预算为 %3 %。"],
  c_verdict: ["rows of the verdict", "结论所在的行"],
  c_diagnose: ["the verdict", "结论"],
  c_doctor: ["what was not seen", "没有看到什么"],
  c_declared: ["declared values", "声明的值"],
  c_rows: ["all rows", "所有行"],
  strip: ["Step %1, stage by stage", "第 %1 步，逐个阶段"],
  strip_says: ["red: a check failed; amber: noticed, or another rank is more likely; green: recorded, finite, and no check failed; grey: not recorded",
    "红：检查未通过；黄：注意到，或更可能是其他 rank；绿：已记录、有限且没有检查失败；灰：没有记录"],
  s_red: ["wrong", "错误"],
  s_amber: ["perhaps", "可能"],
  s_green: ["no finding", "无发现"],
  s_grey: ["not seen", "未见"],
  input: ["input", "输入"],
  start: ["start", "开始"],
  weights: ["weights", "权重"],
  forward: ["forward", "前向"],
  loss: ["loss", "损失"],
  grad_unreduced: ["local gradients", "本地梯度"],
  grad_reduced: ["reduced gradients", "归约后梯度"],
  moments: ["moments", "动量"],
  update: ["update", "更新"],
  map_tensors: ["Tensor x step", "张量 x 步"],
  map_layers: ["Layer x step", "层 x 步"],
  group: ["Rows", "行"],
  each_tensor: ["each tensor", "每个张量"],
  by_layer: ["layers", "按层"],
  part_of: ["all %1 (%2 layers)", "全部 %1（%2 层）"],
  parts_left_out: ["%1 other {1|part is|parts are} not listed", "另有 %1 种未列出"],
  layer_n: ["layer %1", "第 %1 层"],
  map_ranks: ["Rank x step: %1", "Rank x 步：%1"],
  all_ranks: ["all ranks, the furthest", "所有 rank 中最远者"],
  rank_n: ["rank %1", "rank %1"],
  color_by: ["Colour", "颜色"],
  by_history: ["against its own median", "相对自身中位数"],
  by_size: ["size", "大小"],
  order: ["Order", "顺序"],
  by_model: ["of the model", "按模型"],
  by_unusual: ["most unusual first", "最异常在前"],
  search: ["Search tensors ( / )", "搜索张量 ( / )"],
  found: ["%1 of %2 {2|tensor|tensors}", "%2 个张量中的 %1 个"],
  reset: ["Whole run (0)", "整个运行 (0)"],
  m_nan: ["NaN", "NaN"],
  m_inf: ["infinity", "无穷"],
  m_undefined: ["not defined (0 / 0)", "无定义（0 / 0）"],
  m_dropped: ["rows dropped", "行被丢弃"],
  m_absent: ["absent", "缺失"],
  m_sampled: ["estimated from a sample", "抽样估计"],
  m_not_recorded: ["not recorded", "没有记录"],
  less: ["a thousandth", "千分之一"],
  more: ["thousandfold", "一千倍"],
  median: ["its median", "自身中位数"],
  outlined: ["the verdict", "结论"],
  outlined_difference: ["the first difference", "第一处差异"],
  features: ["Attention, routers, spectra", "注意力、路由与谱"],
  features_say: ["the median over all modules and ranks; the band reaches from the least to the largest. A click opens the kind in the maps.", "所有模块与 rank 的中位数；色带从最小到最大。点击可在图中打开该种类。"],
  all_modules: ["median of %1 {1|line|lines}", "%1 条线的中位数"],
  histograms: ["Histograms over steps", "直方图随步变化"],
  histograms_say: ["darker: a larger share of the elements. A mark at the top or bottom: elements above or below; pink: NaN; grey: a ratio that is not defined (0 / 0)",
    "颜色越深，占比越大。顶部或底部的标记：超出上限或下限的元素；粉色：NaN；灰色：无定义的比值（0 / 0）"],
  histograms_left_out: ["%1 {1|histogram is|histograms are} left out. --name chooses, --max-size makes room.", "省略了 %1 个直方图。用 --name 选择，用 --max-size 放宽。"],
  below: ["below", "低于下限"],
  above: ["above", "高于上限"],
  layers: ["Over layers", "各层分布"],
  layers_at: ["Over layers at step %1: %2, %3", "第 %1 步的各层分布：%2，%3"],
  layers_say: ["each bar: least to largest over tensors and ranks of a layer, with the median", "每条：一层的张量与 rank 中从最小到最大，并标出中位数"],
  depth_say: ["layer numbers from left to right; each bar: least to largest over tensors and ranks; the line joins the medians", "从左到右为层号；每条：张量与 rank 中从最小到最大；折线连接中位数"],
  layers_left_out: ["{1|%1 layer is|%1 layers are} left out; the search chooses.", "省略了 %1 层；可用搜索选择。"],
  bar_of: ["%1 {1|tensor|tensors}, %2 {2|value|values}", "%1 个张量，%2 个值"],
  bar_values: ["least %1, median %2, largest %3", "最小 %1，中位数 %2，最大 %3"],
  root: ["(root)", "（根）"],
  line: ["History", "历史"],
  line_says: ["%1 over steps", "%1 随步变化"],
  band_says: ["the band has the least and the largest of the steps of a column", "色带为一列中各步的最小与最大值"],
  log_scale: ["logarithmic scale", "对数刻度"],
  no_finite: ["no finite value", "没有有限值"],
  pick: ["Click a row of the map to see its history.", "点击图中的一行查看其历史。"],
  overview: ["The run", "运行概览"],
  norm_of: ["norm of all %1", "全部 %1 的范数"],
  constant: ["Constant: %1", "恒定：%1"],
  left_out_charts: ["%1 {1|chart is|charts are} left out: %2", "省略了 %1 张图：%2"],
  left_out_ranks: ["%1 {1|rank is|ranks are} left out here", "此处省略了 %1 个 rank"],
  worst: ["Most unusual in their own history", "在自身历史中最异常"],
  worst_says: ["distance from the median of the 16 values before, in robust standard deviations of log10",
    "与之前 16 个值的中位数的距离，以 log10 的稳健标准差为单位"],
  left_history: ["A value left its own history, which no check judges: %1 on rank %2, step %3, %4 after %5.",
    "有一个值偏离了自身的历史（没有检查项对此下结论）：rank %2 上的 %1，第 %3 步，由 %5 变为 %4。"],
  // Of what is no matter of size: measure, then the same numbers.
  left_history_rows: ["A line ended, which no check judges: on rank %2 there is no %1 from step %3 on. Before, there was one at least every %5 {5|step|steps} of its module.",
    "有一条线中断了（没有检查项对此下结论）：自第 %3 步起，rank %2 上不再有 %1；此前其模块至多每 %5 步就有一次。"],
  left_history_still: ["A value stays as it is, which no check judges: from step %3 on the norm of %1 on rank %2 does not change any more. Before, it did so at least every %5 {5|row|rows}.",
    "有一个值不再变化（没有检查项对此下结论）：自第 %3 步起，rank %2 上 %1 的范数保持不变；此前至多每 %5 行变化一次。"],
  left_history_dtype: ["A dtype changed, which no check judges: %1 on rank %2 is %4 from step %3 on, and was %5 before.",
    "有一处 dtype 改变了（没有检查项对此下结论）：自第 %3 步起，rank %2 上的 %1 为 %4，此前为 %5。"],
  left_history_sum: ["A sum is another one, which no check judges: in step %3 that of %1 on rank %2 is %4 of what other biases have, beside the output gradients of their modules. Before, it was the same.",
    "有一个和不一致（没有检查项对此下结论）：第 %3 步，rank %2 上 %1 之和与其模块输出梯度之和的比，是其他偏置的 %4 倍；此前与它们相同。"],
  left_history_given: ["What the model is given is other data, which no check judges: from step %3 on %1 is %4 in the mean of many steps, over all ranks, and was %5 before.",
    "模型得到的数据变了（没有检查项对此下结论）：自第 %3 步起，%1 在所有 rank 的许多步上的平均为 %4，此前为 %5。"],
  left_history_repeats: ["What the model is given repeats, which no check judges: from step %3 on %1 goes with that of %5 steps before, by a correlation of %4. Batches come in one order, or the random numbers of an augmentation begin anew.",
    "模型得到的数据在重复（没有检查项对此下结论）：自第 %3 步起，%1 与 %5 步之前的相关系数为 %4；批次按同一顺序出现，或数据增强的随机数重新开始。"],
  left_history_jump: ["A value jumped beside its trend, which no check judges: from step %3 on %1 on rank %2 is %4 in the mean of 24 rows, and was %5 before. It is the root mean square, or that over another line; `trainmon diagnose` says which.",
    "某值相对其趋势跳变，没有检查对此下结论：从第 %3 步起，rank %2 上的 %1 在 24 行中的均值为 %4，此前为 %5。这是均方根，或它与另一条线之比；`trainmon diagnose` 会说明。"],
  left_history_jump_of_zeros: ["A share of zeros jumped beside its trend, which no check judges: from step %3 on that of %1 on rank %2 is %4 in the mean of 24 rows, and was %5 before.",
    "零元素的比例相对其趋势跳变，没有检查对此下结论：从第 %3 步起，rank %2 上的 %1 在 24 行中的均值为 %4，此前为 %5。"],
  left_history_far: ["It is %1 robust standard deviations off.", "偏离 %1 个稳健标准差。"],
  left_history_again: ["So {1|is|are} %1 of the next rows.", "随后的行中还有 %1 行如此。"],
  left_history_beside: ["These are numbers relative to rank %1, which holds the same weights.", "这些数是相对于持有相同权重的 rank %1 的。"],
  left_history_stays: ["It stays away.", "此后一直如此。"],
  left_history_lines: ["%1 more {1|line|lines} left in this step.", "该步还有 %1 条线偏离。"],
  left_history_loss: ["Logged %1 left its history, too: %2 after %3.", "记录的 %1 也偏离了自身的历史：由 %3 变为 %2。"],
  tensors_together: ["all tensors together", "所有张量合计"],
  left_history_next: ["Next in the order of the step: %1.", "按该步的先后，随后是：%1。"],
  left_history_module: ["All are in %1.", "都在 %1 中。"],
  worst_ordinary: ["In a run without a fault, values up to about 20 are common.", "没有故障的运行中，不超过约 20 的值很常见。"],
  of_verdict: ["verdict", "结论"],
  unusual: ["how unusual", "异常程度"],
  not_finite: ["not finite", "非有限"],
  others_left_out: ["%1 {1|other is|others are} not listed.", "另有 %1 条未列出。"],
  no_values: ["No line has enough values to compare with.", "没有一条线有足够的值可供比较。"],
  keys: ["Keys: arrows move the cursor and the row, Enter opens the row, + - zoom, 0 the whole run, n the next most unusual, / search, l language",
    "按键：方向键移动光标与行，Enter 打开该行，+ - 缩放，0 整个运行，n 下一个最异常，/ 搜索，l 语言"],
  other_language: ["中文", "English"],
  began: ["restart %1: begun %2 on %3, world size %4", "第 %1 次启动：%2，主机 %3，world size %4"],
  made_by: ["trainmon %1, run %2", "trainmon %1，运行 %2"],
  pictures_failed: ["The pictures cannot be shown: %1", "无法显示图片：%1"],
};

// What a finding is about, where the sentence of `diagnose` is English.
const CHECKS_ZH = {
  finite: "出现 NaN 或无穷",
  start: "第一步就有彼此相等的权重",
  input: "批次重复，或输入的熵突变",
  present: "一个 rank 缺少应有的行，或动量中断",
  gap: "权重在两次优化器更新之间改变",
  replicas: "各 rank 应相同的张量不同",
  reduce: "归约后的梯度不是各 rank 梯度的平均",
  exp_avg: "一阶动量与梯度不符",
  exp_avg_sq: "二阶动量与梯度不符",
  update: "更新后的权重不符合优化器公式",
  zero: "梯度全为零",
  config: "声明的值改变，或各 rank 不同",
  norm: "记录的梯度范数与记录的梯度不符",
};

// What a check holds against what.
const CHECKS = {
  finite: ["no NaN and no infinity", "没有 NaN，没有无穷"],
  start: ["no two weights are equal in the first step", "第一步没有彼此相等的权重"],
  input: ["batches are new, and ranks have batches of their own", "批次是新的，各 rank 的批次不同"],
  present: ["each row that the step before had is there again", "上一步有的行这一步也有"],
  gap: ["weights change in the optimizer's step alone", "权重只在优化器更新时改变"],
  replicas: ["ranks that hold the same tensor hold the same elements", "各 rank 应相同的张量相同"],
  reduce: ["the reduced gradient is the mean of those of the ranks", "归约后的梯度是各 rank 梯度的平均"],
  exp_avg: ["the first moment follows from the gradient", "一阶动量与梯度相符"],
  exp_avg_sq: ["the second moment follows from the gradient", "二阶动量与梯度相符"],
  update: ["weights move as the optimizer's formula says", "权重按优化器公式更新"],
  zero: ["no gradient that never was zero is zero three times in a row", "从未为零的梯度没有连续三步为零"],
  config: ["declared values change as schedules change them, and ranks declare the same", "声明的值按常见方式改变，且各 rank 相同"],
  norm: ["the logged grad_norm is the norm of the recorded gradients", "记录的 grad_norm 与记录的梯度相符"],
};

// The address of a live page may choose it.
let language = (/^\?(?:zh|en)$/.test(location.search) ? location.search.slice(1) : navigator.language || "en").toLowerCase().startsWith("zh") ? 1 : 0;

function say(key, ...given) {
  const words = WORDS[key];
  if (words === undefined) return key;
  return words[language].replace(/\{(\d)\|(.*?)\|(.*?)\}/g, (_, n, one, more) => (String(given[n - 1]) === "1" ? one : more))
    .replace(/%(\d)/g, (_, n) => String(given[n - 1]));
}

function number(value, digits = 4) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

function grouped(count) {
  return String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

// "0-3 7" of ascending numbers.
function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length;) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) ++j;
    parts.push(j > i ? `${numbers[i]}-${numbers[j]}` : `${numbers[i]}`);
    i = j + 1;
  }
  return parts.join(" ");
}

// A text without what has no glyph, or turns the direction of what follows: as `trainmon show` prints it.
function printable(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => {
    const code = c.codePointAt(0).toString(16).padStart(2, "0");
    return c < "\u0080" ? `\\x${code}` : `\\u{${code.padStart(4, "0")}}`;
  });
}

// An element. Names of tensors come in as text alone: nothing here reads markup.
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) made.append(child instanceof Node ? child : printable(child));
  }
  return made;
}
