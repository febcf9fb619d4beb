#include "shoal/train/fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::train {

namespace {

// Real faults, not simulated ones: tests of recovery see what a user would see.
Poison inject(Fault fault, const std::string& where, int rank, int size) {
  switch (fault) {
    case Fault::kNone:
      break;
    case Fault::kError:
      throw Error(ErrorKind::kInternal, "train",
                  fmt::format("debug.fault asked for an error in {}", where))
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
    case Fault::kFlip:
      return Poison::kState;
  }
  return Poison::kNone;
}

}  // namespace

Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size) {
  if (debug.fault_step != step || debug.fault_rank != rank || !debug.fault_action.empty())
    return Poison::kNone;
  return inject(debug.fault, fmt::format("step {}", step), rank, size);
}

bool inject_fault_of_member(const DebugSection& debug, std::string_view place, std::int64_t step,
                            int rank, int size) {
  if (debug.fault_action != place || debug.fault_rank != rank) return false;
  // Nobody knows in which step others come and go.
  const bool is_of_a_step =
      place != member_place::kView && place != member_place::kGive && place != member_place::kTake;
  if (is_of_a_step ? step != debug.fault_step : step < debug.fault_step) return false;
  return inject(debug.fault, fmt::format("step {} at its {}", step, place), rank, size) ==
         Poison::kState;
}

std::function<void(const schedule::Action&)> fault_at_action(const Job& job,
                                                             const schedule::Schedule& table,
                                                             std::function<std::int64_t()> step,
                                                             int rank, int size) {
  const DebugSection& debug = job.config.debug;
  if (debug.fault_action.empty()) return {};
  const bool is_of_member = std::find(member_place::kAll.begin(), member_place::kAll.end(),
                                      debug.fault_action) != member_place::kAll.end();
  if (is_of_member && job.config.elastic.enabled) return {};
  // Every rank looks: all refuse the job, and none waits for one that has.
  const std::int64_t place = debug.fault_rank / (size / table.ranks());
  const auto& actions = table.table[static_cast<std::size_t>(place)];
  const bool there = std::any_of(actions.begin(), actions.end(), [&](const auto& action) {
    return schedule::to_string(action) == debug.fault_action;
  });
  if (!there) {
    throw config_error(
        job, "debug.fault_action",
        fmt::format("rank {} does not carry it out: its list in {} begins with {}",
                    debug.fault_rank, table.name, schedule::to_string(actions.front())));
  }
  if (debug.fault_rank != rank) return {};
  return [debug, step = std::move(step), rank, size](const schedule::Action& action) {
    if (step() != debug.fault_step || schedule::to_string(action) != debug.fault_action) return;
    inject(debug.fault, fmt::format("step {} before {}", step(), debug.fault_action), rank, size);
  };
}

}  // namespace shoal::train
