#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace shoal::wire {

/// HKDF-SHA256 (RFC 5869) with an output of one block: a key of 256 bits that is as hard to guess
/// as `secret`, and of which no part tells anything about another.
std::array<std::byte, 32> derive_key(std::string_view secret, std::string_view salt,
                                     std::string_view info);

}  // namespace shoal::wire
