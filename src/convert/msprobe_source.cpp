// msprobe's CSV layout, whoever wrote it: DIRECTORY/{time}-rank{r}-{id}/{type}_{a}-{b}.csv.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "base/file.h"
#include "base/text.h"
#include "convert/csv_records.h"
#include "convert/enum_names.h"
#include "convert/msprobe_tables.h"
#include "convert/source.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// Types of files.
constexpr const auto& kTypes = msprobe_tables::kMetrics;
constexpr std::size_t kMostStats = 64;

// "Dec03_21-34-40" as a number that sorts by time within a year; -1 for anything else.
std::int64_t time_digits(std::string_view text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const std::string copy(text);
  std::array<char, 4> month{};
  int day = 0, hour = 0, minute = 0, second = 0, length = 0;
  if (std::sscanf(copy.c_str(), "%3[A-Za-z]%2d_%2d-%2d-%2d%n", month.data(), &day, &hour, &minute,
                  &second, &length) != 5 ||
      static_cast<std::size_t>(length) != text.size()) {
    return -1;
  }
  const std::size_t at = kMonths.find(month.data());
  if (at == std::string_view::npos || at % 3 != 0 || day < 1 || day > 31 || hour > 23 ||
      minute > 59 || second > 61 || hour < 0 || minute < 0 || second < 0) {
    return -1;
  }
  return ((((static_cast<std::int64_t>(at) / 3 * 32 + day) * 24 + hour) * 60) + minute) * 62 +
         second;
}

std::int64_t checked_time(const std::string& text, const char* argument) {
  const std::int64_t digits = time_digits(text);
  if (digits >= 0) return digits;
  throw std::invalid_argument(std::string(argument) + ": '" + printable(text) +
                              "' is no time such as \"Dec03_21-34-40\"");
}

struct RunDirectory {
  std::int64_t time = 0;
  fs::path path;
};

struct CsvFile {
  fs::path path;
  std::int64_t first = 0;  // steps of its name, closed
  std::int64_t last = 0;
  std::int64_t bytes = 0;
  std::size_t directory = 0;  // in order of time: a later one supersedes
};

// "{type}_{a}-{b}.csv"
bool parse_name(std::string_view name, std::string_view& type, CsvFile& file) {
  if (!name.ends_with(".csv")) return false;
  const std::string_view stem = name.substr(0, name.size() - 4);
  const std::size_t low = stem.rfind('_');
  const std::size_t dash = stem.rfind('-');
  if (low == std::string_view::npos || dash == std::string_view::npos || dash < low) return false;
  type = stem.substr(0, low);
  return parse_integer(stem.substr(low + 1, dash - low - 1), file.first) &&
         parse_integer(stem.substr(dash + 1), file.last) && file.first >= 0;
}

bool is_identifier(std::string_view text) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.size() <= 64 && !(text[0] >= '0' && text[0] <= '9') &&
         std::all_of(text.begin(), text.end(), is_word);
}

// What the columns of one file are.
struct Columns {
  int chunk = -1, name = -1, step = -1, micro = -1, dtype = -1;
  std::vector<std::pair<int, std::string>> stats;  // column, name
  std::size_t count = 0;
  std::string fault;  // set: the file cannot be used
};

Columns columns_of(const std::vector<std::string_view>& header) {
  Columns found;
  found.count = header.size();
  for (std::size_t i = 0; i < header.size(); ++i) {
    const auto at = static_cast<int>(i);
    const std::string_view name = header[i];
    if (name == "vpp_stage")
      found.chunk = at;
    else if (name == "name")
      found.name = at;
    else if (name == "step")
      found.step = at;
    else if (name == "micro_step")
      found.micro = at;
    else if (name == "dtype")
      found.dtype = at;
    else if (name == "shape")
      continue;
    else if (is_identifier(name))
      found.stats.emplace_back(at, std::string(name));
    else
      found.fault = "column '" + printable(name) + "' of its first line is no statistic";
  }
  if (found.name < 0 || found.step < 0)
    found.fault = "its first line names no columns name and step";
  if (found.stats.empty() && found.fault.empty()) found.fault = "its first line names no statistic";
  return found;
}

class MsprobeSource final : public Source {
 public:
  MsprobeSource(const ConvertOptions& options, RowAccount& account) : filter_(options.select) {
    find_files(options);
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
      for (const CsvFile& file : part.files) {
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
      for (const CsvFile& file : part.files) note_steps(file, newest);
    }
    part.seen.clear();
    for (std::size_t i = 0; i < part.files.size(); ++i) {
      read_file_rows(part, parts_[index], part.files[i], newest, take, account);
      account.advance(part.files[i].bytes);
      const bool is_disjoint =
          i + 1 < part.files.size() &&
          std::none_of(part.files.begin(), part.files.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       [&](const CsvFile& f) { return f.last >= part.files[i + 1].first; });
      if (is_disjoint) {
        for (auto& [id, seen] : part.seen) seen.clear();
      }
    }
    part.seen.clear();
  }

 private:
  using Place = std::pair<std::int64_t, std::int64_t>;  // step, micro step
  struct PartFiles {
    std::vector<CsvFile> files;  // by steps, then by directory
    bool several_directories = false;
    std::deque<Series> series;
    std::unordered_map<std::string, const Series*> by_name;      // "chunk:name"
    std::unordered_map<const Series*, std::vector<Place>> seen;  // ascending
  };

  void find_files(const ConvertOptions& options) {
    const std::int64_t from =
        options.time_start.empty() ? -1 : checked_time(options.time_start, "time_start");
    const std::int64_t to =
        options.time_end.empty() ? INT64_MAX : checked_time(options.time_end, "time_end");
    if (from > to) {
      throw std::invalid_argument("time_start " + options.time_start + " is later than time_end " +
                                  options.time_end);
    }
    std::map<int, std::vector<RunDirectory>> ranks;
    std::error_code error;
    std::int64_t others = 0;
    for (fs::directory_iterator entry(options.from, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      int rank = -1, length = 0;
      std::error_code unknown;
      const std::size_t mark = name.find("-rank");
      if (mark == std::string::npos || mark > 20 || !entry->is_directory(unknown) ||
          std::sscanf(name.c_str() + mark, "-rank%5d-%n", &rank, &length) != 1 || length == 0 ||
          rank < 0) {
        continue;
      }
      const std::int64_t digits = time_digits(std::string_view(name).substr(0, mark));
      const bool is_bounded = from >= 0 || to != INT64_MAX;
      if ((is_bounded && (digits < from || digits > to)) || !filter_.takes_rank(rank)) {
        ++others;
        continue;
      }
      ranks[rank].push_back({digits, entry->path()});
    }
    if (error) {
      throw std::system_error(error, "cannot read " + printable(options.from.native()));
    }
    if (ranks.empty()) {
      throw std::runtime_error(printable(options.from.native()) +
                               " holds no directory {time}-rank{r}-{id} of msprobe's monitor" +
                               (others > 0 ? " in this range of times and ranks, " +
                                                 std::to_string(others) + " outside it"
                                           : ""));
    }
    for (auto& [rank, directories] : ranks) add_rank(rank, directories);
    if (files_.empty()) {
      throw std::runtime_error("no files {type}_{a}-{b}.csv of the types asked for in " +
                               printable(options.from.native()));
    }
  }

  void add_rank(int rank, std::vector<RunDirectory>& directories) {
    std::sort(directories.begin(), directories.end(),
              [](const RunDirectory& a, const RunDirectory& b) {
                return std::tie(a.time, a.path) < std::tie(b.time, b.path);
              });
    std::map<std::string, PartFiles> types;
    for (std::size_t i = 0; i < directories.size(); ++i) {
      for (const fs::directory_entry& entry : fs::directory_iterator(directories[i].path)) {
        const std::string name = entry.path().filename().string();
        std::string_view type;
        CsvFile file;
        if (!parse_name(name, type, file) ||
            std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
          continue;
        }
        present_.emplace(type);
        if (!filter_.takes_kind(type)) continue;
        std::error_code unknown;
        file.path = entry.path();
        file.bytes = static_cast<std::int64_t>(entry.file_size(unknown));
        file.directory = i;
        types[std::string(type)].files.push_back(std::move(file));
      }
    }
    for (const std::string_view type : kTypes) {
      const auto found = types.find(std::string(type));
      if (found == types.end()) continue;
      PartFiles& part = found->second;
      std::sort(part.files.begin(), part.files.end(), [](const CsvFile& a, const CsvFile& b) {
        return std::tie(a.first, a.last, a.directory, a.path) <
               std::tie(b.first, b.last, b.directory, b.path);
      });
      std::int64_t bytes = 0;
      for (const CsvFile& file : part.files) {
        bytes += file.bytes;
        part.several_directories |= file.directory != part.files[0].directory;
      }
      files_.push_back(std::move(part));
      parts_.push_back({rank, std::string(type), false, bytes});
    }
  }

  void look_at_headers(const ConvertOptions& options, RowAccount& account) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const CsvFile& file : files_[i].files) {
        const Columns columns = columns_of(first_record(file.path));
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

  static void note_steps(const CsvFile& file, std::map<std::int64_t, std::size_t>& newest) {
    std::string text;
    try {
      text = read_file(file.path);
    } catch (const SinkError&) {
      return;  // said when its rows are read
    }
    CsvRecords records(text);
    const Columns columns = columns_of(split_header(records));
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
  static std::vector<Record> by_step(std::string_view text, const Columns& columns) {
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

  void read_file_rows(PartFiles& part, const Part& of, const CsvFile& file,
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
    const Columns columns = columns_of(split_header(records));
    if (!columns.fault.empty()) {
      std::int64_t rows = 0;
      while (records.next()) ++rows;
      account.read(rows);
      account.reject({file.path, 1, rows, text.empty() ? "the file is empty" : columns.fault});
      return;
    }
    // Which of stats_ each column is.
    std::vector<std::pair<int, std::size_t>> wanted;
    std::uint64_t absent =
        stats_.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << stats_.size()) - 1;
    for (const auto& [at, name] : columns.stats) {
      const auto known = std::find(stats_.begin(), stats_.end(), name);
      if (known == stats_.end()) continue;
      const auto index = static_cast<std::size_t>(known - stats_.begin());
      wanted.emplace_back(at, index);
      absent &= ~(std::uint64_t{1} << index);
    }
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
      std::int64_t chunk = 0, micro = 0;
      if (!parse_integer(field(columns.step), row.step)) {
        return reject("step '" + printable(field(columns.step)) + "' is no whole number");
      }
      if (row.step < file.first || row.step > file.last) {
        return reject("step " + std::to_string(row.step) +
                      " does not belong into a file of steps " + std::to_string(file.first) +
                      " to " + std::to_string(file.last));
      }
      if (columns.chunk >= 0 &&
          (!parse_integer(field(columns.chunk), chunk) || chunk < INT32_MIN || chunk > INT32_MAX)) {
        return reject("vpp_stage '" + printable(field(columns.chunk)) + "' is no whole number");
      }
      if (columns.micro >= 0 &&
          (!parse_integer(field(columns.micro), micro) || micro < 0 || micro > INT32_MAX)) {
        return reject("micro_step '" + printable(field(columns.micro)) + "' is no whole number");
      }
      row.absent = absent;
      for (const auto& [at, index] : wanted) {
        const std::string_view cell = field(at);
        if (cell.empty()) {
          row.absent |= std::uint64_t{1} << index;
        } else if (!parse_number(cell, values[index])) {
          return reject(stats_[index] + " '" + printable(cell) + "' is no number");
        }
      }
      const std::string_view name = field(columns.name);
      if (!filter_.takes_step(row.step) || !filter_.takes_name(name)) return;
      if (const auto at = newest.find(row.step);
          at != newest.end() && at->second > file.directory) {
        ++rows;
        ++superseded;
        return;
      }
      row.series = series_of(part, of.kind, static_cast<std::int32_t>(chunk), name,
                             columns.dtype < 0 ? "" : field(columns.dtype));
      row.micro_step = row.accum = static_cast<std::int32_t>(micro);
      if (!is_first(part.seen[row.series], {row.step, micro})) {
        return reject("a row for this name, step " + std::to_string(row.step) +
                      " and micro step was there before");
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

std::unique_ptr<Source> open_msprobe_source(const ConvertOptions& options, RowAccount& account) {
  return std::make_unique<MsprobeSource>(options, account);
}

}  // namespace trainmon
