// Signals belong to the program we watch: a thread started while this lives takes none.
#pragma once

#include <pthread.h>

#include <csignal>

namespace trainmon {

// SIGXFSZ and SIGPIPE then become errors of the write instead of a dead process. The mask of the
// thread that made it is restored at the end.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace trainmon
