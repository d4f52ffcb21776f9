// Rows of our sources as msprobe's files would hold them: its types, names and micro steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "sources/source.h"

namespace trainmon {

// What msprobe keeps of one tensor in one step.
struct MsprobeRow {
  std::int32_t rank = 0;
  std::string_view type;  // "actv", "grad_reduced", "attention_hook", ...
  std::string_view name;  // "fc.input"
  std::int32_t chunk = 0;
  std::int64_t step = 0;
  std::int32_t micro_step = 0;
  // Statistic i of stats(); absent where its bit is set.
  std::span<const double> values;
  std::uint64_t absent = 0;
};

// Passes rows of msprobe's own files through. Rows of a run are gathered step by step, as the
// sink msprobe_csv does it. Attempts that were not taken are left out, sums of gradients count
// once, and calls are shared out among micro steps.
class MsprobeView {
 public:
  using Take = std::function<void(const MsprobeRow&)>;
  // Which of msprobe's types have a place.
  using Has = bool (*)(std::string_view type);
  MsprobeView(const Source& source, const std::vector<std::string>& stats, Has has, Take take);

  // The statistics of rows that it hands on.
  static std::vector<std::string> stats(const Source& source,
                                        const std::vector<std::string>& of_source);
  // Those that rows of a type have.
  static std::vector<std::string> stats_of(const Source& source, std::string_view type,
                                           const std::vector<std::string>& of_source);

  void add(const TableRow& row);
  void end();  // of a part
  // After all parts: says how many rows have no place in `where` of msprobe.
  void tell(RowAccount& account, std::string_view where) const;

 private:
  struct Held {
    TableRow row;
    std::vector<double> values;
  };
  void flush(std::vector<Held>& held);

  const bool passes_;
  const std::vector<std::string> from_;
  const std::vector<std::string> to_;
  const Has has_;
  const Take take_;
  int mean_ = -1;  // among from_
  // By rank, restart and optimizer, each of which goes through steps of its own.
  std::map<std::tuple<int, int, int>, std::map<std::int64_t, std::vector<Held>>> steps_;
  std::int64_t left_out_ = 0;
};

}  // namespace trainmon
