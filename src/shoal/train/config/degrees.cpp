#include "shoal/train/config/degrees.h"

#include <fmt/format.h>

#include "shoal/plan/division_rules.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"

namespace shoal::train {

std::int64_t data_ranks(const Job& job, std::int64_t ranks) {
  const ParallelismSection& p = job.config.parallelism;
  const std::int64_t tp = p.tensor_parallel_degree;
  if (ranks % tp != 0) {
    throw config_error(job, "parallelism.tensor_parallel_degree",
                       fmt::format("must divide the {} ranks, as {} does", ranks,
                                   plan::nearest_divisors(ranks, tp)));
  }
  const std::int64_t of_tensors = ranks / tp;
  const std::int64_t cp = p.context_parallel_degree;
  if (of_tensors % cp != 0) {
    throw config_error(
        job, "parallelism.context_parallel_degree",
        fmt::format("must divide the {} ranks / tensor_parallel_degree = {}, as {} does", ranks,
                    of_tensors, plan::nearest_divisors(of_tensors, cp)));
  }
  const std::int64_t rest = of_tensors / cp;
  const std::int64_t pp = p.pipeline_parallel_degree;
  if (rest % pp != 0) {
    throw config_error(job, "parallelism.pipeline_parallel_degree",
                       fmt::format("must divide the {} ranks / {} = {}, as {} does", ranks,
                                   cp > 1 ? "(tensor_parallel_degree x context_parallel_degree)"
                                          : "tensor_parallel_degree",
                                   rest, plan::nearest_divisors(rest, pp)));
  }
  return rest / pp;
}

plan::Degrees job_degrees(const Job& job, std::int64_t ranks) {
  const ParallelismSection& p = job.config.parallelism;
  const std::int64_t data = data_ranks(job, ranks);
  plan::Degrees degrees;
  degrees.pp = p.pipeline_parallel_degree;
  degrees.cp = p.context_parallel_degree;
  degrees.tp = p.tensor_parallel_degree;
  // Without sharding every rank holds all, whatever the key says: each is a member by itself where
  // there are members.
  // The ranks of an elastic job are one member.
  const bool members = has_members(job.config) && !job.config.elastic.enabled;
  const std::int64_t copies = members ? data : 1;
  degrees.dp_replicate = p.zero_stage > 0 ? p.data_parallel_replicate_degree : copies;
  if (data % degrees.dp_replicate != 0) {
    throw config_error(job, "parallelism.data_parallel_replicate_degree",
                       fmt::format("must divide the {} data-parallel ranks, as {} does", data,
                                   plan::nearest_divisors(data, degrees.dp_replicate)));
  }
  degrees.dp_shard = data / degrees.dp_replicate;
  degrees.ep = p.expert_parallel_degree;
  const std::string broken =
      members ? plan::expert_copy_rule(degrees, "a member") : plan::expert_copy_rule(degrees);
  if (broken.empty()) return degrees;
  Error error = config_error(job, "parallelism.expert_parallel_degree", broken);
  if (members && p.zero_stage == 0) {
    error.hint(
        "without sharding each data-parallel rank is a member: parallelism.zero_stage = 1 with "
        "data_parallel_replicate_degree gives a member several");
  }
  throw error;
}

}  // namespace shoal::train
