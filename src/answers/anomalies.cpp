// Ranks what the rules of all ranks found: which came first is where to look.
#include "answers/anomalies.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/file.h"
#include "base/json_text.h"
#include "read/run_layout.h"
#include "sinks/msprobe_anomaly.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;

enum Stage : std::int8_t { kUnknown = -1, kForward, kBackward, kOptimizer };

Stage stage_of(std::string_view tag, AnomalyOrder order) {
  constexpr std::array<std::string_view, 4> kAlsoForward = {"qkt", "sr", "router_weight",
                                                            "router_logit"};
  constexpr std::array<std::string_view, 4> kInBackward = {"actv_grad", "pre_grad", "acc_grad",
                                                           "post_grad"};
  const std::string_view task = tag.substr(tag.rfind('/') + 1);
  const auto is_in = [task](const auto& list) {
    return std::find(list.begin(), list.end(), task) != list.end();
  };
  if (task == "actv") return kForward;
  if (is_in(kInBackward)) return kBackward;
  if (order == AnomalyOrder::run) return is_in(kAlsoForward) ? kForward : kOptimizer;
  return task == "exp_avg" || task == "exp_avg_sq" ? kOptimizer : kUnknown;
}

std::vector<std::filesystem::path> anomaly_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; entry != end && !error;
       entry.increment(error)) {
    std::error_code ignored;  // what is there and cannot be looked at is tried, and said to fail
    const std::filesystem::path file = entry->path() / "anomaly.json";
    if (std::filesystem::symlink_status(file, ignored).type() !=
        std::filesystem::file_type::not_found) {
      files.push_back(file);
    }
  }
  if (error) throw std::system_error(error, directory.string());
  std::sort(files.begin(), files.end());
  return files;
}

// Throws std::runtime_error naming what is wrong.
std::int64_t integer(const Json& value, const char* what) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}
                        : value.is_number_integer();
  // Every integer that is used can be negated.
  if (!fits || value.get<std::int64_t>() == INT64_MIN) {
    throw std::runtime_error(std::string(what) + " is not an integer");
  }
  return value.get<std::int64_t>();
}

const Json& field(const Json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end()) throw std::runtime_error("no " + std::string(name));
  return *found;
}

std::string text(const Json& entry, const char* name) {
  const Json& value = field(entry, name);
  if (!value.is_string()) throw std::runtime_error(std::string(name) + " is not a text");
  return value.get<std::string>();
}

Anomaly anomaly_of(const std::string& key, const Json& entry) {
  if (!entry.is_object()) throw std::runtime_error("not an object");
  const auto number = [&](const char* name) { return integer(field(entry, name), name); };
  Anomaly anomaly;
  anomaly.key = key;
  anomaly.rank = number("rank");
  anomaly.step = number("step");
  anomaly.micro_step = number("micro_step");
  anomaly.pp_stage = number("pp_stage");
  anomaly.vpp_stage = number("vpp_stage");
  anomaly.call_id = number("call_id");
  anomaly.tag_name = text(entry, "tag_name");
  anomaly.message = text(entry, "message");
  const auto mates = entry.find("group_mates");  // never used for the order
  if (mates == entry.end() || mates->is_null()) return anomaly;
  if (!mates->is_array()) throw std::runtime_error("group_mates is not a list");
  for (const Json& mate : *mates) anomaly.group_mates.push_back(integer(mate, "group_mates"));
  return anomaly;
}

void read_file_of(const std::filesystem::path& file, AnomalyList& list) {
  ++list.files;
  Json object;
  std::size_t keys = 0;
  try {
    object = Json::parse(read_json_text(file, kMostBytes),
                         [&](int depth, Json::parse_event_t event, Json&) {
                           if (depth == 1 && event == Json::parse_event_t::key) ++keys;
                           return true;
                         });
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    list.damage.push_back({file, 0, error.what()});
    return;
  }
  if (!object.is_object()) {
    list.damage.push_back({file, 0, "not a JSON object"});
    return;
  }
  if (keys > object.size()) {
    list.damage.push_back({file, 0,
                           std::to_string(keys - object.size()) +
                               " entries have the key of a later one and are not used"});
  }
  for (const auto& [key, entry] : object.items()) {
    try {
      list.entries.push_back(anomaly_of(key, entry));
    } catch (const std::runtime_error& error) {
      list.damage.push_back({file, 0, "entry \"" + key + "\": " + error.what()});
    }
  }
}

using Place = std::tuple<int, int, std::uint64_t>;  // restart, rank, seq
using Step = std::tuple<int, int, std::int64_t>;    // restart, rank, step

Anomaly anomaly_of(const ReadAlert& found, const RunRows& rows) {
  const Alert& alert = found.alert;
  const Series& series = rows.series[alert.key.series];
  MsprobeAnomalyOptions options;
  options.rank = found.rank;
  Anomaly anomaly;
  anomaly.rank = found.rank;
  anomaly.step = alert.step;
  anomaly.micro_step = alert.key.accum;
  anomaly.vpp_stage = series.chunk;
  anomaly.call_id = -1;
  anomaly.tag_name = msprobe_tag(series, alert.key, options);
  anomaly.message = alert.rule + ": " + alert.message;
  if (alert.count > 1) anomaly.message += " (" + std::to_string(alert.count) + " times)";
  return anomaly;
}

// The log knows more than the alert did when it was made: the step, where it was settled later, and
// the micro step.
AnomalyList of_run(const std::filesystem::path& run) {
  ReadOptions options;
  options.all_restarts = true;  // what a restart went through again was found all the same
  RunRows rows = read_run(run, options);
  std::map<Place, const ReadRow*> wanted;
  for (const ReadAlert& found : rows.alerts) {
    wanted.emplace(Place(found.restart, found.rank, found.alert.key.seq), nullptr);
  }
  std::map<Step, std::uint64_t> begins;
  for (const ReadRow& row : rows.rows) {
    const auto place = wanted.find(Place(row.restart, row.rank, row.seq));
    if (place != wanted.end()) place->second = &row;
    const auto [begin, is_new] = begins.try_emplace(Step(row.restart, row.rank, row.step), row.seq);
    begin->second = std::min(begin->second, row.seq);
  }
  AnomalyList list;
  for (const ReadAlert& found : rows.alerts) {
    Anomaly anomaly = anomaly_of(found, rows);
    if (const ReadRow* row = wanted.at(Place(found.restart, found.rank, found.alert.key.seq))) {
      anomaly.step = row->step;
      anomaly.micro_step = row->micro_step;
    }
    const auto begin = begins.find(Step(found.restart, found.rank, anomaly.step));
    if (begin != begins.end() && found.alert.key.seq >= begin->second) {
      anomaly.call_id = static_cast<std::int64_t>(found.alert.key.seq - begin->second);
    }
    anomaly.key = anomaly.tag_name + "_" +
                  (found.alert.stat.empty() ? "" : found.alert.stat + "_") + "step_" +
                  std::to_string(anomaly.step) + "_call_" + std::to_string(anomaly.call_id);
    if (found.restart > 0) anomaly.key += "_restart_" + std::to_string(found.restart);
    list.entries.push_back(std::move(anomaly));
  }
  std::set<int> ranks;
  for (const RankDirectory& one : rank_directories(run)) ranks.insert(one.rank);
  list.files = static_cast<std::int64_t>(ranks.size());
  list.damage = std::move(rows.damage);
  list.missing = std::move(rows.missing);
  list.incomplete = std::move(rows.incomplete);
  return list;
}

}  // namespace

AnomalyList read_anomalies(const std::filesystem::path& directory,
                           const std::set<std::int64_t>& steps) {
  AnomalyList list;
  const std::vector<std::filesystem::path> files = anomaly_files(directory);
  for (const std::filesystem::path& file : files) read_file_of(file, list);
  if (files.empty()) {
    try {
      list = of_run(directory);
    } catch (const std::system_error&) {
      throw;
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("no */anomaly.json in " + directory.string() +
                               ", nor is it a run: " + error.what());
    }
  }
  if (!steps.empty()) {
    std::erase_if(list.entries, [&](const Anomaly& one) { return !steps.contains(one.step); });
  }
  sort_anomalies(list.entries, files.empty() ? AnomalyOrder::run : AnomalyOrder::msprobe);
  return list;
}

void sort_anomalies(std::vector<Anomaly>& anomalies, AnomalyOrder order) {
  const auto place = [order](const Anomaly& one) {
    const Stage stage = stage_of(one.tag_name, order);
    const std::int64_t sign = stage == kForward ? 1 : -1;
    return std::tuple(one.step, one.micro_step, stage, sign * one.vpp_stage, sign * one.pp_stage,
                      one.call_id, one.rank);
  };
  std::sort(anomalies.begin(), anomalies.end(), [&](const Anomaly& a, const Anomaly& b) {
    const auto first = place(a), second = place(b);
    if (first != second) return first < second;
    return std::tie(a.tag_name, a.key, a.message) < std::tie(b.tag_name, b.key, b.message);
  });
}

void write_anomalies(const std::filesystem::path& file, const std::vector<Anomaly>& anomalies) {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson object = OrderedJson::object();
  // Appended behind its back: it looks through all keys for each new one.
  auto& entries = object.get_ref<OrderedJson::object_t&>();
  std::unordered_set<std::string> keys;
  for (const Anomaly& one : anomalies) {
    // Files of different starts, put together by hand, may hold the same key twice.
    std::string key = one.key;
    for (int n = 2; !keys.insert(key).second; ++n) key = one.key + "_" + std::to_string(n);
    entries.emplace_back(std::move(key), OrderedJson{{"rank", one.rank},
                                                     {"step", one.step},
                                                     {"micro_step", one.micro_step},
                                                     {"pp_stage", one.pp_stage},
                                                     {"vpp_stage", one.vpp_stage},
                                                     {"call_id", one.call_id},
                                                     {"tag_name", one.tag_name},
                                                     {"message", one.message},
                                                     {"group_mates", one.group_mates}});
  }
  write_atomically(file, object.dump(1, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace trainmon
