#include "apps/shoal/command.h"

namespace shoal::apps {

const char* version() { return SHOAL_VERSION; }

}  // namespace shoal::apps
