// Files as tests compare them, and the reason of a SinkError.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "trainmon/error.h"

namespace trainmon {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// "" where the call does not throw one.
std::string reason_of(const auto& call) {
  try {
    call();
  } catch (const SinkError& error) {
    return error.reason();
  }
  return "";
}

}  // namespace trainmon
