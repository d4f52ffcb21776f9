// What went wrong first: the equations of a step, checked over all ranks of a run.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "answers/left_history.h"
#include "detect/findings.h"
#include "detect/window.h"
#include "read/open_logs.h"
#include "read/run_growth.h"
#include "trainmon/first_bad.h"
#include "trainmon/read.h"

namespace trainmon {

// In the place of a check: what ranks said that they do not record.
inline constexpr std::string_view kNotRecorded = "what was not recorded";

// As first_bad(), of logs that are open; `options.merged` is not looked at.
FirstBadOfRun first_bad(const OpenedRun& run, ReadOptions options);

struct Diagnosis {
  RunRows run;  // without rows and payloads
  std::int64_t rows = 0;
  std::vector<detect::Tensor> tensors;    // that findings name by number
  std::vector<detect::Finding> findings;  // by step, then in the order of a step; of all restarts
                                          // those of a start come together
  std::int64_t left_out = 0;              // findings beyond the most that are kept
  std::optional<std::size_t> verdict;     // of findings
  struct Checked {
    detect::Check check;
    std::int64_t times = 0;                                // over steps, tensors and ranks
    std::array<std::int64_t, detect::kEvidences> by = {};  // of those, by what was compared
  };
  std::vector<Checked> checked;
  struct NotChecked {
    std::string check;
    std::string why;
  };
  std::vector<NotChecked> not_checked;
  struct Start {
    int restart = 0;
    std::optional<std::size_t> verdict;  // of findings
  };
  std::set<std::int64_t> control_steps;  // from which on ranks follow a change by control.json
  std::vector<Start> starts;             // ascending; empty where not all restarts were asked for
  // Of rows alone, where there is no verdict: src/answers/left_history.h.
  std::optional<LeftHistory> left_history;
};

// Of the newest restart of each step. With options.all_restarts each start is checked as if it were
// the only one of its run. The verdict is then that of the earliest step, of equal steps the older
// one. Memory is that of a few steps of all ranks, then of left_history(). Throws as read_run().
Diagnosis diagnose(const std::filesystem::path& run, const ReadOptions& options = {});
// Of logs that are open, those of the ranks that `options` ask for. It has no `left_history`.
Diagnosis diagnose(const OpenedRun& run, const ReadOptions& options);

class StepsInOrder;

// Of a run that grows: what diagnose() says each time, from the rows that are new. Where that is
// not sure to be the same, all rows are read again. Memory is that of the last steps.
class GrowingDiagnosis {
 public:
  GrowingDiagnosis();
  ~GrowingDiagnosis();

  // All ranks of it are open. One thread.
  Diagnosis look(const OpenedRun& run);
  // For the newest diagnosis.
  std::int64_t rows_read() const { return rows_read_; }

 private:
  RunGrowth growth_;
  std::unique_ptr<StepsInOrder> steps_;  // of the rows that stay
  std::int64_t rows_read_ = 0;
};
// An object with these keys; F is the object of a finding.
//   "verdict"      null or F
//   "findings"     [F, ...]
//   "checked"      {check: times}
//   "evidence"     {check: {evidence: times}}
//   "not_checked"  [{"check", "why"}]
//   "left_history" null or L with "others", [L, ...], and "less_clear", as "next" of L
//   "restarts"     [{"restart", "verdict": null or F}], where all of them were asked for.
// L has the keys "step", "restart", "rank", "kind", "name", "chunk", "element", "norm", "before",
// "measure", "unusual", "again", "beside", "over", "stays", "apart", "lines", "module", "next",
// "loss". "over" is null or as one of "next".
// F has the keys "step", "restart", "check", "stage", "ranks", "one_of_ranks", "tensors",
// "layers", "value", "bound", "evidence", "certain", "text".
std::string diagnosis_json(const Diagnosis& diagnosis);

// "step 15, weights, rank 1, 2.weight"
std::string place_text(const Diagnosis& diagnosis, const detect::Finding& finding);
// Without a verdict: "nothing certainly wrong in 155,600 rows, but something changed abruptly".
std::string sound_text(const Diagnosis& diagnosis);
// Of each finding the first that says the same of the same tensors and ranks, in any step of the
// restart. It may be the finding itself.
std::vector<std::size_t> first_alike(const Diagnosis& diagnosis);
// "also in steps 52 to 60" of ascending steps, or "also in 9 steps from 53 to 99"; empty of none.
std::string also_text(const std::vector<std::int64_t>& steps);
// "check gap, certain, by fingerprints"; nothing of evidence that is not a choice.
std::string check_text(const detect::Finding& finding);
// Whether a finding is of something that was the same bit for bit. Lines that left their histories
// may have other reasons.
bool tells_more_than_lines(const Diagnosis& diagnosis);
// The command that shows the rows of the verdict, or else of what was noticed first. Notices behind
// the first two steps come before those in them. Without any, it shows the most unusual rows.
std::string next_command(const Diagnosis& diagnosis, const std::filesystem::path& run);
// When in a step the rows of a kind are measured.
detect::Stage stage_of_kind(std::string_view kind);

}  // namespace trainmon
