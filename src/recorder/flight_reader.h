// A flight recorder's file read back, be it of a live process, a dead one, or damaged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "recorder/flight_format.h"

namespace trainmon {

struct FlightRecord {
  std::filesystem::path path;
  int rank = 0, world_size = 0, restart = 0, clock = 0;
  std::int64_t pid = 0;
  std::string host, run_id;
  std::int64_t started_ns = 0, beat_ns = 0;
  bool closed = false;
  std::uint64_t slots = 0;
  std::uint64_t claimed = 0;      // events that were ever begun
  std::uint64_t overwritten = 0;  // of them, by later ones
  std::uint64_t unfinished = 0;   // being written when the file was read, or the process died
  std::uint64_t damaged = 0;      // slots, among those that must be whole
  std::uint64_t names_lost = 0;
  std::vector<flight::Slot> events;  // by seq; each as it was written
  std::map<std::uint32_t, std::string> series, words, groups;
  std::vector<std::string> damage;  // what else is wrong, one text for each

  // Of numbers that have no name: "(unnamed)".
  const std::string& word(std::uint32_t id) const;
};

// Throws SinkError where the file cannot be read, or is no such file. Any bytes may be in it: a
// slot is told only where its checksum and its place bear it out.
FlightRecord read_flight(const std::filesystem::path& path);

// The rings of one rank's directory, in the order in which they were made.
std::vector<std::filesystem::path> flight_files(const std::filesystem::path& directory);

}  // namespace trainmon
