#pragma once

#include <memory>

#include "shoal/comm/shared_buffer.h"

namespace shoal::comm {

/// The shared buffer of a group of one: plain memory, nobody to wait for.
std::shared_ptr<SharedBuffer> make_local_shared_buffer(std::size_t bytes);

}  // namespace shoal::comm
