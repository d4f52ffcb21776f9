// What the hooks of modules do at every call: rows of inputs and outputs, and hooks on the nodes of
// autograd through which their gradients will come. Python decides what is done once per series.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <climits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "init.h"
#include "look_at.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

nb::object interned(const char* text) {
  return nb::steal(PyUnicode_InternFromString(text));
}

// Names that are looked up at every call, and what torch offers under its own.
struct Names {
  nb::object on = interned("on"), now = interned("now"), frame = interned("frame");
  nb::object grad_fn = interned("grad_fn"), output_nr = interned("output_nr");
  nb::object requires_grad = interned("requires_grad");
  nb::object next_functions = interned("next_functions");
  nb::object sequence_nr = interned("_sequence_nr");
  nb::object backward_hooks = interned("_backward_hooks");
  nb::object register_hook_dict = interned("_register_hook_dict");
  nb::object register_hook = interned("register_hook");
  nb::object tensor = nb::module_::import_("torch").attr("Tensor");
  nb::object parameter = nb::module_::import_("torch").attr("nn").attr("Parameter");
  nb::object ordered_dict = nb::module_::import_("collections").attr("OrderedDict");
};
const Names& names() {
  static const Names* const known = new Names;  // never destroyed: the interpreter ends first
  return *known;
}

long integer(const nb::object& number) {
  const long value = PyLong_AsLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return value;
}
bool is_tensor(nb::handle object) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(names().tensor.ptr()));
}
bool is_on(nb::handle part) {
  return nb::getattr(part, names().on).is(Py_True);
}

// Where rows of a forward belong. One object as long as that does not change.
struct Place {
  std::int64_t window;
  std::int32_t accum;
  bool recording;
  std::uint32_t flags;
};

// One module: the series of its tensors, and how often it was called at its place.
struct Watched {
  nb::dict values, gradients;  // element -> number of its series, negative for none
  nb::object place = nb::none();
  std::int32_t calls = 0;
  nb::object replays = nb::none();
  bool ever = false;
};

struct Element {
  nb::object name, tensor;
};

// The edge that the gradient of an input flows into.
struct Given {
  nb::object element, node;
  long index;
};

// A call that has begun: where its rows belong, and the edges of its inputs.
struct Call {
  nb::object watched, place;  // a null place: there is none, the call is a recomputation
  const void* thread = nullptr;
  std::int32_t number = 0;
  bool is_recomputed = false;
  std::vector<Given> given;
  unsigned long long oldest = 0;  // nodes of the call are not older
};

const void* this_thread() {
  thread_local const char mark = 0;
  return &mark;
}

// Base of Activations in activations.py, where the methods are that C++ calls by name. All with the
// GIL held; what Python raises is thrown on.
struct Forwards {
  Monitor* monitor = nullptr;
  nb::object core, adapter, part, backward, selection;  // core keeps the monitor
  nb::object current_task, sequence_number, is_grad_enabled;
  nb::tuple positional;  // elements of positional arguments
  bool values = false, gradients = false, inputs = false, live = false;
  bool elsewhere = false;  // nothing is measured here
  bool plain_inputs = false, plain_outputs = false;
  nb::list unfinished;
  std::vector<Call> calls;  // of all threads, outermost first

  bool in_backward() const { return integer(current_task()) != -1; }
};

Forwards& forwards_of(nb::handle object) {
  return *nb::inst_ptr<Forwards>(object);
}
Watched& watched_of(nb::handle object) {
  return *nb::inst_ptr<Watched>(object);
}

// --- rows -----------------------------------------------------------------------------------

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

// The row of one gradient, at the place of the forward it comes from. Tensor hook of an output.
struct GradientRow {
  nb::object forwards, watched, element, place;
  std::int32_t call = 0;
  nb::object burst;  // of a recomputed call: knows which call it is when gradients arrive

  void observe(nb::handle gradient) {
    const Forwards& all = forwards_of(forwards);
    const nb::object now = all.current_task();
    if (integer(nb::getattr(all.backward, names().now)) != integer(now)) {
      all.backward.attr("enter")(now);
    }
    if (gradient.is_none()) return;  // a node with several outputs, of which this was not used
    if (burst.is_valid()) {
      call = static_cast<std::int32_t>(integer(burst.attr("call")(call)));
      burst.reset();
    }
    add_row(forwards, watched, true, element, gradient, place, call,
            nb::inst_ptr<Place>(place)->flags);
  }
};

// The gradient of one input of one call: the sum over the nodes that use it.
struct InputSum {
  nb::object row;
  std::int32_t parts = 0;     // nodes that use it; -1: not covered
  std::int32_t missing = -1;  // of them, once the first part came; -1 before and afterwards
  nb::object total;

  GradientRow& target() const { return *nb::inst_ptr<GradientRow>(row); }

  void add(nb::handle self, nb::handle gradient) {
    if (parts == 1) {
      if (!gradient.is_none()) target().observe(gradient);
      return;
    }
    const nb::object forwards = target().forwards;
    if (missing < 0) {
      missing = parts;
      forwards_of(forwards).unfinished.append(self);
    }
    --missing;
    if (!gradient.is_none()) {
      total = total.is_valid() ? forwards.attr("added")(total, gradient) : nb::borrow(gradient);
    }
    if (missing == 0) finish();
  }

  void finish() {
    missing = -1;
    if (const nb::object whole = std::exchange(total, {}); whole.is_valid()) {
      target().observe(whole);
    }
  }
};

// Hook of an autograd node that uses inputs.
struct InputGradient {
  struct Use {
    Py_ssize_t index;  // among its gradients
    nb::object sum;
  };
  std::vector<Use> uses;
};

// A new object of a bound type.
template <typename T>
std::pair<nb::object, T*> make() {
  nb::object object = nb::inst_alloc(nb::type<T>());
  T* fields = new (nb::inst_ptr<T>(object)) T();
  nb::inst_mark_ready(object);
  return {std::move(object), fields};
}

// --- gradients ------------------------------------------------------------------------------

// tensor.register_hook(hook), step by step as torch does it in Python: at a sixth of the cost.
void hook_tensor(nb::handle tensor, nb::handle node, nb::handle hook) {
  const Names& known = names();
  const nb::handle type = tensor.type();
  if (!type.is(known.tensor) && !type.is(known.parameter)) {
    tensor.attr("register_hook")(hook);
    return;
  }
  nb::object hooks = nb::getattr(tensor, known.backward_hooks);
  if (hooks.is_none()) {
    const nb::object add = nb::getattr(node, known.register_hook_dict);
    hooks = known.ordered_dict();
    nb::setattr(tensor, known.backward_hooks, hooks);
    add(tensor);
  }
  // torch numbers its keys: the hook itself as a key meets none of them.
  if (PyObject_SetItem(hooks.ptr(), hook.ptr(), hook.ptr()) != 0) nb::raise_python_error();
}

struct Use {
  nb::object node;  // null: the edge is an output's, the module returns its input
  Py_ssize_t index;
  std::size_t input;
};

// Every use of the given edges among nodes that the outputs depend on and that are not older than
// the call: the walk stops at each edge it looks for.
std::vector<Use> uses_of(const std::vector<Given>& given, const std::vector<nb::object>& outputs,
                         unsigned long long oldest) {
  const Names& known = names();
  std::vector<Use> found;
  std::vector<nb::object> nodes;  // to look into; held, for torch makes their Python objects anew
  std::unordered_set<PyObject*> seen;
  const auto input_of = [&](PyObject* node, PyObject* index) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i].node.ptr() == node && given[i].index == PyLong_AsLong(index)) return i;
    }
    return given.size();
  };
  for (const nb::object& output : outputs) {
    const nb::object node = nb::getattr(output, known.grad_fn);
    if (node.is_none()) continue;
    const nb::object index = nb::getattr(output, known.output_nr);
    if (const std::size_t input = input_of(node.ptr(), index.ptr()); input < given.size()) {
      found.push_back({{}, 0, input});
    } else if (seen.insert(node.ptr()).second) {
      nodes.push_back(node);
    }
  }
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    const nb::object node = nodes[at];
    const nb::object edges = nb::getattr(node, known.next_functions);
    const Py_ssize_t size = PyTuple_Size(edges.ptr());
    if (size < 0) nb::raise_python_error();
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* edge = PyTuple_GetItem(edges.ptr(), i);
      PyObject* child = PyTuple_GetItem(edge, 0);
      if (child == nullptr) nb::raise_python_error();
      if (child == Py_None) continue;
      const std::size_t input = input_of(child, PyTuple_GetItem(edge, 1));
      if (input < given.size()) {
        found.push_back({node, i, input});
        continue;
      }
      if (seen.contains(child)) continue;
      const nb::object number = nb::handle(child).attr(known.sequence_nr)();
      const unsigned long long sequence = PyLong_AsUnsignedLongLong(number.ptr());
      if (PyErr_Occurred() != nullptr) nb::raise_python_error();
      // Nodes that accumulate into leaves have the largest number, and nothing behind them.
      if (sequence < oldest || sequence == ULLONG_MAX) continue;
      seen.insert(child);
      nodes.push_back(nb::borrow(child));
    }
  }
  return found;
}

nb::object new_row(nb::handle self, nb::handle watched, nb::handle element, nb::handle place,
                   std::int32_t call, const nb::object& burst) {
  auto [object, row] = make<GradientRow>();
  *row = {nb::borrow(self),  nb::borrow(watched), nb::borrow(element),
          nb::borrow(place), call,                burst};
  return object;
}

void follow_inputs(nb::handle self, nb::handle watched, const std::vector<Given>& given,
                   unsigned long long oldest, const std::vector<nb::object>& outputs,
                   nb::handle place, std::int32_t call, const nb::object& burst) {
  std::vector<std::pair<nb::object, InputSum*>> sums;
  for (std::size_t i = 0; i < given.size(); ++i) {
    bool is_known = false;
    for (std::size_t j = 0; j < i && !is_known; ++j) {
      is_known = given[j].node.is(given[i].node) && given[j].index == given[i].index;
    }
    if (is_known) {  // the walk finds the first of equal edges
      self.attr("not_covered")(watched, given[i].element, "the same tensor as another input");
      sums.emplace_back();
    } else {
      sums.push_back(make<InputSum>());
      sums[i].second->row = new_row(self, watched, given[i].element, place, call, burst);
    }
  }
  const std::vector<Use> uses = uses_of(given, outputs, oldest);
  for (const Use& use : uses) {
    if (use.node.is_valid() || sums[use.input].second->parts < 0) continue;
    sums[use.input].second->parts = -1;
    self.attr("not_covered")(watched, given[use.input].element, "the module returns its input");
  }
  // Uses by one node come one after another.
  for (std::size_t i = 0; i < uses.size();) {
    const nb::object node = uses[i].node;
    InputGradient hook;
    for (; i < uses.size() && uses[i].node.is(node); ++i) {
      const auto& [object, sum] = sums[uses[i].input];
      if (!node.is_valid() || sum->parts < 0) continue;
      ++sum->parts;
      hook.uses.push_back({uses[i].index, object});
    }
    if (hook.uses.empty()) continue;
    auto [object, made] = make<InputGradient>();
    *made = std::move(hook);
    nb::getattr(node, names().register_hook)(object);
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (sums[i].second != nullptr && sums[i].second->parts == 0) {
      self.attr("not_covered")(watched, given[i].element, "no output depends on it");
    }
  }
}

void follow_gradients(nb::handle self, nb::handle watched, const Call* begun,
                      const std::vector<Element>& outputs, nb::handle place, std::int32_t call,
                      const nb::object& burst) {
  const Names& known = names();
  std::vector<nb::object> followed;
  for (const Element& output : outputs) {
    const nb::object node = nb::getattr(output.tensor, known.grad_fn);
    const bool is_leaf = node.is_none();
    if (is_leaf && !nb::getattr(output.tensor, known.requires_grad).is(Py_True)) continue;
    const nb::object hook = new_row(self, watched, output.name, place, call, burst);
    if (is_leaf) {
      self.attr("follow_leaf")(output.tensor, hook);
    } else {
      hook_tensor(output.tensor, node, hook);
    }
    followed.push_back(output.tensor);
  }
  if (begun != nullptr && !begun->given.empty() && !followed.empty()) {
    follow_inputs(self, watched, begun->given, begun->oldest, followed, place, call, burst);
  }
}

// --- forward --------------------------------------------------------------------------------

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

// Moves calls of this thread from `begin` on out of `calls`. What they hold may run anything when it
// goes, so that must not happen inside the vector.
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

// --- types ----------------------------------------------------------------------------------

// A hook's call: an error switches the part off, what is no error (an interrupt) is the user's.
template <typename Work>
PyObject* guarded(nb::handle forwards, Work&& work) noexcept {
  try {
    const nb::object part = forwards_of(forwards).part;
    if (!is_on(part)) Py_RETURN_NONE;
    try {
      work();
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      part.attr("failed")(error.value());
    }
    Py_RETURN_NONE;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* call_row(PyObject* self, PyObject* args, PyObject*) {
  GradientRow& row = *nb::inst_ptr<GradientRow>(self);
  const nb::object keep = nb::borrow(self);
  return guarded(row.forwards, [&] { row.observe(PyTuple_GetItem(args, 0)); });
}

PyObject* call_input(PyObject* self, PyObject* args, PyObject*) {
  const InputGradient& hook = *nb::inst_ptr<InputGradient>(self);
  const nb::object keep = nb::borrow(self);
  const GradientRow& first = nb::inst_ptr<InputSum>(hook.uses[0].sum)->target();
  return guarded(first.forwards, [&] {
    PyObject* gradients = PyTuple_GetItem(args, 0);
    for (const InputGradient::Use& use : hook.uses) {
      PyObject* gradient = PyTuple_GetItem(gradients, use.index);
      if (gradient == nullptr) nb::raise_python_error();
      nb::inst_ptr<InputSum>(use.sum)->add(use.sum, gradient);
    }
  });
}

// For the garbage collector: all references that an object of ours holds.
template <typename Visit>
void each(Watched& o, Visit&& visit) {
  visit(o.values), visit(o.gradients), visit(o.place), visit(o.replays);
}
template <typename Visit>
void each(Forwards& o, Visit&& visit) {
  visit(o.core), visit(o.adapter), visit(o.part), visit(o.backward), visit(o.selection);
  visit(o.current_task), visit(o.sequence_number), visit(o.is_grad_enabled);
  visit(o.positional), visit(o.unfinished);
  for (Call& call : o.calls) {
    visit(call.watched), visit(call.place);
    for (Given& given : call.given) visit(given.element), visit(given.node);
  }
}
template <typename Visit>
void each(GradientRow& o, Visit&& visit) {
  visit(o.forwards), visit(o.watched), visit(o.element), visit(o.place), visit(o.burst);
}
template <typename Visit>
void each(InputSum& o, Visit&& visit) {
  visit(o.row), visit(o.total);
}
template <typename Visit>
void each(InputGradient& o, Visit&& visit) {
  for (InputGradient::Use& use : o.uses) visit(use.sum);
}

template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  int stopped = 0;
  each(*nb::inst_ptr<T>(self), [&](nb::handle held) {
    if (stopped == 0 && held.is_valid()) stopped = visit(held.ptr(), arg);
  });
  return stopped;
}
template <typename T>
int clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  std::vector<nb::object> dropped;  // only once nothing of ours refers to them
  each(*nb::inst_ptr<T>(self), [&](nb::object& held) {
    dropped.push_back(std::exchange(held, nb::object()));
  });
  return 0;
}

template <typename T>
PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                           {0, nullptr}};
template <typename T, ternaryfunc call>
PyType_Slot collected_hook[] = {{Py_tp_call, reinterpret_cast<void*>(call)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                                {0, nullptr}};

// Copies and pickles of hooks do nothing, wherever they are loaded: as those of hooks.py.
nb::tuple inert(nb::handle) {
  const nb::object context = nb::module_::import_("contextlib").attr("nullcontext")();
  return nb::make_tuple(nb::module_::import_("builtins").attr("getattr"),
                        nb::make_tuple(context, "__exit__"));
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
      .def_ro("ever", &Watched::ever);
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
                                {}};
            names();
          },
          nb::kw_only(), nb::arg("adapter"), nb::arg("part"), nb::arg("backward"),
          nb::arg("selection"), nb::arg("positional"), nb::arg("calls"), nb::arg("values"),
          nb::arg("gradients"), nb::arg("inputs"), nb::arg("elsewhere"), nb::arg("plain_inputs"),
          nb::arg("plain_outputs"))
      .def("entered", &entered, nb::arg("watched"), nb::arg("args"), nb::arg("kwargs").none())
      .def("left", &left, nb::arg("watched"), nb::arg("output").none())
      .def("forward_begins", [](Forwards& self) { taken_from(self.calls, 0); })
      .def_rw("live", &Forwards::live)
      .def_ro("part", &Forwards::part)
      .def_ro("adapter", &Forwards::adapter)
      .def_ro("selection", &Forwards::selection)
      .def_ro("unfinished", &Forwards::unfinished);
  nb::class_<GradientRow> row(module, "GradientRow",
                              nb::type_slots(collected_hook<GradientRow, call_row>));
  row.def_ro("watched", &GradientRow::watched)
      .def_ro("element", &GradientRow::element)
      .def("__reduce__", &inert);
  nb::class_<InputSum>(module, "InputSum", nb::type_slots(collected<InputSum>))
      .def("finish", &InputSum::finish);
  nb::class_<InputGradient> hook(module, "InputGradient",
                                 nb::type_slots(collected_hook<InputGradient, call_input>));
  hook.def("__reduce__", &inert);
  // torch warns about hooks on a saved tensor without this.
  row.attr("__torch_unserializable__") = hook.attr("__torch_unserializable__") = true;
}

}  // namespace trainmon
