#include "answers/left_history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "answers/diagnose.h"
#include "base/made_ahead.h"
#include "base/text.h"
#include "model/first_bad.h"
#include "model/kinds.h"
#include "read/bad_place.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

// What features measure of small tensors is too coarse to tell. An optimizer's state follows from
// gradients, whose squares leave their history where the gradients themselves do not.
bool can_tell(std::string_view kind, bool has_gradients) {
  if (kind == kind::kMgDirection) return false;
  const auto known = std::ranges::find(kind_table(), kind, &Kind::name);
  if (known == kind_table().end()) return true;
  if (known->is_state) return !has_gradients;
  return known->group != "attention" && known->group != "spectral" && known->group != "router";
}

// Rows of a piece, as much of them as histories need.
struct RowAhead {
  RowPlace place;
  std::uint32_t series = 0;
  double value = 0.0;
  std::int64_t elements = 0;
};
using Ahead = std::vector<RowAhead>;

// "blocks.2.mlp.weight" without what it is of its module.
std::vector<std::string> modules_of(std::string_view name) {
  std::vector<std::string> modules;
  for (auto end = name.find('.'); end != std::string_view::npos; end = name.find('.')) {
    modules.emplace_back(name.substr(0, end));
    name.remove_prefix(end + 1);
  }
  return modules;
}

bool is_number(const std::string& module) {
  return !module.empty() && module.find_first_not_of("0123456789") == std::string::npos;
}

// Keeps what both begin with. Numbers are those of layers, of which one is as another.
void keep_common(std::vector<std::string>& modules, const std::vector<std::string>& others) {
  std::size_t kept = 0;
  for (; kept < std::min(modules.size(), others.size()); ++kept) {
    std::string& one = modules[kept];
    if (one == others[kept]) continue;
    if (!(one == "*" || is_number(one)) || !is_number(others[kept])) break;
    one = "*";
  }
  modules.resize(kept);
}

// What stands behind the last module that has a name tells nothing.
std::string module_text(std::vector<std::string> modules) {
  while (!modules.empty() && modules.back() == "*") modules.pop_back();
  std::string text;
  for (const std::string& one : modules) text += (text.empty() ? "" : ".") + one;
  return text;
}

}  // namespace

LeftLines::LeftLines(const std::vector<Series>& series, double apart)
    : apart_log_(std::log10(apart)),
      histories_(series),
      lines_(histories_.tensors().count),
      is_state_(lines_.size()) {
  for (std::size_t i = 0; i < series.size(); ++i) {
    const auto known = std::ranges::find(kind_table(), series[i].kind, &Kind::name);
    is_state_[tensors().of[i]] = known != kind_table().end() && known->is_state;
  }
}

void LeftLines::add(const RowPlace& row, std::uint32_t series, double value,
                    std::int64_t elements) {
  const std::uint32_t tensor = tensors().of[series];
  histories_.add(series, row.step, value, row,
                 [&](const ClosedRow<RowPlace>& one) { note(tensor, one); });
  Line& line = lines_[tensor];
  if (line.elements >= 0 && line.elements != elements) {
    line.has_changed = true;
    line.steps = 0;
  } else if (line.step != row.step) {
    ++line.steps;
  }
  line.series = series;
  line.elements = elements;
  line.step = row.step;
}

void LeftLines::forget() {
  std::ranges::fill(lines_, Line{});
  leaving_.clear();
  left_.clear();
}

// Of a batch with fewer samples a norm is another one.
void LeftLines::note(std::uint32_t tensor, const ClosedRow<RowPlace>& one) {
  const Line& line = lines_[tensor];
  if (one.row.fate == Fate::skipped) return;
  if (line.has_changed && line.steps < History::kMost) {
    leaving_.erase(tensor);
    return;
  }
  if (one.score >= kFarBehind && std::isfinite(one.before.middle()) && !left_.contains(tensor)) {
    left_.try_emplace(tensor, one.unusual(), line.series);
  }
  if (!is_state_[tensor]) note_stay(tensor, one);
}

void LeftLines::note_stay(std::uint32_t tensor, const ClosedRow<RowPlace>& one) {
  auto at = leaving_.find(tensor);
  if (at != leaving_.end()) {
    const Leaving& known = at->second;
    if (known.is_above ? one.log <= known.bound : one.log >= known.bound) {
      leaving_.erase(at);
      at = leaving_.end();
    }
  }
  if (at == leaving_.end()) {
    const double above = one.before.highest() + apart_log_;
    const double below = one.before.lowest() - apart_log_;
    if (one.log <= above && one.log >= below) return;
    if (!std::isfinite(one.before.middle())) return;
    const Left first = {one.unusual(), lines_[tensor].series, true};
    const Leaving leaving = {first, one.log > above, one.log > above ? above : below};
    at = leaving_.try_emplace(tensor, leaving).first;
  }
  if (++at->second.steps < kStays) return;
  const Left& first = at->second.first;
  Left& left = left_.try_emplace(tensor, first).first->second;
  if (left.row.row.step >= first.row.row.step) left = first;
  leaving_.erase(at);
}

EarliestLeft::EarliestLeft(const RunRows& facts, const Diagnosis& diagnosis)
    : facts_(facts), diagnosis_(diagnosis) {
  if (!diagnosis_.verdict) take_losses();
}

void EarliestLeft::take(const LeftLines& rank) {
  if (diagnosis_.verdict) return;
  const bool has_gradients =
      std::ranges::find(facts_.kinds, kind::kGradReduced) != facts_.kinds.end();
  for (const auto& [tensor, left] : rank.left()) {
    const Series& series = facts_.series[left.series];
    if (can_tell(series.kind, has_gradients)) take(left, series);
  }
}

// A loss that falls is no fault, and one below 0 has no size.
void EarliestLeft::take_losses() {
  std::map<std::pair<int, std::string>, std::vector<const ReadScalar*>> losses;  // rank, name
  for (const ReadScalar& one : facts_.scalars) {
    if (is_loss(one.name)) losses[{one.rank, one.name}].push_back(&one);
  }
  for (const auto& [place, values] : losses) {
    const auto is_below = [](const ReadScalar* one) { return one->value < 0.0; };
    if (std::ranges::any_of(values, is_below)) continue;
    std::vector<Series> series(1);
    series.front().kind = kLogged;
    series.front().name = place.second;
    LeftLines line(series, LeftLines::kLossApart);
    for (const ReadScalar* one : values) {
      RowPlace row;
      row.restart = one->restart;
      row.rank = one->rank;
      row.step = one->step;
      row.seq = one->seq;
      if (std::isfinite(one->value)) line.add(row, 0, one->value, 1);
    }
    line.end_rank([](std::uint32_t, const Unusual<RowPlace>&) {});
    for (const auto& [number, left] : line.left()) {
      if (left.row.value > left.row.usual) take(left, series.front());
    }
  }
}

void EarliestLeft::take(const LeftLines::Left& left, const Series& series) {
  LeftHistory one = {left.row.row,   series,         left.row.value,
                     left.row.usual, left.row.score, left.stays};
  one.row.shape = nullptr;
  if (has_reason(one)) return;
  Together& together = together_[{one.row.restart, one.row.step}];
  std::vector<std::string> modules = modules_of(series.name);
  if (together.lines++ == 0) {
    together.module = std::move(modules);
  } else {
    keep_common(together.module, modules);
  }
  const bool is_first = !earliest_ || place_of(facts_, one.row, series) <
                                          place_of(facts_, earliest_->row, earliest_->series);
  if (is_first) earliest_ = std::move(one);
}

std::optional<LeftHistory> EarliestLeft::earliest() const {
  std::optional<LeftHistory> found = earliest_;
  if (!found) return found;
  const Together& together = together_.at({found->row.restart, found->row.step});
  found->lines = together.lines;
  if (found->lines > 1) found->module = module_text(together.module);
  return found;
}

bool EarliestLeft::has_reason(const LeftHistory& one) const {
  constexpr auto kBefore = static_cast<std::int64_t>(History::kMost);
  return std::ranges::any_of(diagnosis_.findings, [&](const detect::Finding& found) {
    if (found.step > one.row.step || found.step < one.row.step - kBefore) return false;
    return found.tensors.empty() || std::ranges::any_of(found.tensors, [&](std::uint32_t tensor) {
             const detect::Tensor& named = diagnosis_.tensors[tensor];
             return named.name == one.series.name && named.chunk == one.series.chunk;
           });
  });
}

std::optional<LeftHistory> left_history(const OpenedRun& run, ReadOptions options,
                                        const Diagnosis& diagnosis) {
  if (diagnosis.verdict) return std::nullopt;
  options.all_restarts = options.merged = false;
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  EarliestLeft found(stream.facts(), diagnosis);
  LeftLines lines(series);
  const auto end_rank = [&] {
    lines.end_rank([](std::uint32_t, const Unusual<RowPlace>&) {});
    found.take(lines);
    lines.forget();
  };
  const auto read = [&](std::size_t i) {
    Ahead made;
    RunStream::Take take;
    take.row = [&](const ReadRow& row) {
      const std::optional<double> value = history_value(row, series[row.series], Stat::norm);
      if (value) made.push_back({row, row.series, *value, row.state.count});
    };
    constexpr std::array kStats = {Stat::norm, Stat::count};
    take.columns = columns_of(std::span<const Stat>(kStats));
    std::vector<Damage> said_before;
    stream.read(pieces[i], take, said_before);
    return made;
  };
  MadeAhead<Ahead> ahead(pieces.size(), threads_with_pieces(options.threads), read);
  for (std::size_t i = 0; const std::optional<Ahead> piece = ahead.next(); ++i) {
    if (i > 0 && pieces[i].rank != pieces[i - 1].rank) end_rank();
    for (const RowAhead& row : *piece) {
      lines.add(row.place, row.series, row.value, row.elements);
    }
  }
  end_rank();
  return found.earliest();
}

std::string place_text(const Diagnosis& diagnosis, const LeftHistory& left) {
  const detect::Tensor tensor = {left.series.name, left.series.chunk, left.series.optimizer,
                                 left.series.element};
  const int newest = diagnosis.run.newest_restart;
  return "step " + std::to_string(left.row.step) +
         (newest > 0 ? ", restart " + std::to_string(left.row.restart) : "") + ", rank " +
         std::to_string(left.row.rank) + ", " + printable(left.series.kind) + " " +
         detect::tensor_text(tensor);
}

std::string size_text(const LeftHistory& left) {
  const bool is_loss = left.series.kind == kLogged;
  std::string text = is_loss ? "its value is " : "its norm is ";
  text += number_text(left.norm, 3) + " after " + number_text(left.usual, 3) + ": ";
  if (left.stays) {
    const bool is_above = left.norm > left.usual;
    text += "it stays " + std::string(is_above ? "above" : "below") +
            " all 16 values before by a factor of " +
            number_text(is_loss ? LeftLines::kLossApart : LeftLines::kApart, 2) + " or more";
  } else {
    text += number_text(left.score, 3) + " robust standard deviations off";
  }
  if (left.lines > 1) {
    text += "\n  " + grouped(static_cast<std::int64_t>(left.lines) - 1) +
            (left.lines == 2 ? " more line left its history" : " more lines left their histories") +
            " in this step";
    if (!left.module.empty()) text += "; all are in " + printable(left.module);
  }
  return text;
}

std::string next_command(const LeftHistory& left, const std::filesystem::path& run) {
  if (left.series.kind == kLogged) {
    std::string name;  // as SQL has it
    for (const char c : left.series.name) name += c == '\'' ? "''" : std::string(1, c);
    return "trainmon query " + shell_word(run.native()) + " " +
           shell_word("SELECT step, rank, value FROM logged WHERE name = '" + name + "'");
  }
  std::string command =
      "trainmon show " + shell_word(run.native()) + " --kind " + shell_word(left.series.kind);
  if (!left.series.name.empty()) command += " --name " + shell_word(left.series.name);
  const std::int64_t first = left.row.step - static_cast<std::int64_t>(History::kLeast);
  return command + " --rank " + std::to_string(left.row.rank) + " --steps " +
         std::to_string(std::max<std::int64_t>(0, first)) + ":" + std::to_string(left.row.step);
}

}  // namespace trainmon
