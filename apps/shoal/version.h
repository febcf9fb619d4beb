#pragma once

namespace shoal::apps {

/// "0.1.0"
const char* version();

}  // namespace shoal::apps
