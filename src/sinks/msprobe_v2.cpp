// Rows in the order of execution; a gradient before its reduction once per backward; lines end as
// Python's csv module ends them.
#include "sinks/msprobe_v2.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sinks/csv_text.h"
#include "sinks/msprobe_csv.h"
#include "sinks/msprobe_rows.h"

namespace trainmon::msprobe_csv {
namespace {

struct Entry {
  const Row* row = nullptr;
  const Series* series = nullptr;
  std::size_t kind = 0;         // its place in the monitor's list
  std::int64_t micro_step = 0;  // from 1 on; 0: none
};

std::vector<Entry> entries_of(const MsprobeMonitor& monitor, std::span<const Row> rows,
                              const SeriesTable& table) {
  std::vector<Entry> entries;
  for (const Row& row : rows) {
    const Series& series = table.at(row.key.series);
    const auto kind = std::find(monitor.kinds.begin(), monitor.kinds.end(), series.kind);
    if (kind == monitor.kinds.end()) continue;
    entries.push_back({&row, &series, static_cast<std::size_t>(kind - monitor.kinds.begin()), 0});
  }
  const auto place = [&](const Entry& e) {
    return std::tuple(monitor.by_kind ? e.kind : 0, e.row->key.seq);
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const Entry& a, const Entry& b) { return place(a) < place(b); });
  return entries;
}

// Sums of a step: the last one of each backward; of all micro-steps or of the last one.
void number_gradients(std::vector<Entry>& entries, const MsprobeOptions& options) {
  std::map<std::pair<SeriesId, std::int64_t>, const Row*> last;
  for (const Entry& e : entries) last[{e.row->key.series, e.row->key.accum}] = e.row;
  std::map<SeriesId, std::int64_t> backwards;
  for (Entry& e : entries) {
    e.micro_step = options.grad_acc_steps;
    if (e.series->kind != kind::kGradUnreduced) continue;
    if (last.at({e.row->key.series, e.row->key.accum}) != e.row) {
      e.row = nullptr;
      continue;
    }
    const std::int64_t number = backwards[e.row->key.series]++ % options.grad_acc_steps + 1;
    if (options.micro_gradients) {
      e.micro_step = number;
    } else if (number != options.grad_acc_steps) {
      e.row = nullptr;
    }
  }
  std::erase_if(entries, [](const Entry& e) { return e.row == nullptr; });
}

std::string module_name(const Entry& e, const MsprobeOptions& options) {
  std::string name = e.series->name;
  if (options.chunk_names) name = std::to_string(e.series->chunk) + ":" + name;
  const std::string& kind = e.series->kind;
  if (kind == kind::kActv) return name + "." + e.series->element;
  if (kind == kind::kActvGrad) return name + ".grad_" + e.series->element;
  if (kind == "exp_avg" || kind == "exp_avg_sq") return name + "." + kind;
  return name;
}

std::string_view scope(std::string_view kind) {
  if (kind == kind::kActv) return "forward";
  if (kind == kind::kActvGrad) return "backward";
  if (kind == kind::kGradUnreduced) return "unreduced";
  if (kind == kind::kGradReduced) return "reduced";
  return kind;
}

void append_values(std::string& text, const MsprobeMonitor& monitor, const RowState* state) {
  for (const Stat stat : monitor.ops) {
    text += ',';
    text += state == nullptr ? "nan" : rounded_text(derive(stat, *state), std::nullopt);
  }
  text += "\r\n";
}

// Calls of one collective in the step, merged; no stage.
std::string collective_lines(const std::vector<Entry>& entries, const MsprobeMonitor& monitor,
                             std::int64_t step, int rank) {
  std::map<std::pair<std::string, std::string>, RowState> merged;
  for (const Entry& e : entries) {
    if ((e.row->key.flags & flag::kNotReady) != 0) continue;
    const auto [known, fresh] =
        merged.try_emplace({e.series->name, e.series->element}, e.row->state);
    if (!fresh) merge(known->second, e.row->state);
  }
  std::string text;
  for (const auto& [place, state] : merged) {
    std::string element = place.second;
    std::replace(element.begin(), element.end(), '.', '_');
    text += "," + std::to_string(step) + ",";
    csv_text::append_field(text, place.first + "/rank" + std::to_string(rank) + "/" + element);
    text += ",comm";
    append_values(text, monitor, &state);
  }
  return text;
}

}  // namespace

std::vector<StepFile> v2_files(std::span<const Row> rows, std::int64_t step,
                               const SeriesTable& table, const MsprobeOptions& options, int rank) {
  std::vector<StepFile> files;
  for (const MsprobeMonitor& monitor : options.monitors) {
    std::vector<Entry> entries = entries_of(monitor, rows, table);
    const auto is_of = [&](std::string_view kind) {
      return std::find(monitor.kinds.begin(), monitor.kinds.end(), kind) != monitor.kinds.end();
    };
    const bool has_micro_steps = is_of(kind::kGradUnreduced);
    if (has_micro_steps) number_gradients(entries, options);
    if (entries.empty()) continue;
    StepFile file{monitor.name + "_step", "vpp_stage,step,module_name,scope", ""};
    if (has_micro_steps) file.head += ",micro_step";
    for (const Stat stat : monitor.ops) file.head += "," + std::string(stat_name(stat));
    file.head += "\r\n";
    if (is_of(kind::kCc)) {
      file.text = collective_lines(entries, monitor, step, rank);
    } else {
      for (const Entry& e : entries) {
        file.text += std::to_string(e.series->chunk) + "," + std::to_string(step) + ",";
        csv_text::append_field(file.text, module_name(e, options));
        file.text += ",";
        file.text += scope(e.series->kind);
        if (has_micro_steps) file.text += "," + std::to_string(e.micro_step);
        const bool is_known = (e.row->key.flags & flag::kNotReady) == 0;
        append_values(file.text, monitor, is_known ? &e.row->state : nullptr);
      }
    }
    if (!file.text.empty()) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace trainmon::msprobe_csv
