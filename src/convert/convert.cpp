// From a source to a target. Several threads read parts; a target that is one file gets their
// rows in order all the same.
#include "convert/convert.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <stdexcept>
#include <thread>

#include "base/parallel.h"
#include "base/text.h"
#include "convert/staging.h"
#include "convert/target.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<std::string_view, TargetFormat>, 6> kTargets = {{
    {"csv", TargetFormat::csv},
    {"jsonl", TargetFormat::jsonl},
    {"sqlite", TargetFormat::sqlite},
    {"tensorboard", TargetFormat::tensorboard},
    {"msprobe_db", TargetFormat::msprobe_db},
    {"msprobe_trend", TargetFormat::msprobe_trend},
}};

std::unique_ptr<Target> make_target(const TargetPlace& place) {
  switch (place.options.to_format) {
    case TargetFormat::csv:
      return make_csv_target(place);
    case TargetFormat::jsonl:
      return make_jsonl_target(place);
    case TargetFormat::sqlite:
      return make_sqlite_target(place);
    case TargetFormat::tensorboard:
      return make_tensorboard_target(place);
    case TargetFormat::msprobe_db:
      return make_msprobe_db_target(place);
    case TargetFormat::msprobe_trend:
      break;
  }
  return make_msprobe_trend_target(place);
}

void check(const ConvertOptions& options) {
  const auto in_range = [](std::string_view name, std::int64_t value, std::int64_t low,
                           std::int64_t high) {
    if (value >= low && value <= high) return;
    throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(low) +
                                " to " + std::to_string(high) + ", not " + std::to_string(value));
  };
  in_range("threads", options.threads, 1, 128);
  in_range("step_partition", options.step_partition, 10, 10'000'000);
  const auto only = [](std::string_view name, bool is_given, bool is_used, std::string_view where) {
    if (!is_given || is_used) return;
    throw std::invalid_argument(std::string(name) + " is for " + std::string(where) + " only");
  };
  const bool has_times = !options.time_start.empty() || !options.time_end.empty();
  only("time_start or time_end", has_times, options.from_format == SourceFormat::msprobe_csv,
       "rows from msprobe_csv");
  const ConvertOptions defaults;
  only("step_partition", options.step_partition != defaults.step_partition,
       options.to_format == TargetFormat::msprobe_db, "msprobe_db");
  only("micro_steps_are_steps (--keep-micro-steps)",
       options.micro_steps_are_steps != defaults.micro_steps_are_steps,
       options.to_format == TargetFormat::msprobe_trend, "msprobe_trend");
  const bool is_of_msprobe = options.to_format == TargetFormat::msprobe_db ||
                             options.to_format == TargetFormat::msprobe_trend;
  if (options.select.all_restarts && is_of_msprobe) {
    throw std::invalid_argument("all_restarts is not for " +
                                std::string(format_name(options.to_format)) +
                                ": its tables have one value of a step");
  }
  if (options.select.merged && options.from_format != SourceFormat::log) {
    throw std::invalid_argument("rows are merged over ranks from a log, not from " +
                                std::string(format_name(options.from_format)));
  }
}

// Replacing the source by what is made of it would lose it if that is less.
void refuse_own_source(const ConvertOptions& options) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(options.from, error);
  const fs::path to = fs::weakly_canonical(options.to, error);
  if (options.to.empty()) throw std::invalid_argument("the output has no name");
  if (error) return;
  const auto at = std::mismatch(to.begin(), to.end(), from.begin(), from.end());
  if (at.first == to.end()) {
    throw std::invalid_argument("the output " + printable(options.to.native()) +
                                " would take the place of what is converted");
  }
  if (at.second != from.end()) return;
  // Inside of the source; msprobe's converters write there, but not into the directory of a rank.
  const bool is_msprobe = options.from_format == SourceFormat::msprobe_csv;
  if (is_msprobe && at.first->string().find("-rank") == std::string::npos) return;
  throw std::invalid_argument("the output " + printable(options.to.native()) +
                              " lies inside of what is converted");
}

// Rows on their way from a reading thread to the writing one.
struct Block {
  std::vector<TableRow> rows;
  std::vector<double> values;
};
constexpr std::size_t kBlockRows = 4096;
constexpr std::size_t kMostBlocks = 8;  // waiting, of one part

// One part's blocks; the writer takes parts in order, readers run ahead until they are full.
class Lane {
 public:
  // False when the conversion ended meanwhile.
  bool put(Block&& block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return blocks_.size() < kMostBlocks || is_closed_; });
    if (is_closed_) return false;
    blocks_.push_back(std::move(block));
    changed_.notify_all();
    return true;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  std::optional<Block> get() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !blocks_.empty() || is_ended_ || is_closed_; });
    if (blocks_.empty()) return std::nullopt;
    Block block = std::move(blocks_.front());
    blocks_.pop_front();
    changed_.notify_all();
    return block;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  bool is_ended_ = false;
  bool is_closed_ = false;
};

class Conversion {
 public:
  Conversion(const ConvertOptions& options, Source& source, Target& target, RowAccount& account)
      : options_(options), source_(source), target_(target), account_(account) {
    for (const Source::Part& part : source.parts()) total_ += part.bytes;
    if (!options.progress) return;
    account.on_advance([this](std::int64_t bytes) {
      options_.progress(std::min(done_ += bytes, total_), total_);
    });
  }
  ~Conversion() { account_.on_advance({}); }

  void run() {
    const std::size_t parts = source_.parts().size();
    const auto threads = static_cast<unsigned>(options_.threads);
    if (target_.is_part_by_part()) {
      for_each_parallel(parts, threads, [&](std::size_t i) {
        const std::unique_ptr<RowWriter> writer = target_.writer(i);
        read(i, [&](const TableRow& row) { writer->take(row); });
        writer->end();
      });
      return;
    }
    const std::unique_ptr<RowWriter> writer = target_.writer(0);
    if (threads == 1 || parts < 2) {
      for (std::size_t i = 0; i < parts; ++i) {
        read(i, [&](const TableRow& row) { writer->take(row); });
        writer->end();
      }
      return;
    }
    run_lanes(*writer, threads);
  }

 private:
  void read(std::size_t part, const Source::Take& take) {
    std::int64_t rows = 0;
    source_.read(
        part,
        [&](const TableRow& row) {
          if ((++rows & 0x3FF) == 0) ask();
          take(row);
        },
        account_);
    ask();
  }

  void ask() {
    if (stop_ || (options_.cancelled && options_.cancelled())) throw Cancelled();
  }

  void run_lanes(RowWriter& writer, unsigned threads) {
    const std::size_t parts = source_.parts().size();
    std::vector<Lane> lanes(parts);
    std::exception_ptr failure;
    std::jthread readers([&] {
      try {
        for_each_parallel(parts, threads, [&](std::size_t i) { fill(lanes[i], i); });
      } catch (...) {
        failure = std::current_exception();
        stop_ = true;
        for (Lane& lane : lanes) lane.close();
      }
    });
    try {
      for (Lane& lane : lanes) {
        while (const std::optional<Block> block = lane.get()) {
          ask();
          const double* values = block->values.data();
          for (const TableRow& row : block->rows) {
            TableRow here = row;
            here.values = {values, source_.stats().size()};
            values += source_.stats().size();
            writer.take(here);
          }
        }
        writer.end();
      }
    } catch (...) {
      stop_ = true;
      for (Lane& lane : lanes) lane.close();
      readers.join();
      throw;
    }
    readers.join();
    if (failure) std::rethrow_exception(failure);
  }

  void fill(Lane& lane, std::size_t part) {
    Block block;
    const auto hand_over = [&] {
      if (!lane.put(std::exchange(block, {}))) throw Cancelled();
    };
    read(part, [&](const TableRow& row) {
      block.rows.push_back(row);
      block.values.insert(block.values.end(), row.values.begin(), row.values.end());
      if (block.rows.size() == kBlockRows) hand_over();
    });
    if (!block.rows.empty()) hand_over();
    lane.end();
  }

  const ConvertOptions& options_;
  Source& source_;
  Target& target_;
  RowAccount& account_;
  std::int64_t total_ = 0;
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

std::string_view format_name(TargetFormat format) {
  return kTargets[static_cast<std::size_t>(format)].first;
}
std::optional<TargetFormat> target_format(std::string_view name) {
  for (const auto& [known, format] : kTargets) {
    if (known == name) return format;
  }
  return std::nullopt;
}

ConvertReport convert(const ConvertOptions& wanted) {
  ConvertOptions options = wanted;
  if (options.from_format == SourceFormat::automatic)
    options.from_format = detected_format(options.from);
  check(options);
  for (auto stat = options.stats.begin(); stat != options.stats.end();) {
    stat = std::find(options.stats.begin(), stat, *stat) == stat ? stat + 1
                                                                 : options.stats.erase(stat);
  }
  refuse_own_source(options);
  RowAccount account;
  const std::unique_ptr<Source> source = open_source(options, account);
  // Not before: what cannot be converted leaves no directory behind.
  const bool is_directory = options.to_format == TargetFormat::csv ||
                            options.to_format == TargetFormat::jsonl ||
                            options.to_format == TargetFormat::tensorboard;
  Staging staging(options.to, is_directory, options.overwrite);
  {
    const std::unique_ptr<Target> target =
        make_target({options, staging.path(), *source, source->stats()});
    Conversion(options, *source, *target, account).run();
    target->finish(account);
  }
  if (options.cancelled && options.cancelled()) throw Cancelled();
  staging.publish();
  ConvertReport report{account.report(), {}, {}, source->kinds()};
  if (const RunRows* facts = source->facts()) {
    report.missing = facts->missing;
    report.incomplete = facts->incomplete;
    report.remarks.insert(report.remarks.end(), facts->expired.begin(), facts->expired.end());
  }
  return report;
}

}  // namespace trainmon
