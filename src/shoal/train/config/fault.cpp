#include "shoal/train/config/fault.h"

#include <unistd.h>

#include <csignal>

#include "shoal/base/error.h"

namespace shoal::train {

bool inject_fault(const DebugSection& debug, int rank, std::int64_t step) {
  if (debug.fault == "none" || step != debug.fault_step || rank != debug.fault_rank) return false;
  if (debug.fault == "error") throw Error(ErrorKind::kInternal, "fault", "debug.fault = \"error\" asked for this failure");
  if (debug.fault == "exit") ::_exit(1);
  if (debug.fault == "kill") ::kill(::getpid(), SIGKILL);
  if (debug.fault == "stop") ::kill(::getpid(), SIGSTOP);
  return debug.fault == "nan";
}

}  // namespace shoal::train
