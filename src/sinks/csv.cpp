// The sink `csv`: one text per file and batch, each appended with one write. When one of them
// fails, all files are cut back to where they were.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <vector>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "sinks/csv_text.h"
#include "sinks/live_table.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

using csv_text::Line;

// One file that only grows.
struct Part {
  std::string name;
  std::string header;
  File file;
  fs::path path;
  std::int64_t size = 0;  // of what belongs there
  bool is_torn = false;   // more than that is in it
  std::string text;       // what this batch adds
  // Rows in it, should somebody delete it.
  std::int64_t rows = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;

  // Throws when what a failed write left cannot be cut off.
  void cut() {
    if (failpoint("csv.truncate").error != 0 || !cut_file(file, size)) {
      is_torn = true;
      throw SinkError("io_error", "cannot cut off the end of " + path.string());
    }
    is_torn = false;
  }
};

class CsvSink : public Sink {
 public:
  explicit CsvSink(std::size_t segment_bytes) : segment_bytes_(segment_bytes) {
    rows_.header = table_.header();
    outcomes_.name = "outcomes.csv";
    outcomes_.header = "optimizer,window,step,attempt,fate,loss_scale\n";
    declared_.name = "declared.csv";
    csv_text::append_names(declared_.header, declared_cells({}));
    scalars_.name = "scalars.csv";
    scalars_.header = "step,window,seq,name,value\n";
    payloads_.name = "payloads.csv";
    payloads_.header =
        "restart,rank,kind,chunk,name,element,optimizer,step,attempt,micro_step,call,seq,flags,"
        "window,accum,type,value\n";
    alerts_.name = "alerts.csv";
    alerts_.header =
        "rule,kind,chunk,name,element,optimizer,step,window,accum,call,seq,flags,stat,value,"
        "expected,count,message\n";
    gaps_.name = "gaps.csv";
    gaps_.header = "reason,rows,first_seq,last_seq\n";
  }

  std::string_view name() const override { return "csv"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    series_ = &series;
    live_ = LiveTable(run, series);
  }

  void write(const RecordBatch& batch) override {
    for (Part* part : parts_) {
      notice_deletion(*part);
      if (part->file.is_open() && part->is_torn) part->cut();
      part->text.clear();
    }
    encode(batch);
    if (!rows_.text.empty() && is_full()) roll();
    for (std::size_t done = 0; done < parts_.size(); ++done) {
      try {
        append(*parts_[done]);
      } catch (const SinkError& error) {
        take_back(done + 1);
        if (parts_[done] == &rows_ && error.reason() == "file_limit") leave_full_file();
        throw;
      }
    }
    commit(batch);
  }

  void flush() override {}  // write(2) has handed everything over
  void close() override {
    for (Part* part : parts_) {
      notice_deletion(*part);
      part->file.close();
    }
  }
  std::int64_t rows_deleted() const override { return deleted_; }

 private:
  // A deleted file took its rows with it: the next batch that is written says so.
  void notice_deletion(Part& part) {
    if (part.file.forget_lost()) {
      log_line_limited("csv.descriptor", "somebody closed the descriptor of " + part.path.string() +
                                             "; it is opened anew");
    }
    if (!part.file.is_open() || linked_size(part.file, part.path) >= 0) return;
    part.file.close();
    if (part.rows > 0) lost_.push_back({"deleted", part.rows, part.first_seq, part.last_seq});
    deleted_ += part.rows;
    part.rows = 0;
    must_restate_ |= &part == &declared_;
    log_line_limited("csv.deleted", part.path.string() + " was deleted; a new file follows");
  }

  void encode(const RecordBatch& batch) {
    if (must_restate_) {
      for (const ReadDeclared& one : live_.declared_so_far()) {
        csv_text::append_record(declared_.text, declared_cells(one));
      }
    }
    live_.learn(batch);
    for (const Row& row : batch.rows) table_.append(rows_.text, live_.line(row));
    for (const Outcome& outcome : batch.outcomes) {
      Line line(outcomes_.text);
      line.number(std::int64_t{outcome.optimizer}).number(outcome.window).number(outcome.step);
      line.number(std::int64_t{outcome.attempt}).field(fate_name(outcome.fate));
      line.number(outcome.loss_scale).end();
    }
    for (const Declared& group : batch.declared) {
      for (const ReadDeclared& one : live_.declared(group)) {
        csv_text::append_record(declared_.text, declared_cells(one));
      }
    }
    for (const Scalar& scalar : batch.scalars) {
      Line line(scalars_.text);
      line.number(live_.place(run_.clock, scalar.window).step).number(scalar.window);
      line.number(static_cast<std::int64_t>(scalar.seq)).field(scalar.name);
      line.number(scalar.value).end();
    }
    for (const Payload& payload : batch.payloads) encode(payload);
    for (const Alert& alert : batch.alerts) encode(alert);
    for (const Gap& gap : batch.gaps) encode(gap);
    for (const Gap& gap : lost_) encode(gap);
  }

  void encode(const Gap& gap) {
    Line line(gaps_.text);
    line.field(gap.reason).number(gap.rows).number(static_cast<std::int64_t>(gap.first_seq));
    line.number(static_cast<std::int64_t>(gap.last_seq)).end();
  }

  static void name_series(Line& line, const Series& series) {
    line.field(series.kind).number(std::int64_t{series.chunk}).field(series.name);
    line.field(series.element).number(std::int64_t{series.optimizer});
  }

  void encode(const Payload& payload) {
    const RowKey& key = payload.key;
    const Series& series = series_->at(key.series);
    const Outcome place = live_.place(series.optimizer, key.window);
    Line line(payloads_.text);
    line.number(std::int64_t{run_.restart}).number(std::int64_t{run_.rank});
    name_series(line, series);
    line.number(place.step).number(std::int64_t{place.attempt});
    line.number(std::int64_t{live_.micro_step(key.accum)}).number(std::int64_t{key.call});
    line.number(static_cast<std::int64_t>(key.seq)).number(std::int64_t{key.flags});
    line.number(key.window).number(std::int64_t{key.accum});
    line.field(payload_type_name(payload.type)).field(payload_cell(payload)).end();
  }

  void encode(const Alert& alert) {
    const RowKey& key = alert.key;
    Line line(alerts_.text);
    line.field(alert.rule);
    name_series(line, series_->at(key.series));
    line.number(alert.step).number(key.window).number(std::int64_t{key.accum});
    line.number(std::int64_t{key.call}).number(static_cast<std::int64_t>(key.seq));
    line.number(std::int64_t{key.flags}).field(alert.stat).number(alert.value);
    line.number(alert.expected).number(alert.count).field(alert.message).end();
  }

  bool is_full() const {
    return rows_.file.is_open() && rows_.rows > 0 &&
           rows_.size + std::ssize(rows_.text) > static_cast<std::int64_t>(segment_bytes_);
  }

  void roll() {
    try {
      start_rows_file();
    } catch (const SinkError& error) {
      log_line_limited("csv.roll",
                       std::string(error.what()) + "; going on in " + rows_.path.string());
    }
  }

  // Makes the next file of rows; what is in use stays in use when that fails.
  void start_rows_file() {
    make_next_file(run_.directory, next_number_, [this](int number) {
      std::array<char, 32> name;
      std::snprintf(name.data(), name.size(), "rows-%06d.csv", number);
      fs::path path = run_.directory / name.data();
      rows_.file = create_file(path);
      rows_.path = std::move(path);
      rows_.size = 0;
      rows_.rows = 0;
      rows_.is_torn = false;
    });
  }

  void open_part(Part& part) {
    if (&part == &rows_) return start_rows_file();
    part.path = run_.directory / part.name;
    Appendable found;
    in_directory(run_.directory, [&] { found = open_to_append(part.path); });
    part.file = std::move(found.file);
    part.size = found.size;
    part.is_torn = false;
  }

  void append(Part& part) {
    if (part.text.empty()) return;
    if (!part.file.is_open()) open_part(part);
    write_at(part.file, part.size, part.size == 0 ? part.header + part.text : part.text, part.path);
  }

  // Nothing of this batch stays in the first `count` files.
  void take_back(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      Part& part = *parts_[i];
      if (part.text.empty() || !part.file.is_open()) continue;
      try {
        part.cut();
      } catch (const SinkError& error) {
        log_line_limited("csv.cut", std::string(error.what()) + "; tried again before it is used");
      }
    }
  }

  // A file at its size limit can never grow again.
  void leave_full_file() {
    if (rows_.rows > 0 && !rows_.is_torn) rows_.file.close();
  }

  void commit(const RecordBatch& batch) {
    lost_.clear();
    must_restate_ = false;
    for (Part* part : parts_) {
      if (part->text.empty()) continue;
      if (part->size == 0) part->size = std::ssize(part->header);
      part->size += std::ssize(part->text);
    }
    for (const Row& row : batch.rows) note(rows_, row.key.seq);
    for (const Payload& payload : batch.payloads) note(payloads_, payload.key.seq);
  }

  static void note(Part& part, std::uint64_t seq) {
    if (part.rows++ == 0) part.first_seq = seq;
    part.last_seq = seq;
  }

  const std::size_t segment_bytes_;
  const csv_text::WideTable table_{all_stat_names()};
  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  LiveTable live_;
  std::int32_t next_number_ = 0;
  std::vector<Gap> lost_;  // rows of deleted files, not yet told
  std::atomic<std::int64_t> deleted_{0};
  bool must_restate_ = false;  // declared.csv was deleted with values that still hold

  Part rows_, outcomes_, declared_, scalars_, payloads_, alerts_, gaps_;
  // In the order of writing: what a kill cuts short is the rows, not what is said about them.
  const std::array<Part*, 7> parts_ = {&gaps_,    &alerts_,   &outcomes_, &declared_,
                                       &scalars_, &payloads_, &rows_};
};

}  // namespace

std::unique_ptr<Sink> make_csv_sink(std::size_t segment_bytes) {
  return std::make_unique<CsvSink>(segment_bytes);
}

}  // namespace trainmon
