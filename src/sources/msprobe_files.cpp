#include "sources/msprobe_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "base/text.h"
#include "sources/csv_records.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

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

// "{type}_{a}-{b}.csv"
bool parse_name(std::string_view name, std::string_view& type, MsprobeFile& file) {
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

void add_rank(int rank, std::vector<RunDirectory>& directories, const RowFilter& filter,
              MsprobeFiles& files) {
  std::sort(directories.begin(), directories.end(),
            [](const RunDirectory& a, const RunDirectory& b) {
              return std::tie(a.time, a.path) < std::tie(b.time, b.path);
            });
  std::map<std::string, MsprobePart> types;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    for (const fs::directory_entry& entry : fs::directory_iterator(directories[i].path)) {
      const std::string name = entry.path().filename().string();
      std::string_view type;
      MsprobeFile file;
      if (!parse_name(name, type, file) || std::find(kMsprobeMetrics.begin(), kMsprobeMetrics.end(),
                                                     type) == kMsprobeMetrics.end()) {
        continue;
      }
      files.types.emplace(type);
      if (!filter.takes_kind(type)) continue;
      std::error_code unknown;
      file.path = entry.path();
      file.bytes = static_cast<std::int64_t>(entry.file_size(unknown));
      file.directory = i;
      types[std::string(type)].files.push_back(std::move(file));
    }
  }
  for (const std::string_view type : kMsprobeMetrics) {
    const auto found = types.find(std::string(type));
    if (found == types.end()) continue;
    MsprobePart& part = found->second;
    std::sort(part.files.begin(), part.files.end(), [](const MsprobeFile& a, const MsprobeFile& b) {
      return std::tie(a.first, a.last, a.directory, a.path) <
             std::tie(b.first, b.last, b.directory, b.path);
    });
    part.rank = rank;
    part.type = type;
    for (const MsprobeFile& file : part.files) {
      part.several_directories |= file.directory != part.files[0].directory;
    }
    files.parts.push_back(std::move(part));
  }
}

}  // namespace

MsprobeFiles find_msprobe_files(const SourceOptions& options, const RowFilter& filter) {
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
    if ((is_bounded && (digits < from || digits > to)) || !filter.takes_rank(rank)) {
      ++others;
      continue;
    }
    ranks[rank].push_back({digits, entry->path()});
  }
  if (error) {
    throw std::system_error(error, "cannot read " + printable(options.from.native()));
  }
  if (ranks.empty()) {
    throw std::runtime_error(
        printable(options.from.native()) +
        " holds no directory {time}-rank{r}-{id} of msprobe's monitor" +
        (others > 0 ? " in this range of times and ranks, " + std::to_string(others) + " outside it"
                    : ""));
  }
  MsprobeFiles found;
  for (auto& [rank, directories] : ranks) add_rank(rank, directories, filter, found);
  if (found.parts.empty()) {
    throw std::runtime_error("no files {type}_{a}-{b}.csv of the types asked for in " +
                             printable(options.from.native()));
  }
  return found;
}

MsprobeColumns msprobe_columns(const std::vector<std::string_view>& header) {
  MsprobeColumns found;
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
      found.shape = at;
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

}  // namespace trainmon
