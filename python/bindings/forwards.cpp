// What the hooks of modules do at every call: rows of inputs and outputs. Python decides what is
// done once per series.
#include "forwards.h"

#include <nanobind/stl/optional.h>

#include <utility>

#include "init.h"
#include "look_at.h"

namespace trainmon {
namespace {

constexpr Method kNewSeries{
    "new_series",
    "def new_series(self, watched: Watched, kind: str, element: str, tensor: object) -> int"};
constexpr Method kSeriesIsElsewhere{
    "is_elsewhere",
    "def is_elsewhere(self, series: int, tensor: object, window: int, accum: int, call: int, "
    "flags: int) -> None"};
constexpr Method kFoundNoTensor{
    "found_no_tensor", "def found_no_tensor(self, watched: Watched, output: object) -> None"};
constexpr Method kAccumulator{"accumulator", "def accumulator(self, leaf: object) -> object"};
constexpr const Method* kForwardMethods[] = {&kNewSeries,   &kSeriesIsElsewhere, &kFoundNoTensor,
                                             &kAccumulator, &kNotCovered,        &kAdded,
                                             &kTraceable,   &kFollowLeaf};

bool is_tensor(nb::handle object) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(names().tensor.ptr()));
}
const void* this_thread() {
  thread_local const char mark = 0;
  return &mark;
}

// Whose row it is, and where it belongs.
struct Spot {
  SeriesId series;
  const Place& place;
  std::int32_t call;
  std::uint32_t flags;
};

Observed read(const Forwards& all, PyObject* tensor, const Spot& at, Reading* keep) {
  return look_at(*all.core, tensor, [&](const TensorView& view) {
    return all.core->observe_sample(at.series, view, at.place.window, at.place.accum, at.call,
                                    all.sample, at.flags, keep);
  });
}

// Unless it was read before.
Observed read_once(Forwards& all, PyObject* tensor, const Spot& at) {
  Readings::State state = all.readings.find(tensor);
  bool is_known = state.reading.is_there();
  const Observed done = look_at(*all.core, tensor, [&](const TensorView& view) {  // without the GIL
    is_known = is_known && state.data == view.data;
    if (is_known) {
      return all.core->observe_again(at.series, view, at.place.window, at.place.accum, at.call,
                                     at.flags, state.reading);
    }
    state = {view.data, state.version, {}};
    return all.core->observe_sample(at.series, view, at.place.window, at.place.accum, at.call,
                                    all.sample, at.flags, &state.reading);
  });
  if (!is_known) all.readings.keep(tensor, std::move(state));
  return done;
}

}  // namespace

void add_row(const Held<Forwards>& self, const Held<Watched>& watched, const RowKind& kind,
             nb::handle element, nb::handle tensor, const Held<Place>& place, std::int32_t call,
             std::uint32_t flags) {
  const nb::dict series = *watched.*kind.series;
  PyObject* known = PyDict_GetItemWithError(series.ptr(), element.ptr());
  if (known == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  nb::object number = nb::borrow(known);
  if (known == nullptr) {
    number = kNewSeries(self, watched, kind.name, element, tensor);
    series[element] = number;
  }
  const long id = integer(number);
  if (id < 0) return;
  const Forwards& all = *self;
  const Place where = *place;
  if (!all.elsewhere) {
    const Spot spot{static_cast<SeriesId>(id), where, call, flags};
    const Observed done =
        all.rereads ? read(all, tensor.ptr(), spot, nullptr) : read_once(*self, tensor.ptr(), spot);
    if (done != Observed::elsewhere) return;
  } else if (tensor.is_none()) {
    return;
  }
  kSeriesIsElsewhere(self, number, tensor, where.window, where.accum, call, flags);
}

namespace {

std::vector<Element> elements_of(const nb::object& list) {
  std::vector<Element> found;
  for (const nb::handle item : list) found.push_back({item[0], item[1]});
  return found;
}

// The usual cases at once; whatever has a structure is taken apart in Python.
std::vector<Element> inputs_of(const Forwards& all, const Held<Watched>& watched, nb::handle args,
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
  return elements_of(all.find_inputs(watched, args, keywords));
}

std::vector<Element> outputs_of(const Forwards& all, const Held<Watched>& watched,
                                nb::handle output) {
  static const nb::object& name = *new nb::object(interned("output"));
  if (all.plain_outputs && is_tensor(output)) return {{name, nb::borrow(output)}};
  return elements_of(all.find_outputs(watched, output));
}

Held<Place> open_place(const Forwards& all) {
  if (const Held<Place> frame = all.clock->frame; frame.is_there()) return frame;
  return nb::cast<Held<Place>>(all.open_frame());
}

// The number of a call at this place.
std::int32_t next_call(Watched& watched, const Held<Place>& place) {
  if (!watched.place.is(place)) {
    watched.place = place;
    watched.calls = 0;
    watched.replays.forget();
  }
  return watched.calls++;
}

void entered(const Held<Forwards>& self, const Held<Watched>& watched, nb::handle args,
             nb::handle kwargs) {
  const UnseenBy unseen(args.ptr(), kwargs.ptr());
  Forwards& all = *self;
  Call call;
  call.watched = watched;
  call.thread = this_thread();
  std::vector<Element> inputs = inputs_of(all, watched, args, kwargs);
  // Recomputation has no place of its own: its rows belong to the first pass.
  call.is_recomputed = all.in_backward();
  if (!call.is_recomputed) {
    call.place = open_place(all);
    if (call.place->recording) {
      call.number = next_call(*watched, call.place);
      if (all.values) {
        for (const Element& input : inputs) {
          add_row(self, watched, kValue, input.name, input.tensor, call.place, call.number, 0);
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
        node = kAccumulator(self, input.tensor);
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

// Of one call in so many, which are others in each step: most regions have many modules.
constexpr std::int64_t kRecomputedOf = 4;

// What a module returns in a backward belongs to the first pass. Which call of several it is, is
// not known.
void add_recomputed(const Held<Forwards>& self, const Held<Watched>& watched,
                    const Held<Place>& place, nb::handle output) {
  Forwards& all = *self;
  if (!all.recomputed || !place.is_there() || !place->recording || watched->calls != 1) return;
  if ((all.again++ + place->window) % kRecomputedOf != 0) return;
  for (const Element& one : outputs_of(all, watched, output)) {
    add_row(self, watched, kRecomputed, one.name, one.tensor, place, 0, 0);
  }
}

// A forward inside a backward gives no other row; gradients are followed if only it has them.
void recomputed(const Held<Forwards>& self, const Held<Watched>& watched, const Call* call,
                nb::handle output) {
  const Forwards& all = *self;
  const Held<Place> place = watched->place;
  add_recomputed(self, watched, place, output);
  if (!all.gradients || !place.is_there() || !all.is_grad_enabled().is(Py_True)) return;
  const std::optional<Replay> replayed = watched->replays.next();
  if (!replayed) return;
  follow_gradients(self, watched, call, outputs_of(all, watched, output), place, replayed->index,
                   replayed->burst);
}

void left(const Held<Forwards>& self, const Held<Watched>& watched, nb::handle output) {
  const UnseenBy unseen(output.ptr());
  Forwards& all = *self;
  const std::vector<Call> ended = begun(all, watched);
  const Call* call = ended.empty() ? nullptr : &ended.front();
  watched->ever = true;
  if (call != nullptr ? call->is_recomputed : all.in_backward()) {
    recomputed(self, watched, call, output);
    return;
  }
  // Without a beginning, its hook was not called.
  const Held<Place> place = call != nullptr ? call->place : open_place(all);
  if (!place->recording) return;
  const std::int32_t number = call != nullptr ? call->number : next_call(*watched, place);
  const std::vector<Element> outputs = outputs_of(all, watched, output);
  if (outputs.empty() && !output.is_none()) kFoundNoTensor(self, watched, output);
  if (all.values) {
    for (const Element& one : outputs) {
      add_row(self, watched, kValue, one.name, one.tensor, place, number, 0);
    }
  }
  if (!all.gradients) return;
  if (all.is_grad_enabled().is(Py_True)) {
    follow_gradients(self, watched, call, outputs, place, number, nullptr);
  } else {
    watched->replays.await(number);
  }
}

void add_plain_row(const Held<Forwards>& self, const Held<Watched>& watched, bool is_gradient,
                   nb::handle element, nb::handle tensor, const Held<Place>& place,
                   std::int32_t call, std::uint32_t flags) {
  add_row(self, watched, is_gradient ? kGradient : kValue, element, tensor, place, call, flags);
}

void init_watched(nb::module_& module) {
  nb::class_<Watched>(module, "Watched", nb::type_slots(collected<Watched>))
      .def(nb::init<>())
      .def_rw("values", &Watched::values,
              nb::for_getter(nb::sig("def values(self) -> dict[str, int]")))
      .def_rw("gradients", &Watched::gradients,
              nb::for_getter(nb::sig("def gradients(self) -> dict[str, int]")))
      .def_rw("recomputed", &Watched::recomputed,
              nb::for_getter(nb::sig("def recomputed(self) -> dict[str, int]")))
      .def_ro("place", &Watched::place, nb::sig("def place(self) -> Place | None"))
      .def_ro("calls", &Watched::calls, "at this place")
      .def_rw("ever", &Watched::ever)
      .def(
          "await_recomputation", [](Watched& self, std::int32_t call) { self.replays.await(call); },
          nb::arg("call"),
          "of a call without a graph: if there is one later, its gradients belong to this call")
      .def(
          "next_replay",
          [](Watched& self) -> std::optional<std::int32_t> {
            const std::optional<Replay> replay = self.replays.next();
            return replay ? std::optional(replay->index) : std::nullopt;
          },
          "the place of a recomputed call among those of its segment; None when none is awaited")
      .def(
          "replayed_call",
          [](Watched& self, std::int32_t index) { return self.replays.call(index); },
          nb::arg("index"), "the call of the first pass that a recomputed one stands for");
}

}  // namespace

void init_forwards(nb::module_& module) {
  init_watched(module);
  nb::class_<Forwards> forwards(module, "Forwards", nb::type_slots(collected<Forwards>),
                                nb::is_weak_referenceable());
  forwards
      .def(
          "__init__",
          [](nb::pointer_and_handle<Forwards> self, Held<BoundMonitor> core, Held<Part> part,
             Held<Backward> backward, Held<Steps> clock,
             nb::typed<nb::callable, Held<Place>()> open_frame, FindInputs find_inputs,
             FindOutputs find_outputs, nb::object sequence_number,
             nb::typed<nb::callable, bool()> is_grad_enabled, nb::tuple positional, bool values,
             bool gradients, bool inputs, bool recomputed, bool elsewhere, bool plain_inputs,
             bool plain_outputs, bool is_timed, int sample, bool rereads) {
            new (self.p) Forwards{std::move(core),
                                  std::move(part),
                                  std::move(backward),
                                  std::move(clock),
                                  std::move(open_frame),
                                  std::move(find_inputs),
                                  std::move(find_outputs),
                                  std::move(sequence_number),
                                  std::move(is_grad_enabled),
                                  std::move(positional),
                                  values,
                                  gradients,
                                  inputs,
                                  recomputed,
                                  elsewhere,
                                  plain_inputs,
                                  plain_outputs,
                                  is_timed,
                                  sample,
                                  rereads};
            self.p->weak = Weak<Forwards>::to(self.h);
            names();
          },
          nb::kw_only(), nb::arg("core"), nb::arg("part"), nb::arg("backward"), nb::arg("clock"),
          nb::arg("open_frame"), nb::arg("find_inputs"), nb::arg("find_outputs"),
          nb::arg("sequence_number").none(), nb::arg("is_grad_enabled"), nb::arg("positional"),
          nb::arg("values"), nb::arg("gradients"), nb::arg("inputs"), nb::arg("recomputed"),
          nb::arg("elsewhere"), nb::arg("plain_inputs"), nb::arg("plain_outputs"),
          nb::arg("is_timed"), nb::arg("sample"), nb::arg("rereads"))
      .def("entered", &entered, nb::arg("watched"), nb::arg("args"), nb::arg("kwargs").none())
      .def("left", &left, nb::arg("watched"), nb::arg("output").none())
      .def(
          "next_call",
          [](Forwards&, Watched& watched, const Held<Place>& place) {
            return next_call(watched, place);
          },
          nb::arg("watched"), nb::arg("place"))
      .def("row", &add_plain_row, nb::arg("watched"), nb::arg("is_gradient"), nb::arg("element"),
           nb::arg("tensor"), nb::arg("place"), nb::arg("call"), nb::arg("flags"))
      .def("forward_begins",
           [](Forwards& self) {
             taken_from(self.calls, 0);
             self.readings.forget();
             self.again = 0;
           })
      .def("forget_readings", [](Forwards& self) { self.readings.forget(); })
      .def("taken_seconds", [](Forwards& self) { return std::exchange(self.seconds, 0.0); })
      .def_rw("live", &Forwards::live, "whether the clock's open window is recorded")
      .def_rw("may_be_traced", &Forwards::may_be_traced,
              "whether Dynamo is there to look into hooks on gradients")
      .def_prop_ro(
          "active",
          [](const Forwards& self) { return self.live && self.part.is_there() && self.part->on; },
          "whether hooks are to call entered() and left()")
      .def_ro("inputs", &Forwards::inputs)
      .def_ro("values", &Forwards::values)
      .def_ro("gradients", &Forwards::gradients)
      .def_ro("part", &Forwards::part)
      .def_ro("backward", &Forwards::backward)
      .def_ro("clock", &Forwards::clock)
      .def_ro("unfinished", &Forwards::unfinished,
              nb::sig("def unfinished(self) -> list[InputSum]"));
  require_methods(forwards, kForwardMethods);
}

}  // namespace trainmon
