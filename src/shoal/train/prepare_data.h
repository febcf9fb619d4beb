#pragma once

#include <functional>
#include <string>

#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Makes the token data set that the job names (`data.prepare`) unless its folder holds one. One rank calls it. `say` is given a line for people.
/// Throws what data::prepare throws.
void prepare_data(const Job& job, const std::function<void(const std::string&)>& say);

}  // namespace shoal::train
