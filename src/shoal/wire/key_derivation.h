#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace shoal::wire {

/// HMAC-SHA256 (RFC 2104) of `text`.
std::array<std::byte, 32> hmac_sha256(std::span<const std::byte> key,
                                      std::span<const std::byte> text);

/// HKDF-SHA256 (RFC 5869) with an output of one block: a key of 256 bits that is as hard to guess
/// as `secret`, and of which no part tells anything about another.
std::array<std::byte, 32> derive_key(std::string_view secret, std::string_view salt,
                                     std::string_view info);

}  // namespace shoal::wire
