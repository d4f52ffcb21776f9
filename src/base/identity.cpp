// Who this process is, read from the launcher's environment.
#include "trainmon/identity.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace trainmon {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// A launcher's variable that is not a number is as good as absent.
int number(const char* name, int otherwise) {
  const char* text = variable(name);
  if (text == nullptr) return otherwise;
  int value = otherwise;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end && value >= 0 ? value : otherwise;
}

}  // namespace

Identity identity_from_environment() {
  Identity identity;
  if (variable("RANK") != nullptr) {
    identity.rank = number("RANK", 0);
    identity.world_size = number("WORLD_SIZE", 1);
  } else if (variable("SLURM_PROCID") != nullptr) {
    identity.rank = number("SLURM_PROCID", 0);
    identity.world_size = number("SLURM_NTASKS", 1);
  }
  if (const char* id = variable("TORCHELASTIC_RUN_ID"); id != nullptr) {
    // torchrun without --rdzv-id says "none": a name every such run shares.
    if (std::strcmp(id, "none") != 0) identity.run_id = id;
    identity.restart_count = number("TORCHELASTIC_RESTART_COUNT", 0);
  } else if (const char* job = variable("SLURM_JOB_ID"); job != nullptr) {
    identity.run_id = job;
    identity.restart_count = number("SLURM_RESTART_COUNT", 0);
  }
  return identity;
}

}  // namespace trainmon
