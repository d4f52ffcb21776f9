// Events whose every member follows from two numbers, so that a reader can tell a true one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recorder/flight_reader.h"
#include "recorder/flight_recorder.h"

namespace trainmon {

// Series 0 to 7, without locks: all are there from the start.
class EightSeries final : public SeriesTable {
 public:
  EightSeries() {
    for (int i = 0; i < 8; ++i) {
      Series one;
      one.kind = "grad_reduced";
      one.name = "layers." + std::to_string(i);
      one.optimizer = i;
      series_.push_back(one);
    }
  }
  const Series& at(SeriesId id) const override { return series_[id]; }
  std::size_t size() const override { return series_.size(); }

 private:
  std::vector<Series> series_;
};

inline RunInfo run_in(const std::filesystem::path& directory) {
  RunInfo run;
  run.directory = directory;
  run.run_id = "a run";
  run.rank = 3;
  run.world_size = 8;
  run.restart = 2;
  return run;
}

inline Row row_of(SeriesId series, std::int64_t number) {
  Row row;
  row.key.series = series;
  row.key.flags = static_cast<std::uint32_t>(number % 7);
  row.key.window = number;
  row.key.accum = static_cast<std::int32_t>(number % 1000);
  row.key.call = static_cast<std::int32_t>(series);
  row.key.seq = static_cast<std::uint64_t>(number) * 3;
  const auto value = static_cast<double>(number);
  row.state.count = number + 10;
  row.state.min = -value;
  row.state.max = value + 0.5;
  row.state.mean = value / 2;
  row.state.sum_sq = value * value;  // so that the norm is |value|
  return row;
}

// Whether it is the event of row_of(id, window): written out here, not computed by the recorder.
inline bool is_true_row(const flight::Slot& slot) {
  const std::int64_t number = slot.window;
  const auto value = static_cast<double>(number);
  return slot.type == 1 && slot.detail == 0 && slot.id < 8 && slot.step == number + 1 &&
         slot.accum == number % 1000 && slot.call == static_cast<std::int32_t>(slot.id) &&
         slot.number == static_cast<std::uint64_t>(number) * 3 && slot.count == number + 10 &&
         slot.nans == 0 && slot.infs == 0 && slot.values[0] == value && slot.values[1] == -value &&
         slot.values[2] == value + 0.5 && slot.values[3] == value / 2 &&
         slot.flags == static_cast<std::uint32_t>(number % 7) &&
         slot.optimizer == static_cast<std::int32_t>(slot.id) && slot.group == 0;
}

}  // namespace trainmon
