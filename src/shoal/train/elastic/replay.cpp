#include "shoal/train/elastic/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/checkpoint/format/store.h"
#include "shoal/comm/world.h"
#include "shoal/train/config/members.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/elastic/repeated_rounds.h"
#include "shoal/train/elastic/repeated_steps.h"
#include "shoal/train/run.h"
#include "shoal/train/run_setup.h"
#include "shoal/train/trainer.h"

namespace shoal::train {
namespace {

using Lines = std::vector<LineageStep>;

/// Returns the line that goes on behind `step`, of which this process can repeat everything: of a
/// round, what the members' optimizers have learnt before is known to themselves alone.
Lines::const_iterator beginning_at(std::int64_t step, const Lines& lineage) {
  return std::find_if(lineage.begin(), lineage.end(), [step](const LineageStep& line) {
    const auto& members = line.members;
    return line.behind() == step &&
           (line.steps == 0 || std::all_of(members.begin(), members.end(), [](const auto& member) {
              return member.is_new || member.samples == 0;
            }));
  });
}

/// Returns the steps that the replay could begin behind, in the order in which it tries them: 0 for
/// the seed, or those of checkpoints.
std::vector<std::int64_t> beginnings(const Lines& lineage, const RunDirectory& directory) {
  if (lineage.front().behind() == 0) return {0};
  std::vector<std::int64_t> steps;
  for (const auto& saved : checkpoint::format::list_steps(directory.checkpoints()))
    if (beginning_at(saved.step, lineage) != lineage.end()) steps.push_back(saved.step);
  return steps;
}

std::unique_ptr<Repetition> make_repetition(const Job& job, Run& run, const MemberRanks& ranks) {
  if (has_members(job.config)) return std::make_unique<RepeatedRounds>(job, run, ranks);
  return std::make_unique<RepeatedSteps>(job, run, ranks);
}

/// Is called by each of `group`, the ranks that a member has. Returns nothing where the state
/// behind the step of the options is not that which the lineage goes on from.
std::optional<Replayed> replay_on(const comm::Group& group, const RunOptions& options,
                                  const Lines& lineage) {
  const std::int64_t step = *options.from_step;
  Run run(group, options.run_directory, true);
  RunSetup setup(options, run);
  setup.open();
  setup.choose_precision();
  setup.plan_memory();
  setup.build();
  const MemberRanks ranks(group);
  const auto repetition = make_repetition(options.job, run, ranks);
  Replayed replayed{.first = step + 1, .last = step, .own_set = run.record.instruction_set};
  const auto begin = beginning_at(step, lineage);
  if (repetition->state() != begin->before) return std::nullopt;
  for (auto line = begin; line != lineage.end(); ++line) {
    replayed.last = line->step;
    if (line->instruction_set != replayed.own_set && !replayed.other_set)
      replayed.other_set = *line;
    replayed.state = repetition->repeat(*line);
    if (replayed.state == line->state) continue;
    replayed.differs = *line;
    break;
  }
  return replayed;
}

std::optional<Replayed> replay_from(std::int64_t step, RunOptions& options, const Lines& lineage) {
  options.from_step = step;
  comm::WorldOptions world;
  world.size = static_cast<int>(options.job.config.parallelism.ranks);
  world.arena = false;
  std::optional<Replayed> replayed;
  comm::run_on_threads(world, [&](const comm::Group& group) {
    auto own = replay_on(group, options, lineage);
    if (group.rank() == 0) replayed = std::move(own);
  });
  return replayed;
}

Error nothing_to_begin_with(const Lines& lineage, const RunDirectory& directory,
                            const std::vector<std::int64_t>& tried) {
  const LineageStep& first = lineage.front();
  if (first.behind() == 0) {
    return Error(ErrorKind::kInputMissing, "replay",
                 fmt::format("step 1 of {} goes on from the state {}, which is not that of the "
                             "job's seed",
                             directory.path(), first.before))
        .hint("config.toml is that of the last start: does it say what it said in the first one?");
  }
  const std::string others =
      tried.empty()
          ? ""
          : fmt::format("; those of step {} are of another branch of the group, or another job",
                        fmt::join(tried, ", "));
  return Error(ErrorKind::kInputMissing, "replay",
               fmt::format("the lineage of {} has steps {} to {}, and there is no checkpoint from "
                           "which one of them goes on{}",
                           directory.path(), first.behind() + 1, lineage.back().step, others))
      .hint("replay the run of the member that began the group: its lineage begins with the seed");
}

}  // namespace

Replayed replay(const std::string& run_directory) {
  const RunDirectory directory(run_directory);
  const std::vector<LineageStep> lineage = read_lineage(directory.lineage());
  if (lineage.empty()) {
    throw Error(ErrorKind::kInputMissing, "replay",
                fmt::format("{}: no steps of an elastic group are in it", directory.lineage()))
        .hint("only `shoal train --elastic` writes it");
  }
  RunOptions options;
  options.job = load_job(directory.config());
  // The ranks of a member are threads here.
  options.job.config.parallelism.in_process = true;
  options.job.config.checkpoint.asynchronous = false;
  options.job.config.metrics.memory_steps = 0;
  options.run_directory = run_directory;
  const std::vector<std::int64_t> steps = beginnings(lineage, directory);
  for (const std::int64_t step : steps)
    if (auto replayed = replay_from(step, options, lineage)) return *std::move(replayed);
  throw nothing_to_begin_with(lineage, directory, steps);
}

}  // namespace shoal::train
