// The placing itself is that of the live sink (sinks/msprobe_rows.h).
#include "convert/msprobe_view.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "sinks/msprobe_csv.h"
#include "sinks/msprobe_rows.h"

namespace trainmon {
namespace {

using namespace msprobe_csv;

// A kind of ours that is one column of a msprobe file.
struct Feature {
  std::string_view kind;
  std::string_view column;
};
constexpr std::array<Feature, 6> kFeatures = {
    {{kind::kAttnEntropy, "entropy"},
     {kind::kAttnMax, "softmax_max"},
     {kind::kStableRank, "sr"},
     {kind::kSpectralNorm, "kernel_norm"},
     {kind::kRouterSimilarity, "router_weight_similarity"},
     {kind::kRouterEntropy, "per_token_expert_entropy"}}};

std::string_view column_of(std::string_view kind) {
  for (const Feature& feature : kFeatures) {
    if (feature.kind == kind) return feature.column;
  }
  return {};
}

class StepSeries : public SeriesTable {
 public:
  SeriesId add(const Series* series) {
    const auto [known, is_new] = ids_.try_emplace(series, static_cast<SeriesId>(list_.size()));
    if (is_new) list_.push_back(series);
    return known->second;
  }
  const Series& at(SeriesId id) const override { return *list_[id]; }
  std::size_t size() const override { return list_.size(); }

 private:
  std::vector<const Series*> list_;
  std::unordered_map<const Series*, SeriesId> ids_;
};

std::string element_text(std::string_view element) {
  std::string text(element);
  std::replace(text.begin(), text.end(), '.', '_');
  return text;
}

}  // namespace

std::vector<std::string> MsprobeView::stats(const Source& source,
                                            const std::vector<std::string>& of_source) {
  std::vector<std::string> names = of_source;
  if (source.is_msprobe()) return names;
  for (const Feature& feature : kFeatures) names.emplace_back(feature.column);
  return names;
}

std::vector<std::string> MsprobeView::stats_of(const Source& source, std::string_view type,
                                               const std::vector<std::string>& of_source) {
  if (source.is_msprobe()) return source.stats_of(std::string(type));
  std::vector<std::string> names;
  const MsprobeOptions plain;
  for (const Feature& feature : kFeatures) {
    const FileKind* file = file_kind(feature.kind, plain);
    if (file != nullptr && file->prefix == type) names.emplace_back(feature.column);
  }
  return names.empty() ? of_source : names;
}

MsprobeView::MsprobeView(const Source& source, const std::vector<std::string>& stats_given, Has has,
                         Take take)
    : passes_(source.is_msprobe()),
      from_(stats_given),
      to_(stats(source, stats_given)),
      has_(has),
      take_(std::move(take)) {
  for (std::size_t i = 0; i < from_.size(); ++i) {
    if (from_[i] == "mean") mean_ = static_cast<int>(i);
  }
}

void MsprobeView::tell(RowAccount& account, std::string_view where) const {
  if (left_out_ == 0) return;
  account.leave_out(left_out_);
  account.remark(std::to_string(left_out_) + " rows have no place in msprobe's " +
                 std::string(where) +
                 " (kinds that it does not know, attempts that were not taken, gradients that "
                 "later backwards add to)");
}

void MsprobeView::add(const TableRow& row) {
  if (passes_ && has_(row.series->kind)) {
    take_({row.rank, row.series->kind, row.series->name, row.series->chunk, row.step,
           row.micro_step, row.values, row.absent});
    return;
  }
  if (passes_ || row.fate == Fate::skipped ||
      file_kind(row.series->kind, MsprobeOptions()) == nullptr) {
    ++left_out_;
    return;
  }
  Held held{row, {row.values.begin(), row.values.end()}};
  held.row.values = {};
  auto& steps = steps_[{row.rank, row.restart, row.series->optimizer}];
  steps[row.step].push_back(std::move(held));
  // Rows of a step may come late, but not by more than one step.
  while (steps.size() > 2) {
    flush(steps.begin()->second);
    steps.erase(steps.begin());
  }
}

void MsprobeView::end() {
  for (auto& [of, steps] : steps_) {
    for (auto& [step, held] : steps) flush(held);
  }
  steps_.clear();
}

void MsprobeView::flush(std::vector<Held>& held) {
  // The last attempt at the step counts, the one that may have been taken.
  std::int32_t attempt = 0, backwards = 1;
  for (const Held& one : held) attempt = std::max(attempt, one.row.attempt);
  left_out_ += static_cast<std::int64_t>(held.size());  // those that are placed are taken off
  StepSeries table;
  std::vector<Row> rows;
  std::vector<const Held*> of_row;
  for (const Held& one : held) {
    if (one.row.attempt != attempt) continue;
    Row row;
    row.key.series = table.add(one.row.series);
    row.key.flags = one.row.flags;
    row.key.window = one.row.window;
    row.key.accum = one.row.accum;
    row.key.call = one.row.call;
    row.key.seq = one.row.seq;
    backwards = std::max(backwards, one.row.accum + 1);
    rows.push_back(row);
    of_row.push_back(&one);
  }
  MsprobeOptions options;
  options.grad_acc_steps = backwards;
  std::vector<double> values(to_.size());
  for (const std::string_view prefix : prefixes()) {
    if (!has_(prefix)) continue;
    // Columns of one line may come from several rows: features of one module.
    std::map<std::tuple<std::int32_t, std::string, std::int64_t>, std::vector<double>> lines;
    const std::vector<Placed> in_file = place(rows, prefix, table, options);
    left_out_ -= static_cast<std::int64_t>(in_file.size());
    for (const Placed& placed : in_file) {
      const Held& one = *of_row[static_cast<std::size_t>(placed.row - rows.data())];
      const std::string_view column = column_of(placed.series->kind);
      Series named = *placed.series;
      named.element = element_text(named.element);
      Placed shown = placed;
      shown.series = &named;
      if (column.empty()) {
        std::fill(values.begin(), values.end(), 0.0);
        std::copy(one.values.begin(), one.values.end(), values.begin());
        std::uint64_t absent = one.row.absent;
        for (std::size_t i = from_.size(); i < to_.size(); ++i) absent |= std::uint64_t{1} << i;
        const std::string name = name_of(shown);
        take_({one.row.rank, prefix, name, named.chunk, one.row.step,
               static_cast<std::int32_t>(placed.micro_step), values, absent});
        continue;
      }
      std::string name = called(shown);
      name += prefix == "attention_hook" ? ".attention"
              : prefix == "linear_hook"  ? ".linear"
                                         : ".moe_router";
      auto& line = lines[{named.chunk, std::move(name), placed.micro_step}];
      line.resize(to_.size(), std::numeric_limits<double>::quiet_NaN());
      const auto at =
          std::find(to_.begin() + static_cast<std::ptrdiff_t>(from_.size()), to_.end(), column);
      if (mean_ >= 0) {
        line[static_cast<std::size_t>(at - to_.begin())] =
            one.values[static_cast<std::size_t>(mean_)];
      }
    }
    for (const auto& [key, line] : lines) {
      std::uint64_t absent = (std::uint64_t{1} << from_.size()) - 1;
      const auto& [chunk, name, micro_step] = key;
      const Held& any = held.front();
      take_({any.row.rank, prefix, name, chunk, any.row.step, static_cast<std::int32_t>(micro_step),
             line, absent});
    }
  }
}

}  // namespace trainmon
