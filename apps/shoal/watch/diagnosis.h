#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/shoal/watch/job_status.h"

namespace shoal::apps {

/// One look at a running job: its status, and what the ranks recorded of their collectives at that
/// moment, as collective::merge_flights joins it.
struct JobLook {
  JobStatus status;
  std::string flights;
};

/// Joins what the ranks have written of their collectives since request number `request`.
std::string read_flights(const std::string& run_directory, const JobStatus& status,
                         std::int64_t request);

/// Says what is wrong with a running job.
struct Diagnosis {
  bool stands_still = false;  ///< a rank, or an operation between ranks
  std::vector<std::string> lines;
};

/// Compares two looks, `apart_s` seconds apart. A rank stands still when its process is stopped or
/// has ended; an operation does in which the same ranks wait in both looks although no step was
/// completed in between.
Diagnosis diagnose(const JobLook& before, const JobLook& after, double apart_s);

}  // namespace shoal::apps
