#pragma once

#include <CLI/CLI.hpp>

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// Throws Error(usage) naming the first option that was given and would change nothing: one of a
/// shape beside a --model, of one mesh beside a
/// --search, of a whole model beside a bare number of --parameters, or without the option that it
/// belongs to.
void refuse_what_would_be_ignored(const CLI::App& command, const PlanOptions& options);

/// The same of a subcommand of `shoal plan`, beside which no option of the plan means anything.
void refuse_beside_subcommand(const CLI::App& command);

/// Of one mesh, once it is known how it trains.
void refuse_what_would_be_ignored(const PlanOptions& options, const model::ModelSpec& spec,
                                  const plan::Training& training);

}  // namespace shoal::apps
