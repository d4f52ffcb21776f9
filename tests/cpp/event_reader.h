// The scalars of TensorBoard's event files, by a decoder of the tests' own.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trainmon {

struct Point {
  std::int64_t step = 0;
  float value = 0.0f;
};

class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        bytes = take(8);
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        bytes = take(varint());
    }
    return true;
  }
  int field = 0;
  std::uint64_t number = 0;
  std::string_view bytes;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view take(std::uint64_t size) {
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }
  std::string_view rest_;
};

// Every curve of all files in a directory, in the order of their names; torn tails are passed over.
inline std::map<std::string, std::vector<Point>> read_curves(
    const std::filesystem::path& directory) {
  std::map<std::string, std::vector<Point>> curves;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.insert(entry.path());
  for (const std::filesystem::path& file : files) {
    const std::string content = read_file(file);
    for (std::size_t at = 0; at + 16 <= content.size();) {
      std::uint64_t length = 0;
      std::memcpy(&length, content.data() + at, sizeof length);
      if (length > content.size() - at - 16) break;
      Fields event(std::string_view(content).substr(at + 12, length));
      at += 16 + length;
      std::int64_t step = 0;
      while (event.next()) {
        if (event.field == 2) step = static_cast<std::int64_t>(event.number);
        if (event.field != 5) continue;
        for (Fields summary(event.bytes); summary.next();) {
          std::string tag;
          for (Fields value(summary.bytes); value.next();) {
            if (value.field == 1) tag = value.bytes;
            if (value.field != 2) continue;
            float number = 0.0f;
            std::memcpy(&number, value.bytes.data(), sizeof number);
            curves[tag].push_back({step, number});
          }
        }
      }
    }
  }
  return curves;
}

}  // namespace trainmon
