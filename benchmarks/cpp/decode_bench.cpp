// How fast the rows of a run are decoded, all columns of them, and what decompressing alone takes.
//
//     decode_bench RUN
//
// Prints the rows and the least seconds of five rounds, the log in memory: of the processor for
// decoding and for reading and decompressing all frames on one thread, of the clock for decoding
// on one thread and on two. Rounds of one and two threads go one after the other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/parallel.h"
#include "read/log_scan.h"
#include "read/run_stream.h"

namespace {

using namespace trainmon;

constexpr int kRounds = 5;

struct Spent {
  double cpu = 1e300;
  double wall = 1e300;
};

template <typename Work>
void time_round(Spent& least, const Work& work) {
  const std::clock_t cpu = std::clock();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  least.wall = std::min(least.wall, wall.count());
  least.cpu = std::min(least.cpu, static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
}

std::int64_t decode(const RunStream& stream, unsigned threads) {
  std::atomic<std::int64_t> rows = 0;
  for_each_parallel(stream.pieces().size(), threads, [&](std::size_t i) {
    std::vector<Damage> damage;
    std::int64_t given = 0;
    RunStream::Take take;
    take.row = [&](const ReadRow&) { ++given; };
    stream.read(stream.pieces()[i], take, damage);
    if (!damage.empty()) throw std::runtime_error(damage.front().what);
    rows += given;
  });
  return rows;
}

std::vector<std::filesystem::path> segments_of(const std::filesystem::path& run) {
  std::vector<std::filesystem::path> segments;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    if (entry.path().extension() == ".tmlog") segments.push_back(entry.path());
  }
  return segments;
}

// Frames are read and held against their checksums, too.
void unpack_all(const std::vector<std::filesystem::path>& segments) {
  std::string unpacked, why;
  for (const std::filesystem::path& path : segments) {
    const std::string bytes = read_file(path);
    for (LogFrame frame : scan_segment(bytes).frames) {
      FrameBounds bounds;
      if (!unpack(frame, unpacked, bounds, why)) throw std::runtime_error(why);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: decode_bench RUN\n");
    return 2;
  }
  try {
    const RunStream stream(argv[1], {});
    const std::vector<std::filesystem::path> segments = segments_of(argv[1]);
    std::int64_t rows = 0;
    Spent one, two, unpacked;
    for (int round = 0; round < kRounds; ++round) {
      time_round(one, [&] { rows = decode(stream, 1); });
      time_round(two, [&] { rows = decode(stream, 2); });
      time_round(unpacked, [&] { unpack_all(segments); });
    }
    std::printf("rows %lld\ndecode %.6f\nunpack %.6f\none thread %.6f\ntwo threads %.6f\n",
                static_cast<long long>(rows), one.cpu, unpacked.cpu, one.wall, two.wall);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_bench: %s\n", error.what());
    return 1;
  }
}
