// What a pass has found, as it is told, and what it must have known beforehand.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/text.h"
#include "compare/comparison.h"
#include "model/first_bad.h"
#include "model/rounding.h"

namespace trainmon {
namespace {

// Tensors of `run` that `others` lacks.
std::vector<std::string> only_here(const TensorTable& tensors, const TensorTable& others) {
  std::set<std::string_view> there;
  for (const std::uint32_t i : others.in_order()) there.insert(others[i].match);
  std::vector<std::string> list;
  for (const std::uint32_t i : tensors.in_order()) {
    if (!there.contains(tensors[i].match)) list.push_back(tensor_text(tensors[i]));
  }
  return list;
}

}  // namespace

void SideSteps::begin() {
  run_->steps->rewind();
  advance();
}

void SideSteps::advance() {
  has_forms_[0] = has_forms_[1] = false;
  is_at_end_ = !run_->steps->next(now_);
}

const std::vector<ComparedRow>& SideSteps::rows(bool by_rank) {
  if (now_.merged.empty() && now_.by_rank.empty()) return now_.rows;
  const std::size_t form = by_rank ? 1 : 0;
  std::vector<ComparedRow>& rows = forms_[form];
  if (has_forms_[form]) return rows;
  has_forms_[form] = true;
  const std::vector<ComparedRow>& activations = by_rank ? now_.by_rank : now_.merged;
  rows = now_.rows;
  rows.insert(rows.end(), activations.begin(), activations.end());
  return rows;
}

void SideSteps::describe(const std::vector<ComparedRow>& rows) {
  if (rows.empty()) return;
  rows_ += static_cast<std::int64_t>(rows.size());
  if (first_step_ < 0) first_step_ = now_.step;
  last_step_ = std::max(last_step_, now_.step);
  std::int32_t last = rows[0].rank;
  ranks_.insert(last);
  for (const ComparedRow& row : rows) {
    if (row.rank != last) ranks_.insert(row.rank);
    last = row.rank;
  }
}

void SideSteps::fill(ComparedSide& side) const {
  side.rows = rows_;
  side.first_step = first_step_;
  side.last_step = last_step_;
  side.ranks.assign(ranks_.begin(), ranks_.end());
  std::set<std::string> kinds;
  for (const std::uint32_t i : run_->tensors.in_order()) kinds.insert(run_->tensors[i].kind);
  side.kinds.assign(kinds.begin(), kinds.end());
}

void Comparison::note_backward(const Rows& a) {
  for (const ComparedRow& row : a) {
    if (!uses_[row.tensor].is_unreduced) continue;
    std::uint64_t& first = first_seq_.try_emplace(row.tensor, row.seq).first->second;
    first = std::min(first, row.seq);
  }
}

void Comparison::note_whole_runs(const Look& look) {
  // Sizes that differ prove that shares do.
  if (look.use.is_of_share && look.a.values[kCount] != look.b.values[kCount] &&
      !std::isnan(look.a.values[kCount]) && !std::isnan(look.b.values[kCount])) {
    has_other_shares_ = true;
  }
  if (!look.use.is_weight) return;
  const double size = std::fmax(look.a.values[kCount], 0.0);
  last_size_[look.pair.tensor] = size;
  double& largest_of_module = largest_weight_[look.use.module];
  largest_of_module = std::max(largest_of_module, size);
}

WholeRuns Comparison::whole_runs() const {
  WholeRuns whole;
  whole.has_other_shares = has_other_shares_;
  whole.first_moves = weight_steps_.first_moves();
  std::map<std::string, std::uint64_t> by_name;
  std::set<std::uint64_t> seqs;
  const auto name_of = [](const ComparedTensor& tensor) {
    return std::to_string(tensor.chunk) + ":" + tensor.name;
  };
  for (const std::uint32_t i : a_.tensors.in_order()) {
    const int moment = moment_of(a_.tensors[i].kind);
    if (moment == 1 || moment == 2) {
      whole.roundoff = std::max(whole.roundoff, unit_roundoff(a_.tensors[i].dtype));
    }
    if (i < uses_.size() && uses_[i].is_weight && last_size_[i] >= 0.0 &&
        last_size_[i] < largest_weight_[uses_[i].module]) {
      whole.biases.insert(i);
    }
    const auto seq = first_seq_.find(i);
    if (seq == first_seq_.end()) continue;
    by_name[name_of(a_.tensors[i])] = seq->second;
  }
  // Their order is all that counts.
  for (const auto& [name, seq] : by_name) seqs.insert(seq);
  for (const std::uint32_t i : a_.tensors.in_order()) {
    if (moment_of(a_.tensors[i].kind) != kReducedMoment) continue;
    const auto known = by_name.find(name_of(a_.tensors[i]));
    if (known == by_name.end()) continue;
    whole.backward[i] =
        static_cast<std::uint64_t>(std::distance(seqs.begin(), seqs.find(known->second)));
  }
  const auto have_common = [](const ComparedRun& x, const ComparedRun& y) {
    if (x.world_size != 0 && y.world_size != 0 && x.world_size != y.world_size) return false;
    return std::ranges::any_of(x.steps->ranks_of_activations(), [&](std::int32_t rank) {
      return y.steps->ranks_of_activations().contains(rank);
    });
  };
  whole.is_by_rank = have_common(a_, b_);
  whole.is_null_by_rank = null_ != nullptr && have_common(a_, *null_);
  return whole;
}

CompareReport Comparison::report() {
  if (null_ != nullptr) {
    report_.null = null_->side;
    steps_null_->fill(*report_.null);
    fill_lacks(*report_.null, null_paired_->b(), a_.tensors);
    if (noise_.is_zero() && report_.null->not_used.empty() && null_paired_->a().unmatched == 0) {
      report_.remarks.insert(
          report_.remarks.begin(),
          "the repeated run is equal to A to the bit: it says nothing of how runs wander");
    }
  }
  if (without_value_ > 0) {
    const auto& [step, tensor] = first_without_value_;
    report_.remarks.push_back(
        "not compared: " + grouped(without_value_) + (without_value_ == 1 ? " pair" : " pairs") +
        " of rows whose values are estimates, or not finite in both runs; the first is " +
        tensor_text(a_.tensors[tensor]) + ", step " + std::to_string(step));
  }
  report_.a = a_.side;
  report_.b = b_.side;
  steps_a_.fill(report_.a);
  steps_b_.fill(report_.b);
  fill_lacks(report_.a, paired_.a(), b_.tensors);
  fill_lacks(report_.b, paired_.b(), a_.tensors);
  fill_worst(report_);
  fill_levels(report_);
  return std::move(report_);
}

void Comparison::fill_lacks(ComparedSide& side, const PairedSide& paired,
                            const TensorTable& others) const {
  const TensorTable& tensors = *paired.tensors;
  side.unmatched = paired.unmatched;
  side.only_here = only_here(tensors, others);
  std::set<std::string_view> there;
  for (const std::uint32_t i : others.in_order()) there.insert(others[i].match);
  for (const std::uint32_t i : tensors.in_order()) {
    const auto lack = paired.lacks.find(i);
    if (lack == paired.lacks.end() || !there.contains(tensors[i].match)) continue;
    const std::int64_t rows = lack->second.rows;
    side.rows_only_here.push_back(
        tensor_text(tensors[i]) + ": step " + std::to_string(lack->second.first_step) +
        (rows > 1 ? " and later, " + std::to_string(rows) + " rows" : ""));
  }
}

Difference Comparison::difference(const Found& found) const {
  const ComparedTensor& tensor = a_.tensors[found.tensor];
  Difference out;
  out.step = found.step;
  out.attempt = found.attempt;
  out.micro_step = found.micro_step;
  out.call = found.call;
  out.rank = found.rank;
  out.kind = tensor.kind;
  out.chunk = tensor.chunk;
  out.name = tensor.name;
  out.element = tensor.element;
  out.stat = stat_name(kComparedStats[found.stat]);
  out.a = found.a;
  out.b = found.b;
  out.difference = found.difference;
  out.tolerance = found.tolerance;
  out.ratio = found.ratio;
  return out;
}

void Comparison::fill_worst(CompareReport& report) const {
  report.tensors = static_cast<std::int64_t>(worst_.size());
  std::vector<const Found*> worst;
  for (const std::uint32_t i : a_.tensors.in_order()) {
    const auto found = worst_.find(i);
    if (found == worst_.end()) continue;
    report.tensors_beyond += found->second.ratio > 1.0 ? 1 : 0;
    worst.push_back(&found->second);
  }
  std::ranges::stable_sort(worst, std::less(),
                           [](const Found* one) { return std::pair(-one->ratio, one->step); });
  if (worst.size() > options_.worst) worst.resize(options_.worst);
  for (const Found* one : worst) report.worst.push_back(difference(*one));
}

void Comparison::fill_levels(CompareReport& report) const {
  for (const auto& [kind, number] : kinds_) {
    for (const Level& level : levels_[static_cast<std::size_t>(number)]) {
      const ComparedTensor& tensor = a_.tensors[level.tensor];
      report.levels.push_back({kind, level.step, level.ratio,
                               tensor.name + (tensor.element.empty() ? "" : " " + tensor.element)});
    }
  }
}

}  // namespace trainmon
