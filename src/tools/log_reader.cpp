// All segments of one rank and restart. Newest first, because each segment says how long the sound
// part of the one before it is: what follows there is what a failed write left.
#include <algorithm>
#include <cstdio>
#include <tuple>
#include <unordered_map>

#include "base/file.h"
#include "sinks/compress.h"
#include "tools/log_decode.h"
#include "tools/log_scan.h"
#include "trainmon/tools.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

struct SegmentFile {
  int number = 0;
  fs::path path;
};

std::vector<SegmentFile> segment_files(const fs::path& directory, std::error_code& error) {
  std::vector<SegmentFile> files;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int number = -1, length = 0;
    if (std::sscanf(name.c_str(), "log-%9d.tmlog%n", &number, &length) == 1 && number >= 0 &&
        static_cast<std::size_t>(length) == name.size()) {
      files.push_back({number, entry->path()});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SegmentFile& a, const SegmentFile& b) { return a.number > b.number; });
  return files;
}

class LogReader {
 public:
  LogReader(int rank, int restart, const std::function<bool(const Series&)>& wanted)
      : rank_(rank), restart_(restart), wanted_(wanted) {}

  LogContents read(const fs::path& directory) {
    std::error_code error;
    const std::vector<SegmentFile> files = segment_files(directory, error);
    if (error) fault(directory, 0, error.message());
    for (const SegmentFile& file : files) read_segment(file);
    if (previous_ >= 0) fault(directory, 0, missing_text(previous_, previous_));
    finish();
    return std::move(contents_);
  }

 private:
  void fault(const fs::path& file, std::int64_t offset, std::string what) {
    contents_.damage.push_back({file, offset, std::move(what)});
  }

  static std::string missing_text(int first, int last) {
    return first == last ? "segment " + std::to_string(first) + " is missing"
                         : "segments " + std::to_string(first) + " to " + std::to_string(last) +
                               " are missing";
  }

  void read_segment(const SegmentFile& file) {
    std::string content;
    try {
      content = read_file(file.path);
    } catch (const SinkError& error) {
      fault(file.path, 0, error.what());
      return;
    }
    ++contents_.files;
    contents_.bytes += static_cast<std::int64_t>(content.size());
    std::string_view bytes = content;
    // previous_ is what the segment after this one names as its forerunner.
    const bool has_end = previous_ == file.number;
    if (previous_ > file.number)
      fault(file.path.parent_path(), 0, missing_text(file.number + 1, previous_));
    if (has_end && previous_bytes_ > static_cast<std::int64_t>(bytes.size())) {
      fault(file.path, static_cast<std::int64_t>(bytes.size()),
            std::to_string(previous_bytes_ - static_cast<std::int64_t>(bytes.size())) +
                " bytes are missing at the end");
    } else if (has_end) {
      bytes = bytes.substr(0, static_cast<std::size_t>(previous_bytes_));
    }
    previous_ = -1;
    const SegmentScan scan = scan_segment(bytes);
    for (const ScanFault& found : scan.faults) fault(file.path, found.offset, found.what);
    if (scan.is_torn && has_end && !bytes.empty())
      fault(file.path, 0, "the last frame is not complete");
    if (scan.is_torn && !has_end) ++contents_.torn_tails;
    use_frames(file, scan);
  }

  // Points the frame's payload at its decompressed bytes.
  static bool unpack(LogFrame& frame, std::string& unpacked, std::string& why) {
    using log_format::Codec;
    const auto codec = static_cast<Codec>(frame.header.codec);
    if (codec == Codec::none) return true;
    std::optional<std::string> bytes;
    if (codec == Codec::zstd && frame.header.raw <= log_format::kMaxPayload) {
      bytes = decompressed(frame.payload, frame.header.raw);
    }
    if (!bytes) {
      why = codec == Codec::zstd && has_zstd()
                ? "the frame cannot be decompressed"
                : "compressed with codec " + std::to_string(frame.header.codec) +
                      ", which this build of trainmon cannot read (1 is zstd)";
      return false;
    }
    unpacked = std::move(*bytes);
    frame.payload = unpacked;
    return true;
  }

  void use_frames(const SegmentFile& file, const SegmentScan& scan) {
    std::map<SeriesId, Series> series;
    std::vector<RecordBatch> batches;
    std::vector<std::int64_t> offsets;
    for (const LogFrame& stored : scan.frames) {
      LogFrame frame = stored;
      std::string unpacked;
      std::string why;
      if (!unpack(frame, unpacked, why)) {
        fault(file.path, frame.offset, why);
        continue;
      }
      bool is_used = true;
      switch (static_cast<log_format::FrameType>(frame.header.type)) {
        case log_format::FrameType::segment:
          if (!accept_segment(file, frame, why)) {
            fault(file.path, frame.offset, why);
            return;
          }
          break;
        case log_format::FrameType::series:
          is_used = decode_series(frame.payload, series, why);
          break;
        case log_format::FrameType::batch:
          if (std::optional<RecordBatch> batch = decode_batch(frame.payload, why)) {
            batches.push_back(std::move(*batch));
            offsets.push_back(frame.offset);
          } else {
            is_used = false;
          }
          break;
      }
      if (!is_used) fault(file.path, frame.offset, why);
    }
    for (const auto& [id, definition] : series) {
      const auto [known, is_new] = contents_.series.emplace(id, definition);
      if (is_new || known->second == definition) continue;
      fault(file.path, 0,
            "series " + std::to_string(id) +
                " is another one in a later segment; this segment is not used");
      return;
    }
    std::unordered_map<SeriesId, Known> known;
    for (const auto& [id, definition] : series) {
      known[id] = {definition.optimizer, !wanted_ || wanted_(definition)};
    }
    for (std::size_t i = 0; i < batches.size(); ++i) {
      select_rows(file, offsets[i], known, batches[i]);
      contents_.batches.push_back(std::move(batches[i]));
      sources_.push_back({file.path, offsets[i]});
    }
  }

  bool accept_segment(const SegmentFile& file, const LogFrame& frame, std::string& why) {
    const std::optional<SegmentInfo> info = decode_segment(frame.payload, why);
    if (!info) return false;
    if (info->rank != rank_ || info->restart != restart_ || info->start.number != file.number) {
      why = "this is segment " + std::to_string(info->start.number) + " of rank " +
            std::to_string(info->rank) + ", restart " + std::to_string(info->restart) +
            ": it does not belong here and is not used";
      return false;
    }
    previous_ = info->start.previous;
    previous_bytes_ = std::max<std::int64_t>(0, info->start.previous_bytes);
    return true;
  }

  struct Known {
    std::int32_t optimizer = 0;
    bool is_wanted = true;
  };

  // Drops rows and payloads of series nobody asked for, and records of series nobody defined.
  void select_rows(const SegmentFile& file, std::int64_t offset,
                   const std::unordered_map<SeriesId, Known>& series, RecordBatch& batch) {
    std::int64_t undefined = 0;
    std::pair<std::int32_t, std::int64_t> last_window = {-1, -1};
    std::erase_if(batch.rows, [&](const Row& row) {
      const auto found = series.find(row.key.series);
      if (found == series.end()) {
        ++undefined;
        return true;
      }
      const std::pair window(found->second.optimizer, row.key.window);
      if (window != last_window) contents_.windows.insert(window);
      last_window = window;
      ++contents_.rows;
      return !found->second.is_wanted;
    });
    const auto is_undefined = [&](const auto& record) {
      return series.find(record.key.series) == series.end();
    };
    undefined += static_cast<std::int64_t>(std::erase_if(batch.payloads, is_undefined));
    contents_.rows += static_cast<std::int64_t>(batch.payloads.size());
    std::erase_if(batch.payloads,
                  [&](const Payload& payload) { return !series.at(payload.key.series).is_wanted; });
    undefined += static_cast<std::int64_t>(std::erase_if(batch.alerts, is_undefined));
    if (undefined > 0) {
      fault(file.path, offset,
            std::to_string(undefined) + " records of series whose definition is lost");
    }
  }

  void finish() {
    std::vector<RecordBatch>& batches = contents_.batches;
    std::map<std::uint64_t, const Source*> seen;
    std::vector<bool> is_repeated(batches.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto [first, is_new] = seen.emplace(batches[i].number, &sources_[i]);
      if (is_new) continue;
      is_repeated[i] = true;
      fault(sources_[i].file, sources_[i].offset,
            "batch " + std::to_string(batches[i].number) + " is also in " +
                first->second->file.filename().string() + " and not used twice");
    }
    std::size_t index = 0;
    std::erase_if(batches, [&](const RecordBatch&) { return is_repeated[index++]; });
    std::sort(batches.begin(), batches.end(),
              [](const RecordBatch& a, const RecordBatch& b) { return a.number < b.number; });
    std::stable_sort(contents_.damage.begin(), contents_.damage.end(),
                     [](const Damage& a, const Damage& b) {
                       return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
                     });
  }

  struct Source {
    fs::path file;
    std::int64_t offset = 0;
  };

  const int rank_;
  const int restart_;
  const std::function<bool(const Series&)>& wanted_;
  LogContents contents_;
  std::vector<Source> sources_;  // of contents_.batches, same order
  int previous_ = -1;            // forerunner that the segment just read named, -1 for none
  std::int64_t previous_bytes_ = 0;
};

}  // namespace

LogContents read_log(const fs::path& directory, int rank, int restart,
                     const std::function<bool(const Series&)>& wanted) {
  return LogReader(rank, restart, wanted).read(directory);
}

}  // namespace trainmon
