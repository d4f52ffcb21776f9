// One batch is one probe(): its sign files and its summary are staged, then named together.
#include "sinks/grad_probe.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/npy.h"
#include "base/sign_file.h"
#include "base/staged_files.h"
#include "base/text.h"
#include "model/probe_payload.h"
#include "sinks/csv_text.h"
#include "sinks/msprobe_csv.h"

namespace trainmon {
namespace {

using csv_text::append_field;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::size_t kLongestName = 200;  // of the 255 bytes that file systems take
constexpr std::size_t kPiece = 1 << 16;    // bytes of signs that are expanded at a time

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Which steps a run has written. Steps come nearly in order, so that a few ranges hold them all.
class StepSet {
 public:
  bool contains(std::int64_t step) const {
    const auto next = ranges_.upper_bound(step);
    return next != ranges_.begin() && step <= std::prev(next)->second;
  }
  void insert(std::int64_t step) {
    if (contains(step)) return;
    auto at = ranges_.emplace(step, step).first;
    if (const auto next = std::next(at); next != ranges_.end() && next->first == step + 1) {
      at->second = next->second;
      ranges_.erase(next);
    }
    if (at != ranges_.begin() && std::prev(at)->second == step - 1) {
      std::prev(at)->second = at->second;
      ranges_.erase(at);
    }
  }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // first -> last
};

// Eight elements as bytes, from the eight bits of a sign byte.
constexpr std::array<std::uint64_t, 256> spread_bits(std::uint64_t one) {
  std::array<std::uint64_t, 256> table{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    for (std::size_t i = 0; i < 8; ++i) {
      if ((bits >> i & 1) != 0) table[bits] |= one << (8 * i);
    }
  }
  return table;
}
constexpr auto kOnes = spread_bits(0x01);
constexpr auto kMinusOnes = spread_bits(0xFF);

void write_npy(const ProbePayload& found, const File& file, const std::filesystem::path& name) {
  const std::string head = npy_head(found.planes == 2 ? "|i1" : "|b1", found.sizes);
  write_at(file, 0, head, name);
  const auto count = static_cast<std::size_t>(found.probe.state.count);
  const std::size_t plane = (count + 7) / 8;
  std::vector<std::uint64_t> spread(std::min(plane, kPiece));
  for (std::size_t at = 0; at < plane; at += kPiece) {
    const std::size_t size = std::min(kPiece, plane - at);
    for (std::size_t i = 0; i < size; ++i) {
      spread[i] = kOnes[std::to_integer<std::size_t>(found.signs[at + i])];
      if (found.planes == 2) {
        spread[i] |= kMinusOnes[std::to_integer<std::size_t>(found.signs[plane + at + i])];
      }
    }
    const std::size_t elements = std::min(8 * size, count - 8 * at);
    write_at(file, static_cast<std::int64_t>(head.size() + 8 * at),
             {reinterpret_cast<const char*>(spread.data()), elements}, name);
  }
}

class GradProbeFiles final : public Sink {
 public:
  explicit GradProbeFiles(const GradProbeOptions& options) : options_(options) {
    if (options_.digest_column.empty() && options_.request.digest != Digest::none) {
      options_.digest_column = digest_name(options_.request.digest);
    }
    if (options_.bound_texts.size() != options_.request.bounds.size()) {
      options_.bound_texts.clear();
      for (const double bound : options_.request.bounds) {
        options_.bound_texts.push_back(number_text(bound));
      }
    }
  }

  std::string_view name() const override { return "grad_probe"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    series_ = &series;
  }

  void write(const RecordBatch& batch) override {
    std::set<std::filesystem::path> folders;
    try {
      write(batch, folders);
    } catch (...) {
      for (const auto& folder : folders) ::rmdir(folder.c_str());  // those that are empty
      throw;
    }
  }

  void flush() override {}
  void close() override {}

  std::map<std::string, std::int64_t> rows_left_out() const override {
    std::map<std::string, std::int64_t> rows;
    if (no_file_ != 0) rows["no_file_for_kind"] = no_file_;
    if (same_file_ != 0) rows["same_file_name"] = same_file_;
    return rows;
  }

 private:
  // `folders` gets those that it makes or uses.
  void write(const RecordBatch& batch, std::set<std::filesystem::path>& folders) {
    std::map<std::int64_t, std::string> lines;  // by step
    std::int64_t others = std::ssize(batch.rows);
    std::int64_t twice = 0;
    std::set<std::pair<std::int64_t, SeriesId>> seen;
    std::vector<std::filesystem::path> stale;
    StagedFiles files;
    for (const Payload& payload : batch.payloads) {
      const auto found =
          payload.type == PayloadType::probe ? read_probe_payload(payload.bytes) : std::nullopt;
      if (!found) {
        ++others;
        continue;
      }
      const std::string& parameter = series_->at(payload.key.series).name;
      if (found->planes > 0) {
        // Two names may be one file name, and two odd ones one series: the first has it.
        const std::string name = file_name_of(parameter);
        const bool is_owner =
            owners_.try_emplace(name, payload.key.series).first->second == payload.key.series;
        if (!is_owner || !seen.emplace(payload.key.window, payload.key.series).second) {
          ++twice;
          continue;
        }
        const auto folder = run_.directory / ("step" + std::to_string(payload.key.window));
        if (folders.insert(folder).second) make_directories(folder);
        stale.push_back(add_signs(files, folder / name, *found));
      }
      append_line(lines[payload.key.window], parameter, *found);
    }
    for (const auto& [step, text] : lines) {
      make_directories(run_.directory);  // somebody may have removed it
      files.add(summary_path(step), summary_before(step) + text);
    }
    files.commit();
    for (const auto& path : stale) ::unlink(path.c_str());  // of an earlier run, in the other form
    for (const auto& [step, text] : lines) written_.insert(step);
    no_file_ += others;
    same_file_ += twice;
  }

  std::filesystem::path summary_path(std::int64_t step) const {
    return run_.directory / ("grad_summary_" + std::to_string(step) + ".csv");
  }

  std::string header() const {
    std::string text = std::string(kByteOrderMark) + "param_name";
    const auto column = [&](std::string_view name) {
      text += ',';
      append_field(text, name);
    };
    if (options_.request.digest != Digest::none) column(options_.digest_column);
    if (options_.request.intervals) {
      std::string low = "(-inf";
      for (const std::string& bound : options_.bound_texts) {
        column(low + ", " + bound + "]");
        low = "(" + bound;
      }
      column(low + ", inf)");
      column("=0");
    }
    return text + ",max,min,norm,shape" + std::string(kLineEnd);
  }

  void append_line(std::string& text, const std::string& parameter,
                   const ProbePayload& found) const {
    const RowState& state = found.probe.state;
    append_field(text, parameter);
    if (options_.request.digest != Digest::none) text += "," + found.probe.digest;
    if (options_.request.intervals) {
      for (const std::int64_t count : found.probe.intervals) append_share(text, count, state);
      append_share(text, found.probe.exact_zeros, state);
    }
    for (const Stat stat : {Stat::max, Stat::min, Stat::norm}) {
      text += "," + python_text(static_cast<float>(derive(stat, state)) + 0.0F);  // -0 is 0
    }
    text += ',';
    append_field(text, msprobe_csv::shape_text(found.sizes));
    text += kLineEnd;
  }

  static void append_share(std::string& text, std::int64_t count, const RowState& state) {
    const auto all = static_cast<double>(state.count);
    text += "," + python_text(all > 0 ? static_cast<double>(count) / all : 0.0);
  }

  // The header, or what this run has written of the step so far.
  std::string summary_before(std::int64_t step) const {
    if (!written_.contains(step)) return header();
    try {
      return read_file(summary_path(step));
    } catch (const SinkError& error) {
      if (error.reason() != "gone") throw;
      return header();
    }
  }

  // Adds `base`.sign or `base`.npy, and gives the other of the two.
  std::filesystem::path add_signs(StagedFiles& files, const std::filesystem::path& base,
                                  const ProbePayload& found) const {
    const std::filesystem::path packed = base.native() + std::string(kSignFileEnding);
    const std::filesystem::path npy = base.native() + ".npy";
    if (options_.sign_files == SignFiles::packed) {
      files.add(packed, as_text(sign_file(found.sizes, found.planes, found.signs)));
      return npy;
    }
    files.add(npy, [&](const File& file, const std::filesystem::path& path) {
      write_npy(found, file, path);
    });
    return packed;
  }

  GradProbeOptions options_;
  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  StepSet written_;
  std::map<std::string, SeriesId> owners_;  // of file names
  std::atomic<std::int64_t> no_file_{0};
  std::atomic<std::int64_t> same_file_{0};
};

}  // namespace

std::string file_name_of(std::string_view parameter) {
  std::string name;
  for (const char c : parameter) {
    if (c == '/') {
      name += "%2F";
    } else if (c == '%') {
      name += "%25";
    } else if (c == '\0') {
      name += "%00";
    } else {
      name += c;
    }
  }
  if (name.size() <= kLongestName) return name;
  std::array<char, 16> mark;
  std::snprintf(mark.data(), mark.size(), "~%08x", crc32c(parameter));
  std::size_t kept = kLongestName - 9;
  while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xC0) == 0x80)
    --kept;  // whole UTF-8
  return name.substr(0, kept) + mark.data();
}

std::unique_ptr<Sink> make_grad_probe_sink(const GradProbeOptions& options) {
  return std::make_unique<GradProbeFiles>(options);
}

}  // namespace trainmon
