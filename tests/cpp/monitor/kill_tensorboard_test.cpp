// kill -9 at any instant: event files parse, and what they hold is all that was sealed up to some
// moment, at most one flush interval before the kill. TRAINMON_KILLS sets the number of kills (40
// unless set).
#include <gtest/gtest.h>

#include "event_reader.h"
#include "kill_child.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// How many rows the last point of each curve is made of. The child's series "forward.i" has the
// values 0, 1, 2, ..., "backward.i" i, i + 40, ...: the mean of all up to the largest is known.
std::uint64_t rows_in(const fs::path& directory) {
  auto curves = read_curves(directory);
  double rows = 0;
  for (const auto& [tag, points] : curves) {
    if (!tag.starts_with("max/")) continue;
    const std::string name = tag.substr(std::string("max/").size());
    const bool is_forward = name.find("forward.") != std::string::npos;
    const double first = is_forward ? 0.0 : std::stod(name.substr(name.rfind('.') + 1));
    const double largest = points.back().value;
    EXPECT_FLOAT_EQ(curves["mean/" + name].back().value, static_cast<float>((first + largest) / 2))
        << "a hole or a repeat in " << name;
    rows += (largest - first) / (is_forward ? 1.0 : 40.0) + 1;
  }
  return static_cast<std::uint64_t>(rows);
}

TEST(KillTensorboard, TheFilesAreAPrefixWithoutHoles) {
  const Scratch scratch;
  kill_often(scratch.path(), "tensorboard", {"file.write", 4, 5}, [](const fs::path& run) {
    const fs::path directory = run / "tensorboard" / "rank_0";
    return fs::exists(directory) ? rows_in(directory) : 0;
  });
}

}  // namespace
}  // namespace trainmon
