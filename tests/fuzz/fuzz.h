// What the fuzz targets share: a place for the input, and a check that stops the fuzzer.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace trainmon::fuzz {

// An invariant that does not hold is a finding, as a crash is.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// A directory of this process, in memory where there is such a place.
inline const std::filesystem::path& scratch() {
  static const std::filesystem::path path = [] {
    std::error_code error;
    std::filesystem::path base = "/dev/shm";
    if (!std::filesystem::is_directory(base, error)) base = std::filesystem::temp_directory_path();
    base /= "trainmon_fuzz_" + std::to_string(::getpid());
    std::filesystem::remove_all(base, error);
    std::filesystem::create_directories(base);
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(scratch(), ignored);
    });
    return base;
  }();
  return path;
}

inline void put(const std::filesystem::path& file, std::string_view bytes) {
  std::FILE* const stream = std::fopen(file.c_str(), "wb");
  check(stream != nullptr, "the input can be written");
  check(std::fwrite(bytes.data(), 1, bytes.size(), stream) == bytes.size(), "and all of it");
  std::fclose(stream);
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace trainmon::fuzz
