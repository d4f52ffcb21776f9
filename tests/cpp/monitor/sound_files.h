// Whether the files of a run hold the rows that its account calls written, and nothing torn.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "file_content.h"
#include "tables.h"
#include "trainmon/read.h"

namespace trainmon::testing {

// Whole records to the last byte; whether anybody can read them, tensorboard_test asks.
inline void expect_whole_event_files(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory)) return;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string bytes = content(entry.path());
    std::size_t at = 0;
    while (at + 16 <= bytes.size()) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      if (length > bytes.size()) break;
      at += 16 + length;
    }
    EXPECT_EQ(at, bytes.size()) << entry.path();
  }
}

// `written` rows of the sink of this name are there, those that somebody deleted left out.
inline void expect_sound_files(const std::filesystem::path& run, const std::string& sink,
                               std::int64_t written) {
  const std::filesystem::path own = run / "rank_00000" / "restart_0000";
  const auto expected = static_cast<std::size_t>(written);
  if (sink == "log" && written > 0) {
    const RunRows rows = read_run(run);
    EXPECT_EQ(rows.rows.size(), expected);
    for (const Damage& damage : rows.damage) ADD_FAILURE() << damage.file << ": " << damage.what;
  } else if (sink == "csv") {
    EXPECT_EQ(csv_rows(own, "rows-").size(), expected);
  } else if (sink == "sqlite" && written > 0) {
    EXPECT_EQ(sqlite_rows(own / "stats.db", "PRAGMA quick_check")[0]["quick_check"], "ok");
    EXPECT_EQ(sqlite_rows(own / "stats.db", "SELECT * FROM stats").size(), expected);
  } else if (sink == "tensorboard") {
    expect_whole_event_files(run / "tensorboard" / "rank_0");
  }
}

}  // namespace trainmon::testing
