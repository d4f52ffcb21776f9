// The curves of one rank in TensorBoard, within a budget of tags. There is one per series as long
// as there is room, beyond that one per layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// What is drawn of a series.
enum class Form : std::uint8_t {
  statistics,  // norm, mean, min, max
  mean,        // of kinds that measure one number
  histogram,
  text,
};
std::span<const Stat> stats_of(Form form);
Form form_of_rows(std::string_view kind);

// What rows are merged into: series that a tag does not tell apart share a source.
using SourceId = std::uint32_t;
using CurveId = std::uint32_t;
inline constexpr CurveId kNoCurve = 0xFFFFFFFF;

struct Curve {
  Form form = Form::statistics;
  std::vector<std::string> tags;  // "norm/grad_reduced/fc.weight", one per statistic
  std::vector<SourceId> members;
};

class Curves {
 public:
  explicit Curves(std::size_t tags) : budget_(tags) {}

  // The source of this series' rows or payloads; made, without a curve yet, where it is new.
  SourceId source_of(const Series& series, Form form);
  std::size_t source_count() const { return sources_.size(); }

  // Gives every new source its curve. Where they do not all fit, kinds get equal shares.
  void place_new_sources();
  // kNoCurve where not even a curve per layer fits. After place_new_sources().
  CurveId curve_of(SourceId source) const { return sources_[source].curve; }
  const Curve& at(CurveId curve) const { return curves_[curve]; }
  std::size_t size() const { return curves_.size(); }

  // Whether there is room for a scalar of the run; once it has, it keeps it.
  bool has_tag(const std::string& name);
  // The same for a declared value: they have a share, and what series leave over.
  bool has_declared_tag(const std::string& name);

  std::size_t own() const { return own_; }          // sources with a curve of their own
  std::size_t merged() const { return merged_; }    // that share one
  std::size_t missing() const { return missing_; }  // without any

 private:
  struct Source {
    Form form = Form::statistics;
    std::string kind;
    std::string name;   // "fc.weight", "1:layers.0.output.0"
    std::string layer;  // "layers.0.*"
    CurveId curve = kNoCurve;
  };

  std::vector<SourceId> in_turns() const;
  std::size_t for_kinds() const;
  std::size_t for_layers() const;
  bool fits(std::size_t tags, std::size_t reserve) const {
    return used_ + tags + reserve <= budget_;
  }
  bool add_tag(const std::string& name, std::size_t reserve);
  CurveId add_curve(const Source& source, const std::string& name);
  CurveId shared_curve(const Source& source);

  const std::size_t budget_;
  std::size_t used_ = 0;
  std::size_t declared_ = 0;  // of these, declared values'
  std::vector<Source> sources_;
  std::map<std::pair<std::string, Form>, SourceId, std::less<>> known_;  // by "kind/name"
  std::vector<SourceId> new_;
  std::vector<Curve> curves_;
  std::map<std::pair<std::string, Form>, CurveId> shared_;  // by "kind/layer"
  std::set<std::pair<std::string, Form>> waiting_kinds_;    // without a curve for all of a kind
  std::set<std::string, std::less<>> scalars_;
  bool overflowed_ = false;
  std::size_t own_ = 0;
  std::size_t merged_ = 0;
  std::size_t missing_ = 0;
};

}  // namespace trainmon
