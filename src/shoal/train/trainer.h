#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "shoal/base/log.h"
#include "shoal/comm/group.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// One rank of a training run.
struct RunOptions {
  Job job;
  std::string run_directory;  ///< exists; whoever starts the job holds its lock
  comm::Group world;          ///< the ranks that train
  bool console = true;        ///< the run is told on standard output, by rank 0
  bool terminal =
      false;  ///< standard output is a terminal: the progress line is rewritten in place
  Log log;
  const std::atomic<int>* stop_signal =
      nullptr;  ///< 0, or the signal that asks the run to stop after the step at hand; may be null
  std::atomic<std::int64_t>* current_step =
      nullptr;  ///< told the step at hand, counted from 1; may be null
};

/// Trains the job: resumes from the newest complete checkpoint of the run directory, else starts
/// from the seed; evaluates, writes metrics and checkpoints on the way, and at the end the plot of
/// the losses. Says so at once when the run is finished already. Collective.
///
/// Returns 0, or 128 + the signal that stopped it, after it has saved and said where. Throws
/// shoal::Error; other ranks of `world` are told first.
int train(const RunOptions& options);

}  // namespace shoal::train
