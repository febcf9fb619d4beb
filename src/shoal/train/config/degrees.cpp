#include "shoal/train/config/degrees.h"

#include <fmt/format.h>

#include "shoal/train/config/keys.h"

namespace shoal::train {

plan::Degrees job_degrees(const Job& job, std::int64_t ranks) {
  const ParallelismSection& p = job.config.parallelism;
  plan::Degrees degrees;
  degrees.tp = p.tensor_parallel_degree;
  if (ranks % degrees.tp != 0) {
    throw config_error(job, "parallelism.tensor_parallel_degree",
                       fmt::format("must divide the {} ranks, as {} does", ranks,
                                   plan::nearest_divisors(ranks, degrees.tp)));
  }
  degrees.pp = p.pipeline_parallel_degree;
  if (ranks / degrees.tp % degrees.pp != 0) {
    throw config_error(job, "parallelism.pipeline_parallel_degree",
                       fmt::format("must divide {} ranks / tensor_parallel_degree, as {} does",
                                   ranks, plan::nearest_divisors(ranks / degrees.tp, degrees.pp)));
  }
  const std::int64_t data = ranks / (degrees.tp * degrees.pp);
  // Without sharding every rank holds all, whatever the key says.
  degrees.dp_replicate = p.zero_stage > 0 ? p.data_parallel_replicate_degree : 1;
  if (data % degrees.dp_replicate != 0) {
    throw config_error(job, "parallelism.data_parallel_replicate_degree",
                       fmt::format("must divide the {} data-parallel ranks, as {} does", data,
                                   plan::nearest_divisors(data, degrees.dp_replicate)));
  }
  degrees.dp_shard = data / degrees.dp_replicate;
  return degrees;
}

}  // namespace shoal::train
