#pragma once

#include <cstdint>

#include "shoal/plan/training.h"

namespace shoal::plan {

/// A training on dp x tp x pp ranks, one shard of the states on each data rank.
inline Training training_on(std::int64_t dp, std::int64_t tp, std::int64_t pp,
                            std::int64_t global_batch) {
  Training training;
  training.degrees.dp_shard = dp;
  training.degrees.tp = tp;
  training.degrees.pp = pp;
  training.global_batch = global_batch;
  return training;
}

}  // namespace shoal::plan
