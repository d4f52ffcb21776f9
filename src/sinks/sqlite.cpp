// The sink `sqlite`. A batch is a savepoint in the transaction that the next flush commits. Rows
// count as written from then on that write() has taken them. When a transaction fails later they
// count as left out, and what was said about them is said again.
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/text.h"
#include "sinks/live_table.h"
#include "sinks/log_encode.h"
#include "sinks/run_tables.h"
#include "sinks/sinks.h"
#include "sinks/uncommitted.h"
#include "trainmon/version.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr int kBusyMilliseconds = 100;  // the other sinks wait meanwhile
constexpr int kLastBusyMilliseconds = 2000;
constexpr const char* kNoMemory = "no_memory";
constexpr std::int64_t kMostUncommitted = 1 << 18;  // rows held for somebody who keeps it locked

// Its name; nullopt for a local one.
std::optional<std::string_view> network_file_system_of(const fs::path& directory) {
  if (failpoint("sqlite.network").error != 0) return "NFS";
  return network_file_system(directory);
}

class SqliteSink : public Sink {
 public:
  std::string_view name() const override { return "sqlite"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    series_ = &series;
    live_ = LiveTable(run, series);
    is_network_ = false;
    if (const auto network = network_file_system_of(run.directory)) {
      is_network_ = true;
      log_line("sink sqlite: " + run.directory.string() + " stands on a network file system (" +
               std::string(*network) +
               "): flushes are slow there and readers hold them up; the sink log has neither");
    }
    start_file();
  }

  void write(const RecordBatch& batch) override {
    notice_deletion();
    if (is_abandoned_) throw SinkError("descriptor", "stats.db was left as it is");
    if (!tables_) start_file();
    roll_back();
    if (!database_->in_transaction()) database_->run("BEGIN IMMEDIATE");
    database_->run("SAVEPOINT batch");
    Said said;
    try {
      insert(batch);
      said = said_;
      said.add(owed_);
      said.add(batch);
      database_->run("RELEASE batch");
    } catch (const SinkError& error) {
      take_back(error.reason().c_str());
      throw;
    } catch (...) {
      take_back(kNoMemory);
      throw;
    }
    said_ = std::move(said);
    owed_ = {};
    fresh_in_batch_ = 0;
    const auto [first, last] = seq_range(batch);
    uncommitted_.add({batch.row_count(), first, last});
  }

  void flush() override {
    if (!database_ || !database_->in_transaction()) return;
    notice_deletion();
    if (!database_) return;
    roll_back();
    if (!database_->in_transaction()) return;
    try {
      database_->run("COMMIT");
    } catch (const SinkError& error) {
      // Somebody reads: all is still there, and the next flush tries again.
      const bool waits = error.reason() == "busy" && database_->in_transaction();
      if (!waits || uncommitted_.rows > kMostUncommitted) give_up(error.reason().c_str());
      throw;
    } catch (...) {
      give_up(kNoMemory);
      throw;
    }
    in_file_.add(uncommitted_);
    uncommitted_ = {};
    said_ = {};
    fresh_.clear();
  }

  void close() override {
    notice_deletion();
    if (!database_) return;
    try {
      database_->run("PRAGMA busy_timeout = " + std::to_string(kLastBusyMilliseconds));
      flush();
    } catch (const SinkError& error) {
      if (database_->in_transaction()) give_up(error.reason().c_str());
      end_file();
      throw;
    } catch (...) {
      if (database_->in_transaction()) give_up(kNoMemory);
      end_file();
      throw;
    }
    end_file();
  }

  std::map<std::string, std::int64_t> rows_left_out() const override {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::int64_t> all = left_out_;
    if (left_out_for_memory_ > 0) all[kNoMemory] += left_out_for_memory_;
    return all;
  }
  std::int64_t rows_deleted() const override { return deleted_; }

 private:
  void start_file() {
    const fs::path path = run_.directory / "stats.db";
    in_directory(run_.directory, [&] {
      try {
        make_database(path);
      } catch (const SinkError&) {
        end_file();
        throw;
      }
    });
  }

  void make_database(const fs::path& path) {
    // A write-ahead log of a deleted database would be taken for one of the new.
    if (std::error_code unknown; !fs::exists(path, unknown) && !unknown) {
      for (const char* end : {"-wal", "-shm", "-journal"}) {
        ::unlink((path.string() + end).c_str());
      }
    }
    database_.emplace(path);
    try {
      database_->run("PRAGMA busy_timeout = " + std::to_string(kBusyMilliseconds));
      database_->run(is_network_ ? "PRAGMA journal_mode = TRUNCATE" : "PRAGMA journal_mode = WAL");
      database_->run("PRAGMA synchronous = NORMAL");
      tables_.emplace(*database_, all_stat_names());
      add_facts();
      restate_declared();
      database_->note_descriptors();
    } catch (...) {
      // Not half a database: the next attempt starts anew.
      end_file();
      ::unlink(path.c_str());
      throw;
    }
    defined_.clear();
    in_file_ = {};
    uncommitted_ = {};
  }

  void add_facts() {
    tables_->add_fact("trainmon", kVersion);
    tables_->add_fact("sqlite", sqlite3_libversion());
    tables_->add_fact("run_id", run_.run_id);
    tables_->add_fact("rank", run_.rank);
    tables_->add_fact("world_size", run_.world_size);
    tables_->add_fact("restart", run_.restart);
    tables_->add_fact("clock", run_.clock);
    tables_->add_fact("eps", number_text(run_.eps));
  }

  // A deleted database took values with it that still hold.
  void restate_declared() {
    for (const ReadDeclared& one : live_.declared_so_far()) {
      const bool is_owed = std::ranges::any_of(owed_.declared, [&](const Declared& group) {
        return std::tuple(group.optimizer, group.group, group.window) ==
               std::tuple(one.optimizer, one.group, one.window);
      });
      if (!is_owed) tables_->add_declared(one);
    }
  }

  // One plain file, if nobody reads it just now. A transaction that is still open goes.
  void end_file() noexcept {
    tables_.reset();
    if (!database_) return;
    try {
      roll_back();
      database_->run("PRAGMA busy_timeout = " + std::to_string(kBusyMilliseconds));
      database_->run("PRAGMA journal_mode = DELETE");
    } catch (const std::exception&) {
    }
    database_.reset();
    must_roll_back_ = false;
  }

  // SQLite keeps its descriptors, and would write into what has them now.
  void abandon() {
    database_->abandon();
    tables_.reset();
    database_.reset();
    is_abandoned_ = true;
    must_roll_back_ = false;
    leave_out(uncommitted_.rows, "descriptor");
    forget_transaction();
    log_line("somebody closed descriptors of " + (run_.directory / "stats.db").string() +
             ": it is left as it is, and later rows are in the other sinks alone");
  }

  // A deleted database took its rows with it: the next one says so.
  void notice_deletion() {
    if (database_ && !database_->has_descriptors()) abandon();
    if (!database_ || database_->is_linked()) return;
    tables_.reset();
    database_.reset();
    in_file_.add(uncommitted_);
    owed_.add(said_);
    if (in_file_.rows > 0) {
      add_gap(owed_.gaps, {"deleted", in_file_.rows, in_file_.first_seq, in_file_.last_seq});
      deleted_ += in_file_.rows;
    }
    in_file_ = {};
    forget_transaction();
    log_line_limited("sqlite.deleted",
                     (run_.directory / "stats.db").string() + " was deleted; a new one follows");
  }

  RunTables::Owner owner() const { return {run_.restart, run_.rank}; }

  void insert(const RecordBatch& batch) {
    live_.learn(batch);
    log_format::for_each_series(batch, [&](SeriesId id) { define(id); });
    for (const Alert& alert : owed_.alerts) define(alert.key.series);
    for (const Row& row : batch.rows) tables_->add_row(row.key.series, live_.line(row));
    for (const Scalar& scalar : batch.scalars) {
      tables_->add_scalar(owner(), run_.clock, live_.place(run_.clock, scalar.window).step, scalar);
    }
    for (const Payload& payload : batch.payloads) {
      const RowKey& key = payload.key;
      const Outcome place = live_.place(series_->at(key.series).optimizer, key.window);
      tables_->add_payload(owner(), key.series, place, live_.micro_step(key.accum), payload);
    }
    insert_said(owed_);
    insert_said(batch);
  }

  template <typename Records>
  void insert_said(const Records& records) {
    for (const Outcome& outcome : records.outcomes) tables_->add_outcome(owner(), outcome);
    for (const Declared& group : records.declared) {
      for (const ReadDeclared& one : live_.declared(group)) tables_->add_declared(one);
    }
    for (const Alert& alert : records.alerts) tables_->add_alert(owner(), alert.key.series, alert);
    for (const Gap& gap : records.gaps) tables_->add_gap(owner(), gap);
  }

  void define(SeriesId id) {
    if (id >= defined_.size()) defined_.resize(std::max<std::size_t>(series_->size(), id + 1));
    if (defined_[id]) return;
    fresh_.push_back(id);  // first: it may fail
    ++fresh_in_batch_;
    tables_->add_series(id, series_->at(id));
    defined_[id] = true;
  }

  // Nothing of the batch stays; what was taken before it does, unless SQLite gave that up as well.
  void take_back(const char* reason) noexcept {
    try {
      if (database_->in_transaction()) database_->run("ROLLBACK TO batch; RELEASE batch");
    } catch (const std::exception&) {
      give_up(reason);
      return;
    }
    if (!database_->in_transaction()) {
      give_up(reason);
      return;
    }
    for (; fresh_in_batch_ > 0; --fresh_in_batch_) {
      defined_[fresh_.back()] = false;
      fresh_.pop_back();
    }
  }

  // A transaction that was given up and could not be rolled back must never be committed.
  void roll_back() {
    if (must_roll_back_ && database_->in_transaction()) database_->run("ROLLBACK");
    must_roll_back_ = false;
  }

  // The open transaction is lost, with all batches in it.
  void give_up(const char* reason) noexcept {
    must_roll_back_ = true;
    try {
      roll_back();
    } catch (const std::exception&) {  // rolled back by itself; or tried again before the next use
    }
    leave_out(uncommitted_.rows, reason);
    try {
      owed_.add(said_);
      if (uncommitted_.rows > 0) {
        add_gap(owed_.gaps,
                {reason, uncommitted_.rows, uncommitted_.first_seq, uncommitted_.last_seq});
      }
    } catch (const std::bad_alloc&) {  // then only health.json tells
    }
    forget_transaction();
  }

  void leave_out(std::int64_t rows, const char* reason) noexcept {
    if (rows == 0) return;
    const std::lock_guard lock(mutex_);
    try {
      left_out_[reason] += rows;
    } catch (const std::bad_alloc&) {
      left_out_for_memory_ += rows;
    }
  }

  void forget_transaction() noexcept {
    uncommitted_ = {};
    said_ = {};
    fresh_in_batch_ = 0;
    for (const SeriesId id : fresh_) defined_[id] = false;
    fresh_.clear();
  }

  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  LiveTable live_;
  bool is_network_ = false;

  std::optional<Database> database_;
  std::optional<RunTables> tables_;  // of database_
  std::vector<bool> defined_;        // series in it
  std::vector<SeriesId> fresh_;      // of these, those of the open transaction
  std::size_t fresh_in_batch_ = 0;   // and of these, those of the batch being written
  Counted in_file_;                  // rows committed
  Counted uncommitted_;              // rows in the open transaction
  Said said_;                        // records in the open transaction
  Said owed_;                        // records of transactions that failed
  bool must_roll_back_ = false;      // the open transaction was given up
  bool is_abandoned_ = false;        // somebody has its descriptors

  std::atomic<std::int64_t> deleted_{0};
  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t> left_out_;  // rows of transactions that failed, by reason
  std::int64_t left_out_for_memory_ = 0;          // of which there was not enough to say so there
};

}  // namespace

std::unique_ptr<Sink> make_sqlite_sink() {
  return std::make_unique<SqliteSink>();
}

}  // namespace trainmon
