// The last events of one rank in a mapped file, which outlives the process and its writer thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "recorder/flight_format.h"
#include "trainmon/flight.h"
#include "trainmon/record.h"
#include "trainmon/sink.h"

namespace trainmon {

// Any thread may call any member but found_cut(). None throws but the constructor. What is
// recorded per row and per stage takes no lock and allocates nothing. It makes no system call but
// the clock's, which the kernel serves without one. A name that is new takes a lock. A slot is
// written in place, so a kill leaves at most one torn slot for each thread, which its checksum
// tells. Nobody may call it in a forked child, who shares the mapping.
class FlightRecorder {
 public:
  // Makes run.directory/flight-000000.ring, or the next free number, of about `bytes` bytes, and
  // takes their room on the disk. Throws SinkError: "network" on a network file system, whose
  // pages may be withdrawn from the process.
  FlightRecorder(const RunInfo& run, const SeriesTable& series, std::size_t bytes);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t slots() const { return slots_; }

  // The number of a text, new or known; 0 when there is no room for it.
  std::uint32_t word(std::string_view text) noexcept;
  // `ranks`: "0-3,8", "*" for all, "" where they are not known.
  std::uint32_t group(std::string_view name, std::string_view ranks) noexcept;

  void row(const Row& row, std::int64_t step) noexcept;
  void outcome(const Outcome& outcome) noexcept;
  void scalar(std::string_view name, std::int64_t window, double value) noexcept;
  void alert(const Alert& alert) noexcept;
  void stage(FlightStage stage, std::int32_t optimizer, std::int64_t window,
             std::int64_t step) noexcept;
  void collective(const CollectiveCall& call, std::int64_t step) noexcept;
  void close() noexcept;

  // The writer thread, about once a second: says in the file that it lives. True, once, when
  // somebody has shortened the file: its pages are replaced by memory, for to touch one that is
  // gone would kill the process. What is recorded from then on is lost.
  bool found_cut() noexcept;

 private:
  void put(flight::Slot& slot) noexcept;
  void name_series_up_to(SeriesId series) noexcept;
  bool add_name(flight::NameType type, std::uint32_t id, std::string_view text) noexcept;
  std::uint32_t numbered(flight::NameType type, std::string_view text) noexcept;

  const SeriesTable& series_;
  std::filesystem::path path_;
  File file_;
  std::size_t bytes_ = 0;
  std::byte* map_ = nullptr;
  flight::Header* header_ = nullptr;  // in the map, as the next two
  std::byte* names_ = nullptr;
  std::uint64_t* ring_ = nullptr;
  std::uint64_t slots_ = 0;
  std::uint64_t names_bytes_ = 0;
  bool is_cut_ = false;                // found_cut() alone
  std::atomic<std::size_t> named_{0};  // series whose name is written or lost
  std::mutex names_mutex_;             // of the members below, and of what they say in the map
  std::uint64_t names_used_ = 0;
  std::map<std::pair<flight::NameType, std::string>, std::uint32_t> numbers_;
};

}  // namespace trainmon
