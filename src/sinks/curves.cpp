// Room is kept back for what comes late: first for layers, then for one curve per kind.
#include "sinks/curves.h"

#include <algorithm>
#include <array>

#include "model/layers.h"

namespace trainmon {
namespace {

constexpr std::array<Stat, 4> kStatistics = {Stat::norm, Stat::mean, Stat::min, Stat::max};
constexpr std::array<Stat, 1> kMean = {Stat::mean};
constexpr std::array<std::string_view, 8> kSingleNumbers = {
    kind::kMgDirection, kind::kAttnEntropy,  kind::kAttnMax,          kind::kAttnMaxLogit,
    kind::kStableRank,  kind::kSpectralNorm, kind::kRouterSimilarity, kind::kRouterEntropy};

// Shares of the budget that curves of single series leave to others.
constexpr std::size_t kForLayers = 4;
constexpr std::size_t kForLateKinds = 16;
constexpr std::size_t kForDeclared = 16;

std::size_t tag_count(Form form) {
  return std::max<std::size_t>(stats_of(form).size(), 1);
}

// "model.layers.12.mlp.fc.weight" -> "model.layers.12.*"
std::string curve_of_layer(std::string_view name) {
  const std::string layer = layer_of(name);
  return layer.empty() ? "*" : layer + ".*";
}

}  // namespace

std::span<const Stat> stats_of(Form form) {
  if (form == Form::statistics) return kStatistics;
  if (form == Form::mean) return kMean;
  return {};
}

Form form_of_rows(std::string_view kind) {
  const bool single =
      std::find(kSingleNumbers.begin(), kSingleNumbers.end(), kind) != kSingleNumbers.end();
  return single ? Form::mean : Form::statistics;
}

SourceId Curves::source_of(const Series& series, Form form) {
  const std::string chunk = series.chunk == 0 ? "" : std::to_string(series.chunk) + ":";
  std::string name = chunk + series.name;
  if (!series.element.empty()) name += (series.name.empty() ? "" : ".") + series.element;
  std::pair<std::string, Form> key{series.kind + "/" + name, form};
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const auto source = static_cast<SourceId>(sources_.size());
  // Known last: where memory ends between, nobody finds a number without a source.
  sources_.push_back({form, series.kind, std::move(name), chunk + curve_of_layer(series.name)});
  new_.push_back(source);
  waiting_kinds_.insert({series.kind, form});
  known_.emplace(std::move(key), source);
  return source;
}

// One of each kind, then the second of each, and so on.
std::vector<SourceId> Curves::in_turns() const {
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::pair<std::size_t, SourceId>> order;
  for (const SourceId id : new_) order.emplace_back(seen[sources_[id].kind]++, id);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<SourceId> ids;
  for (const auto& [turn, id] : order) ids.push_back(id);
  return ids;
}

// Whatever comes, each kind can have one curve for all of its series, declared values their share.
std::size_t Curves::for_kinds() const {
  std::size_t tags = 0;
  for (const auto& [kind, form] : waiting_kinds_) {
    if (form != Form::text) tags += tag_count(form);
  }
  const std::size_t share = budget_ / kForDeclared;
  return std::max(tags, budget_ / kForLateKinds) + share - std::min(declared_, share);
}

std::size_t Curves::for_layers() const {
  return std::max(for_kinds(), budget_ / kForLayers);
}

void Curves::place_new_sources() {
  if (new_.empty()) return;
  const std::size_t for_layers = this->for_layers();
  std::size_t wanted = 0;
  for (const SourceId id : new_) wanted += tag_count(sources_[id].form);
  const bool all_fit = !overflowed_ && fits(wanted, budget_ / kForLateKinds);
  overflowed_ = !all_fit;
  std::vector<SourceId> rest;
  for (const SourceId id : all_fit ? new_ : in_turns()) {
    Source& source = sources_[id];
    if (all_fit || fits(tag_count(source.form), for_layers)) {
      source.curve = add_curve(source, source.name);
      curves_[source.curve].members.push_back(id);
      ++own_;
    } else {
      rest.push_back(id);
    }
  }
  for (const SourceId id : rest) {
    Source& source = sources_[id];
    source.curve = source.form == Form::text ? kNoCurve : shared_curve(source);
    if (source.curve == kNoCurve) {
      ++missing_;
    } else {
      curves_[source.curve].members.push_back(id);
      ++merged_;
    }
  }
  new_.clear();
}

CurveId Curves::shared_curve(const Source& source) {
  const auto find = [&](const std::string& name, std::size_t reserve) {
    const std::pair key{source.kind + "/" + name, source.form};
    const auto known = shared_.find(key);
    if (known != shared_.end()) return known->second;
    if (!fits(tag_count(source.form), reserve)) return kNoCurve;
    return shared_[key] = add_curve(source, name);
  };
  const CurveId of_layer = find(source.layer, for_kinds());
  if (of_layer != kNoCurve) return of_layer;
  waiting_kinds_.erase({source.kind, source.form});
  return find("*", 0);
}

CurveId Curves::add_curve(const Source& source, const std::string& name) {
  Curve curve{source.form, {}, {}};
  const std::string stem = source.kind + "/" + name;
  for (const Stat stat : stats_of(source.form)) {
    curve.tags.push_back(std::string(stat_name(stat)) + "/" + stem);
  }
  if (curve.tags.empty()) {
    curve.tags.push_back((source.form == Form::histogram ? "histogram/" : "") + stem);
  }
  used_ += curve.tags.size();
  curves_.push_back(std::move(curve));
  return static_cast<CurveId>(curves_.size() - 1);
}

bool Curves::has_tag(const std::string& name) {
  return scalars_.contains(name) || add_tag(name, 0);
}

bool Curves::has_declared_tag(const std::string& name) {
  if (scalars_.contains(name)) return true;
  const bool has_share = declared_ < budget_ / kForDeclared;
  if (!add_tag(name, has_share ? 0 : for_layers())) return false;
  ++declared_;
  return true;
}

bool Curves::add_tag(const std::string& name, std::size_t reserve) {
  if (!fits(1, reserve)) return false;
  scalars_.insert(name);
  ++used_;
  return true;
}

}  // namespace trainmon
