// Rows come rank by rank; the engine wants them step by step. So ranks are read side by side, and a
// step is complete when no rank can have more of it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "detect/engine.h"
#include "detect/parameters.h"
#include "read/run_stream.h"
#include "trainmon/first_bad.h"

namespace trainmon {

// The tensors that have a NaN or an infinity where the first of all was found. That is one step,
// its ranks, and what is measured at one time. Which of them was first cannot be told.
class FoundTogether {
 public:
  explicit FoundTogether(const std::optional<FirstBad>& bad);
  void take(const ReadRow& row, const detect::Observation& one);
  const std::set<std::uint32_t>& tensors() const { return tensors_; }
  // Whether it looks where the other one does.
  bool is_like(const FoundTogether& other) const;

 private:
  int quantity_ = -1;
  std::int32_t restart_ = 0;
  std::int64_t step_ = 0;
  std::set<int> ranks_;
  std::set<std::uint32_t> tensors_;
};

// The checks of a run: of a whole one, or of one that grows. A copy goes on by itself. One thread.
class StepsInOrder {
 public:
  // `ranks`: those that should be there, ascending. `is_whole`: no row is left out, so that norms
  // of all gradients can be told.
  StepsInOrder(std::shared_ptr<const detect::Parameters> parameters,
               std::vector<std::int32_t> ranks, const std::optional<FirstBad>& bad, bool is_whole)
      : parameters_(std::move(parameters)),
        rank_count_(ranks.size()),
        is_whole_(is_whole),
        engine_(parameters_->tensors(), std::move(ranks)),
        together_(bad) {}

  // As that of the engine; before rows are read.
  void know_formula(int rank, int optimizer) { engine_.know_formula(rank, optimizer); }
  void leave_out_by_hand() { engine_.leave_out_by_hand(); }
  // Before rows are read, and again when the run was opened again: `stream` must live as long as
  // rows of it are read.
  void follow(const RunStream& stream);
  // Reads all rows of a run.
  void read_whole(const RunStream& stream, std::vector<Damage>& damage);

  // Of a run that grows: rows behind those that were read, in the order of each rank. A step is
  // checked when all ranks are some steps further.
  void read_on(const RunStream& stream, std::span<const RunStream::Piece> pieces,
               std::vector<Damage>& damage);
  // Checks the last steps.
  void end() { take_complete(kEnd); }
  // Rows came so late that read_whole() might have left them out, or some rank is so far behind
  // that too much would be kept.
  bool is_disordered() const { return is_disordered_; }
  // Whether the steps that were checked would be checked in the same way again.
  bool holds(const RunRows& run, const std::optional<FirstBad>& bad) const;

  std::int64_t rows() const { return rows_; }
  std::size_t ranks() const { return rank_count_; }
  const std::vector<detect::Tensor>& tensors() const { return parameters_->tensors(); }
  const detect::Findings& findings() const { return engine_.findings(); }
  detect::Findings findings_at_end() const { return engine_.findings_at_end(); }
  // Tensors of which a row has a check, of which one has none, and those of FoundTogether.
  const std::set<std::uint32_t>& checked() const { return checked_; }
  const std::set<std::uint32_t>& unchecked() const { return unchecked_; }
  const std::set<std::uint32_t>& together() const { return together_.tensors(); }
  // By rank, the steps whose rows were left out. Other ranks went through them again in a newer
  // start, which this rank has no rows of.
  const std::map<int, std::set<std::int64_t>>& left_out() const { return left_out_; }

 private:
  static constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kBegin = std::numeric_limits<std::int64_t>::min();
  struct Rank {
    std::int64_t newest = kBegin;    // step that was read
    std::int64_t before = kBegin;    // the newest one before the newest piece
    std::int64_t complete = kBegin;  // of a run that grows: steps before this one are whole
    std::int64_t open = kBegin;      // the newest of which it is not known what became of it
    std::size_t pieces_left = 0;     // of a whole run, not read yet
  };
  // How much was told of steps up to one.
  struct Told {
    std::size_t declared = 0;
    std::size_t scalars = 0;
    bool operator==(const Told&) const = default;
  };
  // Evidence of a step, and the ranks whose rows are in it or are of an older start.
  struct Open {
    detect::StepEvidence evidence;
    std::vector<int> ranks, older;
  };
  // The number of a start for all ranks.
  int start_of(int rank, int restart) const;
  bool is_told(const ReadScalar& one) const;
  Told told_until(const RunRows& run, std::int64_t step) const;
  void tell(std::int64_t step);
  using Pieces =
      std::map<int, std::vector<const RunStream::Piece*>>;  // by rank, the last one first
  int furthest_behind(const Pieces& pieces) const;
  void read(const RunStream& stream, const RunStream::Piece& piece, std::vector<Damage>& damage);
  void add_of_module(Rank& rank, const ReadRow& row, const RowCheck* check);
  // The evidence of the step of a row. It is nullptr where the row is of an older start or comes
  // too late: its step was checked without it.
  detect::StepEvidence* open(Rank& rank, const ReadRow& row);
  // Where ranks began a start at different steps and yet stepped together, their first steps are
  // one: that of the rank that is furthest. False where there is none such.
  bool align(const RunStream& stream, std::vector<Damage>& damage);
  bool step_together(const RunStream& stream, int restart, std::int32_t optimizer,
                     const std::map<int, std::int64_t>& starts, std::vector<Damage>& damage) const;
  std::int64_t aligned(int restart, int rank, std::int32_t optimizer, std::int64_t step) const;
  const std::vector<ReadDeclared>& declared() const {
    return shifts_.empty() ? run_->declared : declared_;
  }
  void take_complete(std::int64_t until);
  bool is_torn(std::int64_t step) const;

  std::shared_ptr<const detect::Parameters> parameters_;
  std::size_t rank_count_;
  bool is_whole_;
  detect::Engine engine_;
  FoundTogether together_;
  const RunRows* run_ = nullptr;
  // By step: norms of gradients, and evaluations.
  std::map<std::int64_t, std::vector<const ReadScalar*>> told_with_step_;
  std::map<std::tuple<int, int, std::int32_t>, std::int64_t>
      shifts_;                          // by start, rank and optimizer, see align()
  std::vector<ReadDeclared> declared_;  // of the run, where there are shifts
  Told told_;                           // of steps that were checked
  std::map<int, Rank> ranks_;
  std::set<std::uint32_t> checked_, unchecked_;
  StartNumbers numbers_;  // of starts, by rank and restart
  std::map<std::int64_t, Open> steps_;
  std::map<int, std::set<std::int64_t>> left_out_;
  std::int64_t next_step_ = kBegin;
  std::int64_t rows_ = 0;
  bool grows_ = false;
  bool is_disordered_ = false;
};

}  // namespace trainmon
