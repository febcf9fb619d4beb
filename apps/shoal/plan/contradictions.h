#pragma once

#include "apps/shoal/plan/options.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// Throws Error(usage) naming the first given option that would change nothing: an option of a
/// shape beside --model, of one mesh beside --search, of a whole model beside a bare number of
/// --parameters, or one without the option that it belongs to.
void reject_options_without_effect(const CLI::App& command, const PlanOptions& options);

/// Throws Error(usage) for an option of the plan beside a subcommand of `shoal plan`, where it
/// means nothing.
void reject_options_beside_subcommand(const CLI::App& command);

/// Throws Error(usage) for an option of one mesh that changes nothing in the way it trains.
void reject_options_without_effect(const PlanOptions& options, const model::ModelSpec& spec,
                                   const plan::Training& training);

}  // namespace shoal::apps
