#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal plan scaling`: the compute-optimal size and tokens of a budget, by published laws.
void add_scaling_command(CLI::App& plan_command);

/// Adds `shoal plan inference`: the cost of serving a model on one device.
void add_inference_command(CLI::App& plan_command);

/// Adds `shoal plan learn ...`: calculators that print one line each, with the formula.
void add_learn_command(CLI::App& plan_command);

}  // namespace shoal::apps
