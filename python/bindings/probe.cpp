// Binds probe.h: the bare probe of one tensor.
#include "trainmon/probe.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "gil.h"
#include "init.h"
#include "states.h"
#include "tensor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

// An array of what `values` holds, which it keeps alive.
template <class Element, class Value>
nb::ndarray<nb::numpy, Element> array_of(std::vector<Value> values,
                                         std::initializer_list<std::size_t> shape) {
  static_assert(sizeof(Element) == sizeof(Value));
  auto kept = std::make_unique<std::vector<Value>>(std::move(values));
  void* data = kept->data();
  const nb::capsule owner(kept.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<Value>*>(p); });
  return nb::ndarray<nb::numpy, Element>(static_cast<Element*>(data), shape, owner);
}

// (state, intervals, exact zeros, signs, digest): what was not asked for is None. `signs` has a
// row per plane. Or the one word that says why the tensor cannot be read.
nb::object probe_tensor(nb::handle tensor, std::optional<std::vector<double>> bounds, int planes,
                        const std::string& digest, double eps, int threads) {
  TensorAccess access;
  switch (read_tensor(tensor.ptr(), access, true)) {
    case Access::ok:
      break;
    case Access::not_cpu:
      return nb::str("device");
    case Access::refused:
      return nb::str(access.reason.c_str());
  }
  ProbeRequest request;
  request.intervals = bounds.has_value();
  if (bounds) request.bounds = std::move(*bounds);
  request.signs = static_cast<Signs>(planes);
  request.digest = digest_from_name(digest).value();
  request.eps = eps;
  Probe found;
  {
    const ReleasedGil release;
    found = probe(access.view, request, threads);
  }
  auto state = std::vector<double>(kColumns);
  write_state(found.state, state.data());
  nb::object intervals = nb::none(), zeros = nb::none(), signs = nb::none(), text = nb::none();
  if (request.intervals) {
    const std::size_t n = found.intervals.size();
    intervals = nb::cast(array_of<std::int64_t>(std::move(found.intervals), {n}));
    zeros = nb::int_(found.exact_zeros);
  }
  if (planes > 0) {
    const auto rows = static_cast<std::size_t>(planes);
    const std::size_t bytes = found.signs.size() / rows;
    signs = nb::cast(array_of<std::uint8_t>(std::move(found.signs), {rows, bytes}));
  }
  if (request.digest != Digest::none) text = nb::str(found.digest.c_str());
  return nb::make_tuple(array_of<double>(std::move(state), {1, kColumns}), intervals, zeros, signs,
                        text);
}

}  // namespace

void init_probe(nb::module_& module) {
  nb::list digests;
  for (const Digest digest : {Digest::none, Digest::md5, Digest::crc32, Digest::fast64}) {
    const std::string_view name = digest_name(digest);
    digests.append(nb::str(name.data(), name.size()));
  }
  module.attr("DIGESTS") = nb::tuple(digests);
  module.def("probe_tensor", &probe_tensor, nb::arg("tensor"), nb::arg("bounds").none(),
             nb::arg("planes"), nb::arg("digest"), nb::arg("eps"), nb::arg("threads"));
}

}  // namespace trainmon
