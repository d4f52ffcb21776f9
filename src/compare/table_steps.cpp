// Files of other formats give their rows file by file.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "compare/step_rows.h"

namespace trainmon {
namespace {

class TableSteps final : public StepReader {
 public:
  TableSteps(Source& source, TensorTable& tensors, RowAccount& account) : tensors_(tensors) {
    for (const Stat stat : kComparedStats) {
      const std::vector<std::string>& stats = source.stats();
      const auto at = std::find(stats.begin(), stats.end(), stat_name(stat));
      columns_.push_back(at == stats.end() ? -1 : static_cast<int>(at - stats.begin()));
    }
    for (std::size_t part = 0; part < source.parts().size(); ++part) {
      source.read(
          part, [&](const TableRow& row) { add(row, source.is_msprobe()); }, account);
    }
    std::ranges::stable_sort(order_, {}, [](const auto& one) { return one.first; });
  }

  void rewind() override { next_ = 0; }

  bool next(StepRows& rows) override {
    rows.clear();
    if (next_ == order_.size()) return false;
    rows.step = order_[next_].first;
    for (; next_ < order_.size() && order_[next_].first == rows.step; ++next_) {
      rows.rows.push_back(rows_[order_[next_].second]);
    }
    return true;
  }

 private:
  void add(const TableRow& row, bool is_msprobe) {
    const Series& series = *row.series;
    if (is_left_out(series.kind)) return;
    const auto [known, is_new] = by_series_.try_emplace(&series);
    if (is_new) known->second = tensors_.add(series);
    const std::size_t number = rows_.size();
    tensors_.met(known->second, {0, 0, 0, 0, static_cast<std::int64_t>(number)}, series.dtype);
    if (row.rank >= 0 && is_of_module(series.kind)) ranks_.insert(row.rank);
    ComparedRow& out = rows_.emplace_back();
    out.tensor = known->second;
    out.attempt = row.attempt;
    out.rank = row.rank;
    out.accum = row.accum;
    out.call = row.call;
    out.seq = row.seq != 0 || !is_msprobe ? row.seq : number;
    const bool is_estimate = (row.flags & flag::kSampled) != 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const int at = columns_[i];
      const bool is_absent = at < 0 || (is_estimate && kComparedStats[i] != Stat::count) ||
                             (row.absent >> static_cast<unsigned>(at) & 1u) != 0;
      out.values[i] = is_absent ? std::nan("") : row.values[static_cast<std::size_t>(at)];
    }
    order_.emplace_back(row.step, static_cast<std::uint32_t>(number));
  }

  TensorTable& tensors_;
  std::vector<int> columns_;
  std::unordered_map<const Series*, std::uint32_t> by_series_;
  std::vector<ComparedRow> rows_;
  std::vector<std::pair<std::int64_t, std::uint32_t>> order_;  // step, of rows_
  std::size_t next_ = 0;                                       // of order_
};

}  // namespace

void StepRows::clear() {
  rows.clear();
  merged.clear();
  by_rank.clear();
}

std::unique_ptr<StepReader> table_steps(Source& source, TensorTable& tensors, RowAccount& account) {
  return std::make_unique<TableSteps>(source, tensors, account);
}

}  // namespace trainmon
