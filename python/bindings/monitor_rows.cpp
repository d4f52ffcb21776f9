// What Monitor offers for rows that are not one tensor measured here and now.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "gil.h"
#include "look_at.h"
#include "model/histogram.h"
#include "monitor_class.h"
#include "states.h"
#include "stats/check.h"
#include "stats/pairs.h"
#include "tensor.h"

namespace trainmon {
namespace {

// Rows of states. Where checks are taken, kCheckColumns more. The first is 1, or 0 for no check.
// Pieces of 16 bits of the fingerprint follow, the lowest first, and the sums of the sketch.
void fulfil(Monitor& monitor, std::int64_t ticket, const States& values) {
  const bool with_checks = values.shape(1) == kColumns + kCheckColumns;
  if (!with_checks) check_columns(values);
  std::vector<RowState> states(values.shape(0));
  std::vector<std::optional<RowCheck>> checks(with_checks ? states.size() : 0);
  const double* row = values.data();
  for (std::size_t i = 0; i < states.size(); ++i, row += values.shape(1)) {
    states[i] = read_state(row);
    const double* check = row + kColumns;
    if (!with_checks || check[0] == 0.0) continue;
    std::uint64_t fingerprint = 0;
    for (int k = 0; k < 4; ++k) fingerprint |= static_cast<std::uint64_t>(check[1 + k]) << 16 * k;
    checks[i] = row_check(fingerprint, check + 5);
  }
  monitor.fulfil(ticket, states, checks);
}

// Calls look(a, b) where both can be read here; the answer of observe().
template <typename Look>
int look_at_pair(Monitor& monitor, nb::handle a, nb::handle b, Look&& look) {
  TensorAccess first;
  TensorAccess second;
  for (const auto& [object, tensor] : {std::pair(a, &first), std::pair(b, &second)}) {
    switch (read_tensor(object.ptr(), *tensor)) {
      case Access::ok:
        break;
      case Access::not_cpu:
        return static_cast<int>(Observed::elsewhere);
      case Access::refused:
        monitor.refuse(tensor->reason);
        return static_cast<int>(Observed::refused);
    }
  }
  const ReleasedGil release;
  try {
    return static_cast<int>(look(first.view, second.view));
  } catch (const std::invalid_argument&) {
    return static_cast<int>(Observed::refused);
  }
}

int observe_direction(Monitor& monitor, SeriesId series, nb::handle a, nb::handle b) {
  return look_at_pair(monitor, a, b, [&](const TensorView& x, const TensorView& y) {
    const auto share = static_cast<float>(sign_agreement(x, y));
    return monitor.observe(series, {.data = &share, .dtype = DType::float32});
  });
}

int observe_input(Monitor& monitor, SeriesId series, SeriesId entropy, nb::handle tensor,
                  std::int64_t window, std::int32_t accum, std::int32_t call) {
  const Observed done = look_at(monitor, tensor.ptr(), [&](const TensorView& view) {
    return monitor.observe_input(series, entropy, view, window, accum, call);
  });
  return static_cast<int>(done);
}

void add_histogram(Monitor& monitor, SeriesId series, const Histogram& histogram) {
  Payload payload;
  payload.type = PayloadType::histogram;
  payload.key.series = series;
  payload.bytes = histogram_bytes(histogram);
  monitor.add_payload(std::move(payload));
}

int add_adam_histograms(Monitor& monitor, SeriesId update, SeriesId ratio, nb::handle exp_avg,
                        nb::handle exp_avg_sq, double step, double beta1, double beta2,
                        double eps) {
  return look_at_pair(monitor, exp_avg, exp_avg_sq, [&](const TensorView& m, const TensorView& v) {
    const AdamHistograms found = adam_histograms(m, v, {step, beta1, beta2, eps});
    add_histogram(monitor, update, found.update);
    add_histogram(monitor, ratio, found.ratio);
    return Observed::recorded;
  });
}

void add_text(Monitor& monitor, SeriesId series, std::string_view text, std::int64_t window,
              std::int32_t accum, std::int32_t call) {
  Payload payload;
  payload.key.series = series;
  payload.key.window = window;
  payload.key.accum = accum;
  payload.key.call = call;
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  payload.bytes.assign(bytes, bytes + text.size());
  monitor.add_payload_at(std::move(payload));
}

}  // namespace

void bind_rows(MonitorClass& monitor) {
  monitor
      .def(
          "add_late_row",
          [](Monitor& self, SeriesId series, std::string_view dtype,
             const std::vector<std::int64_t>& sizes, std::int64_t window, std::int32_t accum,
             std::int32_t call, std::uint32_t flags) {
            self.add_late_row(series, dtype_of(dtype), sizes, window, accum, call, flags);
          },
          nb::arg("series"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("window"),
          nb::arg("accum"), nb::arg("call"), nb::arg("flags") = 0)
      .def("reserve_device", &Monitor::reserve_device, nb::arg("device"), nb::arg("tensors"),
           nb::arg("bytes"), "'' or why tensors of this CUDA device are not measured by kernels")
      .def("seal_late", &Monitor::seal_late)
      .def("fulfil", &fulfil)
      .def(
          "checked_from",
          [](const Monitor& self, SeriesId series, const std::vector<std::int64_t>& sizes,
             const std::vector<std::int64_t>& strides) {
            if (sizes.size() != strides.size())
              throw std::invalid_argument("strides: not of sizes");
            TensorView tensor;
            tensor.ndim = static_cast<int>(sizes.size());
            tensor.sizes = sizes.data();
            tensor.strides = strides.data();
            return self.checked_from(series, tensor);
          },
          nb::arg("series"), nb::arg("sizes"), nb::arg("strides"),
          "the index of the first element in the full tensor, where a check is taken, else None")
      .def("drop_scalar", &Monitor::drop_scalar)
      .def("add_scalar", &Monitor::add_scalar, nb::arg("name"), nb::arg("value"),
           nb::arg("window") = nb::none())
      .def("observe_direction", &observe_direction, nb::arg("series"), nb::arg("a"), nb::arg("b"),
           "one row with the share of equal signs; answers like observe()")
      .def("observe_input", &observe_input, nb::arg("series"), nb::arg("entropy"),
           nb::arg("tensor"), nb::arg("window"), nb::arg("accum"), nb::arg("call"),
           "rows of what the model is given; answers like observe(), 2 for a tensor of a device")
      .def("add_adam_histograms", &add_adam_histograms, nb::arg("update_series"),
           nb::arg("ratio_series"), nb::arg("exp_avg"), nb::arg("exp_avg_sq"), nb::arg("step"),
           nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"))
      .def("add_text", &add_text, nb::arg("series"), nb::arg("text"), nb::arg("window"),
           nb::arg("accum"), nb::arg("call"));
}

}  // namespace trainmon
