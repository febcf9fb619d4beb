#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal bench products [MODEL]`: the matmuls of linear layers beside a plain loop and the plan.
void add_products_bench(CLI::App& bench);

}  // namespace shoal::apps
