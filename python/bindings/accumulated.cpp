// The post-accumulate-grad hook of a parameter.
#include "hooks.h"
#include "init.h"
#include "look_at.h"

namespace trainmon {
namespace {

// Base of Accumulated in accumulated.py, where the methods are that C++ calls by name.
struct Accumulated {
  nb::object adapter;  // a weak reference
  nb::object current_task;
  Monitor* monitor = nullptr;  // lives as long as the adapter
  int optimizer = 0;
  std::int64_t series = -1;  // negative: no rows
  bool keeps = true;         // whether its .grad stays there until the step
  bool has_dtensors = false;
  bool elsewhere = false;  // nothing is measured here
  std::int64_t task = -1;  // the backward of the last call,
  std::int32_t call = 0;  // and how many there were in it before: runs inside it add piece by piece

  template <typename Visit>
  void each(Visit&& visit) {
    visit(adapter), visit(current_task);
  }
};

void accumulated(nb::handle self, nb::handle adapter, nb::handle tensor) {
  const Names& known = names();
  Accumulated& hook = *nb::inst_ptr<Accumulated>(self);
  nb::object gradient = nb::getattr(tensor, known.grad);
  if (gradient.is_none()) {
    self.attr("found_none")(adapter);
    return;
  }
  const nb::object backward = nb::getattr(adapter, known.backward);
  enter_backward(backward, hook.current_task);
  const nb::object now = nb::getattr(backward, known.task);
  const std::int64_t task = integer(now);
  const nb::object steps = nb::getattr(adapter, known.steps)[hook.optimizer];
  if (integer(nb::getattr(steps, known.task)) != task) {
    steps.attr("backward_begins")(hook.keeps ? tensor : nb::handle(Py_None));
  }
  if (hook.keeps) {
    nb::setattr(steps, known.previous, nb::getattr(steps, known.last));
    nb::setattr(steps, known.last, tensor);
  }
  if (hook.series < 0 || !is_true(steps, known.recording)) return;
  if (hook.has_dtensors) gradient = self.attr("local_of")(gradient);
  if (hook.task == task) {
    ++hook.call;
    self.attr("again")(adapter, steps, gradient, hook.call);
    return;
  }
  hook.task = task;
  hook.call = 0;
  if (!hook.elsewhere) {
    const auto series = static_cast<SeriesId>(hook.series);
    const auto flags = static_cast<std::uint32_t>(integer(nb::getattr(steps, known.flags)));
    const Observed done = look_at(*hook.monitor, gradient.ptr(), [&](const TensorView& view) {
      return hook.monitor->observe(series, view, flags);
    });
    if (done != Observed::elsewhere) return;
  }
  self.attr("is_elsewhere")(adapter, steps, gradient);
}

PyObject* call_accumulated(PyObject* self, PyObject* args, PyObject*) {
  const nb::object keep = nb::borrow(self);
  nb::object adapter;
  return guarded(
      [&] {
        adapter = nb::inst_ptr<Accumulated>(self)->adapter();
        return adapter.is_none() ? nb::object() : nb::getattr(adapter, names().gradients);
      },
      [&] { accumulated(self, adapter, PyTuple_GetItem(args, 0)); });
}

}  // namespace

void init_accumulated(nb::module_& module) {
  nb::class_<Accumulated> hook(module, "Accumulated",
                               nb::type_slots(collected_hook<Accumulated, call_accumulated>));
  hook.def(
          "__init__",
          [](Accumulated* self, nb::object adapter, nb::object current_task, nb::handle core,
             int optimizer, std::int64_t series, bool keeps, bool has_dtensors, bool elsewhere) {
            new (self) Accumulated{std::move(adapter),
                                   std::move(current_task),
                                   nb::cast<Monitor*>(core),
                                   optimizer,
                                   series,
                                   keeps,
                                   has_dtensors,
                                   elsewhere};
            names();
          },
          nb::kw_only(), nb::arg("adapter"), nb::arg("current_task"), nb::arg("core"),
          nb::arg("optimizer"), nb::arg("series"), nb::arg("keeps"), nb::arg("has_dtensors"),
          nb::arg("elsewhere"))
      .def_ro("adapter", &Accumulated::adapter)
      .def_rw("optimizer", &Accumulated::optimizer)
      .def_rw("series", &Accumulated::series)
      .def_ro("keeps", &Accumulated::keeps)
      .def_rw("task", &Accumulated::task)
      .def_rw("call", &Accumulated::call)
      .def("__reduce__", &inert);
  // torch warns about hooks on a saved tensor without this.
  hook.attr("__torch_unserializable__") = true;
}

}  // namespace trainmon
