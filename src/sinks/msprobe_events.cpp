// The file is made with the first step, so that no run without one leaves an empty file.
#include "sinks/msprobe_events.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "model/histogram.h"
#include "sinks/msprobe_anomaly.h"

namespace trainmon::msprobe_csv {
namespace {}  // namespace

std::string tag_of(const Placed& placed, int rank, bool micro_gradients) {
  MsprobeAnomalyOptions naming;
  naming.rank = rank;
  naming.micro_gradients = micro_gradients;
  RowKey key = placed.row->key;
  key.accum = static_cast<std::int32_t>(placed.micro_step);
  Series named = *placed.series;
  named.name = called(placed);
  return msprobe_tag(named, key, naming);
}

void StepEvents::open(const RunInfo& run, bool micro_gradients) {
  run_ = run;
  micro_gradients_ = micro_gradients;
}

void StepEvents::begin(std::int64_t time_ns, std::int64_t step) {
  records_.begin(static_cast<double>(time_ns) * 1e-9, step);
}

void StepEvents::add(const Placed& row, std::span<const Stat> ops) {
  const std::string tag = tag_of(row, run_.rank, micro_gradients_) + "_";
  for (const Stat op : ops) {
    if (!is_told(op, row.row->state)) continue;
    records_.scalar(tag + std::string(stat_name(op)), derive(op, row.row->state));
  }
}

void StepEvents::add_feature(const Placed& row, std::string_view column) {
  const std::string tag = tag_of(row, run_.rank, micro_gradients_) + "_";
  records_.scalar(tag + std::string(column), derive(Stat::mean, row.row->state));
}

void StepEvents::add_collective(std::string_view name, std::string_view element,
                                const RowState& state, std::span<const Stat> ops) {
  std::string tag = std::string(name) + "/rank" + std::to_string(run_.rank) + "/";
  tag += element;
  std::replace(tag.end() - std::ssize(element), tag.end(), '.', '_');
  for (const Stat op : ops) {
    records_.scalar(tag + "_" + std::string(stat_name(op)), derive(op, state));
  }
}

void StepEvents::add(const Series& series, const Histogram& histogram) {
  records_.histogram(std::to_string(series.chunk) + ":" + series.name + "/rank" +
                         std::to_string(run_.rank) + "/adam_" + series.element,
                     histogram);
}

void StepEvents::write() {
  if (records_.empty()) return;
  if (file_.forget_lost()) {
    log_line_limited("tensorboard.descriptor", "somebody closed the descriptor of " +
                                                   file_.path().string() + "; a new file follows");
  }
  if (file_.is_open() && file_.is_deleted()) {
    log_line_limited("tensorboard.deleted",
                     file_.path().string() + " was deleted; a new file follows");
    file_.close();
  }
  if (!file_.is_open()) open_file();
  file_.append(records_.bytes());
  records_.clear();
}

void StepEvents::open_file() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  make_next_file(run_.directory, next_number_, [&](int number) {
    const auto seconds = static_cast<std::int64_t>(now.count());
    file_.create(run_.directory / event_file_name(seconds, run_.restart, number), now.count());
  });
}

}  // namespace trainmon::msprobe_csv
