#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/group.h"

namespace shoal::comm {

/// Checks what every communicator under Group must do. All ranks of a group of at least two call
/// each function together; it returns what is wrong, a line each.
///
/// Every operation, element type and reduction for a few odd counts, against plain loops in double;
/// bitwise but for the payload of a NaN. Values are such that every sum is exact in fp32: what has
/// few bits must have accumulated in it and rounded once.
std::vector<std::string> check_types(const Group& group);

/// Ways of calling: asynchronous, several at once, tags and any source, per-rank sizes, strides,
/// several tensors, parts of the group, mistakes.
std::vector<std::string> check_calls(const Group& group);

/// What `body` throws, empty when nothing.
std::optional<Error> thrown(const std::function<void()>& body);

}  // namespace shoal::comm
