#include "answers/stopped_lines.h"

#include <algorithm>
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
    lines_.push_back({.series = i, .module = module});
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

std::vector<StoppedLines::Stopped> StoppedLines::found() const {
  std::vector<Stopped> all;
  for (const Line& line : lines_) {
    const bool is_state = line.module == 0;
    const std::int64_t away =
        is_state ? line.last - line.longest : modules_[line.module - 1].steps - line.last;
    const bool is_away = away >= kAway && away > kTimesLongest * line.longest;
    if (line.rows < kRows || !is_away || (is_state && line.number == 0.0)) continue;
    Stopped one = {{}, line.series, !is_state};
    one.shift.row = {0.0, static_cast<double>(line.longest), line.place, 0.0};
    one.shift.apart = 1.0;
    one.shift.after = static_cast<std::size_t>(away);
    if (!is_state) {
      RowPlace& row = one.shift.row.row;
      row.step += line.stride;
      for (const auto& [restart, first] : modules_[line.module - 1].starts) {
        if (restart <= row.restart || first > row.step) continue;
        one.shift.begins = first == row.step;
        row.restart = restart;
      }
    }
    all.push_back(one);
  }
  return all;
}

void StoppedLines::forget() {
  for (Line& line : lines_) line = {.series = line.series, .module = line.module};
  std::ranges::fill(modules_, Module{});
}

}  // namespace trainmon
