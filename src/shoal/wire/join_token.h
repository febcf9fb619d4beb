#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace shoal::wire {

/// What a verifier says of a join token.
enum class TokenVerdict : std::uint8_t {
  kGood,
  kForged,        ///< no token, or one that was altered or made with another secret
  kOtherCluster,  ///< a token of this secret for a cluster of another name
  kExpired,
  kUsed,
};
/// Returns a word for people: "good", "forged", "of another cluster", "expired", "used before".
const char* name(TokenVerdict verdict);

using TokenTime = std::chrono::system_clock::time_point;

/// Returns a text that lets whoever shows it join `cluster`, once, before `expires` (by the clock
/// of the host that verifies it; whole seconds count). It holds the name of the cluster, the time
/// and a random number, and their HMAC-SHA256 under a key that HKDF makes of `secret`. It is itself
/// a secret until it is used: it should be shown inside TLS alone. Throws Error(usage) for an empty
/// secret, and for a name of more than 100 bytes.
std::string issue_join_token(std::string_view secret, std::string_view cluster, TokenTime expires);

/// Verifies the tokens of one cluster. Remembers those that were used until they expire, so that
/// each is good once for one verifier. Not thread-safe.
class JoinTokens {
 public:
  JoinTokens(std::string_view secret, std::string cluster);
  /// Uses the token up where it is good.
  TokenVerdict use(std::string_view token, TokenTime now = std::chrono::system_clock::now());
  /// Counts the tokens that are remembered.
  std::size_t remembered() const { return used_.size(); }

 private:
  using Nonce = std::array<std::byte, 16>;
  std::array<std::byte, 32> key_;
  std::string cluster_;
  /// The latest time that was seen: a clock that is set back makes no token good again.
  std::int64_t now_s_ = 0;
  std::map<Nonce, std::int64_t> used_;  ///< until when they are remembered, in seconds since 1970
};

}  // namespace shoal::wire
