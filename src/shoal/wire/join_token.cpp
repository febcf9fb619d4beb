#include "shoal/wire/join_token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/hex.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::wire {
namespace {

// A token is kTokenPrefix and the hexadecimal digits of: the time, 8 bytes, the lowest first; the
// random number, 16; the name of the cluster; the HMAC, 32, of all that is before it.
constexpr std::string_view kTokenPrefix = "shoal-join-1-";
constexpr std::string_view kTokenDigits = "0123456789abcdef";
constexpr std::size_t kTokenTime = 8;
constexpr std::size_t kTokenNonce = 16;
constexpr std::size_t kTokenMac = 32;
constexpr std::size_t kMostClusterName = 100;

std::array<std::byte, 32> token_key(std::string_view secret) {
  SHOAL_USER_CHECK(!secret.empty(), "join_token", "an empty secret protects nothing");
  return derive_key(secret, "shoal", "join token");
}

std::int64_t seconds_of(TokenTime time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

// Digits are lower-case ones, so that a token has one text.
std::optional<std::vector<std::byte>> token_bytes(std::string_view text) {
  if (!text.starts_with(kTokenPrefix)) return std::nullopt;
  text.remove_prefix(kTokenPrefix.size());
  if (text.size() % 2 != 0 || text.size() / 2 < kTokenTime + kTokenNonce + kTokenMac ||
      text.size() / 2 > kTokenTime + kTokenNonce + kMostClusterName + kTokenMac)
    return std::nullopt;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto high = kTokenDigits.find(text[i]);
    const auto low = kTokenDigits.find(text[i + 1]);
    if (high == kTokenDigits.npos || low == kTokenDigits.npos) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

}  // namespace

const char* name(TokenVerdict verdict) {
  switch (verdict) {
    case TokenVerdict::kGood:
      return "good";
    case TokenVerdict::kForged:
      return "forged";
    case TokenVerdict::kOtherCluster:
      return "of another cluster";
    case TokenVerdict::kExpired:
      return "expired";
    case TokenVerdict::kUsed:
      return "used before";
  }
  return "unknown";
}

std::string issue_join_token(std::string_view secret, std::string_view cluster, TokenTime expires) {
  SHOAL_USER_CHECK(cluster.size() <= kMostClusterName, "join_token",
                   "the name of a cluster has at most {} bytes, this one {}", kMostClusterName,
                   cluster.size());
  const auto key = token_key(secret);
  std::vector<std::byte> bytes(kTokenTime + kTokenNonce + cluster.size());
  const auto time = static_cast<std::uint64_t>(seconds_of(expires));
  for (std::size_t i = 0; i < kTokenTime; ++i)
    bytes[i] = static_cast<std::byte>(time >> (8 * i) & 255);
  SHOAL_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data() + kTokenTime), kTokenNonce) == 1,
      "no random numbers");
  if (!cluster.empty())
    std::memcpy(&bytes[kTokenTime + kTokenNonce], cluster.data(), cluster.size());
  const auto mac = hmac_sha256(key, bytes);
  bytes.insert(bytes.end(), mac.begin(), mac.end());
  return std::string(kTokenPrefix) + hex(bytes);
}

JoinTokens::JoinTokens(std::string_view secret, std::string cluster)
    : key_(token_key(secret)), cluster_(std::move(cluster)) {}

// Nothing that a token says counts before its HMAC is right, and that is compared in constant time:
// how long it takes tells nothing of the right one.
TokenVerdict JoinTokens::use(std::string_view token, TokenTime now) {
  const auto bytes = token_bytes(token);
  if (!bytes) return TokenVerdict::kForged;
  const auto terms = std::span<const std::byte>(*bytes).first(bytes->size() - kTokenMac);
  const auto want = hmac_sha256(key_, terms);
  if (CRYPTO_memcmp(want.data(), bytes->data() + terms.size(), kTokenMac) != 0)
    return TokenVerdict::kForged;
  const std::string_view cluster(
      reinterpret_cast<const char*>(terms.data()) + kTokenTime + kTokenNonce,
      terms.size() - kTokenTime - kTokenNonce);
  if (cluster != cluster_) return TokenVerdict::kOtherCluster;
  std::uint64_t time = 0;
  for (std::size_t i = 0; i < kTokenTime; ++i)
    time |= std::to_integer<std::uint64_t>(terms[i]) << (8 * i);
  const auto expires_s = static_cast<std::int64_t>(time);
  now_s_ = std::max(now_s_, seconds_of(now));
  std::erase_if(used_, [&](const auto& entry) { return entry.second <= now_s_; });
  if (expires_s <= now_s_) return TokenVerdict::kExpired;
  Nonce nonce;
  std::memcpy(nonce.data(), terms.data() + kTokenTime, kTokenNonce);
  return used_.emplace(nonce, expires_s).second ? TokenVerdict::kGood : TokenVerdict::kUsed;
}

}  // namespace shoal::wire
