// One object of each thread, made at the first call and ended with the thread. It is not
// thread_local: where no memory is left to note a destructor, glibc ends the process.
#pragma once

#include <pthread.h>

#include <new>
#include <system_error>

namespace trainmon {

// What `make` gives, a pointer; null where it gives null or the thread cannot keep it. `end` takes
// it back as void*. Throws std::system_error where the process has no key left.
template <auto make, void (*end)(void*)>
auto made_of_thread() -> decltype(make()) {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    const int error = ::pthread_key_create(&made, end);
    if (error != 0) throw std::system_error(error, std::generic_category());
    return made;
  }();
  if (void* const known = ::pthread_getspecific(key)) {
    return static_cast<decltype(make())>(known);
  }
  const auto fresh = make();
  if (fresh == nullptr || ::pthread_setspecific(key, fresh) == 0) return fresh;
  end(fresh);
  return nullptr;
}

template <typename T>
struct OnHeap {
  static T* make() { return new (std::nothrow) T; }
  static void end(void* object) { delete static_cast<T*>(object); }
};

// The T of this thread. Throws std::bad_alloc without memory.
template <typename T>
T& of_thread() {
  T* const object = made_of_thread<OnHeap<T>::make, OnHeap<T>::end>();
  if (object == nullptr) throw std::bad_alloc();
  return *object;
}

}  // namespace trainmon
