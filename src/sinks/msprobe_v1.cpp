// A line per tensor, a line per collective of the step, a line per module for the features.
#include "sinks/msprobe_v1.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "sinks/msprobe_rows.h"

namespace trainmon::msprobe_csv {
namespace {

std::vector<std::string> tensor_columns(const std::vector<Stat>& ops) {
  std::vector<std::string> columns;
  for (const Stat stat : ops) columns.emplace_back(stat_name(stat));
  columns.insert(columns.end(), {"shape", "dtype"});
  return columns;
}

Line tensor_line(const Placed& p, const Shape* shape, const std::vector<Stat>& ops,
                 std::optional<int> ndigits) {
  Line line{p.series->chunk, name_of(p), p.micro_step, {}};
  for (const Stat stat : ops) {
    line.fields.push_back(p.is_known() ? value_text(stat, p.row->state, ndigits) : "nan");
  }
  line.fields.push_back(shape == nullptr ? "nan" : shape_text(*shape));
  line.fields.push_back("torch." + std::string(dtype_name(p.series->dtype)));
  return line;
}

void add_collective_lines(std::vector<Line>& lines, const std::vector<Placed>& placed,
                          const std::vector<Stat>& ops, std::optional<int> ndigits) {
  for (const auto& [place, state] : merged_collectives(placed)) {
    std::string element = place.second;
    std::replace(element.begin(), element.end(), '.', '_');
    Line line{0, place.first + "." + element, 0, {}};
    for (const Stat stat : ops) line.fields.push_back(value_text(stat, state, ndigits));
    line.fields.insert(line.fields.end(), {"nan", "nan"});
    lines.push_back(std::move(line));
  }
}

std::string feature_name(std::string_view prefix, const Placed& p) {
  if (prefix == "attention_hook") return called(p) + ".attention";
  return called(p) + (prefix == "linear_hook" ? ".linear" : ".moe_router");
}

// One line per module and micro-step, its columns from rows of several kinds.
std::vector<Line> feature_lines(const std::vector<Placed>& placed,
                                const std::vector<std::string>& columns,
                                const MsprobeOptions& options) {
  std::vector<Line> lines;
  using Place = std::tuple<std::int32_t, std::string_view, std::int64_t, std::int64_t>;
  std::map<Place, std::size_t> places;
  for (const Placed& p : placed) {
    const FileKind& file = *file_kind(p.series->kind, options);
    const auto [known, fresh] =
        places.try_emplace({p.series->chunk, p.series->name, p.micro_step, p.call}, lines.size());
    if (fresh) {
      lines.push_back({p.series->chunk, feature_name(file.prefix, p), p.micro_step,
                       std::vector<std::string>(columns.size(), "nan")});
    }
    const auto column = std::find(columns.begin(), columns.end(), file.column) - columns.begin();
    lines[known->second].fields[static_cast<std::size_t>(column)] =
        rounded_text(derive(Stat::mean, p.row->state), options.ndigits);
  }
  return lines;
}

}  // namespace

std::vector<StepFile> v1_files(std::span<const Row> rows, std::int64_t step,
                               const SeriesTable& table, const MsprobeOptions& options,
                               const std::vector<Stat>& ops) {
  std::vector<StepFile> files;
  for (const std::string_view prefix : prefixes()) {
    const std::vector<Placed> placed = place(rows, prefix, table, options);
    if (placed.empty()) continue;
    const FileKind& file = *file_kind(placed.front().series->kind, options);
    const bool is_feature = file.columns == Columns::feature;
    const std::vector<std::string> columns =
        is_feature ? feature_columns(prefix) : tensor_columns(ops);
    std::vector<Line> lines;
    if (is_feature) {
      lines = feature_lines(placed, columns, options);
    } else {
      for (const Placed& p : placed) {
        if (p.series->kind == kind::kCc) continue;
        lines.push_back(tensor_line(p, table.shape_of(*p.row), ops, options.ndigits));
      }
      add_collective_lines(lines, placed, ops, options.ndigits);
    }
    StepFile& made =
        files.emplace_back(StepFile{std::string(prefix) + "_", header(file, columns), {}});
    for (const Line& line : lines) append_line(made.text, file, line, step);
  }
  return files;
}

}  // namespace trainmon::msprobe_csv
