// Accumulated gradients count once; calls are shared out among micro-steps; modules come as they
// end.
#include "sinks/msprobe_rows.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sinks/msprobe_csv.h"

namespace trainmon::msprobe_csv {
namespace {

// Calls of a step are shared out evenly among its micro-steps, which is right for pipelines, too,
// where several forwards run before the first backward.
void number(std::vector<Placed>& placed, std::vector<std::size_t>& places,
            const MsprobeOptions& options) {
  const auto key = [&](std::size_t i) {
    const RowKey& k = placed[i].row->key;
    return std::tuple(k.accum, k.call, k.seq);
  };
  std::sort(places.begin(), places.end(),
            [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  const std::string& kind = placed[places[0]].series->kind;
  if (kind == kind::kGradUnreduced) {  // sums: the last one of the step, or of each micro-step
    for (std::size_t i = 0; i < places.size(); ++i) {
      Placed& p = placed[places[i]];
      p.micro_step = p.row->key.accum;
      const bool more = i + 1 < places.size();
      if (more &&
          (!options.micro_gradients || placed[places[i + 1]].row->key.accum == p.row->key.accum)) {
        p.row = nullptr;
      }
    }
    return;
  }
  const auto count = static_cast<std::int64_t>(places.size());
  const bool even = count % options.grad_acc_steps == 0;
  const std::int64_t each = even ? count / options.grad_acc_steps : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    Placed& p = placed[places[static_cast<std::size_t>(i)]];
    p.micro_step = even ? i / each : p.row->key.accum;
    p.call = even ? i % each : p.row->key.call;
  }
}

// Inputs before outputs, by number: input_2 before input_10.
std::tuple<bool, std::size_t, std::string_view> element_order(const Series& series) {
  const std::string_view element = series.element;
  return {element.starts_with("output"), element.size(), element};
}

// Modules in the order in which their first call ended.
void sort_modules(std::vector<Placed>& placed) {
  using Module = std::pair<std::int32_t, std::string_view>;
  std::map<std::tuple<Module, std::int32_t, std::int32_t>, std::uint64_t> ends;
  for (const Placed& p : placed) {
    const Module module{p.series->chunk, p.series->name};
    std::uint64_t& end = ends[{module, p.row->key.accum, p.row->key.call}];
    end = std::max(end, p.row->key.seq);
  }
  std::map<Module, std::uint64_t> first;
  for (const auto& [call, end] : ends) {
    const auto [known, fresh] = first.try_emplace(std::get<0>(call), end);
    if (!fresh) known->second = std::min(known->second, end);
  }
  std::stable_sort(placed.begin(), placed.end(), [&](const Placed& a, const Placed& b) {
    const auto key = [&](const Placed& p) {
      return std::tuple(first.at({p.series->chunk, p.series->name}), p.micro_step, p.call,
                        element_order(*p.series));
    };
    return key(a) < key(b);
  });
}

}  // namespace

std::vector<Placed> place(std::span<const Row> rows, std::string_view prefix,
                          const SeriesTable& table, const MsprobeOptions& options) {
  std::vector<Placed> placed;
  std::unordered_map<SeriesId, std::vector<std::size_t>> by_series;
  for (const Row& row : rows) {
    const Series& series = table.at(row.key.series);
    const FileKind* file = file_kind(series.kind, options);
    if (file == nullptr || file->prefix != prefix) continue;
    by_series[row.key.series].push_back(placed.size());
    placed.push_back({&row, &series, 0, 0});
  }
  for (auto& [id, places] : by_series) number(placed, places, options);
  std::erase_if(placed, [](const Placed& p) { return p.row == nullptr; });
  if (prefix == "actv" || prefix == "actv_grad") sort_modules(placed);
  return placed;
}

std::map<std::pair<std::string, std::string>, RowState> merged_collectives(
    std::span<const Placed> placed) {
  std::map<std::pair<std::string, std::string>, RowState> merged;
  for (const Placed& p : placed) {
    if (p.series->kind != kind::kCc || !p.is_known()) continue;
    const auto [known, fresh] =
        merged.try_emplace({p.series->name, p.series->element}, p.row->state);
    if (!fresh) merge(known->second, p.row->state);
  }
  return merged;
}

std::string called(const Placed& p) {
  return p.call == 0 ? p.series->name : p.series->name + ".call_" + std::to_string(p.call);
}

std::string name_of(const Placed& p) {
  return p.series->element.empty() ? called(p) : called(p) + "." + p.series->element;
}

}  // namespace trainmon::msprobe_csv
