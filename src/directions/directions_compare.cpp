// Lists what both dumps have, then counts equal signs file by file, several at a time.
#include "directions/directions_compare.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "base/cancelled.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "directions/direction_dump.h"
#include "directions/direction_file.h"
#include "directions/directions_output.h"
#include "directions/directions_verdict.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockWords = 1024;  // 65,536 elements of a file at a time
constexpr const char* kOnlyFirst = "only in the first";
constexpr const char* kOnlySecond = "only in the second";

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

DirectionFile opened(const fs::path& path, const char* which) {
  try {
    return DirectionFile(path);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(which) + ": " + error.what());
  }
}

// Throws std::runtime_error that says why they cannot be compared.
Agreement agreement_of(const fs::path& first, const fs::path& second) {
  DirectionFile a = opened(first, "the first");
  DirectionFile b = opened(second, "the second");
  if (a.sizes() != b.sizes()) {
    throw std::runtime_error("sizes " + sizes_text(a.sizes()) + " against " +
                             sizes_text(b.sizes()));
  }
  if (a.is_fortran() != b.is_fortran()) {
    a.put_in_rows();
    b.put_in_rows();
  }
  const int planes = std::min(a.planes(), b.planes());
  std::array<std::uint64_t, kBlockWords> x, y, differ;
  std::int64_t unequal = 0;
  for (std::int64_t at = 0; at < a.count(); at += std::int64_t{64} * kBlockWords) {
    differ.fill(0);
    for (int plane = 0; plane < planes; ++plane) {
      a.read(plane, at, x);
      b.read(plane, at, y);
      for (std::size_t i = 0; i < kBlockWords; ++i) differ[i] |= x[i] ^ y[i];
    }
    for (const std::uint64_t word : differ) unequal += std::popcount(word);
  }
  return {a.count() - unequal, a.count()};
}

std::string both_files(const char* which, const DirectionName& name) {
  return std::string("the ") + which + " has .sign and .npy, of which " +
         (name.is_packed ? ".sign" : ".npy") + " is newer and counts";
}

// Two files to compare. Paths are put together when they are needed: there may be millions.
struct Pair {
  std::uint32_t rank = 0;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  bool first_is_packed = false;
  bool second_is_packed = false;
};

struct RankPair {
  fs::path first, second;
  Numbered first_steps, second_steps;
};

// By parameter and reason: the steps.
using Reasons = std::map<std::pair<std::string, std::string>, std::set<std::int64_t>>;

class Comparison {
 public:
  explicit Comparison(const DirectionsOptions& options)
      : options_(options),
        first_(find_directions(options.first)),
        second_(find_directions(options.second)) {}

  DirectionsReport run() {
    match_ranks();
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) list(rank);
    if (pairs_.empty()) nothing_in_common();
    compare();
    look_for_nans();
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) conclude(rank);
    bool has_any = false;
    for (const RankDirections& rank : report_.ranks) has_any |= !rank.parameters.empty();
    if (!has_any) nothing_in_common();
    write();
    return std::move(report_);
  }

 private:
  void ask() const {
    if (options_.cancelled && options_.cancelled()) throw Cancelled();
  }

  void add(std::optional<std::int64_t> number, const fs::path& first, const fs::path& second) {
    ranks_.push_back({first, second, {}, {}});
    report_.ranks.emplace_back().rank = number;
  }

  void match_ranks() {
    if (first_.has_ranks && second_.has_ranks) {
      for (const auto& [number, path] : first_.ranks) {
        const auto other = second_.ranks.find(number);
        if (other == second_.ranks.end()) {
          report_.not_compared.push_back({number, "", {}, kOnlyFirst});
        } else {
          add(number, path, other->second);
        }
      }
      for (const auto& [number, path] : second_.ranks) {
        if (first_.ranks.contains(number)) continue;
        report_.not_compared.push_back({number, "", {}, kOnlySecond});
      }
    } else if (first_.ranks.size() == 1 && second_.ranks.size() == 1) {
      // A dump of one card without that level, and one that has it, perhaps.
      add(std::nullopt, first_.ranks.begin()->second, second_.ranks.begin()->second);
    }
    if (ranks_.empty()) nothing_in_common();
  }

  void list(std::uint32_t rank) {
    RankPair& pair = ranks_[rank];
    RankDirections& result = report_.ranks[rank];
    Reasons& reasons = reasons_.emplace_back();
    Reasons& doubts = doubts_.emplace_back();
    try {
      pair.first_steps = find_steps(pair.first);
      pair.second_steps = find_steps(pair.second);
    } catch (const fs::filesystem_error& error) {
      reasons[{"", error.what()}];
      return;
    }
    std::map<std::string, std::uint32_t> numbers;
    std::vector<Pair> pairs;
    std::vector<std::string> names;
    for (const auto& [step, path] : pair.second_steps) {
      if (!pair.first_steps.contains(step)) reasons[{"", kOnlySecond}].insert(step);
    }
    for (const auto& [step, path] : pair.first_steps) {
      ask();
      const auto other = pair.second_steps.find(step);
      if (other == pair.second_steps.end()) {
        reasons[{"", kOnlyFirst}].insert(step);
        continue;
      }
      const auto number = static_cast<std::uint32_t>(result.steps.size());
      result.steps.push_back(step);
      std::map<std::string, DirectionName> first, second;
      try {
        first = find_parameters(path);
        second = find_parameters(other->second);
      } catch (const fs::filesystem_error& error) {
        reasons[{"", error.code().message()}].insert(step);
        continue;
      }
      for (const auto& [name, file] : second) {
        if (!first.contains(name)) reasons[{name, kOnlySecond}].insert(step);
        if (file.has_both) doubts[{name, both_files("second", file)}].insert(step);
      }
      for (const auto& [name, file] : first) {
        if (file.has_both) doubts[{name, both_files("first", file)}].insert(step);
        const auto other_file = second.find(name);
        if (other_file == second.end()) {
          reasons[{name, kOnlyFirst}].insert(step);
          continue;
        }
        if (!file.is_file || !other_file->second.is_file) {
          reasons[{name, file.is_file ? "the second: it is no file" : "the first: it is no file"}]
              .insert(step);
          continue;
        }
        const auto [at, is_new] =
            numbers.try_emplace(name, static_cast<std::uint32_t>(names.size()));
        if (is_new) names.push_back(name);
        pairs.push_back({rank, number, at->second, file.is_packed, other_file->second.is_packed});
      }
    }
    result.parameters = in_summary_order({pair.first, pair.second}, names);
    for (std::size_t i = 0; i < result.parameters.size(); ++i) {
      numbers[result.parameters[i]] = static_cast<std::uint32_t>(i);
    }
    for (Pair& one : pairs) one.parameter = numbers.at(names[one.parameter]);
    result.agreements.assign(names.size(), std::vector<Agreement>(result.steps.size()));
    pairs_.insert(pairs_.end(), pairs.begin(), pairs.end());
  }

  void compare() {
    const auto total = static_cast<std::int64_t>(pairs_.size());
    std::atomic<std::int64_t> done{0};
    std::mutex mutex;
    for_each_parallel(pairs_.size(), static_cast<unsigned>(options_.threads), [&](std::size_t i) {
      ask();
      const Pair& pair = pairs_[i];
      const RankPair& rank = ranks_[pair.rank];
      RankDirections& result = report_.ranks[pair.rank];
      const std::int64_t step = result.steps[pair.step];
      const std::string& name = result.parameters[pair.parameter];
      const auto path = [&](const Numbered& steps, bool is_packed) {
        return steps.at(step) / (name + (is_packed ? std::string(kSignFileEnding) : ".npy"));
      };
      try {
        result.agreements[pair.parameter][pair.step] =
            agreement_of(path(rank.first_steps, pair.first_is_packed),
                         path(rank.second_steps, pair.second_is_packed));
      } catch (const std::runtime_error& error) {
        const std::lock_guard lock(mutex);
        reasons_[pair.rank][{name, error.what()}].insert(step);
      }
      const std::int64_t now = ++done;
      if (options_.progress && now * 1000 / total != (now - 1) * 1000 / total) {
        options_.progress(now, total);
      }
    });
    ask();
  }

  // A NaN is not positive, which hides it among negative elements.
  void look_for_nans() {
    for (std::size_t number = 0; number < ranks_.size(); ++number) {
      const RankPair& rank = ranks_[number];
      const RankDirections& result = report_.ranks[number];
      std::mutex mutex;
      for_each_parallel(
          result.steps.size(), static_cast<unsigned>(options_.threads), [&](std::size_t i) {
            ask();
            const std::int64_t step = result.steps[i];
            const std::set<std::string> first = find_nans(rank.first, step);
            const std::set<std::string> second = find_nans(rank.second, step);
            if (first.empty() && second.empty()) return;
            const std::lock_guard lock(mutex);
            for (std::size_t p = 0; p < result.parameters.size(); ++p) {
              const std::string& name = result.parameters[p];
              const bool in_first = first.contains(name), in_second = second.contains(name);
              if (!result.agreements[p][i].is_compared() || (!in_first && !in_second)) continue;
              const char* where = in_first && in_second ? "both"
                                  : in_first            ? "the first"
                                                        : "the second";
              doubts_[number][{name, std::string("its gradient has NaN in ") + where}].insert(step);
            }
          });
    }
    ask();
  }

  // Summary, verdict, and what was not compared, of one rank.
  void conclude(std::size_t number) {
    RankDirections& rank = report_.ranks[number];
    for (std::size_t i = rank.parameters.size(); i-- > 0;) {
      const std::vector<Agreement>& row = rank.agreements[i];
      if (std::any_of(row.begin(), row.end(), [](auto& one) { return one.is_compared(); }))
        continue;
      rank.parameters.erase(rank.parameters.begin() + static_cast<std::ptrdiff_t>(i));
      rank.agreements.erase(rank.agreements.begin() + static_cast<std::ptrdiff_t>(i));
    }
    rank.summary.resize(rank.steps.size());
    for (const std::vector<Agreement>& row : rank.agreements) {
      for (std::size_t step = 0; step < row.size(); ++step) {
        if (!row[step].is_compared()) continue;
        Agreement& sum = rank.summary[step];
        sum.elements = std::max<std::int64_t>(sum.elements, 0) + row[step].elements;
        sum.equal += row[step].equal;
      }
    }
    rank.suspicions = suspicions(rank.steps, rank.agreements);
    rank.not_compared = remarks_of(reasons_[number]);
    rank.doubts = remarks_of(doubts_[number]);
    if (rank.parameters.empty()) return;
    rank.out = options_.out;
    if (rank.rank) rank.out /= "rank" + std::to_string(*rank.rank);
  }

  void write() const {
    for (const RankDirections& rank : report_.ranks) {
      if (rank.out.empty()) continue;
      make_directories(rank.out);
      write_atomically(rank.out / "similarities.csv", similarities_csv(rank));
      write_atomically(rank.out / "verdict.json", verdict_json(rank, report_, options_));
    }
  }

  static std::vector<Remark> remarks_of(const Reasons& reasons) {
    std::vector<Remark> remarks;
    for (const auto& [key, steps] : reasons) {
      remarks.push_back({std::nullopt, key.first, {steps.begin(), steps.end()}, key.second});
    }
    return remarks;
  }

  static std::string listed(const Numbered& numbers, const char* what) {
    std::string text = what;
    std::size_t count = 0;
    for (const auto& [number, path] : numbers) {
      if (++count > 8) return text + ", ...";
      text += (count > 1 ? ", " : " ") + std::to_string(number);
    }
    return count == 0 ? std::string("no ") + what : text;
  }

  static std::string described(const DirectionDump& dump) {
    std::string text = printable(dump.path.native()) + " has ";
    if (dump.ranks.empty()) return text + "neither ranks nor steps";
    if (dump.has_ranks) text += listed(dump.ranks, "rank");
    const Numbered steps = find_steps(dump.ranks.begin()->second);
    if (dump.has_ranks) text += ", the first of them ";
    text += listed(steps, "step");
    if (steps.empty()) text += " (grad_level L0 writes no directions)";
    return text;
  }

  [[noreturn]] void nothing_in_common() const {
    std::string text = "nothing to compare: " + described(first_) + "; " + described(second_);
    for (const Reasons& reasons : reasons_) {
      for (const auto& [key, steps] : reasons) {
        if (key.first.empty()) continue;
        throw std::runtime_error(text + "; " + printable(key.first) + " at step " +
                                 std::to_string(*steps.begin()) + ": " + key.second);
      }
    }
    throw std::runtime_error(text);
  }

  const DirectionsOptions& options_;
  DirectionDump first_, second_;
  std::vector<RankPair> ranks_;   // as report_.ranks
  std::vector<Reasons> reasons_;  // why something was not compared; as report_.ranks
  std::vector<Reasons> doubts_;   // of what was; as report_.ranks
  std::vector<Pair> pairs_;
  DirectionsReport report_;
};

}  // namespace

double Agreement::similarity() const {
  if (elements == 0) return 0.0;
  return elements < 0 ? std::numeric_limits<double>::quiet_NaN()
                      : static_cast<double>(equal) / static_cast<double>(elements);
}

DirectionsReport compare_directions(const DirectionsOptions& options) {
  if (options.threads < 1 || options.threads > 256) {
    throw std::invalid_argument("threads must be from 1 to 256, not " +
                                std::to_string(options.threads));
  }
  return Comparison(options).run();
}

}  // namespace trainmon
