// Rows of msprobe's CSV files, whoever wrote them, in the order of steps.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "base/file.h"
#include "base/text.h"
#include "sources/csv_records.h"
#include "sources/enum_names.h"
#include "sources/kept_shapes.h"
#include "sources/msprobe_files.h"
#include "sources/source.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// Types of files.
constexpr const auto& kTypes = kMsprobeMetrics;
constexpr std::size_t kMostStats = 64;

class MsprobeSource final : public Source {
 public:
  MsprobeSource(const SourceOptions& options, RowAccount& account) : filter_(options.select) {
    MsprobeFiles found = find_msprobe_files(options, filter_);
    present_ = std::move(found.types);
    for (MsprobePart& part : found.parts) {
      std::int64_t bytes = 0;
      for (const MsprobeFile& file : part.files) bytes += file.bytes;
      parts_.push_back({part.rank, part.type, false, bytes});
      PartFiles& files = files_.emplace_back();
      files.files = std::move(part.files);
      files.several_directories = part.several_directories;
    }
    look_at_headers(options, account);
    filter_.check_kinds({kTypes.begin(), kTypes.end()});
  }

  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return stats_; }
  std::vector<std::string> stats_of(const std::string& kind) const override {
    const auto found = kind_stats_.find(kind);
    std::vector<std::string> names;
    if (found == kind_stats_.end()) return names;
    for (const std::string& name : stats_) {
      if (found->second.contains(name)) names.push_back(name);
    }
    return names;
  }
  bool is_msprobe() const override { return true; }
  std::vector<std::string> kinds() const override {
    std::vector<std::string> names;
    for (const std::string_view type : kTypes) {
      if (present_.contains(type)) names.emplace_back(type);
    }
    return names;
  }
  std::optional<std::pair<std::int64_t, std::int64_t>> steps_of_names() const override {
    std::optional<std::pair<std::int64_t, std::int64_t>> steps;
    for (const PartFiles& part : files_) {
      for (const MsprobeFile& file : part.files) {
        if (!steps) steps.emplace(file.first, file.last);
        steps->first = std::min(steps->first, file.first);
        steps->second = std::max(steps->second, file.last);
      }
    }
    return steps;
  }

  void read(std::size_t index, const Take& take, RowAccount& account) override {
    PartFiles& part = files_[index];
    // The steps each directory has, where there are several.
    std::map<std::int64_t, std::size_t> newest;
    if (part.several_directories) {
      for (const MsprobeFile& file : part.files) note_steps(file, newest);
    }
    part.seen.clear();
    for (std::size_t i = 0; i < part.files.size(); ++i) {
      read_file_rows(part, parts_[index], part.files[i], newest, take, account);
      account.advance(part.files[i].bytes);
      const bool is_disjoint =
          i + 1 < part.files.size() &&
          std::none_of(part.files.begin(), part.files.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       [&](const MsprobeFile& f) { return f.last >= part.files[i + 1].first; });
      if (is_disjoint) {
        for (auto& [id, seen] : part.seen) seen.clear();
      }
    }
    part.seen.clear();
  }

 private:
  using Place = std::pair<std::int64_t, std::int64_t>;  // step, micro step
  struct PartFiles {
    std::vector<MsprobeFile> files;  // by steps, then by directory
    bool several_directories = false;
    std::deque<Series> series;
    std::unordered_map<std::string, const Series*> by_name;      // "chunk:name"
    std::unordered_map<const Series*, std::vector<Place>> seen;  // ascending
    KeptShapes shapes;
  };

  void look_at_headers(const SourceOptions& options, RowAccount& account) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const MsprobeFile& file : files_[i].files) {
        const MsprobeColumns columns = msprobe_columns(first_record(file.path));
        parts_[i].has_micro_steps |= columns.micro >= 0;
        if (!columns.fault.empty()) continue;  // said when its rows are read
        for (const auto& [at, name] : columns.stats) {
          if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
          kind_stats_[parts_[i].kind].insert(name);
        }
      }
    }
    if (all.size() > kMostStats) {
      account.remark("of " + std::to_string(all.size()) + " statistics the first " +
                     std::to_string(kMostStats) + " are converted");
      all.resize(kMostStats);
    }
    stats_ = options.stats.empty() ? all : options.stats;
    for (const std::string& name : options.stats) {
      if (std::find(all.begin(), all.end(), name) != all.end()) continue;
      std::string text = "'" + printable(name) + "' is no statistic of these files; there are";
      for (const std::string& known : all) text += " " + known;
      throw std::invalid_argument(text);
    }
  }

  static std::vector<std::string_view> split_header(CsvRecords& records) {
    if (!records.next() || !records.is_sound()) return {};
    return records.fields();
  }

  std::vector<std::string_view> first_record(const fs::path& path) {
    try {
      header_ = read_beginning(path, 1 << 16);
    } catch (const SinkError&) {
      return {};  // said when its rows are read
    }
    CsvRecords records(header_);
    std::vector<std::string_view> fields = split_header(records);
    header_fields_.assign(fields.begin(), fields.end());
    return {header_fields_.begin(), header_fields_.end()};
  }

  static void note_steps(const MsprobeFile& file, std::map<std::int64_t, std::size_t>& newest) {
    std::string text;
    try {
      text = read_file(file.path);
    } catch (const SinkError&) {
      return;  // said when its rows are read
    }
    CsvRecords records(text);
    const MsprobeColumns columns = msprobe_columns(split_header(records));
    if (!columns.fault.empty()) return;
    while (records.next()) {
      std::int64_t step = 0;
      if (!records.is_sound() || records.fields().size() != columns.count ||
          !parse_integer(records.fields()[static_cast<std::size_t>(columns.step)], step)) {
        continue;
      }
      std::size_t& known = newest[step];
      known = std::max(known, file.directory);
    }
  }

  struct Record {
    std::int64_t step = 0;
    std::size_t begin = 0;
    std::int64_t line = 0;
    bool is_single = true;  // false: it and all that follow
  };
  // The records after the first line such that steps ascend: one after another as they are, where
  // they do already.
  static std::vector<Record> by_step(std::string_view text, const MsprobeColumns& columns) {
    CsvRecords records(text);
    records.next();
    std::vector<Record> all;
    bool is_sorted = true;
    std::int64_t last = INT64_MIN;
    while (records.next()) {
      Record here{last, records.begin(), records.line(), true};
      if (records.is_sound() && records.fields().size() == columns.count) {
        parse_integer(records.fields()[static_cast<std::size_t>(columns.step)], here.step);
      }
      is_sorted = is_sorted && here.step >= last;
      last = here.step;
      all.push_back(here);
    }
    if (is_sorted && !all.empty()) {
      all.resize(1);
      all[0].is_single = false;
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Record& a, const Record& b) { return a.step < b.step; });
    return all;
  }

  // The columns that are read, and where in stats_ each goes.
  struct Wanted {
    std::vector<std::pair<int, std::size_t>> columns;
    std::uint64_t absent = 0;  // bits of what this file does not have
  };
  Wanted wanted_of(const MsprobeColumns& columns) const {
    Wanted wanted;
    wanted.absent =
        stats_.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << stats_.size()) - 1;
    for (const auto& [at, name] : columns.stats) {
      const auto known = std::find(stats_.begin(), stats_.end(), name);
      if (known == stats_.end()) continue;
      const auto index = static_cast<std::size_t>(known - stats_.begin());
      wanted.columns.emplace_back(at, index);
      wanted.absent &= ~(std::uint64_t{1} << index);
    }
    return wanted;
  }

  struct Numbers {
    std::int64_t step = 0, chunk = 0, micro = 0;
  };
  // Returns what is wrong with them; empty: nothing.
  static std::string read_numbers(const MsprobeColumns& columns, const MsprobeFile& file,
                                  const std::vector<std::string_view>& fields, Numbers& numbers) {
    const auto field = [&](int at) { return fields[static_cast<std::size_t>(at)]; };
    if (!parse_integer(field(columns.step), numbers.step)) {
      return "step '" + printable(field(columns.step)) + "' is no whole number";
    }
    if (numbers.step < file.first || numbers.step > file.last) {
      return "step " + std::to_string(numbers.step) + " does not belong into a file of steps " +
             std::to_string(file.first) + " to " + std::to_string(file.last);
    }
    if (columns.chunk >= 0 && (!parse_integer(field(columns.chunk), numbers.chunk) ||
                               numbers.chunk < INT32_MIN || numbers.chunk > INT32_MAX)) {
      return "vpp_stage '" + printable(field(columns.chunk)) + "' is no whole number";
    }
    if (columns.micro >= 0 && (!parse_integer(field(columns.micro), numbers.micro) ||
                               numbers.micro < 0 || numbers.micro > INT32_MAX)) {
      return "micro_step '" + printable(field(columns.micro)) + "' is no whole number";
    }
    return {};
  }
  std::string read_cells(const Wanted& wanted, const std::vector<std::string_view>& fields,
                         std::vector<double>& values, std::uint64_t& absent) const {
    for (const auto& [at, index] : wanted.columns) {
      const std::string_view cell = fields[static_cast<std::size_t>(at)];
      if (cell.empty()) {
        absent |= std::uint64_t{1} << index;
      } else if (!parse_number(cell, values[index])) {
        return stats_[index] + " '" + printable(cell) + "' is no number";
      }
    }
    return {};
  }

  void read_file_rows(PartFiles& part, const Part& of, const MsprobeFile& file,
                      const std::map<std::int64_t, std::size_t>& newest, const Take& take,
                      RowAccount& account) {
    std::string text;
    try {
      text = read_file(file.path);
    } catch (const SinkError& error) {
      account.reject({file.path, 0, 0, error.what()});
      return;
    }
    CsvRecords records(text);
    const MsprobeColumns columns = msprobe_columns(split_header(records));
    if (!columns.fault.empty()) {
      std::int64_t rows = 0;
      while (records.next()) ++rows;
      account.read(rows);
      account.reject({file.path, 1, rows, text.empty() ? "the file is empty" : columns.fault});
      return;
    }
    const Wanted wanted = wanted_of(columns);
    std::vector<double> values(stats_.size());
    TableRow row;
    row.rank = of.rank;
    row.values = values;
    std::int64_t rows = 0, superseded = 0;
    const auto use = [&] {
      const auto reject = [&](std::string why) {
        ++rows;
        account.reject({file.path, records.line(), 1, std::move(why)});
      };
      if (!records.is_sound()) return reject(std::string(records.fault()));
      const auto& fields = records.fields();
      if (fields.size() != columns.count) {
        return reject(std::to_string(fields.size()) + " fields, its first line has " +
                      std::to_string(columns.count));
      }
      const auto field = [&](int at) { return fields[static_cast<std::size_t>(at)]; };
      Numbers numbers;
      std::string fault = read_numbers(columns, file, fields, numbers);
      row.step = numbers.step;
      row.absent = wanted.absent;
      if (fault.empty()) fault = read_cells(wanted, fields, values, row.absent);
      if (!fault.empty()) return reject(std::move(fault));
      const std::string_view name = field(columns.name);
      if (!filter_.takes_step(row.step) || !filter_.takes_name(name)) return;
      if (const auto at = newest.find(row.step);
          at != newest.end() && at->second > file.directory) {
        ++rows;
        ++superseded;
        return;
      }
      row.series = series_of(part, of.kind, static_cast<std::int32_t>(numbers.chunk), name,
                             columns.dtype < 0 ? "" : field(columns.dtype));
      row.micro_step = row.accum = static_cast<std::int32_t>(numbers.micro);
      if (!is_first(part.seen[row.series], {row.step, numbers.micro})) {
        return reject("a row for this name, step " + std::to_string(row.step) +
                      " and micro step was there before");
      }
      // Other things than lists are no fault: collectives have nan there.
      if (columns.shape < 0 || !part.shapes.find(field(columns.shape), row.shape)) {
        row.shape = nullptr;
      }
      ++rows;
      take(row);
    };
    for (const Record& record : by_step(text, columns)) {
      records.seek(record.begin, record.line);
      while (records.next()) {
        use();
        if (record.is_single) break;
      }
    }
    account.read(rows);
    account.supersede(superseded);
  }

  const Series* series_of(PartFiles& part, const std::string& kind, std::int32_t chunk,
                          std::string_view name, std::string_view dtype) {
    std::string key = std::to_string(chunk) + ":";
    key += name;
    const auto [known, is_new] = part.by_name.try_emplace(std::move(key), nullptr);
    if (is_new) {
      Series series;
      series.kind = kind;
      series.chunk = chunk;
      series.name = std::string(name);
      if (dtype.starts_with("torch.")) {
        series.dtype =
            enum_from_name(dtype.substr(6), DType::bool8, dtype_name).value_or(series.dtype);
      }
      part.series.push_back(std::move(series));
      known->second = &part.series.back();
    }
    return known->second;
  }

  static bool is_first(std::vector<Place>& seen, const Place& place) {
    if (seen.empty() || seen.back() < place) {
      seen.push_back(place);
      return true;
    }
    const auto at = std::lower_bound(seen.begin(), seen.end(), place);
    if (*at == place) return false;
    seen.insert(at, place);
    return true;
  }

  const RowFilter filter_;
  std::vector<Part> parts_;
  std::vector<PartFiles> files_;  // of parts_, same order
  std::vector<std::string> stats_;
  std::map<std::string, std::set<std::string>> kind_stats_;
  std::set<std::string, std::less<>> present_;
  std::string header_;
  std::vector<std::string> header_fields_;
};

}  // namespace

std::unique_ptr<Source> open_msprobe_source(const SourceOptions& options, RowAccount& account) {
  return std::make_unique<MsprobeSource>(options, account);
}

}  // namespace trainmon
