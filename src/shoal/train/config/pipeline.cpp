#include "shoal/train/config/pipeline.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/plan/unit_costs.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "shoal/train/config/keys.h"

namespace shoal::train {
namespace {

/// Reads the schedule of the job's file, which must be of so many ranks and micro-batches.
schedule::Schedule schedule_of_file(const Job& job, std::int64_t ranks,
                                    std::int64_t micro_batches) {
  const std::string& file = job.config.parallelism.pipeline_parallel_schedule_csv;
  const std::optional<std::string> text = read_text(file);
  if (!text) {
    throw Error(ErrorKind::kInputMissing, "train",
                fmt::format("parallelism.pipeline_parallel_schedule_csv: {}: {}", file,
                            std::generic_category().message(errno)));
  }
  schedule::Schedule table = schedule::from_csv(*text, file);
  if (table.ranks() != ranks) {
    throw config_error(
        job, "parallelism.pipeline_parallel_schedule_csv",
        fmt::format("is of {} ranks, and pipeline_parallel_degree is {}", table.ranks(), ranks));
  }
  if (table.micro_batches != micro_batches) {
    throw config_error(job, "parallelism.pipeline_parallel_schedule_csv",
                       fmt::format("is of {} micro-batches, and a step of this job has {} a rank "
                                   "(training.micro_batch)",
                                   table.micro_batches, micro_batches));
  }
  return table;
}

schedule::Schedule generated_schedule(const Job& job, std::int64_t ranks,
                                      std::int64_t micro_batches) {
  const ParallelismSection& p = job.config.parallelism;
  const bool in_a_v =
      p.pipeline_parallel_schedule == "zb-v" || p.pipeline_parallel_schedule == "dualpipe-v";
  const std::int64_t chunks = in_a_v ? 2 : p.pipeline_parallel_virtual_stages;
  try {
    return schedule::make_schedule(p.pipeline_parallel_schedule, static_cast<int>(ranks),
                                   static_cast<int>(chunks), static_cast<int>(micro_batches));
  } catch (const Error& error) {
    throw config_error(job, "parallelism.pipeline_parallel_schedule",
                       fmt::format("pp = {}: {}", ranks, error.message()));
  }
}

/// Returns the key that says how the units are divided, or gives the number of stages.
const char* key_of_stages(const ParallelismSection& p) {
  if (!p.pipeline_parallel_stage_units.empty()) return "parallelism.pipeline_parallel_stage_units";
  if (!p.pipeline_parallel_schedule_csv.empty())
    return "parallelism.pipeline_parallel_schedule_csv";
  return p.pipeline_parallel_virtual_stages > 1 ? "parallelism.pipeline_parallel_virtual_stages"
                                                : "parallelism.pipeline_parallel_degree";
}

}  // namespace

schedule::Schedule job_schedule(const Job& job, std::int64_t ranks, std::int64_t micro_batches) {
  const ParallelismSection& p = job.config.parallelism;
  schedule::Schedule table = p.pipeline_parallel_schedule_csv.empty()
                                 ? generated_schedule(job, ranks, micro_batches)
                                 : schedule_of_file(job, ranks, micro_batches);
  // A file may say itself when stages are gathered.
  if (schedule::has_gathers(table)) {
    if (p.pipeline_parallel_gathered_stages != 0) {
      throw config_error(
          job, "parallelism.pipeline_parallel_gathered_stages",
          "the file of pipeline_parallel_schedule_csv says when stages are gathered");
    }
  } else if (p.zero_stage == 3) {
    schedule::add_gathers(table, static_cast<int>(p.pipeline_parallel_gathered_stages));
  }
  return table;
}

std::vector<std::int64_t> stage_sizes(const Job& job, const model::ModelSpec& spec, int stages) {
  const auto& given = job.config.parallelism.pipeline_parallel_stage_units;
  const auto costs = plan::unit_costs(spec, job.config.training.sequence_length);
  try {
    const auto units = static_cast<std::int64_t>(costs.size());
    if (given.empty()) {
      const bool by_count = job.config.parallelism.pipeline_parallel_stages_by == StagesBy::kCount;
      return by_count ? plan::even_stages(units, stages) : plan::balanced_stages(costs, stages);
    }
    plan::check_stages(given, units, stages);
    return given;
  } catch (const Error& error) {
    throw config_error(job, key_of_stages(job.config.parallelism),
                       fmt::format("pp = {}: {}", job.config.parallelism.pipeline_parallel_degree,
                                   error.message()));
  }
}

}  // namespace shoal::train
