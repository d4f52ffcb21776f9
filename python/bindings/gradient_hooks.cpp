// Hooks on the nodes of autograd through which gradients of outputs and inputs of modules come.
// The file also has the walk that finds those nodes without inserting any.
#include <chrono>
#include <climits>
#include <unordered_set>

#include "forwards.h"
#include "init.h"

namespace trainmon {
namespace {

// The objects made at every call are unknown to the garbage collector, which would otherwise run
// far more often. That is safe: nothing they hold leads back to them, as the reference to
// Forwards is weak.

// The row of one gradient, at the place of the forward it comes from. Tensor hook of an output.
struct GradientRow {
  Weak<Forwards> forwards;
  Held<Watched> watched;
  nb::object element;
  Held<Place> place;
  std::int32_t call = 0;
  std::shared_ptr<Burst> burst;  // of a recomputed call: knows which it is when gradients arrive

  void observe(const Held<Forwards>& all, nb::handle gradient) {
    Backward::follow(all->backward);
    if (gradient.is_none()) return;  // a node with several outputs, of which this was not used
    if (burst != nullptr) {
      call = burst->call(call);
      burst.reset();
    }
    add_row(all, watched, kGradient, element, gradient, place, call, place->flags);
  }
};

// The gradient of one input of one call: the sum over the nodes that use it.
struct InputSum {
  Held<GradientRow> row;
  std::int32_t parts = 0;     // nodes that use it; -1: not covered
  std::int32_t missing = -1;  // of them, once the first part came; -1 before and afterwards
  nb::object total;

  // `mine`: this object in Python.
  void add(const Held<Forwards>& all, nb::handle mine, nb::handle gradient) {
    if (parts == 1) {
      if (!gradient.is_none()) row->observe(all, gradient);
      return;
    }
    if (missing < 0) {
      missing = parts;
      all->unfinished.append(mine);
    }
    --missing;
    if (!gradient.is_none()) {
      total = total.is_valid() ? kAdded(all, total, gradient) : nb::borrow(gradient);
    }
    if (missing == 0) finish(all);
  }

  void finish(const Held<Forwards>& all) {
    missing = -1;
    if (const nb::object whole = std::exchange(total, {}); whole.is_valid()) {
      row->observe(all, whole);
    }
  }
};

// Hook of an autograd node that uses inputs.
struct InputGradient {
  struct Use {
    Py_ssize_t index;  // among its gradients
    Held<InputSum> sum;
  };
  std::vector<Use> uses;
};

// tensor.register_hook(hook), step by step as torch does it in Python, but for the handle that
// would take the hook off again.
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
// the call. The walk stops at each edge it looks for.
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

Held<GradientRow> new_row(const Held<Forwards>& self, const Held<Watched>& watched,
                          nb::handle element, const Held<Place>& place, std::int32_t call,
                          const std::shared_ptr<Burst>& burst) {
  Held<GradientRow> row = make<GradientRow>();
  *row = {self->weak, watched, nb::borrow(element), place, call, burst};
  return row;
}

// Dynamo cannot look into what is in C++.
template <typename T>
nb::object hook_of(const Held<Forwards>& self, const Held<T>& row) {
  if (!self->may_be_traced) return nb::borrow(row);
  return kTraceable(self, row);
}

void follow_inputs(const Held<Forwards>& self, const Held<Watched>& watched,
                   const std::vector<Given>& given, unsigned long long oldest,
                   const std::vector<nb::object>& outputs, const Held<Place>& place,
                   std::int32_t call, const std::shared_ptr<Burst>& burst) {
  std::vector<Held<InputSum>> sums;
  for (std::size_t i = 0; i < given.size(); ++i) {
    bool is_known = false;
    for (std::size_t j = 0; j < i && !is_known; ++j) {
      is_known = given[j].node.is(given[i].node) && given[j].index == given[i].index;
    }
    if (is_known) {  // the walk finds the first of equal edges
      kNotCovered(self, watched, given[i].element, "the same tensor as another input");
      sums.emplace_back();
    } else {
      sums.push_back(make<InputSum>());
      sums[i]->row = new_row(self, watched, given[i].element, place, call, burst);
    }
  }
  const std::vector<Use> uses = uses_of(given, outputs, oldest);
  for (const Use& use : uses) {
    if (use.node.is_valid() || sums[use.input]->parts < 0) continue;
    sums[use.input]->parts = -1;
    kNotCovered(self, watched, given[use.input].element, "the module returns its input");
  }
  // Uses by one node come one after another.
  for (std::size_t i = 0; i < uses.size();) {
    const nb::object node = uses[i].node;
    InputGradient hook;
    for (; i < uses.size() && uses[i].node.is(node); ++i) {
      const Held<InputSum>& sum = sums[uses[i].input];
      if (!node.is_valid() || sum->parts < 0) continue;
      ++sum->parts;
      hook.uses.push_back({uses[i].index, sum});
    }
    if (hook.uses.empty()) continue;
    const Held<InputGradient> made = make<InputGradient>();
    *made = std::move(hook);
    nb::getattr(node, names().register_hook)(hook_of(self, made));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (sums[i].is_there() && sums[i]->parts == 0) {
      kNotCovered(self, watched, given[i].element, "no output depends on it");
    }
  }
}

}  // namespace

void follow_gradients(const Held<Forwards>& self, const Held<Watched>& watched, const Call* begun,
                      const std::vector<Element>& outputs, const Held<Place>& place,
                      std::int32_t call, const std::shared_ptr<Burst>& burst) {
  const Names& known = names();
  std::vector<nb::object> followed;
  for (const Element& output : outputs) {
    const nb::object node = nb::getattr(output.tensor, known.grad_fn);
    const bool is_leaf = node.is_none();
    if (is_leaf && !nb::getattr(output.tensor, known.requires_grad).is(Py_True)) continue;
    const Held<GradientRow> hook = new_row(self, watched, output.name, place, call, burst);
    if (is_leaf) {
      kFollowLeaf(self, output.tensor, hook);
    } else {
      hook_tensor(output.tensor, node, hook_of(self, hook));
    }
    followed.push_back(output.tensor);
  }
  if (begun != nullptr && !begun->given.empty() && !followed.empty()) {
    follow_inputs(self, watched, begun->given, begun->oldest, followed, place, call, burst);
  }
}

namespace {

// Calls work(forwards) for a hook with this row, while its Forwards are there and on.
template <typename Work>
PyObject* followed(PyObject* hook, const GradientRow& row, Work&& work) noexcept {
  const nb::object keep = nb::borrow(hook);
  Held<Forwards> all;
  return guarded(
      [&] {
        all = row.forwards.get();
        return all.is_there() ? all->part : Held<Part>();
      },
      [&] {
        if (!all->is_timed) return work(all);
        const auto began = std::chrono::steady_clock::now();
        work(all);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        all->seconds += took.count();
      });
}

PyObject* call_row(PyObject* hook, PyObject* args, PyObject*) {
  GradientRow& row = *nb::inst_ptr<GradientRow>(hook);
  return followed(hook, row,
                  [&](const Held<Forwards>& all) { row.observe(all, PyTuple_GetItem(args, 0)); });
}

PyObject* call_input(PyObject* hook, PyObject* args, PyObject*) {
  const InputGradient& input = *nb::inst_ptr<InputGradient>(hook);
  return followed(hook, *input.uses[0].sum->row, [&](const Held<Forwards>& all) {
    PyObject* gradients = PyTuple_GetItem(args, 0);
    for (const InputGradient::Use& use : input.uses) {
      // A tuple, and a list where the backward is compiled.
      const nb::object gradient = nb::steal(PySequence_GetItem(gradients, use.index));
      if (!gradient.is_valid()) nb::raise_python_error();
      use.sum->add(all, use.sum, gradient.ptr());
    }
  });
}

template <ternaryfunc call>
PyType_Slot called[] = {{Py_tp_call, reinterpret_cast<void*>(call)}, {0, nullptr}};

}  // namespace

void init_gradient_hooks(nb::module_& module) {
  nb::class_<GradientRow> row(module, "GradientRow", nb::type_slots(called<call_row>));
  row.def_ro("watched", &GradientRow::watched)
      .def_ro("element", &GradientRow::element)
      .def("__reduce__", &inert);
  nb::class_<InputSum>(module, "InputSum").def("finish", &InputSum::finish, nb::arg("forwards"));
  nb::class_<InputGradient> hook(module, "InputGradient", nb::type_slots(called<call_input>));
  hook.def("__reduce__", &inert);
  // torch warns about hooks on a saved tensor without this.
  row.attr("__torch_unserializable__") = hook.attr("__torch_unserializable__") = true;
}

}  // namespace trainmon
