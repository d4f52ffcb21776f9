// Where rows come from: one source per format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sinks/table.h"
#include "tools/row_filter.h"
#include "trainmon/convert.h"

namespace trainmon {

// "rows.csv line 3: step 'x' is no whole number".
std::string rejection_text(const RejectedRows& rows);

// What became of the rows that were read. Any thread.
class RowAccount {
 public:
  void read(std::int64_t rows);
  void reject(RejectedRows rows);
  void supersede(std::int64_t rows);
  void remark(const std::string& text);  // each once
  // How far a source is: bytes of a part that are done.
  void advance(std::int64_t bytes) const {
    if (on_advance_) on_advance_(bytes);
  }
  void on_advance(std::function<void(std::int64_t)> call) { on_advance_ = std::move(call); }
  // Files and bytes of runs that cannot be used.
  void damage(const std::vector<Damage>& found);
  ConvertReport report() const;

 private:
  mutable std::mutex mutex_;
  ConvertReport report_;
  std::int64_t unlisted_ = 0;
  std::function<void(std::int64_t)> on_advance_;
};

class Source {
 public:
  // A part is read by one thread at a time; different parts by several at the same time.
  struct Part {
    int rank = 0;
    std::string kind;              // of all its rows; "" where it has several
    bool has_micro_steps = false;  // msprobe's: its files have the column micro_step
    std::int64_t bytes = 0;
  };
  // Called with every selected row. `values` of a row live as long as the call; its series and its
  // shape as long as the source.
  using Take = std::function<void(const TableRow&)>;

  virtual ~Source() = default;
  virtual const std::vector<Part>& parts() const = 0;
  // Of every row's values.
  virtual const std::vector<std::string>& stats() const = 0;
  // Those that rows of one kind have, where the source knows; otherwise stats().
  virtual std::vector<std::string> stats_of(const std::string&) const { return stats(); }
  virtual void read(std::size_t part, const Take& take, RowAccount& account) = 0;
  // The series lives as long as the source.
  using UsePayload = std::function<void(const Series&, const ReadPayload&)>;
  virtual void read_payloads(const UsePayload&, RowAccount&) {}
  // Scalars, alerts, gaps and missing ranks of a run; nullptr where there are none.
  virtual const RunRows* facts() const { return nullptr; }
  // msprobe's files name names and steps by rules of their own.
  virtual bool is_msprobe() const { return false; }
  // The steps that names of files speak of; nullopt where rows must tell.
  virtual std::optional<std::pair<std::int64_t, std::int64_t>> steps_of_names() const {
    return std::nullopt;
  }
  virtual std::vector<std::string> kinds() const = 0;
};

// Each throws std::runtime_error when the directory holds nothing of its kind.
std::unique_ptr<Source> open_log_source(const ConvertOptions& options, RowAccount& account);
std::unique_ptr<Source> open_csv_source(const ConvertOptions& options, RowAccount& account);
std::unique_ptr<Source> open_sqlite_source(const ConvertOptions& options, RowAccount& account);
std::unique_ptr<Source> open_msprobe_source(const ConvertOptions& options, RowAccount& account);
// The one for options.from_format; a log where that is automatic.
std::unique_ptr<Source> open_source(const ConvertOptions& options, RowAccount& account);

// What a path holds; where a run has several, the one that says most. Throws std::runtime_error
// where there is nothing.
SourceFormat detected_format(const std::filesystem::path& from);

}  // namespace trainmon
