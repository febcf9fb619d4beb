#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/collective/transport_options.h"
#include "shoal/forecast/calibration.h"
#include "shoal/forecast/product_shapes.h"
#include "shoal/plan/kernel_rate.h"
#include "shoal/train/config/run_board.h"

/// The interface between the executable, which links no Torch, and libshoal_app.so, which does. The
/// executable loads the library when a subcommand needs it and calls the entry points by name. Both
/// are built together, so C++ types cross, and exceptions too: entry points throw shoal::Error.

namespace shoal::apps {

/// One rank of a training job, or all of them as threads.
struct RankArguments {
  int rank = 0, world = 1;              ///< in the job
  int local_rank = 0, local_world = 1;  ///< on this host
  bool in_process = false;  ///< run all `world` ranks as threads of this process; rank is 0
  /// Unique to this start of the job on this host and the same for all its ranks: names the
  /// rendezvous and is its secret.
  std::string job_key;
  /// The place of the rendezvous of ranks on several hosts, as wire::Rendezvous reads it; empty:
  /// all ranks are on this host.
  std::string rendezvous;
  std::string run_directory;  ///< of rank 0: exists, and logs/ in it, and its lock is held; the
                              ///< other ranks use it only after the rendezvous
  std::string job_text;       ///< the job as resolved (train::to_toml); `parse_job` reads it
  std::string job_file;       ///< name of the job file in messages
  int threads = 1;            ///< threads that compute, per rank
  std::vector<int> cores;     ///< cores of this rank (in_process: of all ranks in turn, `threads`
                              ///< each); empty: not pinned
  std::string program;        ///< path of the executable
  bool plain_lines = false;   ///< the console belongs to another launcher, which may give ranks a
                              ///< terminal and write to a file itself

  /// 0, or the signal that asks the run to stop: finish the step, save, return 128 + signal. Never
  /// null.
  const std::atomic<int>* stop_signal = nullptr;
  /// Ranks show there how far they are and see what is asked of them; it has a line for each of the
  /// `world` ranks. Never null.
  const train::RunBoard* board = nullptr;
};

struct GenerateArguments {
  std::string checkpoint;  ///< a step-<n> folder, or a run directory: its newest complete one
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< 0: all
  double top_p = 1.0;
  std::uint64_t seed = 0;
  bool cache = true;               ///< keep keys and values of earlier positions
  std::int64_t probabilities = 0;  ///< show so many of the most probable tokens at each step
  bool json = false;               ///< print one JSON object
  std::string check_copies;  ///< a token data set: say how long a run the text copies from its
                             ///< training split; empty: do not look
  int threads = 0;           ///< 0: all cores
};

struct EvalArguments {
  std::string checkpoint;            ///< as above
  std::string split = "validation";  ///< "train", "validation"
  std::vector<std::string> folders;  ///< other token data than the checkpoint's job; empty: its own
  std::int64_t batches = 0;          ///< global batches of the job; 0: the whole split
  bool json = false;                 ///< one JSON object instead of lines for people
  int threads = 0;                   ///< 0: all cores
};

struct ReplayArguments {
  std::string run_directory;
};

struct BenchArguments {
  int rank = -1;  ///< -1: the process that starts the ranks
  int world = 2;
  std::string name;  ///< name of the rendezvous, and its key
  std::vector<std::string> operations{"all_reduce"};
  std::uint64_t min_bytes = 4, max_bytes = 1 << 28;
  int factor = 4;
  double seconds = 0.5;  ///< per size
  bool arena = true;
  bool tcp = false;        ///< through TCP, not shared memory
  int hosts = 1;           ///< hosts to play: ranks of different ones share no memory
  std::string rendezvous;  ///< rendezvous of ranks that are started one by one; empty: started here
  collective::TransportOptions network;  ///< its algorithms, rails and link costs are set
  std::string type = "f32";              ///< name of the ElementType of the elements
  bool json = false;
};

/// Returns true for operations of the bench that send from one rank to another.
inline bool is_of_messages(const std::string& op) {
  return op == "sendrecv" || op == "ping_pong" || op == "message_rate";
}

/// Describes who measures: `ranks` threads of a process, all at the same time, each computing with
/// `threads` threads.
struct MeasuringRanks {
  int ranks = 1;
  int threads = 1;
  std::vector<std::vector<int>> cores;  ///< by rank; empty: not pinned, ranks share all cores
  double seconds = 0.2;                 ///< per case
};

/// Matmuls of linear layers, measured.
struct ProductArguments {
  MeasuringRanks by;
  std::vector<forecast::ProductShape> shapes;
  std::vector<forecast::ProductPass> passes;
  std::vector<ElementType> types;  ///< of the factors: kF32, kBF16. Results are float32
  bool peaks = false;              ///< measure the peaks too

  // The times and peaks of rank 0.
  /// Out: seconds by type, shape and pass.
  std::map<ElementType, std::vector<std::vector<double>>> seconds;
  std::map<ElementType, double> peak_flops;  ///< out: FLOP/s that plain loops reach on a rank
};

/// The rates that plain loops reach in a part of memory.
struct LoopRate {
  int threads = 1;
  std::int64_t thread_bytes = 0;  ///< that each thread goes through
  double read = 0;                ///< bytes/s of all threads together
  double write = 0;
  double copy = 0;
};

struct MemoryArguments {
  MeasuringRanks by;  ///< element-wise operations
  /// Plain loops, of which no more than one runs at a time: their numbers of threads and sizes.
  std::vector<LoopRate> loops;                  ///< in and out
  std::vector<forecast::TimedWork> traversals;  ///< out, of rank 0: LibTorch's addition of tensors
};

using TimedKernels = std::map<std::string, std::vector<plan::TimedKernel>>;

struct KernelArguments {
  MeasuringRanks by;
  int rounds = 9;           ///< in which kernels are measured, all cases in each
  bool bf16 = true;         ///< in bf16 too
  bool drift_only = false;  ///< only kernels that tell how the machine has changed
  /// Out: what Shoal's own operators take, by plan::kernel_names, of all ranks (KernelRounds).
  TimedKernels kernels;
};

}  // namespace shoal::apps

/// Each of these returns the exit code: 0, or 128 + the signal that asked a run to stop. They throw
/// shoal::Error.
extern "C" {
int shoal_rank_main(const shoal::apps::RankArguments* arguments);
int shoal_generate_main(const shoal::apps::GenerateArguments* arguments);
int shoal_eval_main(const shoal::apps::EvalArguments* arguments);
/// Returns 1 where a step differs.
int shoal_replay_main(const shoal::apps::ReplayArguments* arguments);
int shoal_products_main(shoal::apps::ProductArguments* arguments);
int shoal_memory_main(shoal::apps::MemoryArguments* arguments);
int shoal_kernels_main(shoal::apps::KernelArguments* arguments);
int shoal_bench_collectives_main(const shoal::apps::BenchArguments* arguments);
/// Returns Torch's version and how it was built, a line each, for `shoal env`.
const char* shoal_torch_description();
/// Returns the name of the MPI that the library is built with; empty when there is none.
const char* shoal_mpi_description();
}
