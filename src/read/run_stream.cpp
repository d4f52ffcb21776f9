// What is joined here: the logs of all ranks and restarts, run.json, and what became of windows.
#include "read/run_stream.h"

#include <algorithm>
#include <tuple>

#include "base/parallel.h"
#include "base/text.h"
#include "model/wrapping.h"
#include "read/account.h"
#include "read/completeness.h"
#include "read/declared_order.h"
#include "read/expired_steps.h"
#include "read/log.h"
#include "read/series_numbers.h"
#include "trainmon/config.h"

namespace trainmon {
namespace {

Columns columns_of(const RunStream::Take& take) {
  return take.columns.beside(static_cast<bool>(take.checked), static_cast<bool>(take.sampled),
                             static_cast<bool>(take.payload));
}

void give(const ReadRow& row, const RecordBatch& batch, const RunStream::Take& take) {
  if (!batch.samples.empty()) {
    const auto sample = std::ranges::lower_bound(batch.samples, row.seq, {}, &RowSample::seq);
    if (sample != batch.samples.end() && sample->seq == row.seq) take.sampled(row, *sample);
  }
  const auto check = std::ranges::lower_bound(batch.checks, row.seq, {}, &RowCheck::seq);
  if (check != batch.checks.end() && check->seq == row.seq) return take.checked(row, *check);
  take.row(row);
}

}  // namespace

unsigned threads_with_pieces(unsigned asked) {
  return std::min(useful_threads(asked), 4u);
}

RunStream::RunStream(OpenedRun run, const ReadOptions& options)
    : options_(options), filter_(options), allowance_(run.allowance) {
  const std::vector<RankDirectory>& directories = run.directories;
  std::vector<char> are_newest;
  std::map<int, int> restarts;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const RankDirectory& place = directories[i];
    if (facts_.ranks.empty() || facts_.ranks.back() != place.rank) {
      facts_.ranks.push_back(place.rank);
    }
    if (!filter_.takes_rank(place.rank)) continue;
    are_newest.push_back(is_last(directories, i) ? 1 : 0);
    ++restarts[place.rank];
    facts_.newest_restart = std::max(facts_.newest_restart, place.restart);
  }
  std::erase_if(run.logs,
                [&](const OpenedLog& one) { return !filter_.takes_rank(one.place.rank); });
  for (std::size_t i = 0; i < run.logs.size(); ++i) {
    add(std::move(run.logs[i]), are_newest[i] != 0);
  }
  find_missing(directories);
  std::sort(facts_.kinds.begin(), facts_.kinds.end());
  std::vector<std::string> known_kinds = facts_.kinds;
  known_kinds.insert(known_kinds.end(), run.other_kinds.begin(), run.other_kinds.end());
  filter_.check_kinds(known_kinds);
  facts_.all_restarts = options_.all_restarts;
  for (Directory& directory : directories_) {
    if (!options_.all_restarts && restarts[directory.place.rank] > 1) note_steps(directory);
  }
  if (!options_.all_restarts) {
    const auto is_asked_for = [&](int rank) { return filter_.takes_rank(rank); };
    for (const RankDirectory& place : starts_without(directories, is_asked_for)) {
      note_steps(open_log(place, *allowance_, useful_threads(options_.threads), run.indexes));
    }
  }
  std::map<const LogSeries::Map*, std::shared_ptr<const Wanted>> wanted;
  for (Directory& directory : directories_) {
    const LogSeries::Map& all = directory.log->contents().series;
    std::shared_ptr<const Wanted>& of_all = wanted[&all];
    if (of_all == nullptr) of_all = wanted_of(all);
    directory.wanted = of_all;
    for (const RecordBatch& batch : directory.log->contents().batches) {
      take_small(directory, batch);
    }
  }
  const auto order = [](const ReadScalar& one) {
    return std::tuple(one.restart, one.step, one.rank);
  };
  if (!std::ranges::is_sorted(facts_.scalars, {}, order)) {
    std::ranges::stable_sort(facts_.scalars, {}, order);
  }
  order_declared(facts_.declared, restarts_, options_);
  suggest_names();
  facts_.series = index_.take();
  for (const Series& one : facts_.series) full_shapes_.push_back(kept(one.full_shape));
  facts_.earlier = earlier_.sentences(facts_.newest_restart);
  facts_.killed = killed_.sentences();
  facts_.expired =
      expired_sentences(directories, [&](int rank) { return filter_.takes_rank(rank); });
}

std::shared_ptr<const RunStream::Wanted> RunStream::wanted_of(const LogSeries::Map& all) {
  auto wanted = std::make_shared<Wanted>();
  for (const auto& [id, series] : all) {
    if (!filter_.takes(series)) continue;
    wanted->unified[id] = index_.add(series);
    wanted->optimizers.insert(series.optimizer);
    wanted->series |= LogIndex::BatchFacts::bit(id);
  }
  return wanted;
}

void RunStream::find_missing(const std::vector<RankDirectory>& directories) {
  const bool has_all = std::all_of(options_.ranks.begin(), options_.ranks.end(), [&](int rank) {
    return std::binary_search(facts_.ranks.begin(), facts_.ranks.end(), rank);
  });
  if (!options_.ranks.empty() && has_all) return;
  // A rank asked for is not there: the others know whether it should be.
  for (const RankDirectory& directory : directories) {
    if (filter_.takes_rank(directory.rank) || directory.error) continue;
    std::vector<Damage> not_asked_for;
    expected_.add(read_run_json(directory, not_asked_for));
  }
  facts_.missing = expected_.missing(directories);
  std::erase_if(facts_.missing.ranks, [this](int rank) { return !filter_.takes_rank(rank); });
}

void RunStream::add(OpenedLog&& opened, bool is_newest) {
  const RankDirectory& place = opened.place;
  if (place.error) {
    facts_.damage.push_back({place.path, 0, place.error.message()});
    return;
  }
  const std::optional<StoredHealth>& stored = opened.health;
  facts_.damage.insert(facts_.damage.end(), opened.damage.begin(), opened.damage.end());
  expected_.add(opened.facts);
  const LogContents& log = opened.log->contents();
  facts_.torn_tails += log.torn_tails;
  rows_ += log.rows;
  payloads_ += log.payloads;
  facts_.damage.insert(facts_.damage.end(), log.damage.begin(), log.damage.end());
  if (stored && (stored->closed || log.rows == 0)) hold_against_health(place, stored->health, log);
  Completeness state = completeness_of(place, opened.facts, stored, &log, is_newest);
  if (!is_newest && state.writer == WriterState::gone) killed_.add(place.rank, place.restart);
  if (!state.skips.empty()) facts_.skipped.push_back(std::move(state.skips));
  std::move(state.incomplete.begin(), state.incomplete.end(),
            std::back_inserter(facts_.incomplete));
  facts_.damage.insert(facts_.damage.end(), state.damage.begin(), state.damage.end());
  if (log.files == 0 && log.damage.empty() && log.expired.first_segment == 0) {
    look_for_others(place, stored);
  }
  for (const auto& [id, series] : log.series) {
    if (std::ranges::find(facts_.kinds, series.kind) != facts_.kinds.end()) continue;
    facts_.kinds.push_back(series.kind);
  }
  for (const LogIndex::Piece& piece : opened.log->pieces()) {
    pieces_.push_back({piece, place.rank, place.restart, directories_.size()});
  }
  directories_.emplace_back(Directory{std::move(opened), nullptr});
}

// A segment that is gone or ends early between two frames shows nowhere else. Of a run that was
// not stopped in order the end is missing as a matter of course, but not all of it.
void RunStream::hold_against_health(const RankDirectory& place, const Health& health,
                                    const LogContents& log) {
  const std::int64_t deleted = rows_deleted(log);
  for (const SinkHealth& sink : health.sinks) {
    if (sink.name != "log" || log.rows + deleted >= sink.rows_written) continue;
    if (log.expired.rows < 0) continue;  // of those that were deleted on purpose nobody knows
    std::string what = "health.json says " + grouped(sink.rows_written) +
                       " rows were written, the log holds " + grouped(log.rows);
    if (deleted > 0) what += " and says that " + grouped(deleted) + " were deleted";
    facts_.damage.push_back({place.path, 0, std::move(what)});
  }
}

// A run whose rows went elsewhere: an empty answer must not look like good news. (A start that was
// killed at once has nothing at all.)
void RunStream::look_for_others(const RankDirectory& place,
                                const std::optional<StoredHealth>& stored) {
  std::error_code unknown;
  std::string what;
  if (std::filesystem::exists(place.path / "stats.db", unknown)) {
    what = "; stats.db is read by `trainmon query` and `trainmon convert`";
  } else if (std::filesystem::exists(place.path / "rows-000000.csv", unknown)) {
    what = "; the CSV files are read by `trainmon convert`";
  } else if (!stored || (!stored->closed && stored->health.sinks.empty()) ||
             std::any_of(stored->health.sinks.begin(), stored->health.sinks.end(),
                         [](const SinkHealth& sink) { return sink.name == "log"; })) {
    return;
  }
  facts_.damage.push_back({place.path, 0, "there is no log here" + what});
}

void RunStream::note_steps(const OpenedLog& directory) {
  const int rank = directory.place.rank, restart = directory.place.restart;
  restarts_.set_world_size(restart, directory.facts.world_size);
  restarts_of_scalars_.set_world_size(restart, directory.facts.world_size);
  restarts_.add(rank, restart, directory.timeline);
  const LogContents& log = directory.log->contents();
  log.windows.for_each([&](std::int32_t optimizer, std::int64_t window) {
    restarts_.add(rank, optimizer, directory.timeline.at(optimizer, window).step, restart);
  });
  const int clock = directory.facts.clock;
  for (const RecordBatch& batch : log.batches) {
    for (const Scalar& scalar : batch.scalars) {
      const std::int64_t step = directory.timeline.at(clock, scalar.window).step;
      restarts_of_scalars_.add(rank, clock, step, restart);
    }
  }
}

void RunStream::take_small(Directory& directory, const RecordBatch& batch) {
  const int rank = directory.place.rank, restart = directory.place.restart;
  const int clock = directory.facts.clock;
  for (const Scalar& scalar : batch.scalars) {
    const Outcome at = directory.timeline.at(clock, scalar.window);
    if (!filter_.takes_step(at.step)) continue;
    if (!restarts_.is_newest(rank, clock, at.step, restart) ||
        !restarts_of_scalars_.is_newest(rank, clock, at.step, restart)) {
      continue;
    }
    facts_.scalars.push_back(
        {restart, rank, at.step, scalar.name, scalar.value, scalar.seq, at.attempt});
  }
  for (const Declared& group : batch.declared) {
    const std::int64_t step = directory.timeline.at(group.optimizer, group.window).step;
    for (const DeclaredValue& value : group.values) {
      facts_.declared.push_back(
          {restart, rank, step, group.optimizer, group.group, group.window, value});
    }
  }
  earlier_.add(rank, restart, batch, directory.log->contents().series, directory.timeline, clock);
  for (const Alert& alert : batch.alerts) {
    ReadAlert out{restart, rank, alert};
    out.alert.key.series = index_.add(directory.log->contents().series.at(alert.key.series));
    alerts_.add(std::move(out), facts_.alerts);
  }
  for (const Gap& gap : batch.gaps) facts_.gaps.push_back({restart, rank, gap});
}

// Patterns begin at the root; people often give the end of a name.
void RunStream::suggest_names() {
  const auto takes_any = [this](const std::string& pattern) {
    return std::any_of(directories_.begin(), directories_.end(), [&](const Directory& directory) {
      const auto& series = directory.log->contents().series;
      return std::any_of(series.begin(), series.end(), [&](const auto& known) {
        return name_selected(known.second.name, {pattern}, {});
      });
    });
  };
  for (const std::string& pattern : options_.include) {
    if (takes_any(pattern) || !takes_any("**." + pattern)) continue;
    facts_.suggested.push_back("**." + pattern);
  }
}

const Shape* RunStream::kept(const Shape& shape) const {
  if (shape.size() > log_format::kMaxDimensions) return nullptr;
  const std::lock_guard lock(shapes_mutex_);
  return &*facts_.shapes->insert(shape).first;
}

bool RunStream::takes(const Directory& directory, const Outcome& outcome) const {
  const auto& [rank, restart, path, error] = directory.place;
  return filter_.takes_step(outcome.step) &&
         restarts_.is_newest(rank, outcome.optimizer, outcome.step, restart);
}

RunStream::Selected RunStream::selected(const Directory& directory,
                                        const LogIndex::BatchFacts& batch,
                                        std::optional<std::int64_t> step) const {
  if (batch.rows + batch.payloads == 0 || (batch.series & directory.wanted->series) == 0) {
    return Selected::none;
  }
  if (!step && !options_.first_step && !options_.last_step && restarts_.empty()) {
    return Selected::all;
  }
  // Batches are short; of one that is not, every row is looked at.
  constexpr std::int64_t kFewWindows = 64;
  const std::int64_t windows = wrapping_difference(batch.last_window, batch.first_window);
  if (windows < 0 || windows >= kFewWindows) return Selected::some;
  bool is_any = false, are_all = true;
  for (const std::int32_t optimizer : directory.wanted->optimizers) {
    for (std::int64_t window = batch.first_window;; ++window) {
      Outcome outcome = directory.timeline.at(optimizer, window);
      outcome.optimizer = optimizer;
      const bool is_selected =
          outcome.step == step.value_or(outcome.step) && takes(directory, outcome);
      is_any = is_any || is_selected;
      are_all = are_all && is_selected;
      if (window == batch.last_window) break;
    }
  }
  return !is_any ? Selected::none : are_all ? Selected::all : Selected::some;
}

std::int64_t RunStream::read(const Piece& piece, const Take& take,
                             std::vector<Damage>& damage) const {
  const Directory& directory = directories_[piece.directory];
  if (directory.log == nullptr) return 0;  // forgotten
  const Selected of_all = selected(directory, piece.facts, take.step);
  if (of_all == Selected::none) return 0;
  if (of_all == Selected::all && !take.gives(piece.facts) && directory.wants_all()) {
    return piece.facts.rows;
  }
  const std::optional<std::int64_t> acc_steps = directory.facts.grad_acc_steps;
  const SeriesNumbers number_of(directory.wanted->unified);
  // What holds for all rows of a window.
  struct Place {
    Outcome outcome{-1, -1};
    bool is_selected = false;
  } place;
  const auto find_place = [&](std::int32_t optimizer, std::int64_t window) {
    if (place.outcome.optimizer == optimizer && place.outcome.window == window) return;
    place.outcome = directory.timeline.at(optimizer, window);
    place.outcome.optimizer = optimizer;
    place.outcome.window = window;
    place.is_selected = place.outcome.step == take.step.value_or(place.outcome.step) &&
                        takes(directory, place.outcome);
  };
  std::int64_t rows = 0;
  ReadRow out;
  out.restart = piece.restart;
  out.rank = piece.rank;
  std::vector<const Shape*> listed;  // by the batch
  const auto take_batch = [&](RecordBatch&& batch, const LogIndex::BatchFacts& facts) {
    if (batch.rows.empty() && batch.payloads.empty()) return;
    const bool is_given = take.gives(facts);
    listed.clear();
    for (const Shape& shape : batch.shapes) listed.push_back(kept(shape));
    for (const Row& row : batch.rows) {
      out.series = static_cast<std::uint32_t>(number_of(row.key.series));
      find_place(facts_.series[out.series].optimizer, row.key.window);
      if (!place.is_selected) continue;
      ++rows;
      if (!is_given) continue;
      out.window = row.key.window;
      out.step = place.outcome.step;
      out.attempt = place.outcome.attempt;
      out.fate = place.outcome.fate;
      out.loss_scale = place.outcome.loss_scale;
      out.accum = row.key.accum;
      out.micro_step =
          acc_steps ? static_cast<std::int32_t>(row.key.accum % *acc_steps) : row.key.accum;
      out.call = row.key.call;
      out.seq = row.key.seq;
      out.flags = row.key.flags;
      out.shape = row.shape == kUnknownShape ? nullptr
                  : row.shape == kFullShape  ? full_shapes_[out.series]
                                             : listed[row.shape - kFirstShape];
      out.state = row.state;
      give(out, batch, take);
    }
    if (!take.payload || !is_given) return;
    for (Payload& payload : batch.payloads) {
      const auto series = static_cast<std::uint32_t>(number_of(payload.key.series));
      find_place(facts_.series[series].optimizer, payload.key.window);
      if (!place.is_selected) continue;
      take.payload({piece.restart, piece.rank, series, place.outcome.step, place.outcome.attempt,
                    place.outcome.fate, std::move(payload)});
    }
  };
  const auto wanted = [&](SeriesId id) { return number_of(id) >= 0; };
  constexpr Columns kToCount = {log_format::Column::series, log_format::Column::window};
  const Columns columns = columns_of(take);
  const auto choose = [&](const LogIndex::BatchFacts& batch) -> std::optional<Columns> {
    const Selected windows = selected(directory, batch, take.step);
    if (windows == Selected::none) return std::nullopt;
    if (take.gives(batch)) return columns;
    if (windows == Selected::some || !directory.wants_all()) return kToCount;
    rows += batch.rows;
    return std::nullopt;
  };
  directory.log->read(piece, wanted, choose, take_batch, damage);
  return rows;
}

}  // namespace trainmon
