#include "sources/source.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <system_error>

#include "base/text.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<std::string_view, SourceFormat>, 5> kSources = {{
    {"auto", SourceFormat::automatic},
    {"log", SourceFormat::log},
    {"csv", SourceFormat::csv},
    {"sqlite", SourceFormat::sqlite},
    {"msprobe_csv", SourceFormat::msprobe_csv},
}};

bool has_file(const fs::path& directory, std::string_view prefix, std::string_view suffix) {
  return !files_named(directory, prefix, suffix).empty();
}

}  // namespace

std::vector<fs::path> files_named(const fs::path& directory, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

SourceFormat detected_format(const fs::path& from) {
  std::error_code unknown;
  if (!fs::exists(from, unknown)) {
    throw std::runtime_error("there is no " + printable(from.native()));
  }
  if (!fs::is_directory(from, unknown)) return SourceFormat::sqlite;
  if (has_file(from, "rows", ".csv")) return SourceFormat::csv;
  bool has_csv = false, has_sqlite = false, has_msprobe = false;
  for (const fs::directory_entry& rank : fs::directory_iterator(from)) {
    const std::string name = rank.path().filename().string();
    has_msprobe |= name.find("-rank") != std::string::npos && rank.is_directory(unknown);
    if (!name.starts_with("rank_") || !rank.is_directory(unknown)) continue;
    std::error_code error;
    for (fs::directory_iterator entry(rank.path(), error), end; !error && entry != end;
         entry.increment(error)) {
      if (has_file(entry->path(), "log-", ".tmlog")) return SourceFormat::log;
      has_sqlite |= has_file(entry->path(), "stats", ".db");
      has_csv |= has_file(entry->path(), "rows", ".csv");
    }
  }
  if (has_sqlite) return SourceFormat::sqlite;
  if (has_csv) return SourceFormat::csv;
  if (has_msprobe) return SourceFormat::msprobe_csv;
  return SourceFormat::log;  // whose reader says what is there instead
}

std::unique_ptr<Source> open_source(const SourceOptions& options, RowAccount& account) {
  switch (options.from_format) {
    case SourceFormat::csv:
      return open_csv_source(options, account);
    case SourceFormat::sqlite:
      return open_sqlite_source(options, account);
    case SourceFormat::msprobe_csv:
      return open_msprobe_source(options, account);
    case SourceFormat::automatic:
    case SourceFormat::log:
      break;
  }
  return open_log_source(options, account);
}

std::string_view format_name(SourceFormat format) {
  return kSources[static_cast<std::size_t>(format)].first;
}
std::optional<SourceFormat> source_format(std::string_view name) {
  for (const auto& [known, format] : kSources) {
    if (known == name) return format;
  }
  return std::nullopt;
}

RunRows read_beside_rows(const fs::path& run, const ReadOptions& select) {
  SourceOptions options;
  options.from = run;
  options.from_format = detected_format(run);
  options.select = select;
  options.select.merged = false;
  RowAccount account;
  const std::unique_ptr<Source> source = open_source(options, account);
  RunRows facts;
  if (source->facts() != nullptr) facts = *source->facts();
  if (!facts.damage.empty()) return facts;  // which the account lists as well
  for (const RejectedRows& one : account.report().rejections) {
    facts.incomplete.push_back(rejection_text(one));
  }
  return facts;
}

}  // namespace trainmon
