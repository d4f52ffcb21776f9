// The text of msprobe's CSV files: which file a kind goes to, columns, numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sinks/msprobe.h"

namespace trainmon::msprobe_csv {

// What the rows of one file look like.
enum class Columns : std::uint8_t {
  tensor,   // the statistics asked for, shape, dtype
  feature,  // one column per kind, each holding the mean of its row
};

struct FileKind {
  std::string_view prefix;
  Columns columns = Columns::tensor;
  bool micro_step = false;
  std::string_view column = {};  // of a feature
};
// The file that rows of a kind go to; nullptr for kinds without one.
const FileKind* file_kind(std::string_view kind, const MsprobeOptions& options);
// The columns of a file of features, in order.
std::vector<std::string> feature_columns(std::string_view prefix);
// Prefixes in the order in which the files of a step are written.
std::vector<std::string_view> prefixes();

// One line of a file, its fields as text but for the step, which is not known before.
struct Line {
  std::int64_t chunk = 0;
  std::string name;
  std::int64_t micro_step = 0;
  std::vector<std::string> fields;
};

// What the rows of one step are in one file.
struct StepFile {
  std::string stem;  // "module_step": the steps and ".csv" follow
  std::string head;
  std::string text;
};

std::string header(const FileKind& file, const std::vector<std::string>& columns);
void append_line(std::string& text, const FileKind& file, const Line& line, std::int64_t step);

// A line of stack_info.csv: "0:fc", and a text of many lines.
void append_stack(std::string& text, const Series& series, std::string_view stack);

// A statistic: counts as integers, others rounded to `ndigits` decimals (none: not at all), as
// repr() writes them.
std::string value_text(Stat stat, const RowState& state, std::optional<int> ndigits);
std::string rounded_text(double value, std::optional<int> ndigits);
// "[5, 4]"
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace trainmon::msprobe_csv
