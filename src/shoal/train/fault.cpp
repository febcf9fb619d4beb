#include "shoal/train/fault.h"

#include <signal.h>
#include <unistd.h>

#include "shoal/base/check.h"

namespace shoal::train {

Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size) {
  if (debug.fault == "none" || debug.fault_step != step || debug.fault_rank != rank)
    return Poison::kNone;
  if (debug.fault == "error") {
    throw Error(ErrorKind::kInternal, "train",
                fmt::format("debug.fault asked for an error in step {}", step))
        .at(rank, size);
  }
  if (debug.fault == "exit") ::_exit(1);
  if (debug.fault == "kill") ::kill(::getpid(), SIGKILL);
  if (debug.fault == "stop") ::kill(::getpid(), SIGSTOP);
  return debug.fault == "nan"        ? Poison::kLoss
         : debug.fault == "overflow" ? Poison::kGradient
                                     : Poison::kNone;
}

}  // namespace shoal::train
