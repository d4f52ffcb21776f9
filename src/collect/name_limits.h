// What keeps names that a program makes without end from taking memory without end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace trainmon {

// Bytes of a name; longer ones are cut.
inline constexpr std::size_t kLongestName = 8192;

// A name as it is. Of one that is too long, its beginning (whole UTF-8 characters) and the MD5 of
// all of it: names that differ stay different. The first that is cut is said. Any thread.
std::string bounded_name(std::string_view name);

// The names of scalars. Any thread.
class ScalarNames {
 public:
  explicit ScalarNames(std::size_t most) : most_(most) {}

  // Whether values of this name are recorded: of a known one, or one of the first `most`, and of
  // those that trainmon itself has ("trainmon/..."). The others are counted, and the first is said.
  bool takes(std::string_view name);
  std::int64_t values_left_out() const { return left_out_.load(std::memory_order_relaxed); }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  const std::size_t most_;
  std::mutex mutex_;
  std::unordered_set<std::string, Hash, std::equal_to<>> names_;
  std::atomic<std::int64_t> left_out_{0};
};

}  // namespace trainmon
