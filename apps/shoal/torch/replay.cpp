#include "shoal/train/elastic/replay.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "apps/shoal/torch/entry.h"

int shoal_replay_main(const shoal::apps::ReplayArguments* arguments) {
  using namespace shoal;
  const train::Replayed replayed = train::replay(arguments->run_directory);
  if (replayed.differs) {
    const train::LineageStep& step = *replayed.differs;
    const std::string before =
        step.step == replayed.first
            ? ""
            : fmt::format("; steps {} to {} are equal", replayed.first, step.step - 1);
    const std::string other_set =
        replayed.other_set
            ? fmt::format(
                  "; from step {} on its members computed with {} instructions, and this "
                  "process with {}, which does not give the same bits",
                  replayed.other_set->step, replayed.other_set->instruction_set, replayed.own_set)
            : "";
    fmt::print(
        stderr,
        "shoal: step {} of {} differs: behind it the state of its {} member{} has the digest "
        "{}, and that of the replay {}{}{}\n",
        step.step, arguments->run_directory, step.members.size(),
        step.members.size() == 1 ? "" : "s", step.state, replayed.state, before, other_set);
    return 1;
  }
  fmt::print("Steps {} to {} of {} have the same bits on one process.\n", replayed.first,
             replayed.last, arguments->run_directory);
  return 0;
}
