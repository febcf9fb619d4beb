#pragma once

#include <functional>
#include <optional>
#include <string>

namespace shoal::apps {

/// Describes the rank that this process is, when another launcher than Shoal's own has started it.
struct RankEnvironment {
  std::string launcher;  ///< "torchrun", "Slurm", "Open MPI", "Kubernetes"
  int rank = 0;
  int world = 1;
  int local_rank = 0;   ///< on this host
  int local_world = 1;  ///< ranks on this host
  std::string job_key;  ///< the same for all ranks of this start of the job, and for no other
  /// The place of the rendezvous of ranks on several hosts, as wire::Rendezvous reads it; empty:
  /// all are on this host.
  std::string rendezvous;
  /// The file in which torchrun looks for the rank's error; empty under other launchers.
  std::string error_file;
  /// Says which variables name `rendezvous`, for messages: "MASTER_ADDR and MASTER_PORT".
  std::string rendezvous_source = {};
  /// True when a person or a script has set torchrun's variables: torchrun itself sets more.
  bool by_hand = false;

  /// Says who or what has started this rank, for messages.
  std::string started_by() const { return by_hand ? "RANK and WORLD_SIZE" : launcher; }
};

/// Reads one environment variable; null when it is not set.
using Environment = std::function<const char*(const char*)>;

/// Reads the environment of a launcher; nothing else does. It understands
///   torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID (with it
///     TORCHELASTIC_ERROR_FILE, TORCHELASTIC_RESTART_COUNT, MASTER_ADDR, MASTER_PORT);
///   srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE,
///     SLURM_NODEID, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT, SLURM_STEP_NODELIST or
///     SLURM_JOB_NODELIST (a batch script itself, which has no SLURM_STEP_NUM_TASKS, is no rank);
///   mpirun of Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, PMIX_NAMESPACE;
///   a pod of Kubernetes (KUBERNETES_SERVICE_HOST): RANK, or JOB_COMPLETION_INDEX of an indexed
///     Job, and WORLD_SIZE; LOCAL_RANK and LOCAL_WORLD_SIZE where a pod has several ranks.
/// When ranks are on several hosts, and whenever it is set, SHOAL_RENDEZVOUS (host:port or
/// file:/path) names the place of their rendezvous; without it that is MASTER_ADDR and MASTER_PORT
/// (under torchrun, which listens there itself, one port above); under srun they need not be set:
/// it is the step's first node and a port made of the job's number. SHOAL_JOB_KEY, where set, is
/// part of the secret that they show each other. Empty when none of them started this process.
/// Throws Error(config) naming the variable that is missing, no number, or impossible. `by_mpi`:
/// MPI connects the ranks, which then need no rendezvous.
std::optional<RankEnvironment> detect_rank_environment(const Environment& environment,
                                                       bool by_mpi = false);

/// Returns the warning that RANK and WORLD_SIZE are set for several ranks and nothing says which
/// launcher set them, so that this process trains alone; empty where that is not so.
std::string ignored_rank_variables(const Environment& environment);

/// As above, from the environment of this process.
std::string ignored_rank_variables();
std::optional<RankEnvironment> detect_rank_environment(bool by_mpi = false);

/// Returns the number of the Slurm job of which this process is a part (SLURM_JOB_ID), or nothing.
std::string slurm_job_of_this_process();

}  // namespace shoal::apps
