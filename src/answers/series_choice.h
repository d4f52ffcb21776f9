// Which curves of a run a tracker is given, within a budget. A run has one for each tensor and
// statistic; trackers are made for some hundred.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// In the order of importance.
enum class Family : std::uint8_t {
  own,          // what trainmon says of the record itself: rows dropped, lag, ...
  logged,       // what log() was given
  norm,         // of a kind, over all tensors of a rank
  tensor_norm,  // of a tensor that was the worst of a step
  layer_norm,   // of a kind, over the tensors of a layer
};
inline constexpr std::size_t kFamilies = 5;
std::string_view family_name(Family family);
std::optional<Family> family_from_name(std::string_view name);

struct PushedSeries {
  Family family = Family::own;
  std::string kind;  // of norms
  std::string name;  // of the value, the tensor or the layer; printable
  int rank = -1;     // -1: of the run, or its only rank
  auto operator<=>(const PushedSeries&) const = default;
  // "loss", "trainmon/norm/grad_reduced/rank1".
  std::string path() const;
};

// A chosen series stays. Layers may have three tenths of the budget, tensors a tenth, and ranks
// but the lowest a fifth. So what matters more finds room when it comes late.
class SeriesChoice {
 public:
  // With what was chosen before, which may be more than the budget.
  SeriesChoice(std::size_t budget, std::vector<PushedSeries> chosen);

  // Its number in chosen(), or nullopt where there is no room for it, or a series of another family
  // has its path. `is_of_lead`: of the run or of its lowest rank.
  std::optional<std::uint32_t> take(const PushedSeries& series, bool is_of_lead);
  // Of one that was chosen.
  std::optional<std::uint32_t> number_of(const PushedSeries& series) const;
  // How many more of layers could be taken.
  std::size_t room_for_layers() const;

  const std::vector<PushedSeries>& chosen() const { return chosen_; }
  // Different series for which there was no room, of those that were asked for.
  std::int64_t left_out(Family family) const { return left_out_[static_cast<std::size_t>(family)]; }
  std::int64_t left_out() const;

 private:
  bool has_room(Family family, bool is_of_lead) const;
  void add(const PushedSeries& series, bool is_of_lead);

  std::size_t budget_;
  std::vector<PushedSeries> chosen_;
  std::map<PushedSeries, std::optional<std::uint32_t>> known_;
  std::set<std::string> paths_;
  std::array<std::size_t, kFamilies> taken_ = {};
  std::size_t others_ = 0;  // of ranks but the lowest
  std::array<std::int64_t, kFamilies> left_out_ = {};
};

}  // namespace trainmon
