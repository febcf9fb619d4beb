#pragma once

#include <string>
#include <vector>

#include "apps/shoal/shared_board.h"
#include "apps/shoal/watch/job_watch.h"

namespace shoal::apps {

/// A job that Shoal's own launcher starts on this host.
struct Launch {
  std::string run_directory;  ///< exists and is locked
  std::string job_text;       ///< as in RankArguments
  std::string job_file;       ///< as in RankArguments
  int ranks = 1;
  int threads = 1;                      ///< per rank
  std::vector<std::vector<int>> cores;  ///< by rank; empty: not pinned
  SharedBoard* board = nullptr;         ///< of that many ranks; never null
  JobWatch* watch = nullptr;            ///< serves while the ranks run; never null
};

/// Runs this program once more for every rank (fork and exec, each in its own process group, killed
/// when the launcher dies) and waits until all have ended. Rank 0 keeps the console; the output of
/// the others goes to <run directory>/logs/rank-<r>.log.
///
/// SIGTERM, SIGINT and SIGUSR1 are passed on to the ranks, which finish their step and save; a
/// second SIGTERM or SIGINT kills them. When a rank fails, the others have a second to report their
/// own errors, are then asked to end, and are killed 3 seconds after the failure. The first cause
/// is printed first, with rank and step: a rank that died or reported a failure of its own comes
/// before those that only miss a peer. Returns the exit code of that rank, 128 + n if signal n
/// killed it; 128 + n when signal n asked the run to stop; 0 when all ranks are done.
int launch_ranks(const Launch& launch);

/// Returns 128 random bits from the system, as 32 hexadecimal digits.
std::string random_job_key();

}  // namespace shoal::apps
