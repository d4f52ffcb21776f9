// Tensors of devices: gathered, and measured in one launch.
#include <stdexcept>
#include <string>

#include "base/of_thread.h"
#include "monitor/state.h"

namespace trainmon {

Observed Monitor::State::observe_on_device(SeriesId series, const TensorView& tensor,
                                           std::uint32_t flags,
                                           const std::optional<Address>& address) {
  struct OfOne : DeviceSweep {};  // observe_all() has another
  DeviceSweep& sweep = of_thread<OfOne>();
  sweep.clear();
  const Observed done = add_to(sweep, series, tensor, flags, address);
  return done == Observed::recorded ? launch(sweep) : done;
}

void Monitor::State::observe_all(std::span<const SeriesId> series,
                                 std::span<const TensorView> tensors, std::span<Observed> out,
                                 std::uint32_t flags, const TensorView* scale) {
  DeviceSweep& sweep = of_thread<DeviceSweep>();
  sweep.clear();
  sweep.scale = scale;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device == Device::cpu) {
      collector.observe(series[i], tensors[i], flags);
      out[i] = Observed::recorded;
    } else {
      out[i] = add_to(sweep, series[i], tensors[i], flags, std::nullopt);
    }
  }
  launch(sweep);
  sweep.scale = nullptr;
}

Observed Monitor::State::add_to(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                                std::uint32_t flags, const std::optional<Address>& address) {
  if (tensor.device != Device::cuda) return Observed::elsewhere;
  try {
    if (!sweep.takes(tensor)) launch(sweep);
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

}  // namespace trainmon
