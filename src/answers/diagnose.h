// What went wrong first: the equations of a step, checked over all ranks of a run.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "detect/checks.h"
#include "detect/findings.h"
#include "trainmon/read.h"

namespace trainmon {

struct Diagnosis {
  RunRows run;  // without rows and payloads
  std::int64_t rows = 0;
  std::vector<detect::Tensor> tensors;    // that findings name by number
  std::vector<detect::Finding> findings;  // by step, then in the order of a step
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
};

// Of the newest restart of each step. Memory is that of a few pieces of each rank. Throws as
// read_run().
Diagnosis diagnose(const std::filesystem::path& run, const ReadOptions& options = {});
// {"verdict": null | F, "findings": [F, ...], "checked": {check: times}, "evidence": {check:
// {evidence: times}}, "not_checked": [{"check", "why"}]} with F = {"step", "restart", "check",
// "stage", "ranks", "tensors", "layers", "value", "bound", "evidence", "certain", "text"}.
std::string diagnosis_json(const Diagnosis& diagnosis);
// What a finding names, as people write it: all tensors, or a few and how many more.
std::string tensors_text(const Diagnosis& diagnosis, const detect::Finding& finding);

}  // namespace trainmon
