#include "answers/series_choice.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace trainmon {
namespace {

constexpr std::array<std::string_view, kFamilies> kNames = {"own", "logged", "norm", "tensor_norm",
                                                            "layer_norm"};

std::size_t index_of(Family family) {
  return static_cast<std::size_t>(family);
}

std::size_t share_of(std::size_t budget, Family family) {
  if (family == Family::layer_norm) return budget * 3 / 10;
  return family == Family::tensor_norm ? budget / 10 : budget;
}

}  // namespace

std::string_view family_name(Family family) {
  return kNames[index_of(family)];
}

std::optional<Family> family_from_name(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Family>(found - kNames.begin());
}

std::string PushedSeries::path() const {
  std::string path = family == Family::logged ? "" : "trainmon/";
  if (family != Family::logged && family != Family::own)
    path += std::string(kNames[index_of(family)]) + "/" + kind;
  if (!path.empty() && path.back() != '/' && !name.empty()) path += "/";
  path += name;
  if (rank >= 0) path += "/rank" + std::to_string(rank);
  return path;
}

SeriesChoice::SeriesChoice(std::size_t budget, std::vector<PushedSeries> chosen) : budget_(budget) {
  int lead = -1;
  for (const PushedSeries& one : chosen) {
    if (one.rank >= 0 && (lead < 0 || one.rank < lead)) lead = one.rank;
  }
  for (const PushedSeries& one : chosen) add(one, one.rank <= lead);
}

std::optional<std::uint32_t> SeriesChoice::take(const PushedSeries& series, bool is_of_lead) {
  const auto known = known_.find(series);
  if (known != known_.end()) return known->second;
  if (has_room(series.family, is_of_lead) && !paths_.contains(series.path())) {
    add(series, is_of_lead);
  } else {
    known_[series] = std::nullopt;
    ++left_out_[index_of(series.family)];
  }
  return known_[series];
}

std::optional<std::uint32_t> SeriesChoice::number_of(const PushedSeries& series) const {
  const auto known = known_.find(series);
  return known == known_.end() ? std::nullopt : known->second;
}

std::size_t SeriesChoice::room_for_layers() const {
  const std::size_t of_family =
      share_of(budget_, Family::layer_norm) -
      std::min(share_of(budget_, Family::layer_norm), taken_[index_of(Family::layer_norm)]);
  return std::min(of_family, budget_ - std::min(budget_, chosen_.size()));
}

std::int64_t SeriesChoice::left_out() const {
  return std::accumulate(left_out_.begin(), left_out_.end(), std::int64_t{0});
}

bool SeriesChoice::has_room(Family family, bool is_of_lead) const {
  return chosen_.size() < budget_ && taken_[index_of(family)] < share_of(budget_, family) &&
         (is_of_lead || others_ < budget_ / 5);
}

void SeriesChoice::add(const PushedSeries& series, bool is_of_lead) {
  known_[series] = static_cast<std::uint32_t>(chosen_.size());
  paths_.insert(series.path());
  chosen_.push_back(series);
  ++taken_[index_of(series.family)];
  others_ += is_of_lead ? 0 : 1;
}

}  // namespace trainmon
