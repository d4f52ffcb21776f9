#include "answers/stopped_lines.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "model/kinds.h"

namespace trainmon {

StoppedLines::StoppedLines(const std::vector<Series>& series) : of_(series.size()) {
  using Named = std::tuple<std::string, std::string, int>;  // kind, name, chunk
  std::map<Named, std::size_t> modules;
  std::map<std::pair<Named, std::string>, std::size_t> lines;
  for (std::uint32_t i = 0; i < series.size(); ++i) {
    const Series& one = series[i];
    const bool is_of_module = one.kind == kind::kActv || one.kind == kind::kActvGrad;
    if (!is_of_module && !is_own_state(one)) continue;
    const Named named(one.kind, one.name, one.chunk);
    const auto [line, is_new] = lines.try_emplace({named, one.element}, lines.size() + 1);
    of_[i] = line->second;
    if (!is_new) continue;
    const std::size_t module =
        is_of_module ? modules.try_emplace(named, modules.size() + 1).first->second : 0;
    lines_.push_back({.series = i,
                      .module = module,
                      .is_grad = one.kind == kind::kActvGrad,
                      .is_input = one.element.starts_with("input")});
  }
  modules_.resize(modules.size());
}

void StoppedLines::add(const LineValue& value) {
  if (of_[value.series] == 0) return;
  Line& line = lines_[of_[value.series] - 1];
  line.module > 0 ? add_to_module(value, line) : add_to_state(value, line);
}

void StoppedLines::add_to_module(const LineValue& value, Line& line) {
  const RowPlace& row = value.place;
  Module& module = modules_[line.module - 1];
  if (module.restart != row.restart || module.step != row.step) {
    if (module.restart != row.restart) module.starts.try_emplace(row.restart, row.step);
    module.restart = row.restart;
    module.step = row.step;
    ++module.steps;
  }
  const std::int64_t away = module.steps - line.last;
  if (line.rows > 0 && away == 0) return;  // of another call
  if (line.rows++ > 0) {
    line.longest = std::max(line.longest, away);
    line.stride = std::max<std::int64_t>(1, row.step - line.place.step);
  }
  line.last = module.steps;
  line.place = row;
  line.place.shape = nullptr;
}

void StoppedLines::add_to_state(const LineValue& value, Line& line) {
  if (value.norm != line.number) {
    if (line.number != 0.0) {
      ++line.rows;
      line.longest = std::max(line.longest, line.last);
    }
    line.number = value.norm;
    line.last = 1;
    return;
  }
  if (line.last++ == line.longest) {
    line.place = value.place;
    line.place.shape = nullptr;
  }
}

std::vector<LineShift> StoppedLines::found() const {
  std::vector<LineShift> all;
  for (const Line& line : lines_) {
    const bool is_state = line.module == 0;
    const std::int64_t away =
        is_state ? line.last - line.longest : modules_[line.module - 1].steps - line.last;
    const bool is_away = away >= kAway && away > kTimesLongest * line.longest;
    if (line.rows < kRows || !is_away || (is_state && line.number == 0.0)) continue;
    all.push_back(stopped(line));
    all.back().shift.after = static_cast<std::size_t>(away);
  }
  leave_out_unrecorded(all);
  return all;
}

LineShift StoppedLines::stopped(const Line& line) const {
  LineShift one = {{}, line.series, line.module > 0 ? Measure::rows : Measure::still};
  one.shift.row = {0.0, static_cast<double>(line.longest), line.place, 0.0};
  one.shift.apart = 1.0;
  if (one.measure != Measure::rows) return one;
  RowPlace& row = one.shift.row.row;
  row.step += line.stride;
  for (const auto& [restart, first] : modules_[line.module - 1].starts) {
    if (restart <= row.restart || first > row.step) continue;
    one.shift.begins = first == row.step;
    row.restart = restart;
  }
  return one;
}

// Another start may record less.
void StoppedLines::leave_out_unrecorded(std::vector<LineShift>& all) const {
  using What = std::pair<bool, bool>;
  const auto what = [](const Line& line) { return What(line.is_grad, line.is_input); };
  const auto line_of = [&](const LineShift& one) -> const Line& {
    return lines_[of_[one.series] - 1];
  };
  std::map<What, std::set<std::size_t>> known;
  for (const Line& line : lines_) {
    if (line.module > 0 && line.rows >= kRows) known[what(line)].insert(line.module);
  }
  using Place = std::tuple<What, std::int32_t, std::int64_t>;  // restart, step
  const auto place = [&](const LineShift& one) {
    return Place(what(line_of(one)), one.shift.row.row.restart, one.shift.row.row.step);
  };
  std::map<Place, std::set<std::size_t>> ended;
  for (const LineShift& one : all) {
    if (one.measure == Measure::rows) ended[place(one)].insert(line_of(one).module);
  }
  std::erase_if(all, [&](const LineShift& one) {
    if (one.measure != Measure::rows) return false;
    const std::size_t modules = ended[place(one)].size(), of = known[what(line_of(one))].size();
    return one.shift.begins ? 2 * modules > of : of > 1 && modules == of;
  });
}

void StoppedLines::forget() {
  for (Line& line : lines_) {
    line = {.series = line.series,
            .module = line.module,
            .is_grad = line.is_grad,
            .is_input = line.is_input};
  }
  std::ranges::fill(modules_, Module{});
}

}  // namespace trainmon
