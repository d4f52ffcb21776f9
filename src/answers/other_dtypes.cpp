#include "answers/other_dtypes.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "model/kinds.h"

namespace trainmon {

OtherDtypes::OtherDtypes(const std::vector<Series>& series) : of_(series.size()) {
  std::map<std::tuple<std::string, std::string, int, std::string>, std::size_t> lines;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Series& one = series[i];
    dtypes_.push_back(one.dtype);
    const bool is_passed =
        one.kind == kind::kInput || one.kind == kind::kActv || one.kind == kind::kActvGrad;
    if (!is_passed) continue;
    of_[i] = lines.try_emplace({one.kind, one.name, one.chunk, one.element}, lines.size() + 1)
                 .first->second;
  }
  lines_.resize(lines.size());
}

void OtherDtypes::add(const LineValue& value) {
  if (of_[value.series] == 0) return;
  Line& line = lines_[of_[value.series] - 1];
  const DType dtype = dtypes_[value.series];
  if (line.rows == 0 || dtype == line.dtype) {
    line.dtype = dtype;
    line.rows = line.others > 0 ? 1 : line.rows + 1;
    line.others = 0;
    line.restart = value.place.restart;
    return;
  }
  if (line.others++ == 0) {
    line.first = value.place;
    line.first.shape = nullptr;
    line.begins = value.place.restart != line.restart;
  }
  if (line.others < kOther) return;
  if (line.rows >= kUsual && !line.is_said) {
    line.is_said = true;
    const auto number = [](DType one) { return static_cast<double>(one); };
    found_.push_back({{{0.0, number(line.dtype), line.first, number(dtype)},
                       1.0,
                       static_cast<std::size_t>(kOther),
                       line.begins},
                      value.series,
                      Measure::dtype});
  }
  line = {
      .dtype = dtype, .rows = line.others, .restart = value.place.restart, .is_said = line.is_said};
}

void OtherDtypes::forget() {
  std::ranges::fill(lines_, Line{});
  found_.clear();
}

}  // namespace trainmon
