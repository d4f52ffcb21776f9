// All that allocates comes before anything is merged.
#include "sinks/merged_windows.h"

#include <algorithm>

#include "model/histogram.h"
#include "sinks/table.h"

namespace trainmon {
namespace {

void touch(MergedWindow& window, std::int64_t time_ns) {
  window.is_dirty = true;
  window.time_ns = time_ns;
}

void take_payload(MergedWindow& window, SourceId source, const Payload& payload,
                  std::optional<Histogram>& histogram) {
  if (!histogram) {
    const auto* text = reinterpret_cast<const char*>(payload.bytes.data());
    window.texts.emplace_back(source, std::string(text, payload.bytes.size()));
    return;
  }
  Slot& slot = window.slots[source];
  if (slot.rows == 0 || !add(slot.histogram, *histogram)) slot.histogram = std::move(*histogram);
  ++slot.rows;
  ++slot.unwritten;
}

}  // namespace

bool add(Histogram& into, const Histogram& from) {
  if (into.bins.size() != from.bins.size() || into.low != from.low || into.high != from.high) {
    return false;
  }
  for (std::size_t i = 0; i < into.bins.size(); ++i) into.bins[i] += from.bins[i];
  return true;
}

const MergedWindows::Place* MergedWindows::newest(std::int32_t optimizer) const {
  const auto after = windows_.upper_bound({optimizer, std::numeric_limits<std::int64_t>::max()});
  if (after == windows_.begin()) return nullptr;
  const Place& place = std::prev(after)->first;
  return place.first == optimizer ? &place : nullptr;
}

bool MergedWindows::is_new(const Place& place) const {
  const Place* known = newest(place.first);
  return known != nullptr && known->second < place.second;
}

bool MergedWindows::are_followed_by(const RecordBatch& batch) const {
  std::optional<Place> looked_at;
  for (const Row& row : batch.rows) {
    const Place place = place_of(row.key);
    if (place == looked_at) continue;
    if (is_new(place)) return true;
    looked_at = place;
  }
  const auto is_later = [this](const auto& record, std::int32_t optimizer) {
    return is_new({optimizer, record.window});
  };
  return std::ranges::any_of(batch.scalars,
                             [&](const Scalar& scalar) { return is_later(scalar, clock_); }) ||
         std::ranges::any_of(batch.declared, [&](const Declared& group) {
           return is_later(group, group.optimizer);
         });
}

bool MergedWindows::are_newer(std::int64_t windows, const Place& place) const {
  const Place* known = newest(place.first);
  return known != nullptr && known->second - place.second >= windows;
}

void MergedWindows::forget_all_but(std::int64_t windows) {
  for (auto at = windows_.begin(); at != windows_.end();) {
    const bool is_old = are_newer(windows, at->first) && !at->second.is_dirty;
    at = is_old ? windows_.erase(at) : std::next(at);
  }
}

void MergedWindows::hold(const RecordBatch& batch) {
  std::vector<Target> targets;
  targets.reserve(batch.rows.size() + batch.payloads.size());
  std::optional<Place> last;
  MergedWindow* window = nullptr;
  const auto window_at = [&](const Place& place) {
    if (place != last) window = &windows_[place];
    last = place;
    return window;
  };
  for (const Row& row : batch.rows) {
    targets.push_back({window_at(place_of(row.key)), source_of_rows(row.key.series)});
  }
  std::vector<std::optional<Histogram>> histograms(batch.payloads.size());
  for (std::size_t i = 0; i < batch.payloads.size(); ++i) {
    const Payload& payload = batch.payloads[i];
    const bool is_text = payload.type == PayloadType::text;
    if (payload.type == PayloadType::histogram) histograms[i] = read_histogram(payload.bytes);
    if (!is_text && !histograms[i]) {
      targets.push_back({});
      continue;
    }
    const Form form = is_text ? Form::text : Form::histogram;
    targets.push_back({window_at(place_of(payload.key)),
                       curves_.source_of(series_->at(payload.key.series), form)});
    if (is_text) window->texts.reserve(window->texts.size() + batch.payloads.size());
  }
  for (const Target& target : targets) {
    if (target.window == nullptr || target.source < target.window->slots.size()) continue;
    target.window->slots.resize(curves_.source_count());
  }
  for (const Scalar& scalar : batch.scalars) {
    MergedWindow& of_clock = *window_at({clock_, scalar.window});
    of_clock.scalars.emplace_back(scalar.name, scalar.value);
    touch(of_clock, batch.time_ns);
  }
  for (const Declared& group : batch.declared) {
    MergedWindow& of_group = *window_at({group.optimizer, group.window});
    for (const DeclaredValue& value : group.values) {
      if (value.type != DeclaredValue::Type::number) continue;
      of_group.declared.emplace_back(declared_tag(group.optimizer, group.group, value.name),
                                     value.number);
      touch(of_group, batch.time_ns);
    }
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    if (target.window == nullptr) {
      ++no_place_;
    } else if (i < batch.rows.size()) {
      take_row(target, batch.rows[i], batch.time_ns);
    } else {
      const std::size_t number = i - batch.rows.size();
      take_payload(*target.window, target.source, batch.payloads[number], histograms[number]);
      touch(*target.window, batch.time_ns);
    }
  }
  for (const Outcome& outcome : batch.outcomes) {
    const auto ended = windows_.find({outcome.optimizer, outcome.window});
    if (ended != windows_.end()) ended->second.step = outcome.step;
  }
}

SourceId MergedWindows::source_of_rows(SeriesId id) {
  if (id >= row_sources_.size()) row_sources_.resize(id + std::size_t{1}, kUnknownSource);
  if (row_sources_[id] == kUnknownSource) {
    const Series& series = series_->at(id);
    row_sources_[id] = curves_.source_of(series, form_of_rows(series.kind));
  }
  return row_sources_[id];
}

// Gradients before reduction add up over the backwards of a window: the last row holds them all.
void MergedWindows::take_row(const Target& target, const Row& row, std::int64_t time_ns) {
  if ((row.key.flags & flag::kNotReady) != 0) {
    ++not_ready_;
    return;
  }
  Slot& slot = target.window->slots[target.source];
  const bool adds_up = series_->at(row.key.series).kind == kind::kGradUnreduced;
  if (slot.rows == 0 || (adds_up && row.key.seq >= slot.last_seq)) {
    slot.state = row.state;
  } else if (!adds_up) {
    merge(slot.state, row.state);
  }
  slot.last_seq = std::max(slot.last_seq, row.key.seq);
  ++slot.rows;
  ++slot.unwritten;
  touch(*target.window, time_ns);
}

}  // namespace trainmon
