#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal::wire {

/// A public key (Ed25519). Whoever has it can tell whether a token is right, and can make none.
using TokenKey = std::array<std::byte, 32>;
/// A random number that tells tokens apart.
using TokenNonce = std::array<std::byte, 16>;
using TokenTime = std::chrono::system_clock::time_point;

/// A reader gives one of these verdicts on a join token.
enum class TokenVerdict : std::uint8_t {
  kGood,
  kForged,        ///< no token, or one that was altered or made with another secret
  kOtherCluster,  ///< a token of this secret for a cluster of another name
  kExpired,
};

/// Returns the key to the tokens that are issued with `secret`. Throws Error(usage) for an empty
/// secret.
TokenKey token_key(std::string_view secret);

/// Reads such a key from 64 lower-case hexadecimal digits, as hex() writes it. Throws Error(config)
/// for anything else.
TokenKey parse_token_key(std::string_view digits);

/// Returns a text that lets whoever shows it join `cluster`, once, before `expires` (by the clock
/// of the host that reads it; whole seconds count). It holds the time, a random number and the name
/// of the cluster, and a signature (Ed25519, RFC 8032) under a private key that HKDF makes of
/// `secret`. It is itself a secret until it is used. Throws Error(usage) for an empty secret, and
/// for a name of more than 100 bytes.
std::string issue_join_token(std::string_view secret, std::string_view cluster, TokenTime expires);

struct TokenReading {
  TokenVerdict verdict = TokenVerdict::kForged;
  // These are set where the token is not forged:
  TokenNonce nonce{};
  std::int64_t expires_s = 0;  ///< seconds since 1970
  std::string cluster;
};

/// Reads a token for `cluster` at the time `now`. Whether it was used before, the reader must know.
TokenReading read_join_token(const TokenKey& key, std::string_view cluster, std::string_view token,
                             TokenTime now);

/// Whole seconds since 1970, rounded down.
std::int64_t seconds_since_1970(TokenTime time);

}  // namespace shoal::wire
