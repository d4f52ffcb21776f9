// Records of several ranks that nobody has to have written, through all checks: those of a run that
// is whole, of one that grows, and of each rank while it trains. The input is the segments of up to
// four ranks, one after the other, with frames that are not compressed.
#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "answers/diagnose.h"
#include "detect/step_checks.h"
#include "frames.h"
#include "fuzz.h"
#include "model/first_bad.h"
#include "read/log.h"
#include "read/open_logs.h"

namespace trainmon::fuzz {
namespace {

using log_format::kMagic;

constexpr std::size_t kMostRanks = 4;

std::vector<std::string> logs_of(std::string_view bytes) {
  std::vector<std::string> logs;
  while (!bytes.empty() && logs.size() < kMostRanks) {
    const std::size_t end = std::min(bytes.find(kMagic, 1), bytes.size());
    logs.push_back(with_checksums(std::string(bytes.substr(0, end))));
    bytes.remove_prefix(end);
  }
  return logs;
}

std::filesystem::path folder_of(std::size_t rank) {
  return scratch() / ("rank_0000" + std::to_string(rank)) / "restart_0000";
}

// The first `share` of the bytes of each log: what a reader of a run that grows may see.
void write_run(const std::vector<std::string>& logs, double share) {
  for (std::size_t rank = 0; rank < kMostRanks; ++rank) {
    const std::filesystem::path folder = folder_of(rank);
    if (rank >= logs.size()) {
      std::filesystem::remove_all(folder.parent_path());
      continue;
    }
    std::filesystem::create_directories(folder);
    const auto size = static_cast<std::size_t>(share * static_cast<double>(logs[rank].size()));
    put(folder / "log-000000.tmlog", std::string_view(logs[rank]).substr(0, size));
  }
}

// What must hold of any answer.
std::string checked_text(const Diagnosis& diagnosis) {
  for (const detect::Finding& one : diagnosis.findings) {
    check(!one.ranks.empty() && std::ranges::is_sorted(one.ranks), "a finding names its ranks");
    check(!one.text.empty(), "a finding says what it is");
    for (const std::uint32_t tensor : one.tensors) {
      check(tensor < diagnosis.tensors.size(), "the tensors of a finding are known");
    }
    check(!place_text(diagnosis, one).empty(), "a finding has a place");
    detect::bound_text(one);
    detect::tensors_text(diagnosis.tensors, one);
    check_text(one);
  }
  if (diagnosis.verdict) {
    check(*diagnosis.verdict < diagnosis.findings.size(), "a verdict is a finding");
    check(diagnosis.findings[*diagnosis.verdict].certain, "a verdict is certain");
  }
  const std::vector<std::size_t> alike = first_alike(diagnosis);
  check(alike.size() == diagnosis.findings.size(), "each finding has a first that is like it");
  for (std::size_t i = 0; i < alike.size(); ++i) check(alike[i] <= i, "which is not later");
  next_command(diagnosis, scratch());
  std::string json = diagnosis_json(diagnosis);
  const nlohmann::json object = nlohmann::json::parse(json);
  check(object["findings"].size() == diagnosis.findings.size(), "findings are in the JSON");
  check(object["verdict"].is_null() == !diagnosis.verdict, "and the verdict");
  return json;
}

class ReadSeries final : public SeriesTable {
 public:
  explicit ReadSeries(std::map<SeriesId, Series> series) : series_(std::move(series)) {}
  const Series& at(SeriesId id) const override { return series_.at(id); }
  std::size_t size() const override { return series_.size(); }
  // Whether they are numbered as a monitor numbers them.
  bool is_whole() const { return series_.empty() || series_.rbegin()->first + 1 == series_.size(); }

 private:
  const std::map<SeriesId, Series> series_;
};

// As the writer thread of the rank checks them.
void check_live(std::int32_t rank) {
  const LogContents contents = read_log(folder_of(static_cast<std::size_t>(rank)), rank, 0);
  const ReadSeries series(contents.series);
  if (!series.is_whole()) return;
  detect::StepChecks checks(rank);
  std::vector<Alert> alerts;
  for (const RecordBatch& batch : contents.batches) checks.look(batch, series, alerts);
  RecordBatch last;
  last.moment = Moment::stop;
  last.number = contents.batches.empty() ? 1 : contents.batches.back().number + 1;
  checks.look(last, series, alerts);
  for (const Alert& alert : alerts) {
    check(detect::is_check(alert.rule), "an alert names its check");
    check(!alert.message.empty() && alert.count > 0, "and says what it is");
  }
}

}  // namespace
}  // namespace trainmon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  if (size == 0) return 0;
  const std::vector<std::string> logs = fuzz::logs_of(fuzz::text_of(data, size));
  GrowingDiagnosis growing;
  for (const double share : {0.6, 1.0}) {
    fuzz::write_run(logs, share);
    const OpenedRun run(fuzz::scratch(), {});
    const std::string whole = fuzz::checked_text(diagnose(run, {}));
    fuzz::check(fuzz::checked_text(growing.look(run)) == whole, "a run that grows has one answer");
  }
  for (std::size_t rank = 0; rank < logs.size(); ++rank) {
    fuzz::check_live(static_cast<std::int32_t>(rank));
  }
  return 0;
}
