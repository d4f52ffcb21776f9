// The post-accumulate-grad hook of a parameter.
#include <string_view>

#include "hooks.h"
#include "init.h"
#include "look_at.h"

namespace trainmon {
namespace {

// Base of Accumulated in accumulated.py.
struct Accumulated {
  Weak<Steps> steps;
  Held<Part> part;
  Held<BoundMonitor> core;
  std::int64_t series = -1;  // negative: no rows
  bool keeps = true;         // whether its .grad stays there until the step
  bool has_dtensors = false;
  bool elsewhere = false;  // nothing is measured here
  std::int64_t task = -1;  // the backward of the last call,
  std::int32_t call = 0;  // and how many there were in it before: runs inside it add piece by piece

  template <typename Visit>
  void each(Visit&& visit) {
    visit(steps.reference), visit(part), visit(core);
  }
};

constexpr Method kFoundNone{"found_none", "def found_none(self, steps: Steps) -> None"};
constexpr Method kLocalOf{"local_of", "def local_of(self, gradient: object) -> object"};
constexpr Method kAgain{"again",
                        "def again(self, steps: Steps, gradient: object, call: int) -> None"};
constexpr Method kIsElsewhere{"is_elsewhere",
                              "def is_elsewhere(self, steps: Steps, gradient: object) -> None"};
constexpr Method kIsTraced{"is_traced", "def is_traced(self, steps: Steps) -> None"};
constexpr const Method* kMethods[] = {&kFoundNone, &kLocalOf, &kAgain, &kIsElsewhere, &kIsTraced};

// What stands for a parameter while compiled autograd makes its graph: it has no elements.
bool is_traced(nb::handle tensor) {
  const std::string_view name = Py_TYPE(tensor.ptr())->tp_name;
  return name == "FakeTensor" || name == "FunctionalTensor";
}

void accumulated(nb::handle self, const Held<Steps>& steps, nb::handle tensor) {
  Accumulated& hook = *nb::inst_ptr<Accumulated>(self);
  if (is_traced(tensor)) {
    kIsTraced(self, steps);
    return;
  }
  nb::object gradient = nb::getattr(tensor, names().grad);
  if (gradient.is_none()) {
    kFoundNone(self, steps);
    return;
  }
  Steps::enter_backward(steps, hook.keeps ? tensor : nb::handle(Py_None));
  if (hook.keeps) steps->got_gradient(tensor);
  if (hook.series < 0 || !steps->recording) return;
  if (hook.has_dtensors) gradient = kLocalOf(self, gradient);
  const std::int64_t task = steps->backward->task;
  if (hook.task == task) {
    ++hook.call;
    kAgain(self, steps, gradient, hook.call);
    return;
  }
  hook.task = task;
  hook.call = 0;
  if (!hook.elsewhere) {
    const auto series = static_cast<SeriesId>(hook.series);
    const Observed done = look_at(*hook.core, gradient.ptr(), [&](const TensorView& view) {
      return hook.core->observe(series, view, steps->flags);
    });
    if (done != Observed::elsewhere) return;
  }
  kIsElsewhere(self, steps, gradient);
}

PyObject* call_accumulated(PyObject* self, PyObject* args, PyObject*) {
  const nb::object keep = nb::borrow(self);
  const Accumulated& hook = *nb::inst_ptr<Accumulated>(self);
  Held<Steps> steps;
  return guarded(
      [&] {
        steps = hook.steps.get();
        return steps.is_there() ? hook.part : Held<Part>();
      },
      [&] { accumulated(self, steps, PyTuple_GetItem(args, 0)); });
}

}  // namespace

void init_accumulated(nb::module_& module) {
  nb::class_<Accumulated> hook(module, "Accumulated",
                               nb::type_slots(collected_hook<Accumulated, call_accumulated>));
  hook.def(
          "__init__",
          [](Accumulated* self, const Held<Steps>& steps, Held<Part> part, Held<BoundMonitor> core,
             std::int64_t series, bool keeps, bool has_dtensors, bool elsewhere) {
            new (self)
                Accumulated{Weak<Steps>::to(steps), std::move(part), std::move(core), series, keeps,
                            has_dtensors,           elsewhere};
            names();
          },
          nb::kw_only(), nb::arg("steps"), nb::arg("part"), nb::arg("core"), nb::arg("series"),
          nb::arg("keeps"), nb::arg("has_dtensors"), nb::arg("elsewhere"))
      .def_prop_rw(
          "steps", [](const Accumulated& self) { return self.steps.get(); },
          [](Accumulated& self, const Held<Steps>& steps) { self.steps = Weak<Steps>::to(steps); },
          nb::for_setter(nb::arg("steps")),
          nb::for_getter(nb::sig("def steps(self) -> Steps | None")),
          "held weakly: None once they are gone")
      .def_ro("part", &Accumulated::part)
      .def_rw("series", &Accumulated::series)
      .def_ro("keeps", &Accumulated::keeps)
      .def_rw("task", &Accumulated::task)
      .def_rw("call", &Accumulated::call)
      .def("__reduce__", &inert);
  require_methods(hook, kMethods);
  // torch warns about hooks on a saved tensor without this.
  hook.attr("__torch_unserializable__") = true;
}

}  // namespace trainmon
