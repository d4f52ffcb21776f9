# Promise B6: a process forked while a thread holds any lock of ours never waits for it, and writes nothing.
import json
import subprocess

import numpy as np

import launch
import trainmon
from long_form import campaign, how_often

# Whoever locks a mutex from within trainmon's module stops there until the fork that waits for it is over,
# but at most 200 ms. A thread that holds the GIL does not: no other thread of Python's can fork then.
LOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
enum { kIdle, kWanted, kHeld };
static _Atomic int state, off, quota;
static _Atomic uintptr_t begin, end, held;
static struct { uintptr_t place; int forks; } seen[256];
static __thread int asks;
static int (*holds_gil)(void);

static int find(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size, (void)data;
  if (strstr(info->dlpi_name, "trainmon/_core") == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
      begin = info->dlpi_addr + part->p_vaddr;
      end = begin + part->p_memsz;
    }
  }
  return 1;
}
static int number_of(uintptr_t place) {
  for (int i = 0; i < 256; ++i) {
    if (seen[i].place == place) return i;
    if (seen[i].place == 0) { seen[i].place = place; return i; }
  }
  return 255;
}
static void hold(uintptr_t caller) {
  if (off || asks || caller < begin || caller >= end || state != kWanted || holds_gil()) return;
  int expected = kWanted;
  if (seen[number_of(caller)].forks >= quota) return;
  if (!atomic_compare_exchange_strong(&state, &expected, -1)) return;
  held = caller;
  state = kHeld;
  for (int i = 0; i < 2000 && state == kHeld; ++i) usleep(100);
  expected = kHeld;
  atomic_compare_exchange_strong(&state, &expected, kIdle);
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static int (*real)(pthread_mutex_t *);
  if (!real) real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
  int done = real(mutex);
  hold((uintptr_t)__builtin_return_address(0));
  return done;
}
/* Number of the place of a lock that a thread holds now; -1: none within so many milliseconds. */
int wait_for_holder(int forks, int milliseconds) {
  holds_gil = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  if (!begin) dl_iterate_phdr(find, NULL);
  asks = 1;
  quota = forks;
  state = kWanted;
  for (int i = 0; i < milliseconds * 10 && state != kHeld; ++i) usleep(100);
  int expected = kWanted;
  if (atomic_compare_exchange_strong(&state, &expected, kIdle)) return -1;
  return number_of(held);
}
/* Lets the holder go on; 1 if it was still there. */
int release(void) {
  int expected = kHeld;
  if (!atomic_compare_exchange_strong(&state, &expected, kIdle)) return 0;
  return ++seen[number_of(held)].forks;
}
void leave_locks_alone(void) { off = 1; }
"""


def test_a_fork_while_any_lock_is_held(tmp_path):
    (tmp_path / "locks.c").write_text(LOCKS)
    library = tmp_path / "locks.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "locks.c", "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    each = how_often(short=1, long=500)
    what = (
        f"forks while another thread held a lock, up to {each} at each place of the code that locks"
    )
    with campaign("forks", what, "forks") as count:
        process = launch.start(
            "forks_run.py",
            tmp_path / "run",
            each,
            library,
            environment={"LD_PRELOAD": str(library)},
        )
        ended = launch.finish(process, timeout=max(1800, 12 * each))
        assert ended.code == 0, ended.err
        found = json.loads(ended.out)
        count.done = sum(found["forks"].values())
        print(ended.err)
        for end, times in found["ends"].items():
            if end != "0":
                count.fail(f"{times} children ended with {end}")
        assert len(found["forks"]) >= 3  # places
        health = found["health"]
        assert health["rows_produced"] == health["sinks"][0]["rows_written"] > 0
        table = trainmon.read_table(str(tmp_path / "run"))
        assert table.damage == []
        seq = np.sort(np.asarray(table["seq"]))
        assert (np.diff(seq) == 1).all() and seq[-1] == health["rows_produced"]
