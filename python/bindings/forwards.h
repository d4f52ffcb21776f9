// What hooks of modules share with those of the gradients that follow from them.
#pragma once

#include <vector>

#include "hooks.h"
#include "trainmon/monitor.h"

namespace trainmon {

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

  template <typename Visit>
  void each(Visit&& visit) {
    visit(values), visit(gradients), visit(place), visit(replays);
  }
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
  bool is_timed = false;
  double seconds = 0.0;     // in hooks on gradients since somebody asked, where that is timed
  nb::object weak;          // a weak reference to this
  std::vector<Call> calls;  // of all threads, outermost first

  bool in_backward() const { return integer(current_task()) != -1; }

  template <typename Visit>
  void each(Visit&& visit) {
    visit(core), visit(adapter), visit(part), visit(backward), visit(selection);
    visit(current_task), visit(sequence_number), visit(is_grad_enabled);
    visit(positional), visit(unfinished);
    for (Call& call : calls) {
      visit(call.watched), visit(call.place);
      for (Given& noted : call.given) visit(noted.element), visit(noted.node);
    }
  }
};

inline Forwards& forwards_of(nb::handle object) {
  return *nb::inst_ptr<Forwards>(object);
}
inline Watched& watched_of(nb::handle object) {
  return *nb::inst_ptr<Watched>(object);
}

// One row of a tensor, at this place.
void add_row(nb::handle self, nb::handle watched, bool is_gradient, nb::handle element,
             nb::handle tensor, nb::handle place, std::int32_t call, std::uint32_t flags);

// Puts hooks on the gradients of outputs, and of the inputs noted when `begun` began (it may be
// null). `burst`: of a recomputed call, knows which call it is when gradients arrive.
void follow_gradients(nb::handle self, nb::handle watched, const Call* begun,
                      const std::vector<Element>& outputs, nb::handle place, std::int32_t call,
                      const nb::object& burst);

}  // namespace trainmon
