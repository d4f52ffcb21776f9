// What `fsync` promises for a power cut. The calls of a run are recorded in their order. After each
// of them the power fails: a log file is then what was written to it before its last sync, and is
// there if its folder was synced since. Readers must find a prefix without a hole, of a bounded
// loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "file_content.h"
#include "run_child.h"
#include "scratch.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// A log file as a disk without a cache would have it, and as one that loses what was not synced.
struct LogFile {
  long written = 0;
  long synced = 0;
  bool is_named = false;
};

struct Disk {
  std::map<fs::path, LogFile> logs;
  std::map<fs::path, bool> folders;  // of the run, and whether their names are on the disk
  std::map<fs::path, bool> told;     // run.json, and whether the name is that of a synced file
  bool is_text_synced = false;       // of the run.json that gets its name next
  bool syncs = true;                 // what `fsync` asks for
  long flushed = 0;                  // rows that flush() said were in the files

  void take(const std::string& call, const fs::path& path, long bytes, long at) {
    const std::string name = path.filename().string();
    const bool is_log = name.starts_with("log-") && name.ends_with(".tmlog");
    if (call == "mkdir") folders.emplace(path, false);
    if (call == "open" && is_log) logs.try_emplace(path);
    if (call == "pwrite" && is_log) logs[path].written = std::max(logs[path].written, at + bytes);
    if (call == "fdatasync" && is_log) logs[path].synced = logs[path].written;
    if (call == "fdatasync" && name == "run.json.tmp") is_text_synced = true;
    if (call == "rename" && name == "run.json") {
      EXPECT_EQ(std::exchange(is_text_synced, false), syncs);
      told.try_emplace(path, false);
    }
    if (call == "fsync") {
      for (auto& [file, is_named] : told) is_named |= file.parent_path() == path;
      for (auto& [log, file] : logs) file.is_named |= log.parent_path() == path;
      for (auto& [folder, is_named] : folders) is_named |= folder.parent_path() == path;
    }
    if (name.starts_with("flushed_")) flushed = std::stol(name.substr(8));
  }

  bool leaves_no_log() const {
    return std::ranges::none_of(logs, [](const auto& log) { return log.second.synced > 0; });
  }

  bool is_reachable(const fs::path& file, const fs::path& run) const {
    for (fs::path folder = file.parent_path(); folder != run; folder = folder.parent_path()) {
      if (!folders.at(folder)) return false;
    }
    return true;
  }

  // The first bytes of each log that a power cut would leave, and run.json, in `to`.
  void leave(const fs::path& run, const fs::path& to) const {
    fs::remove_all(to);
    for (const auto& [file, is_named] : told) {
      if (!is_named || !is_reachable(file, run)) continue;
      const fs::path left = to / fs::relative(file, run);
      fs::create_directories(left.parent_path());
      put(left, content(file));
    }
    for (const auto& [log, file] : logs) {
      if (!file.is_named || !is_reachable(log, run)) continue;
      const fs::path left = to / fs::relative(log, run);
      fs::create_directories(left.parent_path());
      put(left, content(log).substr(0, static_cast<std::size_t>(file.synced)));
    }
  }
};

class PowerCut : public ::testing::Test {
 protected:
  // Runs the child and calls `look(disk, rows)` after every call on a log and every mark; `rows` is
  // what readers find when the power fails there.
  void cut_everywhere(const std::string& fsync,
                      const std::function<void(const Disk&, long)>& look) {
    const Ended ended = run_child(scratch_.path(), {"none", 0, 0}, 40, fsync);
    ASSERT_EQ(ended.status, 0) << ended.output;
    Disk disk;
    disk.syncs = fsync != "never";
    for (const std::string& line : ended.record) {
      std::istringstream words(line);
      std::string call, path;
      long bytes = 0, at = 0;
      words >> call >> path >> bytes >> at;
      disk.take(call, path, bytes, at);
      const bool is_change = call == "fdatasync" || call == "fsync" || call == "pwrite";
      const bool is_of_log = path.find(".tmlog") != std::string::npos || call == "fsync";
      if (is_change && is_of_log) look(disk, rows_after(disk));
      ++calls_;
    }
    written_ = static_cast<long>(read_run(scratch_.path() / "run").rows.size());
  }

  long rows_after(const Disk& disk) const {
    const fs::path left = scratch_.path() / "left";
    disk.leave(scratch_.path() / "run", left);
    if (disk.leaves_no_log()) return 0;
    const RunRows run = read_run(left);
    for (const Damage& damage : run.damage) ADD_FAILURE() << damage.file << ": " << damage.what;
    // Each step has four rows and a scalar, which are counted together.
    for (std::size_t i = 0; i < run.rows.size(); ++i) {
      EXPECT_EQ(run.rows[i].seq, i + i / 4 + 1) << "a hole";
    }
    return static_cast<long>(run.rows.size());
  }

  const Scratch scratch_;
  long calls_ = 0;
  long written_ = 0;
};

TEST_F(PowerCut, FlushedRowsOutliveItUnderFlush) {
  long most = 0;
  cut_everywhere("flush", [&](const Disk& disk, long rows) {
    EXPECT_GE(rows, disk.flushed);
    EXPECT_GE(rows, most) << "rows that were on the disk are gone";
    most = rows;
  });
  EXPECT_EQ(written_, 160);
  EXPECT_EQ(most, written_) << "after stop() all is on the disk";
}

TEST_F(PowerCut, OneLogFileIsLostUnderSegment) {
  long most = 0;
  std::size_t files = 0;
  cut_everywhere("segment", [&](const Disk& disk, long rows) {
    files = std::max(files, disk.logs.size());
    std::size_t open = 0;
    for (const auto& [log, file] : disk.logs) open += file.synced < file.written ? 1 : 0;
    EXPECT_LE(open, 1u) << "a log file was begun before the one before it was on the disk";
    most = std::max(most, rows);
  });
  EXPECT_GT(files, 2u);
  EXPECT_EQ(most, written_);
}

TEST_F(PowerCut, NothingIsForcedUnderNever) {
  cut_everywhere("never", [&](const Disk& disk, long rows) {
    EXPECT_EQ(rows, 0);
    EXPECT_TRUE(disk.told.empty() || !disk.told.begin()->second);
    for (const auto& [log, file] : disk.logs) EXPECT_EQ(file.synced, 0) << log;
  });
  EXPECT_EQ(written_, 160);
}

}  // namespace
}  // namespace trainmon
