// The series of a log that was read, for those who write them again.
#pragma once

#include <map>
#include <vector>

#include "sinks/log_encode.h"
#include "trainmon/record.h"

namespace trainmon {

class ReadSeries : public SeriesTable {
 public:
  explicit ReadSeries(const std::map<SeriesId, Series>& series) : series_(series) {}
  const Series& at(SeriesId id) const override { return series_.at(id); }
  std::size_t size() const override {
    return series_.empty() ? 0 : std::size_t{series_.rbegin()->first} + 1;
  }
  // Appends a frame that defines all of them; nothing where there are none.
  void append_frame(std::string& out, std::uint32_t frame_number) const {
    std::vector<SeriesId> ids;
    for (const auto& [id, definition] : series_) ids.push_back(id);
    if (!ids.empty()) log_format::append_series_frame(out, frame_number, ids, *this);
  }

 private:
  const std::map<SeriesId, Series>& series_;
};

}  // namespace trainmon
