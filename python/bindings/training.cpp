// Binds what hooks in C++ and Python share of the training under way.
#include "training.h"

#include "init.h"

namespace trainmon {

std::int64_t Backward::current() const {
  const nb::object now = current_task();
  const long long value = PyLong_AsLongLong(now.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return value;
}

void Backward::follow(const Held<Backward>& self) {
  if (const std::int64_t now = self->current(); now != self->now) kEnter(self, now);
}

void Steps::enter_backward(const Held<Steps>& self, nb::handle tensor) {
  const Held<Backward> backward = self->backward;
  Backward::follow(backward);
  if (self->task != backward->task) kBackwardBegins(self, tensor);
}

void init_training(nb::module_& module) {
  static constexpr const Method* of_part[] = {&kFailed};
  static constexpr const Method* of_backward[] = {&kEnter};
  static constexpr const Method* of_steps[] = {&kBackwardBegins};

  const nb::class_<Part> part =
      nb::class_<Part>(module, "Part").def(nb::init<>()).def_rw("on", &Part::on);
  require_methods(part, of_part);

  nb::class_<Backward> backward(module, "Backward", nb::type_slots(collected<Backward>));
  backward
      .def(
          "__init__",
          [](Backward* self, nb::typed<nb::callable, int()> current_task) {
            new (self) Backward{std::move(current_task)};
          },
          nb::arg("current_task"))
      .def_rw("task", &Backward::task)
      .def_rw("now", &Backward::now)
      .def("follow", &Backward::follow,
           "calls enter() when the run that calls is another than the last one");
  require_methods(backward, of_backward);

  nb::class_<Place>(module, "Place", "where rows of a forward belong")
      .def(nb::init<std::int64_t, std::int32_t, bool, std::uint32_t>(), nb::arg("window"),
           nb::arg("accum"), nb::arg("recording"), nb::arg("flags"))
      .def_ro("window", &Place::window)
      .def_ro("accum", &Place::accum)
      .def_ro("recording", &Place::recording)
      .def_ro("flags", &Place::flags);

  nb::class_<Steps> steps(module, "Steps", nb::type_slots(collected<Steps>),
                          nb::is_weak_referenceable());
  steps
      .def(
          "__init__",
          [](Steps* self, Held<Backward> backward) { new (self) Steps{std::move(backward)}; },
          nb::arg("backward"))
      .def_rw("task", &Steps::task)
      .def_rw("recording", &Steps::recording)
      .def_rw("flags", &Steps::flags)
      .def_rw("previous", &Steps::previous, nb::for_setter(nb::arg("tensor").none()))
      .def_rw("last", &Steps::last, nb::for_setter(nb::arg("tensor").none()))
      .def_rw("frame", &Steps::frame, nb::for_setter(nb::arg("place").none()),
              nb::for_getter(nb::sig("def frame(self) -> Place | None")))
      .def("enter_backward", &Steps::enter_backward, nb::arg("tensor") = nb::none(),
           "to be called by each hook of a backward, with the tensor if it keeps its .grad")
      .def("got_gradient", &Steps::got_gradient, nb::arg("tensor"));
  require_methods(steps, of_steps);
}

}  // namespace trainmon
