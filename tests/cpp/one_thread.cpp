// Linked into test programs that are left out under ThreadSanitizer: a thread that starts ends
// them.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) {
  std::fputs("a test program with ONE_THREAD (tests/cpp/*.cmake) starts a thread\n", stderr);
  std::abort();
}
