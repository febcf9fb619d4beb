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
    fmt::print(
        stderr,
        "shoal: step {} of {} differs: behind it the state of its {} member{} has the digest "
        "{}, and that of the replay {}{}\n",
        step.step, arguments->run_directory, step.members.size(),
        step.members.size() == 1 ? "" : "s", step.state, replayed.state, before);
    return 1;
  }
  fmt::print("Steps {} to {} of {} have the same bits on one process.\n", replayed.first,
             replayed.last, arguments->run_directory);
  return 0;
}
