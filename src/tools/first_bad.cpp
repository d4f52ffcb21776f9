// Two looks: one for the first bad row of each restart, one at what else the first of all saw.
#include "tools/first_bad.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "base/parallel.h"
#include "tools/run_stream.h"

namespace trainmon {

bool is_bad(const ReadRow& row) {
  return (row.flags & flag::kNonFinite) != 0 || row.state.non_finite();
}

BadPlace place_of(const RunRows& run, const ReadRow& row) {
  Outcome outcome;
  outcome.step = row.step;
  outcome.attempt = row.attempt;
  outcome.fate = row.fate;
  BadPlace place = bad_place(run.series[row.series].kind, row.accum, row.seq, outcome);
  // Where only the newest restart of each step is shown it is the only one, whichever that is.
  place.run_through = run.all_restarts ? row.restart : 0;
  place.rank = row.rank;
  place.restart = row.restart;
  return place;
}

std::string place_text(const ReadRow& row, const Series& series) {
  std::string text = "step " + std::to_string(row.step) + ", rank " + std::to_string(row.rank) +
                     ", " + series.kind + " " + (series.name.empty() ? "(root)" : series.name);
  return series.element.empty() ? text : text + " " + series.element;
}

namespace {

// The first bad row of each restart.
class FirstRows {
 public:
  explicit FirstRows(const RunRows& run) : run_(&run) {}

  void add(const ReadRow& row) {
    ++rows_;
    if (is_bad(row)) keep(row);
  }
  void add(const FirstRows& other) {
    rows_ += other.rows_;
    for (const auto& [restart, row] : other.first_) keep(row);
  }
  std::int64_t rows() const { return rows_; }
  const std::map<std::int32_t, ReadRow>& of_restarts() const { return first_; }
  const ReadRow* first() const {
    const auto found =
        std::min_element(first_.begin(), first_.end(), [this](const auto& a, const auto& b) {
          return place_of(*run_, a.second) < place_of(*run_, b.second);
        });
    return found == first_.end() ? nullptr : &found->second;
  }

 private:
  void keep(const ReadRow& row) {
    const auto [known, is_new] = first_.try_emplace(row.restart, row);
    if (!is_new && place_of(*run_, row) < place_of(*run_, known->second)) known->second = row;
  }

  const RunRows* run_;
  std::map<std::int32_t, ReadRow> first_;
  std::int64_t rows_ = 0;
};

// What else was seen where the first bad row is.
class Around {
 public:
  Around(const RunRows& run, const ReadRow& first) : run_(run), first_(first) {
    for (const ReadScalar& scalar : run.scalars) {
      if (scalar.restart == first.restart && scalar.step == first.step && is_loss(scalar.name) &&
          (scalar.rank == first.rank || first.rank < 0)) {
        add_loss(around_.loss, scalar.value);
      }
    }
  }

  void add(const ReadRow& row) {
    if (row.restart != first_.restart || row.step != first_.step) return;
    if (is_bad(row) && place(row) == place(first_)) ranks_.insert(row.rank);
    if (row.rank != first_.rank || row.attempt != first_.attempt) return;
    const Series& series = run_.series[row.series];
    const Series& of_first = run_.series[first_.series];
    if (series.optimizer == of_first.optimizer && series.kind == of_first.kind &&
        row.accum == first_.accum) {
      ++around_.gradients;
      around_.bad_gradients += is_bad(row) ? 1 : 0;
    }
    around_.activations += series.kind == kind::kActv ? 1 : 0;
  }
  const AroundBad& around() const { return around_; }
  std::vector<int> ranks() const { return {ranks_.begin(), ranks_.end()}; }

 private:
  std::tuple<std::int32_t, std::int32_t, std::int32_t, std::string_view, std::int32_t,
             std::string_view, std::string_view>
  place(const ReadRow& row) const {
    const Series& series = run_.series[row.series];
    return {row.attempt,  row.accum,   row.call,      series.kind,
            series.chunk, series.name, series.element};
  }

  const RunRows& run_;
  const ReadRow first_;
  AroundBad around_;
  std::set<int> ranks_;
};

using Look = std::function<void(const ReadRow&)>;

// `look_again` gives the rows of one restart once more. `is_whole`: no tensor was left out by
// name, so that numbers of gradients mean something.
std::optional<FirstBad> finish(const RunRows& run, const FirstRows& found, bool is_whole,
                               const std::function<void(std::int32_t, const Look&)>& look_again) {
  const ReadRow* const first = found.first();
  if (first == nullptr) return std::nullopt;
  FirstBad bad{*first, run.series[first->series], {}, "", "", "", {}};
  Around seen(run, *first);
  look_again(first->restart, [&](const ReadRow& row) { seen.add(row); });
  bad.ranks = seen.ranks();
  if (is_whole) {
    Origin origin = origin_of(bad.series.kind, seen.around());
    bad.came_from = std::move(origin.place);
    bad.why = std::move(origin.why);
    bad.module = std::move(origin.module);
  }
  for (const auto& [restart, row] : found.of_restarts()) {
    bad.restarts.push_back({row, run.series[row.series]});
  }
  return bad;
}

std::optional<FirstBad> find(const RunRows& run, bool is_whole) {
  FirstRows found(run);
  for (const ReadRow& row : run.rows) found.add(row);
  return finish(run, found, is_whole, [&](std::int32_t, const Look& look) {
    for (const ReadRow& row : run.rows) look(row);
  });
}

}  // namespace

std::optional<FirstBad> first_bad(const RunRows& rows) {
  return find(rows, true);
}

FirstBadOfRun first_bad(const std::filesystem::path& run, ReadOptions options) {
  options.all_restarts = true;
  const bool is_whole = options.kinds.empty() && options.include.empty() && options.exclude.empty();
  FirstBadOfRun result;
  if (options.merged) {  // which takes all rows of all ranks at once
    result.run = read_run(run, options);
    result.found = find(result.run, is_whole);
    result.rows = static_cast<std::int64_t>(result.run.rows.size());
    result.partial = partial_rows(result.run);
    result.run.rows = {};
    result.run.payloads = {};
    return result;
  }
  RunStream stream(run, options);
  FirstRows found(stream.facts());
  std::vector<Damage> damage, said_before;
  std::mutex mutex;
  const auto& pieces = stream.pieces();
  for_each_parallel(pieces.size(), useful_threads(), [&](std::size_t i) {
    FirstRows here(stream.facts());
    std::vector<Damage> bad;
    stream.read(pieces[i], {[&](const ReadRow& row) { here.add(row); }, {}}, bad);
    const std::lock_guard lock(mutex);
    found.add(here);
    damage.insert(damage.end(), bad.begin(), bad.end());
  });
  result.found =
      finish(stream.facts(), found, is_whole, [&](std::int32_t restart, const Look& look) {
        for (const RunStream::Piece& piece : pieces) {
          if (piece.restart == restart) stream.read(piece, {look, {}}, said_before);
        }
      });
  result.rows = found.rows();
  result.run = stream.take_facts();
  result.run.damage.insert(result.run.damage.end(), damage.begin(), damage.end());
  return result;
}

}  // namespace trainmon
