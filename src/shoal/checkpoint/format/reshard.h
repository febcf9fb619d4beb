#pragma once

#include <string>

#include "shoal/checkpoint/format/reader.h"

namespace shoal::checkpoint::format {

/// Rewrites a checkpoint into `files` data files (fewer when it has fewer tensors) of about equal
/// size, every tensor whole, as `directory`/step-<n>. Only bytes move: checksums of values stay
/// what they are, and everything read is verified. Holds one tensor in memory at a time. Returns
/// the new path. Throws Error(data) for a damaged source, Error(output), Error(usage) when the step
/// exists there already.
std::string reshard(Reader& from, const std::string& directory, int files);

}  // namespace shoal::checkpoint::format
