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

RunRecord Run::record_after(std::int64_t steps) const {
  RunRecord after = record;
  // The position counts samples of all ranks: it means the same on any number of them.
  after.step += steps;
  after.samples += steps * batch.global;
  after.tokens += steps * batch.global * data->tokens_per_sample();
  if (loss_scale) after.loss_scale = loss_scale->state();
  return after;
}

}  // namespace shoal::train
