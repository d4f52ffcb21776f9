// Fields as pandas writes them after rounding, so that a reader of the peer's files reads ours.
#include "sinks/msprobe_csv.h"

#include <array>
#include <cmath>

#include "base/text.h"
#include "sinks/csv_text.h"

namespace trainmon::msprobe_csv {
namespace {

using csv_text::append_field;

struct KindOfFile {
  std::string_view kind;
  FileKind file;
};

// In the order of writing.
constexpr std::array<KindOfFile, 16> kFiles = {{
    {kind::kActv, {"actv", Columns::tensor, true}},
    {kind::kActvGrad, {"actv_grad", Columns::tensor, true}},
    {kind::kAttnEntropy, {"attention_hook", Columns::feature, true, "entropy"}},
    {kind::kAttnMax, {"attention_hook", Columns::feature, true, "softmax_max"}},
    {kind::kStableRank, {"linear_hook", Columns::feature, false, "sr"}},
    {kind::kSpectralNorm, {"linear_hook", Columns::feature, false, "kernel_norm"}},
    {kind::kRouterSimilarity,
     {"moe_router_weight_hook", Columns::feature, false, "router_weight_similarity"}},
    {kind::kRouterEntropy,
     {"moe_router_logit_hook", Columns::feature, true, "per_token_expert_entropy"}},
    {kind::kGradUnreduced, {"grad_unreduced", Columns::tensor, false}},
    {kind::kGradReduced, {"grad_reduced", Columns::tensor, false}},
    {"exp_avg", {"exp_avg", Columns::tensor, false}},
    {"exp_avg_sq", {"exp_avg_sq", Columns::tensor, false}},
    {kind::kParamOrigin, {"param_origin", Columns::tensor, false}},
    {kind::kParamUpdated, {"param_updated", Columns::tensor, false}},
    {kind::kMgDirection, {"other", Columns::tensor, false}},
    {kind::kCc, {"other", Columns::tensor, false}},
}};
constexpr FileKind kMicroGradients{"grad_unreduced", Columns::tensor, true};

}  // namespace

const FileKind* file_kind(std::string_view kind, const MsprobeOptions& options) {
  if (options.micro_gradients && kind == kind::kGradUnreduced) return &kMicroGradients;
  for (const KindOfFile& line : kFiles) {
    if (line.kind == kind) return &line.file;
  }
  return nullptr;
}

std::vector<std::string> feature_columns(std::string_view prefix) {
  std::vector<std::string> names;
  for (const KindOfFile& line : kFiles) {
    if (line.file.prefix == prefix) names.emplace_back(line.file.column);
  }
  return names;
}

std::vector<std::string_view> prefixes() {
  std::vector<std::string_view> names;
  for (const KindOfFile& line : kFiles) {
    if (names.empty() || names.back() != line.file.prefix) names.push_back(line.file.prefix);
  }
  return names;
}

std::string header(const FileKind& file, const std::vector<std::string>& columns) {
  std::string text = file.micro_step ? "vpp_stage,name,step,micro_step" : "vpp_stage,name,step";
  for (const std::string& column : columns) text += "," + column;
  return text + "\n";
}

void append_line(std::string& text, const FileKind& file, const Line& line, std::int64_t step) {
  text += std::to_string(line.chunk) + ",";
  append_field(text, line.name);
  text += "," + std::to_string(step);
  if (file.micro_step) text += "," + std::to_string(line.micro_step);
  for (const std::string& field : line.fields) {
    text += ',';
    append_field(text, field);
  }
  text += '\n';
}

void append_stack(std::string& text, const Series& series, std::string_view stack) {
  append_field(text, std::to_string(series.chunk) + ":" + series.name);
  text += ',';
  append_field(text, stack);
  text += '\n';
}

std::string rounded_text(double value, std::optional<int> ndigits) {
  if (!std::isfinite(value)) return number_text(value);
  if (!ndigits) return python_text(value);
  // As numpy.round: to the nearest multiple, ties to even.
  const double scale = std::pow(10.0, *ndigits);
  const double scaled = value * scale;
  if (std::isfinite(scaled)) value = std::nearbyint(scaled) / scale;
  return python_text(value);
}

std::string value_text(Stat stat, const RowState& state, std::optional<int> ndigits) {
  const double value = derive(stat, state);
  const StatDefinition& definition = stat_table()[static_cast<std::size_t>(stat)];
  if (!is_told(stat, state)) return "nan";
  if (definition.type == "int64") return std::to_string(static_cast<std::int64_t>(value));
  return rounded_text(value, ndigits);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace trainmon::msprobe_csv
