#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal bench memory`: what loops get from caches and memory, and element-wise operations beside
/// the plan.
void add_memory_bench(CLI::App& bench);

}  // namespace shoal::apps
