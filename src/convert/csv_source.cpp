// CSV of ours: the files of the sink `csv` below RUN/rank_*/restart_*, or a directory that a
// conversion wrote, with rows.csv.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "base/file.h"
#include "base/text.h"
#include "convert/csv_records.h"
#include "convert/enum_names.h"
#include "convert/seen_rows.h"
#include "convert/source.h"
#include "tools/restarts.h"
#include "tools/run_layout.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// Columns of a file by name.
class Header {
 public:
  explicit Header(const std::vector<std::string_view>& names) {
    for (const std::string_view name : names) {
      if (at(name) >= 0) fault_ = "its first line names column " + printable(name) + " twice";
      names_.emplace_back(name);
    }
    for (const TableColumn& column : key_columns()) {
      if (row_fault_.empty() && at(column.name) < 0) {
        row_fault_ = "its first line names no column " + std::string(column.name);
      }
    }
  }
  const std::string& fault() const { return fault_; }          // set: no record can be used
  const std::string& row_fault() const { return row_fault_; }  // set: nor as a row
  int at(std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::string fault_;
  std::string row_fault_;
};

// A column that holds the name of an enumerator; `value` stays where the name is none.
template <typename Enum, typename Name>
void take_enum(std::string_view column, std::string_view text, Enum last, const Name& name,
               Enum& value, std::string& fault) {
  const std::optional<Enum> found = enum_from_name(text, last, name);
  if (!found) fault = std::string(column) + " '" + printable(text) + "' is none";
  value = found.value_or(value);
}

std::vector<fs::path> row_files(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("rows") && name.ends_with(".csv")) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t rows_written(const Health& health) {
  for (const SinkHealth& sink : health.sinks) {
    if (sink.name == "csv") return sink.rows_written;
  }
  return 0;
}

// Payloads count as rows, and rows of deleted files were written too; both stand in other files.
std::int64_t not_in_row_files(const fs::path& directory) {
  std::int64_t rows = 0;
  for (const char* const name : {"payloads.csv", "gaps.csv"}) {
    std::error_code unknown;
    const fs::path file = directory / name;
    if (!fs::exists(file, unknown)) continue;
    try {
      CsvFile csv(file);
      if (!csv.next()) continue;
      const Header header(csv.record().fields());
      const int at = header.at("rows");
      while (csv.next()) {
        std::int64_t lost = 1;
        const auto& fields = csv.record().fields();
        if (at >= 0 && static_cast<std::size_t>(at) < fields.size()) {
          parse_integer(fields[static_cast<std::size_t>(at)], lost);
        }
        rows += lost;
      }
    } catch (const SinkError&) {  // said where it is read
    }
  }
  return rows;
}

bool is_key(std::string_view name) {
  return std::any_of(key_columns().begin(), key_columns().end(),
                     [&](const TableColumn& column) { return column.name == name; });
}

class CsvSource final : public Source {
 public:
  CsvSource(const ConvertOptions& options, RowAccount& account) : filter_(options.select) {
    if (!row_files(options.from).empty()) {
      add_directory(options.from, nullptr, account);
    } else {
      for (const RankDirectory& place : rank_directories(options.from)) {
        if (filter_.takes_rank(place.rank)) add_directory(place.path, &place, account);
      }
    }
    if (directories_.empty()) {
      throw std::runtime_error("no file rows*.csv in " + printable(options.from.native()));
    }
    if (!options.select.all_restarts) {
      for (const Directory& d : directories_)
        restarts_.add_with_open(d.rank, d.restart, d.timeline);
    }
    find_stats(options);
    filter_.check_kinds(kinds());
    for (const Directory& directory : directories_) read_scalars(directory, account);
  }

  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return stats_; }
  const RunRows* facts() const override { return &facts_; }
  // Not known before the rows are read.
  std::vector<std::string> kinds() const override { return {}; }

  void read(std::size_t part, const Take& take, RowAccount& account) override {
    Directory& directory = directories_[part];
    for (const fs::path& file : directory.files) read_rows(directory, file, take, account);
    hold_against_health(directory, account);
  }

 private:
  struct Directory {
    fs::path path;
    int rank = 0;
    int restart = 0;
    bool has_outcomes = false;
    Timeline timeline;
    int clock = 0;
    std::vector<fs::path> files;
    std::deque<Series> series;
    std::unordered_map<std::string, const Series*> by_key;
    SeenRows seen;
    std::int64_t claimed = 0;  // rows that health.json says are in the files
    std::int64_t found = 0;
  };

  void add_directory(const fs::path& path, const RankDirectory* place, RowAccount& account) {
    Directory directory;
    directory.path = path;
    directory.files = row_files(path);
    if (directory.files.empty()) return;
    if (place != nullptr) {
      std::vector<Damage> damage;
      const RunFacts facts = read_run_json(*place, damage);
      directory.rank = place->rank;
      directory.restart = place->restart;
      directory.clock = facts.clock;
      directory.timeline = Timeline(facts.start_steps);
      const std::optional<StoredHealth> stored = read_health_json(*place, damage);
      if (stored && stored->closed) {
        directory.claimed = rows_written(stored->health) - not_in_row_files(path);
      }
      account.damage(damage);
      read_outcomes(directory, account);
    }
    std::int64_t bytes = 0;
    for (const fs::path& file : directory.files) {
      std::error_code unknown;
      bytes += static_cast<std::int64_t>(fs::file_size(file, unknown));
    }
    parts_.push_back({directory.rank, "", false, bytes});
    directories_.push_back(std::move(directory));
  }

  // Calls use(records) for every sound record of the file's length; others are rejected.
  template <typename Use>
  static void for_each_record(const fs::path& file, RowAccount& account, const Use& use,
                              bool counts_progress = false) {
    try {
      CsvFile csv(file);
      std::int64_t counted = 0;
      const auto advance = [&] {
        if (!counts_progress || counted == csv.bytes_read()) return;
        account.advance(csv.bytes_read() - counted);
        counted = csv.bytes_read();
      };
      use_records(csv, file, account, use, advance);
      advance();
    } catch (const SinkError& error) {
      account.reject({file, 0, 0, error.what()});
    }
  }

  template <typename Use, typename Advance>
  static void use_records(CsvFile& csv, const fs::path& file, RowAccount& account, const Use& use,
                          const Advance& advance) {
    const CsvRecords& records = csv.record();
    if (!csv.next() || !records.is_sound()) {
      account.reject(
          {file, 1, 0, csv.bytes_read() == 0 ? "the file is empty" : "it has no first line"});
      return;
    }
    const Header header(records.fields());
    while (csv.next()) {
      advance();
      std::string fault(records.fault().empty() ? header.fault() : records.fault());
      if (fault.empty() && records.fields().size() != header.names().size()) {
        fault = std::to_string(records.fields().size()) + " fields, its first line has " +
                std::to_string(header.names().size());
      }
      if (fault.empty()) fault = use(header, records);
      if (fault.empty()) continue;
      account.read(1);
      account.reject({file, records.line(), 1, std::move(fault)});
    }
  }

  static std::int64_t integer(const Header& header, const CsvRecords& records,
                              std::string_view name, std::string& fault, std::int64_t missing = 0) {
    const int at = header.at(name);
    std::int64_t value = missing;
    if (at < 0) return value;
    const std::string_view cell = records.fields()[static_cast<std::size_t>(at)];
    if (!parse_integer(cell, value)) {
      fault = std::string(name) + " '" + printable(cell) + "' is no whole number";
    }
    return value;
  }
  static double number(const Header& header, const CsvRecords& records, std::string_view name,
                       std::string& fault) {
    const int at = header.at(name);
    double value = 1.0;
    if (at < 0) return value;
    const std::string_view cell = records.fields()[static_cast<std::size_t>(at)];
    if (!parse_number(cell, value)) {
      fault = std::string(name) + " '" + printable(cell) + "' is no number";
    }
    return value;
  }
  static std::string_view text(const Header& header, const CsvRecords& records,
                               std::string_view name) {
    const int at = header.at(name);
    return at < 0 ? std::string_view() : records.fields()[static_cast<std::size_t>(at)];
  }

  void read_outcomes(Directory& directory, RowAccount& account) {
    const fs::path file = directory.path / "outcomes.csv";
    std::error_code unknown;
    directory.has_outcomes = fs::exists(file, unknown);
    if (!directory.has_outcomes) return;
    RecordBatch batch;
    for_each_record(file, account, [&](const Header& header, const CsvRecords& records) {
      std::string fault;
      Outcome outcome;
      outcome.optimizer = static_cast<std::int32_t>(integer(header, records, "optimizer", fault));
      outcome.window = integer(header, records, "window", fault);
      outcome.step = integer(header, records, "step", fault);
      outcome.attempt = static_cast<std::int32_t>(integer(header, records, "attempt", fault));
      outcome.loss_scale = number(header, records, "loss_scale", fault);
      take_enum("fate", text(header, records, "fate"), Fate::unknown, fate_name, outcome.fate,
                fault);
      if (fault.empty()) batch.outcomes.push_back(outcome);
      return fault;
    });
    directory.timeline.add(batch);
  }

  void find_stats(const ConvertOptions& options) {
    std::vector<std::string> all;
    for (const Directory& directory : directories_) {
      for (const fs::path& file : directory.files) {
        std::string head;
        try {
          head = read_beginning(file, 1 << 16);
        } catch (const SinkError&) {
          continue;  // said when its rows are read
        }
        CsvRecords records(head);
        if (!records.next() || !records.is_sound()) continue;
        const Header header(records.fields());
        if (!header.fault().empty() || !header.row_fault().empty()) continue;
        for (const std::string_view name : records.fields()) {
          if (is_key(name) || std::find(all.begin(), all.end(), name) != all.end()) continue;
          if (all.size() < 64) all.emplace_back(name);
        }
      }
    }
    stats_ = options.stats.empty() ? all : options.stats;
    for (const std::string& name : stats_) {
      if (std::find(all.begin(), all.end(), name) != all.end()) continue;
      throw std::invalid_argument("'" + printable(name) + "' is no column of these files");
    }
  }

  void read_scalars(const Directory& directory, RowAccount& account) {
    const fs::path file = directory.path / "scalars.csv";
    std::error_code unknown;
    for (const char* name : {"alerts.csv", "gaps.csv", "payloads.csv"}) {
      if (fs::exists(directory.path / name, unknown) &&
          fs::file_size(directory.path / name) > 200) {
        account.remark(std::string(name) + " is not converted from CSV; a log has what is in it");
      }
    }
    if (!fs::exists(file, unknown)) return;
    RowAccount apart;  // scalars are no rows
    for_each_record(file, apart, [&](const Header& header, const CsvRecords& records) {
      std::string fault;
      ReadScalar scalar;
      scalar.restart =
          static_cast<std::int32_t>(integer(header, records, "restart", fault, directory.restart));
      scalar.rank =
          static_cast<std::int32_t>(integer(header, records, "rank", fault, directory.rank));
      scalar.step = integer(header, records, "step", fault);
      if (directory.has_outcomes && header.at("window") >= 0) {
        scalar.step =
            directory.timeline.at(directory.clock, integer(header, records, "window", fault)).step;
      }
      scalar.name = text(header, records, "name");
      scalar.value = number(header, records, "value", fault);
      if (!fault.empty() || !filter_.takes_step(scalar.step) || !filter_.takes_rank(scalar.rank) ||
          !restarts_.is_newest(scalar.rank, directory.clock, scalar.step, scalar.restart)) {
        return fault;
      }
      facts_.scalars.push_back(std::move(scalar));
      return fault;
    });
    const ConvertReport found = apart.report();
    for (const RejectedRows& rejected : found.rejections) {
      account.reject({rejected.file, rejected.line, 0, rejected.what});
    }
  }

  void read_rows(Directory& directory, const fs::path& file, const Take& take,
                 RowAccount& account) {
    std::vector<double> values(stats_.size());
    std::int64_t rows = 0, superseded = 0;
    for_each_record(
        file, account,
        [&](const Header& header, const CsvRecords& records) {
          std::string fault;
          if (!header.row_fault().empty()) return header.row_fault();
          ++directory.found;
          TableRow row;
          const auto small = [&](std::string_view name, std::int32_t missing = 0) {
            const std::int64_t value = integer(header, records, name, fault, missing);
            if (value < INT32_MIN || value > INT32_MAX) {
              fault = std::string(name) + " " + std::to_string(value) + " is out of its range";
            }
            return static_cast<std::int32_t>(value);
          };
          row.restart = small("restart", directory.restart);
          row.rank = small("rank", directory.rank);
          row.step = integer(header, records, "step", fault);
          row.attempt = small("attempt");
          row.micro_step = small("micro_step");
          row.call = small("call");
          row.seq = static_cast<std::uint64_t>(integer(header, records, "seq", fault));
          row.flags = static_cast<std::uint32_t>(integer(header, records, "flags", fault));
          row.window = integer(header, records, "window", fault);
          row.accum = small("accum");
          row.loss_scale = number(header, records, "loss_scale", fault);
          const std::string_view fate = text(header, records, "fate");
          if (!fate.empty()) {
            take_enum("fate", fate, Fate::unknown, fate_name, row.fate, fault);
          }
          for (std::size_t i = 0; i < stats_.size(); ++i) {
            const std::string_view cell = text(header, records, stats_[i]);
            if (cell.empty()) {
              row.absent |= std::uint64_t{1} << i;
              values[i] = std::nan("");
            } else if (!parse_number(cell, values[i])) {
              fault = stats_[i] + " '" + printable(cell) + "' is no number";
            }
          }
          row.series = series_of(directory, header, records, fault);
          if (!fault.empty()) return fault;
          if (!directory.seen.add(row.restart, row.rank, row.seq)) {
            --directory.found;
            return "a row with seq " + std::to_string(row.seq) + " of rank " +
                   std::to_string(row.rank) + ", restart " + std::to_string(row.restart) +
                   " was there before";
          }
          if (directory.has_outcomes) {
            const Outcome outcome = directory.timeline.at(row.series->optimizer, row.window);
            row.step = outcome.step;
            row.attempt = outcome.attempt;
            row.fate = outcome.fate;
            row.loss_scale = outcome.loss_scale;
          }
          if (!filter_.takes_rank(row.rank) || !filter_.takes_kind(row.series->kind) ||
              !filter_.takes_name(row.series->name) || !filter_.takes_step(row.step)) {
            return fault;
          }
          ++rows;
          if (!restarts_.is_newest(row.rank, row.series->optimizer, row.step, row.restart)) {
            ++superseded;
            return fault;
          }
          row.values = values;
          take(row);
          return fault;
        },
        true);
    account.read(rows);
    account.supersede(superseded);
  }

  // A file that ends early between two lines shows nowhere else.
  static void hold_against_health(const Directory& directory, RowAccount& account) {
    const std::int64_t lost = directory.claimed - directory.found;
    if (lost <= 0) return;
    account.read(lost);
    account.reject({directory.path, 0, lost,
                    "health.json says " + grouped(directory.claimed) +
                        " rows were written, the files hold " + grouped(directory.found)});
  }

  static const Series* series_of(Directory& directory, const Header& header,
                                 const CsvRecords& records, std::string& fault) {
    std::string key;
    for (const std::string_view name :
         {"kind", "chunk", "name", "element", "optimizer", "dtype", "replication"}) {
      key += text(header, records, name);
      key += '\x1f';
    }
    const auto [known, is_new] = directory.by_key.try_emplace(std::move(key), nullptr);
    if (!is_new && known->second != nullptr) return known->second;
    Series series;
    series.kind = text(header, records, "kind");
    series.chunk = static_cast<std::int32_t>(integer(header, records, "chunk", fault));
    series.name = text(header, records, "name");
    series.element = text(header, records, "element");
    series.optimizer = static_cast<std::int32_t>(integer(header, records, "optimizer", fault));
    const std::string_view dtype = text(header, records, "dtype");
    if (!dtype.empty()) {
      take_enum("dtype", dtype, DType::bool8, dtype_name, series.dtype, fault);
    }
    const std::string_view replication = text(header, records, "replication");
    if (!replication.empty()) {
      take_enum("replication", replication, Replication::independent, replication_name,
                series.replication, fault);
    }
    if (!fault.empty()) {
      directory.by_key.erase(known);
      return nullptr;
    }
    directory.series.push_back(std::move(series));
    return known->second = &directory.series.back();
  }

  const RowFilter filter_;
  std::vector<Part> parts_;
  std::vector<Directory> directories_;  // of parts_, same order
  Restarts restarts_;
  std::vector<std::string> stats_;
  RunRows facts_;
};

}  // namespace

std::unique_ptr<Source> open_csv_source(const ConvertOptions& options, RowAccount& account) {
  return std::make_unique<CsvSource>(options, account);
}

}  // namespace trainmon
