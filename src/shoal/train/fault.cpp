#include "shoal/train/fault.h"

#include <signal.h>
#include <unistd.h>

#include "shoal/base/check.h"

namespace shoal::train {

// Real faults, not simulated ones: tests of recovery see what a user would see.
Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size) {
  if (debug.fault_step != step || debug.fault_rank != rank) return Poison::kNone;
  switch (debug.fault) {
    case Fault::kNone:
      break;
    case Fault::kError:
      throw Error(ErrorKind::kInternal, "train",
                  fmt::format("debug.fault asked for an error in step {}", step))
          .at(rank, size);
    case Fault::kExit:
      // Without destructors and reports, as a process ends that somebody else brings down.
      ::_exit(1);
    case Fault::kKill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::kStop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Fault::kNan:
      return Poison::kLoss;
    case Fault::kOverflow:
      return Poison::kGradient;
  }
  return Poison::kNone;
}

}  // namespace shoal::train
