// CSV of ours: the files of the sink `csv` below RUN/rank_*/restart_*, or a directory that a
// conversion wrote, with rows.csv.
#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <unordered_map>

#include "base/file.h"
#include "base/text.h"
#include "read/restarts.h"
#include "read/run_layout.h"
#include "sources/csv_columns.h"
#include "sources/csv_facts.h"
#include "sources/kept_shapes.h"
#include "sources/rank_record.h"
#include "sources/seen_rows.h"
#include "sources/source.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

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
      const CsvColumns columns(csv.record().fields());
      const bool is_gaps = columns.at("rows") >= 0;
      while (csv.next()) {
        std::int64_t lost = 1;
        if (csv.record().fields().size() != columns.names().size()) continue;  // rejected there
        if (is_gaps && columns.text(csv.record(), "reason") != "deleted") continue;
        if (is_gaps) parse_integer(columns.text(csv.record(), "rows"), lost);
        rows += lost;
      }
    } catch (const SinkError&) {  // said where it is read
    }
  }
  return rows;
}

class CsvSource final : public Source {
 public:
  CsvSource(const SourceOptions& options, RowAccount& account) : filter_(options.select) {
    std::vector<std::string> incomplete;
    const bool stands_alone = !files_named(options.from, "rows", ".csv").empty();
    if (stands_alone) {
      add_directory(options.from, nullptr, {}, account);
    } else {
      const std::vector<RankDirectory> places = rank_directories(options.from);
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (!filter_.takes_rank(places[i].rank)) continue;
        add_directory(places[i].path, &places[i], read_rank_record(places, i, "csv", incomplete),
                      account);
      }
      if (!options.select.all_restarts) note_starts_without(places);
    }
    if (directories_.empty()) {
      throw std::runtime_error("no file rows*.csv in " + printable(options.from.native()));
    }
    if (!options.select.all_restarts) {
      for (const Directory& d : directories_) note_steps(d);
    }
    find_stats(options);
    filter_.check_kinds(kinds());
    facts_ = std::make_unique<CsvFacts>(options.select, restarts_);
    for (const Directory& d : directories_) facts_->add(d.place(), account);
    facts_->finish();
    if (stands_alone) add_gaps(facts_->rows().gaps, incomplete);
    facts_->set_incomplete(std::move(incomplete));
  }

  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return stats_; }
  const RunRows* facts() const override { return &facts_->rows(); }
  void read_payloads(const UsePayload& use, RowAccount& account) override {
    for (const Directory& d : directories_) facts_->read_payloads(d.place(), use, account);
  }
  // Not known before the rows are read.
  std::vector<std::string> kinds() const override { return {}; }

  void read(std::size_t part, const Take& take, RowAccount& account) override {
    Directory& directory = directories_[part];
    for (const fs::path& file : directory.files) read_rows(directory, file, take, account);
    hold_against_health(directory.path, "the files hold", directory.claimed, directory.found,
                        account);
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
    KeptShapes shapes;
    SeenRows seen;
    std::int64_t claimed = 0;  // rows that health.json says are in the files
    std::int64_t found = 0;    // records there, those that are rejected as well

    CsvPlace place() const {
      return {path, rank, restart, has_outcomes ? &timeline : nullptr, clock};
    }
  };

  void add_directory(const fs::path& path, const RankDirectory* place, const RankRecord& record,
                     RowAccount& account) {
    Directory directory;
    directory.path = path;
    directory.files = files_named(path, "rows", ".csv");
    if (directory.files.empty()) return;
    if (place != nullptr) {
      directory.rank = place->rank;
      directory.restart = place->restart;
      directory.clock = record.facts.clock;
      directory.timeline = Timeline(record.facts.start_steps);
      restarts_.set_world_size(place->restart, record.facts.world_size);
      directory.claimed = rows_claimed(record, "csv") - not_in_row_files(path);
      account.damage(record.damage);
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

  void note_starts_without(const std::vector<RankDirectory>& places) {
    const auto is_asked_for = [&](int rank) { return filter_.takes_rank(rank); };
    for (const RankDirectory& place : starts_without(places, is_asked_for)) {
      std::vector<Damage> not_asked_for;
      RowAccount nor_this;
      const RunFacts facts = read_run_json(place, not_asked_for);
      Directory other;
      other.path = place.path;
      other.rank = place.rank;
      other.restart = place.restart;
      other.clock = facts.clock;
      other.files = files_named(place.path, "rows", ".csv");
      other.timeline = Timeline(facts.start_steps);
      read_outcomes(other, nor_this);
      restarts_.set_world_size(place.restart, facts.world_size);
      note_steps(other);
    }
  }

  // Those with an outcome, and those after them that have rows, which are at the end.
  void note_steps(const Directory& directory) {
    restarts_.add(directory.rank, directory.restart, directory.timeline);
    if (directory.restart == 0 || directory.files.empty()) return;  // there is none before
    RowAccount said_where_they_are_read;
    std::pair<std::int32_t, std::int64_t> known = {-1, -1};
    const auto add = [&](std::int32_t optimizer, const CsvColumns& columns,
                         const CsvRecords& records) {
      std::string fault;
      const std::int64_t window = columns.integer(records, "window", fault);
      std::int64_t step = columns.integer(records, "step", fault);
      if (!fault.empty() || known == std::pair(optimizer, window)) return;
      known = {optimizer, window};
      if (directory.has_outcomes) step = directory.timeline.at(optimizer, window).step;
      restarts_.add(directory.rank, optimizer, step, directory.restart);
    };
    for_each_record(directory.files.back(), said_where_they_are_read,
                    [&](const CsvColumns& columns, const CsvRecords& records) {
                      std::string fault;
                      add(columns.small(records, "optimizer", fault), columns, records);
                      return fault;
                    });
    for_each_fact(directory.path / "scalars.csv", said_where_they_are_read,
                  [&](const CsvColumns& columns, const CsvRecords& records) {
                    if (columns.at("window") >= 0) add(directory.clock, columns, records);
                    return std::string();
                  });
  }

  void read_outcomes(Directory& directory, RowAccount& account) {
    const fs::path file = directory.path / "outcomes.csv";
    std::error_code unknown;
    directory.has_outcomes = fs::exists(file, unknown);
    if (!directory.has_outcomes) return;
    RecordBatch batch;
    for_each_record(file, account, [&](const CsvColumns& columns, const CsvRecords& records) {
      std::string fault;
      Outcome outcome;
      outcome.optimizer = columns.small(records, "optimizer", fault);
      outcome.window = columns.integer(records, "window", fault);
      outcome.step = columns.integer(records, "step", fault);
      outcome.attempt = columns.small(records, "attempt", fault);
      outcome.loss_scale = columns.number(records, "loss_scale", fault);
      if (columns.text(records, "fate").empty()) fault = "there is no fate";
      columns.enumerator(records, "fate", Fate::unknown, fate_name, outcome.fate, fault);
      if (fault.empty()) batch.outcomes.push_back(outcome);
      return fault;
    });
    directory.timeline.add(batch);
  }

  void find_stats(const SourceOptions& options) {
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
        const CsvColumns columns(records.fields());
        if (!columns.fault().empty() || !columns.row_fault().empty()) continue;
        for (const std::string_view name : records.fields()) {
          if (is_in_wide_row(name) || std::find(all.begin(), all.end(), name) != all.end())
            continue;
          if (all.size() < 64) all.emplace_back(name);
        }
      }
    }
    stats_ = options.stats.empty() ? all : options.stats;
    for (const std::string& name : stats_) {
      is_count_.push_back(is_count(name));
      if (std::find(all.begin(), all.end(), name) != all.end()) continue;
      throw std::invalid_argument("'" + printable(name) + "' is no column of these files");
    }
  }

  void read_rows(Directory& directory, const fs::path& file, const Take& take,
                 RowAccount& account) {
    std::vector<double> values(stats_.size());
    std::int64_t rows = 0, superseded = 0;
    const std::int64_t records = for_each_record(
        file, account,
        [&](const CsvColumns& columns, const CsvRecords& records) {
          std::string fault;
          if (!columns.row_fault().empty()) return columns.row_fault();
          TableRow row;
          for_each_field_of<RowPlace>(kWideRow, [&](const auto& field) {
            columns.member(records, field.name, row.*field.member, directory.shapes, fault);
          });
          for (std::size_t i = 0; i < stats_.size(); ++i) {
            const std::string_view cell = columns.text(records, stats_[i]);
            if (cell.empty()) {
              row.absent |= std::uint64_t{1} << i;
              values[i] = std::nan("");
            } else if (!parse_number(cell, values[i])) {
              fault = stats_[i] + " '" + printable(cell) + "' is no number";
            } else if (is_count_[i]) {
              std::int64_t whole = 0;
              const std::string_view why =
                  parse_integer(cell, whole) ? count_fault(whole) : count_fault(values[i]);
              if (!why.empty()) fault = stats_[i] + " " + printable(cell) + " " + std::string(why);
            }
          }
          row.series = series_of(directory, columns, records, fault);
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
          if (!filter_.takes_rank(row.rank) || !filter_.takes(*row.series) ||
              !filter_.takes_step(row.step)) {
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
    directory.found += records;
    account.read(rows);
    account.supersede(superseded);
  }

  static const Series* series_of(Directory& directory, const CsvColumns& columns,
                                 const CsvRecords& records, std::string& fault) {
    std::string key;
    for_each_field_of<Series>(kWideRow, [&](const auto& field) {
      key += columns.text(records, field.name);
      key += '\x1f';
    });
    const auto [known, is_new] = directory.by_key.try_emplace(std::move(key), nullptr);
    if (!is_new && known->second != nullptr) return known->second;
    Series series = columns.series(records, fault);
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
  std::vector<bool> is_count_;  // of stats_, same order
  std::unique_ptr<CsvFacts> facts_;
};

}  // namespace

std::unique_ptr<Source> open_csv_source(const SourceOptions& options, RowAccount& account) {
  return std::make_unique<CsvSource>(options, account);
}

}  // namespace trainmon
