#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/base/log.h"
#include "shoal/comm/group.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/run_board.h"

namespace shoal::train {

/// The inputs of one rank of a training run.
struct RunOptions {
  Job job;
  std::string run_directory;  ///< exists; the launcher holds its lock
  comm::Group world;          ///< the ranks that train
  bool console = true;        ///< rank 0 reports on standard output
  /// Standard output is a terminal: the progress line is rewritten in place.
  bool terminal = false;
  Log log;
  /// The step of the checkpoint to go on from; 0: it begins anew. Empty: the newest checkpoint.
  std::optional<std::int64_t> from_step{};
  /// Holds 0, or the signal that asks the run to stop after the current step; may be null.
  const std::atomic<int>* stop_signal = nullptr;
  /// The rank writes there how far it is, and reads what other terminals ask of the run; may be
  /// null. Requests count on rank 0, except to stop, which counts on any.
  const RunBoard* board = nullptr;
};

/// Returns the signal that asks this rank to stop, or 0. `shoal stop` asks as SIGTERM does.
int asked_to_stop(const RunOptions& options);

/// Trains the job: resumes from the newest complete checkpoint of the run directory, else starts
/// from the seed; evaluates, writes metrics and checkpoints, and plots the losses at the end. A run
/// that is complete already ends at once. Collective.
///
/// Returns 0, or 128 + the signal that stopped it, after it has saved. Before it throws, it aborts
/// `world` with the error (of LibTorch and the standard library too), so that the other ranks end
/// too.
int train(const RunOptions& options);

}  // namespace shoal::train
