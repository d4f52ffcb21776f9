#include "answers/small_steps.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "answers/rank_lines.h"
#include "model/kinds.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

constexpr std::int64_t kAround = 32;                   // steps that are read on either side
constexpr std::size_t kFewestRows = 16, kWindow = 24;  // rows on either side
constexpr double kClear = 8.0;                         // standard errors
constexpr std::ptrdiff_t kOtherSteps = 8;              // on either side, that are no clearer
constexpr double kAsClear = 0.8;                       // of the clearest of them

bool may_tell(const Series& series) {
  return series.kind == kind::kInput || series.kind == kind::kInputEntropy ||
         series.kind == kind::kActv;
}

double errors_at(const Sums& sums, std::size_t at, std::size_t rows) {
  if (at < kFewestRows || at + kFewestRows > rows) return 0.0;
  return sums.errors_between(at - std::min(at, kWindow), at, std::min(rows, at + kWindow));
}

// A training that goes elsewhere from the step on changes its activations, too, and bit by bit.
bool has_step_at(const std::vector<Sample>& line, std::size_t measure, std::int64_t step) {
  Sums sums;
  for (const Sample& one : line) sums.add(one.numbers[measure]);
  const auto first = std::ranges::lower_bound(line, step, {}, &Sample::step);
  const auto at = static_cast<std::size_t>(first - line.begin());
  const double errors = errors_at(sums, at, line.size());
  if (errors < kClear) return false;
  const std::size_t begin = at - std::min(at, kWindow);
  const std::size_t end = std::min(line.size(), at + kWindow);
  const double apart = sums.mean(at, end) - sums.mean(begin, at);
  if (!sums.is_level(begin, at, apart) || !sums.is_level(at, end, apart)) return false;
  for (std::ptrdiff_t off = -kOtherSteps; off <= kOtherSteps; ++off) {
    const auto other =
        static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, first - line.begin() + off));
    if (errors < kAsClear * errors_at(sums, other, line.size())) return false;
  }
  return true;
}

}  // namespace

std::vector<Series> small_steps(const OpenedRun& run, ReadOptions options, const LeftStep& left) {
  options.all_restarts = options.merged = false;
  options.first_step = std::max(options.first_step.value_or(0), left.row.step - kAround);
  options.last_step =
      std::min(options.last_step.value_or(left.row.step + kAround), left.row.step + kAround);
  options.ranks = {left.row.rank};
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  const TensorNumbers tensors(series);
  RankLines rank(left.row.rank, tensors.count);
  for (const RunStream::Piece& piece : stream.pieces()) {
    for (const LineValue& value : line_values(stream, piece)) {
      if (may_tell(series[value.series])) rank.add(tensors.of[value.series], value);
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;  // by the order of a step
  for (std::size_t tensor = 0; tensor < rank.lines.size(); ++tensor) {
    const std::vector<Sample>& line = rank.lines[tensor];
    const bool is_apart = std::ranges::any_of(kMeasures, [&](const Measure& one) {
      return has_step_at(line, static_cast<std::size_t>(&one - kMeasures.data()), left.row.step);
    });
    if (is_apart) found.emplace_back(line.front().seq, rank.series[tensor]);
  }
  std::ranges::sort(found);
  found.resize(std::min(found.size(), kNamedLines - 1));
  std::vector<Series> named;
  for (const auto& [seq, number] : found) named.push_back(series[number]);
  return named;
}

void add_small_steps(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options) {
  if (found && found->before == Unmoved::forward) {
    found->less_clear = small_steps(run, options, *found);
  }
}

}  // namespace trainmon
