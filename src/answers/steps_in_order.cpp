// A growing run is read in the same order as a whole one but for rows that come very late. Those
// are noticed.
#include "answers/steps_in_order.h"

#include <algorithm>
#include <utility>

#include "answers/diagnose.h"
#include "detect/checks.h"
#include "model/first_bad.h"
#include "model/own_scalars.h"

namespace trainmon {
namespace {

constexpr std::int64_t kBehind = 8;     // steps for which late rows are waited for
constexpr std::size_t kMostHeld = 512;  // steps
const std::vector<const ReadScalar*> kNone;

}  // namespace

FoundTogether::FoundTogether(const std::optional<FirstBad>& bad) {
  if (!bad) return;
  quantity_ = detect::quantity_of(bad->series.kind);
  // Backward computes unreduced gradients one after another: there the first is known.
  if (quantity_ == static_cast<int>(detect::Quantity::grad_unreduced)) quantity_ = -1;
  restart_ = bad->row.restart;
  step_ = bad->row.step;
  ranks_.insert(bad->ranks.begin(), bad->ranks.end());
}

void FoundTogether::take(const ReadRow& row, const detect::Observation& one) {
  if (!is_bad(row.flags, row.state) || static_cast<int>(one.quantity) != quantity_) return;
  if (row.restart != restart_ || row.step != step_ || !ranks_.contains(row.rank)) return;
  tensors_.insert(one.tensor);
}

bool FoundTogether::is_like(const FoundTogether& other) const {
  return quantity_ == other.quantity_ && restart_ == other.restart_ && step_ == other.step_ &&
         ranks_ == other.ranks_;
}

bool StepsInOrder::is_told(const ReadScalar& one) const {
  return one.name == kEditScalar || one.name == kEvaluationScalar || one.name == kUnclearedScalar ||
         one.name == kUnreadScalar || one.name == kUnevenScalar ||
         one.name == kOtherOptimizerScalar || (is_whole_ && detect::is_gradient_norm(one.name));
}

int StepsInOrder::start_of(int rank, int restart) const {
  return start_number(numbers_, rank, restart);
}

void StepsInOrder::follow(const RunStream& stream) {
  const RunRows& run = stream.facts();
  run_ = &run;
  StartNumbers numbers = stream.start_numbers();
  is_disordered_ = is_disordered_ || (next_step_ != kBegin && numbers != numbers_);
  numbers_ = std::move(numbers);
  for (const auto& [start, ranks] : stream.ranks_of_starts()) engine_.tell_ranks(start, ranks);
  told_with_step_.clear();
  for (const ReadScalar& one : run.scalars) {
    const int start = start_of(one.rank, one.restart);
    if (one.name == kEditScalar) engine_.announce_edit(start, one.rank, one.seq);
    if (one.name != kEditScalar && is_told(one)) told_with_step_[one.step].push_back(&one);
  }
  for (const ReadGap& one : run.gaps) {
    engine_.announce_loss(start_of(one.rank, one.restart), one.rank);
  }
}

StepsInOrder::Told StepsInOrder::told_until(const RunRows& run, std::int64_t step) const {
  Told told;
  const auto is_until = [&](const auto& one) { return one.step <= step; };
  // In the order of steps.
  told.declared = static_cast<std::size_t>(std::ranges::partition_point(run.declared, is_until) -
                                           run.declared.begin());
  told.scalars = static_cast<std::size_t>(std::ranges::count_if(
      run.scalars, [&](const ReadScalar& one) { return is_until(one) && is_told(one); }));
  return told;
}

bool StepsInOrder::holds(const RunRows& run, const std::optional<FirstBad>& bad) const {
  if (!together_.is_like(FoundTogether(bad))) return false;
  return next_step_ == kBegin || told_until(run, next_step_ - 1) == told_;
}

// Gives the engine what the groups say as steps go by.
void StepsInOrder::tell(std::int64_t step) {
  const auto logged = told_with_step_.find(step);
  // Before what the new one declares.
  for (const ReadScalar* one : logged == told_with_step_.end() ? kNone : logged->second) {
    if (one->name != kOtherOptimizerScalar) continue;
    engine_.tell_other_optimizer(start_of(one->rank, one->restart), one->rank, one->value);
  }
  const std::vector<ReadDeclared>& all = declared();
  for (; told_.declared < all.size() && all[told_.declared].step <= step; ++told_.declared) {
    const ReadDeclared& one = all[told_.declared];
    engine_.declare(start_of(one.rank, one.restart), one.rank, one.optimizer, one.group,
                    one.value.name, detect::number_of(one.value));
  }
  if (logged == told_with_step_.end()) return;
  for (const ReadScalar* one : logged->second) {
    if (one->name == kOtherOptimizerScalar) continue;
    const int start = start_of(one->rank, one->restart);
    if (one->name == kEvaluationScalar) {
      engine_.tell_evaluation(start, one->rank, static_cast<std::int32_t>(one->value));
      continue;
    }
    if (one->name == kUnclearedScalar) {
      engine_.tell_uncleared(start, one->rank, static_cast<std::int32_t>(one->value));
      continue;
    }
    if (one->name == kUnreadScalar) {
      engine_.tell_unread(start, one->rank, static_cast<std::int32_t>(one->value));
      continue;
    }
    if (one->name == kUnevenScalar) {
      engine_.tell_uneven(start);
      continue;
    }
    engine_.log_norm(start, one->rank, {one->name, one->value});
  }
}

int StepsInOrder::furthest_behind(const Pieces& pieces) const {
  const auto newest = [&](const auto& one) { return ranks_.at(one.first).newest; };
  return std::ranges::min_element(pieces, {}, newest)->first;
}

void StepsInOrder::read_whole(const RunStream& stream, std::vector<Damage>& damage) {
  align(stream, damage);
  // The steps of a piece are kept until all ranks have come so far: many ranks, small pieces.
  constexpr std::int64_t kMostRows = std::int64_t{1} << 19;
  const auto logs = static_cast<std::int64_t>(std::max<std::size_t>(1, stream.log_count()));
  const std::vector<RunStream::StepPiece> pieces =
      stream.pieces_by_step(std::min(LogIndex::kEnoughRows, kMostRows / logs));
  for (const RunStream::Piece& piece : pieces) ++ranks_[piece.rank].pieces_left;
  for (const RunStream::StepPiece& piece : pieces) {
    take_complete(piece.first_step);
    --ranks_[piece.rank].pieces_left;
    read(stream, piece, damage);
  }
  take_complete(kEnd);
}

void StepsInOrder::read_on(const RunStream& stream, std::span<const RunStream::Piece> given,
                           std::vector<Damage>& damage) {
  grows_ = true;
  is_disordered_ = is_disordered_ || (next_step_ == kBegin && align(stream, damage));
  for (const int rank : stream.facts().ranks) ranks_[rank];
  Pieces pieces;
  for (const RunStream::Piece& piece : given) pieces[piece.rank].push_back(&piece);
  for (auto& [rank, list] : pieces) std::ranges::reverse(list);
  while (!pieces.empty() && !is_disordered_) {
    const int number = furthest_behind(pieces);
    read(stream, *pieces[number].back(), damage);
    pieces[number].pop_back();
    if (pieces[number].empty()) pieces.erase(number);
    std::int64_t complete = kEnd;
    for (const auto& [rank, one] : ranks_) complete = std::min(complete, one.newest);
    if (complete > kBegin + kBehind) take_complete(complete - kBehind);
    is_disordered_ = is_disordered_ || steps_.size() > kMostHeld;
  }
  if (next_step_ != kBegin) told_ = told_until(*run_, next_step_ - 1);
}

std::int64_t StepsInOrder::aligned(int restart, int rank, std::int32_t optimizer,
                                   std::int64_t step) const {
  if (shifts_.empty()) return step;
  const auto shift = shifts_.find({restart, rank, optimizer});
  return shift == shifts_.end() ? step : step + shift->second;
}

bool StepsInOrder::align(const RunStream& stream, std::vector<Damage>& damage) {
  std::map<std::pair<int, std::int32_t>, std::map<int, std::int64_t>> starts;
  for (const RunStream::Start& one : stream.starts()) {
    starts[{start_of(one.rank, one.restart), one.optimizer}][one.rank] = one.step;
  }
  bool is_any = false;
  for (const auto& [place, steps] : starts) {
    const auto by_step = [](const auto& one) { return one.second; };
    const auto [least, most] = std::ranges::minmax_element(steps, {}, by_step);
    if (least->second == most->second) continue;
    is_any = true;
    const auto [restart, optimizer] = place;
    const bool are_aligned = step_together(stream, restart, optimizer, steps, damage);
    engine_.tell_start(restart, {steps.begin(), steps.end()}, are_aligned);
    if (!are_aligned) continue;
    for (const auto& [rank, step] : steps) {
      if (step != most->second) shifts_[{restart, rank, optimizer}] = most->second - step;
    }
  }
  if (shifts_.empty()) return is_any;
  declared_ = run_->declared;
  for (ReadDeclared& one : declared_) {
    one.step = aligned(start_of(one.rank, one.restart), one.rank, one.optimizer, one.step);
  }
  std::ranges::stable_sort(declared_, {}, &ReadDeclared::step);
  told_with_step_.clear();
  return true;
}

// Gradients that ranks use in the first step of each are the same, bit for bit.
bool StepsInOrder::step_together(const RunStream& stream, int restart, std::int32_t optimizer,
                                 const std::map<int, std::int64_t>& starts,
                                 std::vector<Damage>& damage) const {
  std::map<std::uint32_t, std::map<int, detect::Observation>> gradients;  // by tensor, rank
  const auto add = [&](const ReadRow& row, const RowCheck* check) {
    if (run_->series[row.series].optimizer != optimizer) return;
    const auto one = parameters_->observe(row.series, row.state, row.flags, row.loss_scale, check);
    if (!one || one->quantity != detect::Quantity::grad_reduced) return;
    gradients[one->tensor].insert_or_assign(row.rank, *one);
  };
  for (const RunStream::Piece& piece : stream.pieces()) {
    const auto start = starts.find(piece.rank);
    if (start == starts.end() || start_of(piece.rank, piece.restart) != restart) continue;
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { add(row, nullptr); };
    take.checked = [&](const ReadRow& row, const RowCheck& check) { add(row, &check); };
    take.step = start->second;
    stream.read(piece, take, damage);
  }
  std::size_t same = 0, others = 0;
  for (const auto& [tensor, ranks] : gradients) {
    const detect::Observation& first = ranks.begin()->second;
    const bool are_same =
        ranks.size() == starts.size() && first.absmax > 0.0 &&
        std::ranges::all_of(ranks, [&](const auto& one) { return are_equal(one.second, first); });
    ++(are_same ? same : others);
  }
  return same > 1 && same > others;
}

void StepsInOrder::read(const RunStream& stream, const RunStream::Piece& piece,
                        std::vector<Damage>& damage) {
  Rank& rank = ranks_[piece.rank];
  if (grows_ && !piece.is_rest) {
    rank.complete = rank.before;
    rank.before = rank.newest;
  }
  const auto add = [&](const ReadRow& row, const RowCheck* check) {
    std::optional<detect::Observation> one =
        parameters_->observe(row.series, row.state, row.flags, row.loss_scale, check);
    if (!one) return add_of_module(rank, row, check);
    one->rank = row.rank;
    one->attempt = row.attempt;
    one->accum = row.accum;
    one->seq = row.seq;
    together_.take(row, *one);
    if (row.fate == Fate::skipped) return;
    (check == nullptr ? unchecked_ : checked_).insert(one->tensor);
    if (detect::StepEvidence* const evidence = open(rank, row)) evidence->add(*one);
  };
  RunStream::Take take;
  take.row = [&](const ReadRow& row) { add(row, nullptr); };
  take.checked = [&](const ReadRow& row, const RowCheck& check) { add(row, &check); };
  rows_ += stream.read(piece, take, damage);
}

// What the model is given, or what a module returns.
void StepsInOrder::add_of_module(Rank& rank, const ReadRow& row, const RowCheck* check) {
  if (row.fate == Fate::skipped || !parameters_->is_of_module(row.series)) return;
  if (detect::StepEvidence* const evidence = open(rank, row)) {
    parameters_->add_of_module(*evidence, row.series, row.state, check,
                               {row.rank, row.accum, row.call, row.seq});
  }
}

detect::StepEvidence* StepsInOrder::open(Rank& rank, const ReadRow& row) {
  const int start = start_of(row.rank, row.restart);
  const std::int64_t step = aligned(start, row.rank, run_->series[row.series].optimizer, row.step);
  rank.newest = std::max(rank.newest, step);
  if (row.fate == Fate::unknown) {
    rank.open = std::max(rank.open, step);
  } else if (rank.open == step) {
    rank.open = kBegin;  // an earlier attempt at the step was given up
  }
  if (grows_ && step < std::max(next_step_, rank.complete)) is_disordered_ = true;
  if (step < next_step_) return nullptr;
  const auto [at, is_new] = steps_.try_emplace(step, Open{{start, step}, {}, {}});
  Open& open = at->second;
  if (start > open.evidence.restart) {
    open.older.insert(open.older.end(), open.ranks.begin(), open.ranks.end());
    open.ranks.clear();
    open.evidence = {start, step};
  }
  const bool is_newest = start == open.evidence.restart;
  std::vector<int>& ranks = is_newest ? open.ranks : open.older;
  if (ranks.empty() || ranks.back() != row.rank) ranks.push_back(row.rank);
  return is_newest ? &open.evidence : nullptr;
}

void StepsInOrder::take_complete(std::int64_t until) {
  while (!steps_.empty() && steps_.begin()->first < until) {
    const std::int64_t step = steps_.begin()->first;
    tell(step);
    Open& open = steps_.begin()->second;
    for (const int rank : open.older) {
      if (std::ranges::find(open.ranks, rank) == open.ranks.end()) left_out_[rank].insert(step);
    }
    if (is_torn(step)) {
      engine_.note_open(open.evidence);
    } else {
      engine_.take(std::move(open.evidence));
    }
    steps_.erase(steps_.begin());
    next_step_ = step + 1;
  }
}

// Whether a rank was in the middle of this step when its record ended, so far or for good.
bool StepsInOrder::is_torn(std::int64_t step) const {
  return std::ranges::any_of(ranks_, [&](const auto& one) {
    return one.second.pieces_left == 0 && one.second.open == step && one.second.newest == step;
  });
}

}  // namespace trainmon
