#include "shoal/train/run.h"

#include <utility>

#include "shoal/train/elastic/elastic_member.h"

namespace shoal::train {

Run::Run(comm::Group world, std::string run_directory, bool in_process)
    : group(std::move(world)),
      directory(std::move(run_directory)),
      memory(group, in_process),
      trace(group) {}

Run::~Run() = default;

void Run::advance(RunRecord& record, std::int64_t steps) const {
  record.step += steps;
  record.samples += steps * batch.global;
  record.tokens += steps * batch.global * data->tokens_per_sample();
}

RunRecord Run::record_after(std::int64_t steps) const {
  RunRecord after = record;
  advance(after, steps);
  if (loss_scale) after.loss_scale = loss_scale->state();
  return after;
}

}  // namespace shoal::train
