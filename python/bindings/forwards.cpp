// What the hooks of modules do at every call: rows of inputs and outputs. Python decides what is
// done once per series.
#include "forwards.h"

#include <utility>

#include "init.h"
#include "look_at.h"

namespace trainmon {
namespace {

bool is_tensor(nb::handle object) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(names().tensor.ptr()));
}
const void* this_thread() {
  thread_local const char mark = 0;
  return &mark;
}

}  // namespace

void add_row(nb::handle self, nb::handle watched, bool is_gradient, nb::handle element,
             nb::handle tensor, nb::handle place, std::int32_t call, std::uint32_t flags) {
  const nb::dict series = is_gradient ? watched_of(watched).gradients : watched_of(watched).values;
  PyObject* known = PyDict_GetItemWithError(series.ptr(), element.ptr());
  if (known == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  nb::object number = nb::borrow(known);
  if (known == nullptr) {
    number = self.attr("new_series")(watched, is_gradient ? "actv_grad" : "actv", element, tensor);
    series[element] = number;
  }
  const long id = integer(number);
  if (id < 0) return;
  const Forwards& all = forwards_of(self);
  const Place where = *nb::inst_ptr<Place>(place);
  if (!all.elsewhere) {
    const Observed done = look_at(*all.monitor, tensor.ptr(), [&](const TensorView& view) {
      return all.monitor->observe_at(static_cast<SeriesId>(id), view, where.window, where.accum,
                                     call, flags);
    });
    if (done != Observed::elsewhere) return;
  } else if (tensor.is_none()) {
    return;
  }
  self.attr("is_elsewhere")(number, tensor, where.window, where.accum, call, flags);
}

namespace {

std::vector<Element> elements_of(const nb::object& list) {
  std::vector<Element> found;
  for (const nb::handle item : list) found.push_back({item[0], item[1]});
  return found;
}

// The usual cases at once; whatever has a structure is taken apart in Python.
std::vector<Element> inputs_of(const Forwards& all, nb::handle watched, nb::handle args,
                               nb::handle kwargs) {
  const bool has_kwargs = !kwargs.is_none() && PyDict_Size(kwargs.ptr()) != 0;
  if (all.plain_inputs && !has_kwargs && PyTuple_Check(args.ptr()) &&
      nb::len(args) <= all.positional.size()) {
    std::vector<Element> found;
    bool is_plain = true;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args.ptr()) && is_plain; ++i) {
      const nb::handle value = PyTuple_GetItem(args.ptr(), i);
      if (is_tensor(value)) {
        found.push_back({all.positional[static_cast<std::size_t>(i)], nb::borrow(value)});
      } else {
        is_plain = value.is_none();
      }
    }
    if (is_plain) return found;
  }
  const nb::object keywords = has_kwargs ? nb::borrow(kwargs) : nb::dict();
  return elements_of(all.selection.attr("inputs")(watched, args, keywords));
}

std::vector<Element> outputs_of(const Forwards& all, nb::handle watched, nb::handle output) {
  static const nb::object& name = *new nb::object(interned("output"));
  if (all.plain_outputs && is_tensor(output)) return {{name, nb::borrow(output)}};
  return elements_of(all.selection.attr("outputs")(watched, output));
}

nb::object open_place(const Forwards& all) {
  nb::object place = nb::getattr(all.adapter, names().frame);
  return place.is_none() ? all.adapter.attr("open_frame")() : place;
}

// The number of a call at this place.
std::int32_t next_call(Watched& watched, const nb::object& place) {
  if (!watched.place.is(place)) {
    watched.place = place;
    watched.calls = 0;
    if (!watched.replays.is_none()) watched.replays = nb::none();
  }
  return watched.calls++;
}

void entered(nb::handle_t<Forwards> self, nb::handle_t<Watched> watched, nb::handle args,
             nb::handle kwargs) {
  Forwards& all = forwards_of(self);
  Call call;
  call.watched = nb::borrow(watched);
  call.thread = this_thread();
  std::vector<Element> inputs = inputs_of(all, watched, args, kwargs);
  // Recomputation has no place of its own: its rows belong to the first pass.
  call.is_recomputed = all.in_backward();
  if (!call.is_recomputed) {
    call.place = open_place(all);
    if (nb::inst_ptr<Place>(call.place)->recording) {
      call.number = next_call(watched_of(watched), call.place);
      if (all.values) {
        for (const Element& input : inputs) {
          add_row(self, watched, false, input.name, input.tensor, call.place, call.number, 0);
        }
      }
    } else {
      inputs.clear();
    }
  }
  if (all.inputs && !inputs.empty() && all.is_grad_enabled().is(Py_True)) {
    const Names& known = names();
    for (Element& input : inputs) {
      nb::object node = nb::getattr(input.tensor, known.grad_fn);
      if (node.is_none()) {
        if (!nb::getattr(input.tensor, known.requires_grad).is(Py_True)) continue;
        node = self.attr("accumulator")(input.tensor);
      }
      const long index = integer(nb::getattr(input.tensor, known.output_nr));
      call.given.push_back({std::move(input.name), std::move(node), index});
    }
    if (!call.given.empty()) {
      call.oldest = PyLong_AsUnsignedLongLong(all.sequence_number().ptr());
    }
  }
  all.calls.push_back(std::move(call));
}

// Moves calls of this thread from `begin` on out of `calls`. What they hold may run anything when
// it goes, so that must not happen inside the vector.
std::vector<Call> taken_from(std::vector<Call>& calls, std::size_t begin) {
  std::vector<Call> taken, kept;
  for (std::size_t i = begin; i < calls.size(); ++i) {
    (calls[i].thread == this_thread() ? taken : kept).push_back(std::move(calls[i]));
  }
  calls.resize(begin);
  for (Call& call : kept) calls.push_back(std::move(call));
  return taken;
}

// The call of this thread that ends now: the first of what this returns, if anything. Those inside
// it that are left over have raised.
std::vector<Call> begun(Forwards& all, nb::handle watched) {
  for (std::size_t i = all.calls.size(); i-- > 0;) {
    const Call& call = all.calls[i];
    if (call.thread == this_thread() && call.watched.is(watched)) return taken_from(all.calls, i);
  }
  return {};
}

// A forward inside a backward gives no row; gradients are followed if only it has them.
void recomputed(nb::handle self, nb::handle watched, const Call* call, nb::handle output) {
  const Forwards& all = forwards_of(self);
  const nb::object place = watched_of(watched).place;
  if (!all.gradients || place.is_none() || watched_of(watched).replays.is_none() ||
      !all.is_grad_enabled().is(Py_True)) {
    return;
  }
  const nb::object replayed = watched_of(watched).replays.attr("next")();
  if (replayed.is_none()) return;
  follow_gradients(self, watched, call, outputs_of(all, watched, output), place,
                   static_cast<std::int32_t>(integer(replayed[1])), replayed[0]);
}

void left(nb::handle_t<Forwards> self, nb::handle_t<Watched> watched, nb::handle output) {
  Forwards& all = forwards_of(self);
  Watched& mine = watched_of(watched);
  const std::vector<Call> ended = begun(all, watched);
  const Call* call = ended.empty() ? nullptr : &ended.front();
  mine.ever = true;
  if (call != nullptr ? call->is_recomputed : all.in_backward()) {
    recomputed(self, watched, call, output);
    return;
  }
  // Without a beginning, its hook was not called.
  const nb::object place = call != nullptr ? call->place : open_place(all);
  if (!nb::inst_ptr<Place>(place)->recording) return;
  const std::int32_t number = call != nullptr ? call->number : next_call(mine, place);
  const std::vector<Element> outputs = outputs_of(all, watched, output);
  if (outputs.empty() && !output.is_none()) self.attr("found_no_tensor")(watched, output);
  if (all.values) {
    for (const Element& one : outputs) {
      add_row(self, watched, false, one.name, one.tensor, place, number, 0);
    }
  }
  if (!all.gradients) return;
  if (all.is_grad_enabled().is(Py_True)) {
    follow_gradients(self, watched, call, outputs, place, number, {});
  } else {
    self.attr("await_recomputation")(watched, number);
  }
}

}  // namespace

void init_forwards(nb::module_& module) {
  nb::class_<Place>(module, "Place", "where rows of a forward belong")
      .def(nb::init<std::int64_t, std::int32_t, bool, std::uint32_t>(), nb::arg("window"),
           nb::arg("accum"), nb::arg("recording"), nb::arg("flags"))
      .def_ro("window", &Place::window)
      .def_ro("accum", &Place::accum)
      .def_ro("recording", &Place::recording)
      .def_ro("flags", &Place::flags);
  nb::class_<Watched>(module, "Watched", nb::type_slots(collected<Watched>))
      .def(nb::init<>())
      .def_rw("values", &Watched::values)
      .def_rw("gradients", &Watched::gradients)
      .def_rw("replays", &Watched::replays, nb::arg().none())
      .def_ro("place", &Watched::place)
      .def_ro("calls", &Watched::calls)
      .def_rw("ever", &Watched::ever);
  nb::class_<Forwards>(module, "Forwards", nb::type_slots(collected<Forwards>))
      .def(
          "__init__",
          [](Forwards* self, nb::object adapter, nb::object part, nb::object backward,
             nb::object selection, nb::tuple positional, const nb::dict& calls, bool values,
             bool gradients, bool inputs, bool elsewhere, bool plain_inputs, bool plain_outputs) {
            nb::object core = adapter.attr("core");
            Monitor* monitor = nb::cast<Monitor*>(core);
            new (self) Forwards{monitor,
                                std::move(core),
                                std::move(adapter),
                                std::move(part),
                                std::move(backward),
                                std::move(selection),
                                calls["current_task"],
                                calls["sequence_number"],
                                calls["is_grad_enabled"],
                                std::move(positional),
                                values,
                                gradients,
                                inputs,
                                false,
                                elsewhere,
                                plain_inputs,
                                plain_outputs,
                                {},
                                false,
                                0.0,
                                {},
                                {}};
            names();
          },
          nb::kw_only(), nb::arg("adapter"), nb::arg("part"), nb::arg("backward"),
          nb::arg("selection"), nb::arg("positional"), nb::arg("calls"), nb::arg("values"),
          nb::arg("gradients"), nb::arg("inputs"), nb::arg("elsewhere"), nb::arg("plain_inputs"),
          nb::arg("plain_outputs"))
      .def("entered", &entered, nb::arg("watched"), nb::arg("args"), nb::arg("kwargs").none())
      .def("left", &left, nb::arg("watched"), nb::arg("output").none())
      .def(
          "next_call",
          [](Forwards&, Watched& watched, const nb::object& place) {
            return next_call(watched, place);
          },
          nb::arg("watched"), nb::arg("place"))
      .def("row", &add_row, nb::arg("watched"), nb::arg("is_gradient"), nb::arg("element"),
           nb::arg("tensor"), nb::arg("place"), nb::arg("call"), nb::arg("flags"))
      .def("forward_begins", [](Forwards& self) { taken_from(self.calls, 0); })
      .def_rw("weak", &Forwards::weak)
      .def_rw("is_timed", &Forwards::is_timed)
      .def("taken_seconds", [](Forwards& self) { return std::exchange(self.seconds, 0.0); })
      .def_rw("live", &Forwards::live)
      .def_ro("inputs", &Forwards::inputs)
      .def_ro("values", &Forwards::values)
      .def_ro("gradients", &Forwards::gradients)
      .def_ro("part", &Forwards::part)
      .def_ro("adapter", &Forwards::adapter)
      .def_ro("selection", &Forwards::selection)
      .def_ro("unfinished", &Forwards::unfinished);
}

}  // namespace trainmon
