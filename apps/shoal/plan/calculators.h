#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal plan scaling`: the compute-optimal size and tokens of a budget, by published laws.
void add_scaling_command(CLI::App& plan_command);

/// `shoal plan inference`: what serving a model costs on one device.
void add_inference_command(CLI::App& plan_command);

/// `shoal plan learn ...`: calculators that print one line each, formula and all.
void add_learn_command(CLI::App& plan_command);

}  // namespace shoal::apps
