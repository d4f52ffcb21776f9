#include "recorder/flight_copies.h"

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/restart_folder.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "frozen_at_step_";
constexpr auto kApart = std::chrono::minutes(1);
constexpr std::uintmax_t kRoomLeft = 10;  // times the file's size

// Those of this rank, of earlier starts too.
std::size_t copies_of(const fs::path& run, const fs::path& rank) {
  std::size_t copies = 0;
  for (const fs::path& folder : entries_of(run)) {
    if (!folder.filename().native().starts_with(kFolder)) continue;
    copies += entries_of(folder / rank).size();
  }
  return copies;
}

}  // namespace

FlightCopies::FlightCopies(fs::path file) : file_(std::move(file)) {}

void FlightCopies::keep(std::int64_t step) {
  const auto now = std::chrono::steady_clock::now();
  const fs::path start = file_.parent_path(), rank = start.parent_path(), run = rank.parent_path();
  if (now < next_ || !restart_number(start)) return;
  next_ = now + kApart;
  if (copies_of(run, rank.filename()) >= kMostFlightCopies) return;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file_, error);
  const fs::space_info space = fs::space(run, error);
  if (!error && space.available < (kRoomLeft + 1) * bytes) {
    throw file_error(ENOSPC, "no copy is kept of", file_);
  }
  const fs::path folder = run / (std::string(kFolder) + std::to_string(step));
  const fs::path to = folder / rank.filename() / start.filename();
  const fs::path whole = to / file_.filename(), part = fs::path(whole) += ".tmp";
  // Somebody else may have made these folders, as a link to where he wants a file to be.
  for (fs::path made = to; made != run; made = made.parent_path()) {
    if (fs::is_symlink(made, error)) throw file_error(ELOOP, "no copy is kept in", made);
  }
  make_directories(to);
  fs::remove(part, error);
  if (const Failure failure = failpoint("flight.copy"); failure.error != 0) {
    error = std::error_code(failure.error, std::generic_category());
  } else {
    fs::copy_file(file_, part, error);  // never through a link, nor over what is there
  }
  if (!error) fs::rename(part, whole, error);
  if (error) {
    std::error_code ignored;
    fs::remove(part, ignored);
    for (fs::path empty = to; empty != run; empty = empty.parent_path()) fs::remove(empty, ignored);
    throw file_error(error.value(), "cannot copy to", to);
  }
  const std::lock_guard lock(mutex_);
  folders_.push_back(folder);
}

std::vector<fs::path> FlightCopies::folders() const {
  const std::lock_guard lock(mutex_);
  return folders_;
}

}  // namespace trainmon
