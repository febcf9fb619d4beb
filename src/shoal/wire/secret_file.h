#pragma once

#include <string>

namespace shoal::wire {

/// Returns the text of a file, without white space at its end. `what` names in errors what the file
/// is for. Throws Error(input_missing) where it cannot be read, Error(config) where it is empty,
/// with `hint`.
std::string read_secret(const std::string& file, const std::string& what, const std::string& hint);

}  // namespace shoal::wire
