// Rows of any source, shards merged as far as the source can tell them.
#include "compare/compared_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "compare/compared_names.h"
#include "model/first_bad.h"
#include "model/rounding.h"
#include "read/run_layout.h"
#include "sources/source.h"

namespace trainmon {
namespace {

constexpr int kReduced = 4;  // moment_of(): from here on there is one row a step

bool is_left_out(std::string_view kind) {
  return kind == kind::kMgDirection || kind == kind::kUpdateRatio || kind == kind::kStack;
}

class Collect {
 public:
  Collect(ComparedRun& run, const std::vector<std::string>& stats, bool is_msprobe)
      : run_(run), is_msprobe_(is_msprobe) {
    for (const Stat stat : kComparedStats) {
      const auto at = std::find(stats.begin(), stats.end(), stat_name(stat));
      columns_.push_back(at == stats.end() ? -1 : static_cast<int>(at - stats.begin()));
    }
  }

  void add(const TableRow& row, std::vector<ComparedRow>& rows) {
    if (is_left_out(row.series->kind)) return;
    ComparedRow out;
    out.tensor = tensor_of(*row.series);
    out.step = row.step;
    out.attempt = row.attempt;
    out.rank = row.rank;
    out.accum = row.accum;
    out.call = row.call;
    out.seq = row.seq != 0 || !is_msprobe_ ? row.seq : run_.rows.size();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const int at = columns_[i];
      const bool is_absent = at < 0 || (row.absent >> static_cast<unsigned>(at) & 1u) != 0;
      out.values[i] = is_absent ? std::nan("") : row.values[static_cast<std::size_t>(at)];
    }
    rows.push_back(out);
  }

 private:
  std::uint32_t tensor_of(const Series& series) {
    const auto [known, is_new] =
        by_series_.try_emplace(&series, static_cast<std::uint32_t>(run_.tensors.size()));
    if (!is_new) return known->second;
    const auto [same, fresh] = by_name_.try_emplace(
        std::tuple(series.kind, series.chunk, series.name, series.element), known->second);
    known->second = same->second;
    if (fresh) {
      run_.tensors.push_back(
          {series.kind, series.chunk, series.name, series.element, series.dtype, !is_msprobe_, ""});
    }
    return known->second;
  }

  ComparedRun& run_;
  const bool is_msprobe_;
  std::vector<int> columns_;
  std::unordered_map<const Series*, std::uint32_t> by_series_;
  std::map<std::tuple<std::string, std::int32_t, std::string, std::string>, std::uint32_t> by_name_;
};

// Two tensors that differ in what looks like a wrapper are two all the same.
void set_matches(std::vector<ComparedTensor>& tensors) {
  std::map<std::string, int> uses;
  const auto match_of = [](const ComparedTensor& tensor, const std::string& name) {
    return tensor.kind + kMatchSeparator + std::to_string(tensor.chunk) + kMatchSeparator +
           matched_name(name, tensor.element);
  };
  for (ComparedTensor& tensor : tensors) {
    tensor.match = match_of(tensor, unwrapped_name(tensor.name));
    ++uses[tensor.match];
  }
  for (ComparedTensor& tensor : tensors) {
    if (uses[tensor.match] > 1) tensor.match = match_of(tensor, tensor.name);
  }
}

void set_places(ComparedRun& run) {
  std::vector<char> moments;
  for (const ComparedTensor& tensor : run.tensors) {
    moments.push_back(static_cast<char>(moment_of(tensor.kind)));
  }
  // Of gradients that add up, the last backward of each step.
  std::map<std::tuple<std::uint32_t, std::int32_t, std::int64_t, std::int32_t>, std::int32_t> last;
  const auto sums = [&](const ComparedRow& row) {
    return run.tensors[row.tensor].kind == kind::kGradUnreduced;
  };
  const auto of_step = [](const ComparedRow& row) {
    return std::tuple(row.tensor, row.rank, row.step, row.attempt);
  };
  for (const ComparedRow& row : run.rows) {
    if (!sums(row)) continue;
    std::int32_t& known = last.try_emplace(of_step(row), row.accum).first->second;
    known = std::max(known, row.accum);
  }
  for (ComparedRow& row : run.rows) {
    const int moment = moments[row.tensor];
    row.place = sums(row)                           ? row.accum - last[of_step(row)]
                : moment >= kReduced || moment == 0 ? 0
                                                    : row.accum;
  }
}

void describe(ComparedRun& run) {
  ComparedSide& side = run.side;
  std::set<int> ranks;
  std::set<std::string> kinds;
  side.rows = static_cast<std::int64_t>(run.rows.size());
  for (const ComparedRow& row : run.rows) {
    ranks.insert(row.rank);
    if (side.first_step < 0 || row.step < side.first_step) side.first_step = row.step;
    side.last_step = std::max(side.last_step, row.step);
    std::int32_t& backwards = run.backwards[row.step];
    backwards = std::max(backwards, row.accum + 1);
  }
  for (const ComparedTensor& tensor : run.tensors) {
    kinds.insert(tensor.kind);
    const int moment = moment_of(tensor.kind);
    if (moment == 1 || moment == 2) {
      run.roundoff = std::max(run.roundoff, unit_roundoff(tensor.dtype));
    }
  }
  side.ranks.assign(ranks.begin(), ranks.end());
  side.kinds.assign(kinds.begin(), kinds.end());
}

bool is_activation(const ComparedRun& run, const ComparedRow& row) {
  return is_of_module(run.tensors[row.tensor].kind);
}

std::set<std::int32_t> ranks_of_activations(const ComparedRun& run) {
  std::set<std::int32_t> ranks;
  for (const auto* rows : {&run.rows, &run.by_rank}) {
    for (const ComparedRow& row : *rows) {
      if (row.rank >= 0 && is_activation(run, row)) ranks.insert(row.rank);
    }
  }
  return ranks;
}

// A run that was cut is not all there, though every byte of it is sound.
void say_not_stopped(ComparedRun& run) {
  std::map<int, const RankDirectory*> newest;
  const std::vector<RankDirectory> directories = rank_directories(run.side.path);
  for (const RankDirectory& one : directories) {
    const RankDirectory*& known = newest[one.rank];
    if (known == nullptr || one.restart > known->restart) known = &one;
  }
  for (const auto& [rank, directory] : newest) {
    std::vector<Damage> said_before;
    const auto stored = read_health_json(*directory, said_before);
    if (!stored || stored->closed) continue;
    run.side.not_used.push_back("rank " + std::to_string(rank) +
                                " was not stopped in order (killed, or still running): what came "
                                "after its last rows is not there");
  }
}

// Of what was merged over several ranks, the activations once more; nullptr where there are none.
std::unique_ptr<Source> source_by_rank(SourceOptions options, const ComparedRun& run,
                                       const RunRows* facts) {
  if (!options.select.merged || facts == nullptr) return nullptr;
  if (facts->ranks.size() < 2 && facts->missing.world_size < 2) return nullptr;
  std::set<std::string> kinds;
  for (const ComparedRow& row : run.rows) {
    if (row.rank < 0 && is_activation(run, row)) kinds.insert(run.tensors[row.tensor].kind);
  }
  if (kinds.empty()) return nullptr;
  options.select.kinds.assign(kinds.begin(), kinds.end());
  options.select.merged = false;
  RowAccount said_before;
  return open_source(options, said_before);
}

}  // namespace

bool is_of_module(std::string_view kind) {
  return kind == kind::kActv || kind == kind::kActvGrad;
}

std::string tensor_text(const ComparedTensor& tensor) {
  return tensor.kind + " " + (tensor.name.empty() ? "(root)" : tensor.name) +
         (tensor.element.empty() ? "" : " " + tensor.element);
}

ComparedRun read_compared(const std::filesystem::path& path, const ReadOptions& select) {
  ComparedRun run;
  run.side.path = path;
  SourceOptions options;
  options.from = path;
  options.from_format = detected_format(path);
  options.select = select;
  options.select.merged = options.from_format == SourceFormat::log;
  if (options.from_format == SourceFormat::log) {
    for (const Stat stat : kComparedStats) options.stats.emplace_back(stat_name(stat));
  }
  run.side.format = format_name(options.from_format);
  RowAccount account;
  const std::unique_ptr<Source> source = open_source(options, account);
  if (source->is_msprobe()) run.resolution = 0.5e-6;
  Collect collect(run, source->stats(), source->is_msprobe());
  for (std::size_t part = 0; part < source->parts().size(); ++part) {
    source->read(
        part, [&](const TableRow& row) { collect.add(row, run.rows); }, account);
  }
  for (const RejectedRows& one : account.report().rejections) {
    run.side.not_used.push_back(rejection_text(one));
  }
  bool is_said = false;
  if (const RunRows* facts = source->facts()) {
    run.world_size = facts->missing.world_size;
    run.declared = facts->declared;
    run.holds = "ranks " + ranks_text(facts->ranks) + " and kinds";
    for (const std::string& kind : facts->kinds) run.holds += " " + printable(kind);
    if (!facts->missing.ranks.empty()) run.side.not_used.push_back(missing_text(facts->missing));
    is_said = !facts->incomplete.empty();
    for (const std::string& sentence : facts->incomplete) run.side.not_used.push_back(sentence);
  }
  const std::unique_ptr<Source> shares = source_by_rank(options, run, source->facts());
  for (std::size_t part = 0; shares && part < shares->parts().size(); ++part) {
    RowAccount said_before;
    shares->read(
        part, [&](const TableRow& row) { collect.add(row, run.by_rank); }, said_before);
  }
  if (source->is_msprobe()) {
    for (const std::string& name : source->stats()) {
      if (stat_from_name(name)) continue;
      run.side.not_used.push_back("column '" + printable(name) + "': no statistic that is known");
    }
  }
  if (!is_said && run.side.format == format_name(SourceFormat::log)) say_not_stopped(run);
  set_matches(run.tensors);
  set_places(run);
  describe(run);
  return run;
}

void take_common_ranks(ComparedRun& a, ComparedRun& b) {
  if (a.world_size != 0 && b.world_size != 0 && a.world_size != b.world_size) return;
  const std::set<std::int32_t> of_a = ranks_of_activations(a), of_b = ranks_of_activations(b);
  if (std::none_of(of_a.begin(), of_a.end(), [&](auto rank) { return of_b.contains(rank); }))
    return;
  for (ComparedRun* run : {&a, &b}) {
    if (run->by_rank.empty()) continue;
    std::erase_if(run->rows, [&](const ComparedRow& row) { return is_activation(*run, row); });
    run->rows.insert(run->rows.end(), run->by_rank.begin(), run->by_rank.end());
    run->by_rank.clear();
    set_places(*run);
    describe(*run);
  }
}

}  // namespace trainmon
