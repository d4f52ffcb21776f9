// Giving the GIL away and taking it back, also in a daemon thread that outlives the interpreter.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace trainmon {

// Before 3.14 Python ends a thread that asks for the GIL of an interpreter that is going away by
// unwinding its stack (pthread_exit). On that stack are functions of nanobind that may not throw,
// so the whole process would abort. Such a thread rests here until the process has ended, as it
// does under later versions. A destructor, for that is what every C++ library runs then.
class RestUnlessTaken {
 public:
  RestUnlessTaken() = default;
  ~RestUnlessTaken() {
    while (!is_taken_) ::pause();
  }
  RestUnlessTaken(const RestUnlessTaken&) = delete;
  RestUnlessTaken& operator=(const RestUnlessTaken&) = delete;
  void taken() noexcept { is_taken_ = true; }

 private:
  bool is_taken_ = false;
};

// `take` may not throw.
template <typename Take>
auto take_gil(const Take& take) {
  RestUnlessTaken rest;
  const auto state = take();
  rest.taken();
  return state;
}

// Without the GIL for as long as it lives. Make it in a thread that holds the GIL.
class ReleasedGil {
 public:
  ReleasedGil() noexcept : thread_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    take_gil([this] {
      PyEval_RestoreThread(thread_);
      return true;
    });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* thread_;
};

// With the GIL for as long as it lives, in any thread.
class HeldGil {
 public:
  HeldGil() noexcept : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~HeldGil() { PyGILState_Release(state_); }
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace trainmon
