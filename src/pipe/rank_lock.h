// The lock that a process holds on the folder of its rank while it writes there: two live runs in
// one directory would be mixed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trainmon/identity.h"

namespace trainmon {

// Who holds a lock, as far as the file says.
struct LockHolder {
  std::int64_t pid = 0;
  std::string host;
  std::string started;
  std::string launch;  // what the ranks of one launch have in common; empty: unknown
  int restart_count = 0;
};

// The launcher's run id, else where its ranks meet; empty without a launcher.
std::string launch_of(const Identity& identity);

// Another process that writes to this folder of a rank, in its file `lock`. Takes no lock.
std::optional<LockHolder> other_holder(const std::filesystem::path& rank_directory);

// Whether a monitor of this process writes to this folder of a rank.
bool is_locked_here(const std::filesystem::path& rank_directory);

// Whether the folder is still this process's to write to: the file of its lock is there. One that
// somebody deleted, as with the folder, is made and locked again. False, from then on, where there
// is another's: a run that began after the folder was deleted. True for nullptr. Any thread.
bool keep_lock(const std::shared_ptr<void>& lock);

// The lock, for as long as the result lives; nullptr when another process has it. Monitors of one
// process share it, a forked child has it not, and it dies with the process. It is of the open
// file description (F_OFD_SETLK), which other descriptors of the file that are closed do not
// touch. Where a file system has no locks, the holder is found by its process number, start and
// boot.
std::shared_ptr<void> lock_rank(const std::filesystem::path& rank_directory,
                                const Identity& identity);

}  // namespace trainmon
