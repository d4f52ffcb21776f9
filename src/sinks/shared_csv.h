// CSV files that several processes append to at the same time: whole lines, one header.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trainmon {

// One such file. Every append takes the file's lock (flock: over NFS, too, since Linux 2.6.12),
// writes its lines at the end and lets go. Nothing is kept open in between, so a file that was
// deleted or moved away simply begins anew. Whoever holds the lock
//
//   - writes the header if the file is empty,
//   - cuts off a last line without its end, which a killed writer left,
//   - takes its own lines back if not all of them could be written.
//
// On a file system without locks lines are appended with one write each time, unrepaired.
// Thread-safe as far as objects differ.
struct SharedCsv {
  std::filesystem::path path;
  std::string header;  // with its line end
  std::string text;    // whole lines to append, each with its line end
};

inline constexpr std::string_view kSharedLineEnd = "\r\n";

// Appends the texts, all of them or none, and empties them. Makes missing files (and folders) with
// their header, also where there is nothing to append. The order of `files` does not matter: locks
// are taken in the order of their paths. Throws SinkError: "other_columns" for a file that begins
// with another line, "locked" where somebody keeps a lock longer than `patience`.
void append_together(std::span<SharedCsv> files,
                     std::chrono::nanoseconds patience = std::chrono::seconds(10));

}  // namespace trainmon
