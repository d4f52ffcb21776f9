// Who a process of a run is.
#pragma once

#include <string>

namespace trainmon {

// Who this process is. Taken from torchrun's or the scheduler's environment by default.
struct Identity {
  int rank = 0;
  int world_size = 1;
  std::string run_id;        // "" when nothing names the run
  int restart_count = 0;     // the launcher's, 0 without one
  std::string model_digest;  // names and shapes of the parameters; "" is not compared
  std::string environment;   // JSON object of versions for run.json; "" = {}
};
// RANK, WORLD_SIZE, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, else SLURM_PROCID,
// SLURM_NTASKS, SLURM_JOB_ID, SLURM_RESTART_COUNT, else rank 0 of 1.
Identity identity_from_environment();

}  // namespace trainmon
