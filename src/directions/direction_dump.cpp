// Directories of grad_probe, this one's and the peer's.
#include "directions/direction_dump.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <stdexcept>
#include <unordered_map>

#include "base/sign_file.h"
#include "base/text.h"
#include "sinks/grad_probe.h"
#include "sources/csv_records.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSummary = "grad_summary_";

// The number that "{prefix}{n}" or "{prefix}_{n}" ends with; -1 for another name.
std::int64_t number_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  if (name.starts_with('_')) name.remove_prefix(1);
  const bool is_number = !name.empty() && name.size() <= 18 &&
                         name.find_first_not_of("0123456789") == std::string_view::npos;
  std::int64_t number = -1;
  return is_number && parse_integer(name, number) ? number : -1;
}

Numbered numbered(const fs::path& directory, std::string_view prefix) {
  Numbered found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const std::int64_t number = number_of(name, prefix);
    std::error_code unknown;
    if (number < 0 || !entry.is_directory(unknown)) continue;
    const auto [at, is_new] = found.try_emplace(number, entry.path());
    if (!is_new && name == std::string(prefix) + std::to_string(number)) at->second = entry.path();
  }
  return found;
}

// By step.
std::map<std::int64_t, fs::path> summaries(const fs::path& rank) {
  std::map<std::int64_t, fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(rank)) {
    const std::string name = entry.path().filename().string();
    std::error_code unknown;
    if (!name.starts_with(kSummary) || entry.path().extension() != ".csv" ||
        !entry.is_regular_file(unknown)) {
      continue;
    }
    std::int64_t step = 0;
    if (!parse_integer(entry.path().stem().string().substr(kSummary.size()), step)) continue;
    found.emplace(step, entry.path());
  }
  return found;
}

// Calls row(parameter, norm) for each line of a summary: those of the peer's static graph are
// headed "Param_name". The norm is "" where there is none.
void for_each_line(const fs::path& summary,
                   const std::function<void(std::string_view, std::string_view)>& row) {
  CsvFile file(summary);
  std::size_t name = 0, norm = 0;
  for (bool is_head = true; file.next();) {
    if (!file.record().is_sound()) continue;
    const std::vector<std::string_view>& fields = file.record().fields();
    if (!is_head) {
      if (name < fields.size()) row(fields[name], norm < fields.size() ? fields[norm] : "");
      continue;
    }
    is_head = false;
    const auto at = std::find_if(fields.begin(), fields.end(), [](std::string_view field) {
      if (field.starts_with("\xEF\xBB\xBF")) field.remove_prefix(3);
      return field == "param_name" || field == "Param_name";
    });
    if (at == fields.end()) break;
    name = static_cast<std::size_t>(at - fields.begin());
    norm =
        static_cast<std::size_t>(std::find(fields.begin(), fields.end(), "norm") - fields.begin());
  }
}

// The newer of the two files of a parameter is packed; of two of one age it is.
bool is_packed_newer(const fs::path& step, const std::string& name) {
  std::error_code unknown;
  const auto packed = fs::last_write_time(step / (name + std::string(kSignFileEnding)), unknown);
  const auto bytes = fs::last_write_time(step / (name + ".npy"), unknown);
  return packed >= bytes;
}

}  // namespace

DirectionDump find_directions(const fs::path& path) {
  std::error_code unknown;
  if (!fs::is_directory(path, unknown)) {
    throw std::runtime_error("there is no directory " + printable(path.native()));
  }
  DirectionDump dump{path, true, numbered(path, "rank")};
  if (!dump.ranks.empty()) return dump;
  dump.has_ranks = false;
  if (!find_steps(path).empty() || !summaries(path).empty()) dump.ranks.emplace(0, path);
  return dump;
}

Numbered find_steps(const fs::path& rank) {
  return numbered(rank, "step");
}

std::map<std::string, DirectionName> find_parameters(const fs::path& step) {
  std::map<std::string, DirectionName> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(step)) {
    const fs::path name = entry.path().filename();
    const bool is_packed = name.extension() == kSignFileEnding;
    if (!is_packed && name.extension() != ".npy") continue;
    std::error_code unknown;
    const bool is_file = entry.is_regular_file(unknown);
    const std::string stem = name.stem().string();
    const auto [at, is_new] = found.try_emplace(stem, DirectionName{is_packed, is_file, false});
    DirectionName& known = at->second;
    if (is_new || !is_file) continue;
    if (known.is_file) {
      known = {is_packed_newer(step, stem), true, true};
    } else {
      known = {is_packed, true, false};
    }
  }
  return found;
}

std::set<std::string> find_nans(const fs::path& rank, std::int64_t step) {
  std::set<std::string> found;
  const fs::path summary = rank / (std::string(kSummary) + std::to_string(step) + ".csv");
  std::error_code unknown;
  if (!fs::is_regular_file(summary, unknown)) return found;
  try {
    for_each_line(summary, [&](std::string_view parameter, std::string_view norm) {
      double value = 0;
      if (!parse_number(norm, value) || !std::isnan(value)) return;
      found.insert(file_name_of(parameter));
      found.emplace(parameter);  // as the peer names files
    });
  } catch (const SinkError&) {
  }
  return found;
}

std::vector<std::string> in_summary_order(const std::vector<fs::path>& ranks,
                                          std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::set<std::string_view> left(names.begin(), names.end());
  std::list<std::string> order;
  std::unordered_map<std::string, std::list<std::string>::iterator> places;
  const auto take = [&](const fs::path& summary) {
    auto after = order.begin();  // what is new follows the one before it in its summary
    for_each_line(summary, [&](std::string_view parameter, std::string_view) {
      // The peer's files have a parameter's name as it is.
      for (const std::string& name : {file_name_of(parameter), std::string(parameter)}) {
        if (const auto known = places.find(name); known != places.end()) {
          after = std::next(known->second);
        } else if (left.erase(name) > 0) {
          places.emplace(name, order.insert(after, name));
        } else {
          continue;
        }
        break;
      }
    });
  };
  for (const fs::path& rank : ranks) {
    std::map<std::int64_t, fs::path> files;
    try {
      files = summaries(rank);
    } catch (const fs::filesystem_error&) {
    }
    for (const auto& [step, file] : files) {
      if (left.empty()) break;
      try {
        take(file);
      } catch (const SinkError&) {  // the order is a comfort
      }
    }
  }
  std::vector<std::string> result(order.begin(), order.end());
  result.insert(result.end(), left.begin(), left.end());
  return result;
}

}  // namespace trainmon
