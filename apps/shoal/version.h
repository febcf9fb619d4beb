#pragma once

namespace shoal::apps {

/// Returns Shoal's version: "0.1.0".
const char* version();

}  // namespace shoal::apps
