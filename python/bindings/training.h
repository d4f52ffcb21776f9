// What hooks in C++ and Python share of the training under way.
#pragma once

#include <cstdint>

#include "held.h"

namespace trainmon {

// Base of Part in parts.py: a piece of an adapter that fails alone.
struct Part {
  bool on = true;
};
inline constexpr Method kFailed{"failed", "def failed(self, error: Exception) -> None"};

// Base of Backward in backward.py.
struct Backward {
  nb::callable current_task;  // the id of the run of autograd's engine that calls, -1 outside
  std::int64_t task = -1;     // of the outermost run of the backward under way, -1 outside
  std::int64_t now = -1;      // the run last answered for

  // Tells Python about the run that calls a hook, when it is another than the last one.
  static void follow(const Held<Backward>& self);
  std::int64_t current() const;

  template <typename Visit>
  void each(Visit&& visit) {
    visit(current_task);
  }
};
inline constexpr Method kEnter{"enter", "def enter(self, now: int) -> None"};

// Where rows of a forward belong. One object as long as that does not change.
struct Place {
  std::int64_t window;
  std::int32_t accum;
  bool recording;
  std::uint32_t flags;
};

// Base of Steps in windows.py: the windows of one optimizer.
struct Steps {
  Held<Backward> backward;
  std::int64_t task = -1;  // the last backward that put gradients into the open window
  bool recording = false;
  std::uint32_t flags = 0;
  // Parameters that got a gradient in this window: the last two, or None.
  nb::object previous = nb::none(), last = nb::none();
  Held<Place> frame = nb::none();  // of the forward under way, where the clock's steps know it

  // A hook of a backward runs for a parameter of these steps: `tensor`, if it keeps its .grad, or
  // None.
  static void enter_backward(const Held<Steps>& self, nb::handle tensor);
  void got_gradient(nb::handle tensor) {
    previous = std::move(last);
    last = nb::borrow(tensor);
  }

  template <typename Visit>
  void each(Visit&& visit) {
    visit(backward), visit(previous), visit(last), visit(frame);
  }
};
inline constexpr Method kBackwardBegins{"backward_begins",
                                        "def backward_begins(self, tensor: object | None) -> None"};

}  // namespace trainmon
