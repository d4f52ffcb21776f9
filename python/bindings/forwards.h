// What hooks of modules share with those of the gradients that follow from them.
#pragma once

#include <optional>
#include <vector>

#include "hooks.h"
#include "parts.h"
#include "readings.h"
#include "replays.h"

namespace trainmon {

// Base of Watched in activations.py. One module: the series of its tensors, how often it was called
// at its place, and which of these calls await a recomputation.
struct Watched {
  nb::dict values, gradients, recomputed;  // element -> number of its series, negative for none
  Held<Place> place = nb::none();
  std::int32_t calls = 0;
  Replays replays;
  bool ever = false;

  template <typename Visit>
  void each(Visit&& visit) {
    visit(values), visit(gradients), visit(recomputed), visit(place);
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
  Held<Watched> watched;
  Held<Place> place;  // null: there is none, the call is a recomputation
  const void* thread = nullptr;
  std::int32_t number = 0;
  bool is_recomputed = false;
  std::vector<Given> given;
  unsigned long long oldest = 0;  // nodes of the call are not older
};

// (element, tensor) of what a module is given, and of what it returns.
using FindInputs = nb::typed<nb::callable, nb::list(Held<Watched>, nb::tuple, nb::dict)>;
using FindOutputs = nb::typed<nb::callable, nb::list(Held<Watched>, nb::object)>;

// Base of Activations in activations.py. All with the GIL held; what Python raises is thrown on.
struct Forwards {
  Held<BoundMonitor> core;
  Held<Part> part;
  Held<Backward> backward;
  Held<Steps> clock;
  nb::callable open_frame, find_inputs, find_outputs;
  nb::object sequence_number;  // null where torch does not number nodes
  nb::callable is_grad_enabled;
  nb::tuple positional;  // elements of positional arguments
  bool values = false, gradients = false, inputs = false;
  bool recomputed = false;  // what some modules return where a backward calls them again
  bool elsewhere = false;   // nothing is measured here
  bool plain_inputs = false, plain_outputs = false;
  bool is_timed = false;
  int sample = 0;       // one block in so many is read; 0: all
  bool rereads = true;  // a tensor that was read before and has not changed
  bool live = false;
  bool may_be_traced = false;  // hooks on gradients, by Dynamo
  Weak<Forwards> weak{};       // what hooks in a graph hold
  nb::list unfinished{};
  double seconds = 0.0;       // in hooks on gradients since somebody asked, where that is timed
  std::vector<Call> calls{};  // of all threads, outermost first
  std::int64_t again = 0;     // calls by backwards since the last forward began
  Readings readings{};        // of this forward or backward, where it does not reread

  bool in_backward() const { return backward->current() != -1; }

  template <typename Visit>
  void each(Visit&& visit) {
    visit(core), visit(part), visit(backward), visit(clock);
    visit(open_frame), visit(find_inputs), visit(find_outputs);
    visit(sequence_number), visit(is_grad_enabled), visit(positional), visit(unfinished);
    for (Call& call : calls) {
      visit(call.watched), visit(call.place);
      for (Given& noted : call.given) visit(noted.element), visit(noted.node);
    }
  }
};

inline constexpr Method kNotCovered{
    "not_covered", "def not_covered(self, watched: Watched, element: str, why: str) -> None"};
inline constexpr Method kAdded{"added",
                               "def added(self, total: object, gradient: object) -> object"};
inline constexpr Method kTraceable{"traceable", "def traceable(self, hook: object) -> object"};
inline constexpr Method kFollowLeaf{
    "follow_leaf", "def follow_leaf(self, tensor: object, hook: GradientRow) -> None"};

// What a row of a module is of.
struct RowKind {
  const char* name;
  nb::dict Watched::*series;
};
inline constexpr RowKind kValue{"actv", &Watched::values};
inline constexpr RowKind kGradient{"actv_grad", &Watched::gradients};
inline constexpr RowKind kRecomputed{"actv_recomputed", &Watched::recomputed};

// One row of a tensor, at this place.
void add_row(const Held<Forwards>& self, const Held<Watched>& watched, const RowKind& kind,
             nb::handle element, nb::handle tensor, const Held<Place>& place, std::int32_t call,
             std::uint32_t flags);

// Puts hooks on the gradients of outputs, and of the inputs noted when `begun` began (it may be
// null). `burst`: of a recomputed call, knows which call it is when gradients arrive.
void follow_gradients(const Held<Forwards>& self, const Held<Watched>& watched, const Call* begun,
                      const std::vector<Element>& outputs, const Held<Place>& place,
                      std::int32_t call, const std::shared_ptr<Burst>& burst);

}  // namespace trainmon
