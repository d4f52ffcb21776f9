// The sink `log`. A batch is encoded into one buffer and written with one call at a known offset.
// What a failed write leaves behind is cut off again, or the segment is given up.
#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "base/failpoint.h"
#include "base/file.h"
#include "sinks/log_encode.h"
#include "sinks/log_retention.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

class LogSink : public Sink {
 public:
  LogSink(std::size_t segment_bytes, Retention keep, Fsync fsync)
      : segment_bytes_(segment_bytes), keep_(keep), fsync_(fsync), retention_(keep) {}

  std::string_view name() const override { return "log"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    series_ = &series;
    notice_deletion();
    if (!file_.is_open()) start_segment();  // else the last attempt got no further
    buffer_.clear();
    log_format::append_segment_start(buffer_, run_, start_);
    new_frames_ = 1;
    append_buffer();
  }

  void write(const RecordBatch& batch) override {
    notice_deletion();
    if (!file_.is_open()) start_segment();
    is_choice_due_ = is_choice_due_ || std::chrono::steady_clock::now() >= next_choice_;
    encode(batch);
    if (frames_ > 1 && size_ + static_cast<std::int64_t>(buffer_.size()) > limit() && roll()) {
      encode(batch);
    }
    append_buffer();
    commit(*written_);
    expire();
  }

  // write(2) has handed everything over.
  void flush() override {
    if (fsync_ == Fsync::flush) sync();
    if (not_synced_) throw SinkError(*std::exchange(not_synced_, std::nullopt));
  }
  void close() override {
    notice_deletion();
    sync();
    if (size_ == 0) leave_segment();  // a full disk may have taken nothing of it
    file_.close();
    if (not_synced_) throw SinkError(*std::exchange(not_synced_, std::nullopt));
  }
  std::int64_t rows_deleted() const override { return deleted_; }
  std::int64_t rows_expired() const override { return retention_.rows_expired(); }

 private:
  std::int64_t limit() const { return static_cast<std::int64_t>(segment_bytes_); }

  std::filesystem::path path_of(std::int32_t number) const {
    return run_.directory / log_format::segment_name(number);
  }

  // A deleted segment took its rows with it: the next batch that is written says so. Those of one
  // that was moved, as with its folder, are read from there.
  void notice_deletion() {
    if (file_.forget_lost()) {
      log_line_limited("log.descriptor", "somebody closed the descriptor of " + path_.string() +
                                             "; a new segment follows");
    }
    if (!file_.is_open()) return;
    if (linked_size(file_, path_) >= 0) {
      std::error_code unknown;
      if (std::filesystem::exists(path_, unknown) || unknown) return;
      file_.close();
      log_line_limited(
          "log.moved",
          path_.string() + " was moved, with its rows; later ones go into a new segment here");
      return;
    }
    file_.close();
    if (segment_rows_ > 0) lost_.push_back({"deleted", segment_rows_, first_seq_, last_seq_});
    deleted_ += segment_rows_;
    segment_rows_ = 0;
    log_line_limited("log.deleted", path_.string() + " was deleted; a new segment follows");
  }

  // Forces the open segment to the disk. Nobody knows what a sync that failed has lost, and the
  // next one would not say: another segment follows.
  void sync() {
    if (fsync_ == Fsync::never || !file_.is_open() || synced_ == size_) return;
    try {
      sync_file(file_, path_);
      synced_ = size_;
    } catch (const SinkError& error) {
      not_synced_ = error;
      file_.close();
    }
  }

  // The name of a new segment, and of the folders that the first one is in. Who may not read the
  // folder of the run cannot have it synced.
  void sync_name() {
    if (fsync_ == Fsync::never) return;
    try {
      sync_directory(run_.directory);
      if (std::exchange(is_named_, true)) return;
      const std::filesystem::path rank = run_.directory.parent_path(), run = rank.parent_path();
      sync_directory(rank);
      sync_directory(run);
      if (::access(run.parent_path().c_str(), R_OK) == 0) sync_directory(run.parent_path());
    } catch (const SinkError& error) {
      not_synced_ = error;
    }
  }

  // Opens the next segment; what is in use stays in use when that fails.
  void start_segment() {
    sync();
    make_next_file(run_.directory, next_number_, [this](int number) {
      std::filesystem::path path = path_of(number);
      File fresh = create_file(path);
      // Of a segment without a sound byte no reader needs to know.
      if (size_ > 0) {
        try {
          retention_.closed(start_.number, segment_rows_, segment_batches_);
        } catch (...) {
          ::unlink(path.c_str());  // rather none than an empty one
          throw;
        }
        start_ = {start_.number, start_.number, size_};
      }
      is_choice_due_ = true;
      segment_batches_ = 0;
      start_.number = number;
      file_ = std::move(fresh);
      path_ = std::move(path);
      size_ = 0;
      frames_ = 0;
      defined_.clear();
      fresh_.clear();
      segment_rows_ = 0;
      synced_ = 0;
    });
    sync_name();
  }

  bool roll() {
    try {
      start_segment();
      return true;
    } catch (const SinkError& error) {
      if (!file_.is_open()) throw;
      log_line_limited("log.roll", std::string(error.what()) + "; going on in " + path_.string());
      return false;
    }
  }

  // Fills buffer_ with all that this batch needs at the current place in the segment.
  void encode(const RecordBatch& batch) {
    for (const SeriesId id : fresh_) defined_[id] = false;  // what defined them was not written
    fresh_.clear();
    buffer_.clear();
    written_ = &batch;
    if (is_choice_due_ && retention_.choose(run_.directory, start_.number, limit())) {
      whole_ = batch;
      const std::vector<Declared> held = retention_.declared();
      whole_.declared.insert(whole_.declared.begin(), held.begin(), held.end());
      written_ = &whole_;
    }
    new_frames_ = frames_;
    if (size_ == 0) {
      log_format::append_segment_start(buffer_, run_, start_);
      new_frames_ = 1;
    }
    log_format::for_each_series(batch, [&](SeriesId id) {
      if (id >= series_->size()) return;
      if (id >= defined_.size()) defined_.resize(series_->size());
      if (defined_[id]) return;
      fresh_.push_back(id);  // first: it may fail
      defined_[id] = true;
    });
    if (!fresh_.empty()) {
      log_format::append_series_frame(buffer_, new_frames_++, fresh_, *series_);
    }
    log_format::append_batch_frame(buffer_, new_frames_++, *written_, *series_, lost_);
  }

  void append_buffer() {
    try {
      write_at(file_, size_, buffer_, path_);
    } catch (const SinkError& error) {
      // A file at its size limit can never grow again.
      if (!cut_back() || (error.reason() == "file_limit" && size_ > 0)) leave_segment();
      throw;
    }
    size_ += static_cast<std::int64_t>(buffer_.size());
    frames_ = new_frames_;
  }

  bool cut_back() {
    if (failpoint("log.truncate").error != 0) return false;
    return cut_file(file_, size_);
  }

  // One without a sound byte goes, or a full disk would gather one for each batch.
  void leave_segment() {
    if (size_ > 0) sync();
    if (size_ == 0 && file_.is_ours() && ::unlink(path_.c_str()) == 0) {
      next_number_ = start_.number;
    }
    file_.close();
  }

  void commit(const RecordBatch& batch) {
    fresh_.clear();
    lost_.clear();
    retention_.wrote(batch, start_.number);
    ++segment_batches_;
    if (batch.row_count() == 0) return;
    const auto [first, last] = seq_range(batch);
    if (segment_rows_ == 0) first_seq_ = first;
    last_seq_ = last;
    segment_rows_ += batch.row_count();
  }

  // Old segments go when the open one says what they alone declare.
  void expire() {
    if (!std::exchange(is_choice_due_, false)) return;
    next_choice_ = std::chrono::steady_clock::now() + keep_.interval;
    try {
      retention_.remove();
    } catch (const SinkError& error) {
      log_line_limited("log.retention",
                       std::string(error.what()) + "; old segments stay for the time being");
    }
    whole_ = {};
  }

  const std::size_t segment_bytes_;
  const Retention keep_;
  const Fsync fsync_;
  RunInfo run_;
  const SeriesTable* series_ = nullptr;

  File file_;
  std::filesystem::path path_;
  std::int32_t next_number_ = 0;
  log_format::SegmentStart start_;
  std::int64_t size_ = 0;                // sound bytes in the open segment
  std::int64_t synced_ = 0;              // of these, those that are on the disk for certain
  bool is_named_ = false;                // the folders of the segments are on the disk
  std::optional<SinkError> not_synced_;  // why some may never be
  std::uint32_t frames_ = 0;             // frames among them
  std::vector<bool> defined_;            // series defined in it
  std::int64_t segment_rows_ = 0;
  std::uint64_t first_seq_ = 0;
  std::uint64_t last_seq_ = 0;
  std::vector<Gap> lost_;  // rows of deleted segments, not yet told
  std::atomic<std::int64_t> deleted_{0};
  std::int64_t segment_batches_ = 0;
  LogRetention retention_;
  bool is_choice_due_ = false;  // of what may stay: a segment was begun, or it is time
  std::chrono::steady_clock::time_point next_choice_;
  RecordBatch whole_;                     // a batch with what old segments declared
  const RecordBatch* written_ = nullptr;  // what buffer_ holds: that, or the one to write

  std::string buffer_;            // what the next write appends
  std::vector<SeriesId> fresh_;   // series it defines
  std::uint32_t new_frames_ = 0;  // frames_ after it
};

}  // namespace

std::unique_ptr<Sink> make_log_sink(std::size_t segment_bytes, Retention keep, Fsync fsync) {
  return std::make_unique<LogSink>(segment_bytes, keep, fsync);
}

}  // namespace trainmon
