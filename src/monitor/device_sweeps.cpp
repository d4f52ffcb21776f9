// Tensors of devices: gathered, and measured in one launch; rows whose values an adapter brings.
#include <stdexcept>
#include <string>
#include <vector>

#include "base/of_thread.h"
#include "monitor/state.h"

namespace trainmon {
namespace {

// Of those that are there, or a new one.
DeviceSweep& sweep_for(const TensorView& tensor, std::vector<DeviceSweep>& sweeps) {
  for (DeviceSweep& sweep : sweeps) {
    if (sweep.takes(tensor)) return sweep;
  }
  return sweeps.emplace_back();
}

}  // namespace

Observed Monitor::State::observe_on_device(SeriesId series, const TensorView& tensor,
                                           std::uint32_t flags,
                                           const std::optional<Address>& address, Reading* keep) {
  DeviceSweep& sweep = of_thread<DeviceSweep>();
  sweep.clear();
  Observed done = add_to(sweep, series, tensor, flags, address);
  sweep.keep = keep;
  if (done == Observed::recorded) done = launch(sweep);
  sweep.keep = nullptr;
  return done;
}

void Monitor::State::observe_all(std::span<const SeriesId> series,
                                 std::span<const TensorView> tensors, std::span<Observed> out,
                                 std::uint32_t flags, const TensorView* scale) {
  if (series.size() != tensors.size() || out.size() != tensors.size()) {
    throw std::invalid_argument("observe_all() was given " + std::to_string(tensors.size()) +
                                " tensors, " + std::to_string(series.size()) + " series and " +
                                std::to_string(out.size()) + " places");
  }
  auto& sweeps = of_thread<std::vector<DeviceSweep>>();  // one for each device and stream
  for (DeviceSweep& sweep : sweeps) sweep.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device == Device::cpu) {
      collector.observe(series[i], tensors[i], flags);
      out[i] = Observed::recorded;
    } else {
      out[i] = add_to(sweep_for(tensors[i], sweeps), series[i], tensors[i], flags, std::nullopt);
    }
  }
  for (DeviceSweep& sweep : sweeps) {
    sweep.scale = scale;
    launch(sweep);
    sweep.scale = nullptr;
  }
}

Observed Monitor::State::add_to(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                                std::uint32_t flags, const std::optional<Address>& address) {
  if (tensor.device != Device::cuda) return Observed::elsewhere;
  try {
    const bool added = collector.observe_on_device(sweep, series, tensor, flags, address);
    return added ? Observed::recorded : Observed::elsewhere;
  } catch (const std::invalid_argument& error) {
    refuse(error.what(), 1);
    return Observed::refused;
  }
}

// Counts what was not launched.
Observed Monitor::State::launch(DeviceSweep& sweep) {
  const auto rows = static_cast<std::int64_t>(sweep.rows.size());
  const std::string why = collector.launch_on_device(sweep);
  if (why.empty()) return Observed::recorded;
  refuse(why, rows);
  return Observed::refused;
}

bool Monitor::State::refuse(std::string_view reason, std::int64_t tensors) {
  const std::lock_guard lock(facts_mutex);
  std::int64_t& count = refused[std::string(reason)];
  count += tensors;
  return count == tensors;
}

std::string Monitor::reserve_device(int device, std::int64_t tensors, std::int64_t bytes) {
  return state_->collector.reserve_device(device, tensors, bytes);
}

void Monitor::add_late_row(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                           std::int64_t window, std::int32_t accum, std::int32_t call,
                           std::uint32_t flags) {
  state_->while_alive("observe", [&] {
    state_->collector.add_late_row(series, dtype, sizes, {window, accum, call}, flags);
  });
}

std::int64_t Monitor::seal_late() {
  std::int64_t ticket = 0;
  state_->while_alive("late values", [&] { ticket = state_->collector.seal_late(); });
  return ticket;
}

std::optional<std::int64_t> Monitor::checked_from(SeriesId series, const TensorView& tensor) const {
  std::optional<std::int64_t> from;
  state_->while_alive("observe", [&] { from = state_->collector.checked_from(series, tensor); });
  return from;
}

void Monitor::fulfil(std::int64_t ticket, std::span<const RowState> states,
                     std::span<const std::optional<RowCheck>> checks) {
  state_->while_alive("late values", [&] {
    if (state_->collector.fulfil(ticket, states, checks)) return;
    part_failed("late values", "a device brought values for a batch that does not wait for them");
  });
}

}  // namespace trainmon
