#include "shoal/wire/join_token.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/error.h"
#include "shoal/base/hex.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::wire {
namespace {

// A token is kTokenPrefix and the hexadecimal digits of: the time, 8 bytes, the lowest first; the
// random number, 16; the name of the cluster; the signature, 64, of all that is before it.
constexpr std::string_view kTokenPrefix = "shoal-join-2-";
constexpr std::string_view kTokenDigits = "0123456789abcdef";
constexpr std::size_t kTokenTime = 8;
constexpr std::size_t kTokenNonce = 16;
constexpr std::size_t kTokenSignature = 64;
constexpr std::size_t kMostClusterName = 100;

using TokenPkey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using SigningContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void must_sign(bool done) {
  if (!done)
    throw Error(ErrorKind::kResource, "join_token", "OpenSSL of this system offers no Ed25519");
}

TokenPkey private_token_key(std::string_view secret) {
  SHOAL_USER_CHECK(!secret.empty(), "join_token", "an empty secret protects nothing");
  const auto seed = derive_key(secret, "shoal", "join token");
  TokenPkey key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, octets(seed), seed.size()),
                EVP_PKEY_free);
  must_sign(key != nullptr);
  return key;
}

bool is_signed(const TokenKey& key, std::span<const std::byte> text,
               std::span<const std::byte> signature) {
  const TokenPkey pkey(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, octets(key), key.size()),
      EVP_PKEY_free);
  const SigningContext context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  must_sign(pkey != nullptr && context != nullptr);
  const bool is_right =
      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, pkey.get()) == 1 &&
      EVP_DigestVerify(context.get(), octets(signature), signature.size(), octets(text),
                       text.size()) == 1;
  // TLS of this thread must not find what OpenSSL says of a wrong one.
  if (!is_right) ERR_clear_error();
  return is_right;
}

// Digits are lower-case ones, so that a token has one text.
std::optional<std::vector<std::byte>> bytes_of_digits(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto high = kTokenDigits.find(text[i]);
    const auto low = kTokenDigits.find(text[i + 1]);
    if (high == kTokenDigits.npos || low == kTokenDigits.npos) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

std::optional<std::vector<std::byte>> token_bytes(std::string_view text) {
  if (!text.starts_with(kTokenPrefix)) return std::nullopt;
  text.remove_prefix(kTokenPrefix.size());
  constexpr std::size_t kLeast = kTokenTime + kTokenNonce + kTokenSignature;
  if (text.size() / 2 < kLeast || text.size() / 2 > kLeast + kMostClusterName) return std::nullopt;
  return bytes_of_digits(text);
}

}  // namespace

std::int64_t seconds_since_1970(TokenTime time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

TokenKey token_key(std::string_view secret) {
  const TokenPkey key = private_token_key(secret);
  TokenKey text{};
  std::size_t size = text.size();
  must_sign(EVP_PKEY_get_raw_public_key(key.get(), reinterpret_cast<unsigned char*>(text.data()),
                                        &size) == 1 &&
            size == text.size());
  return text;
}

TokenKey parse_token_key(std::string_view digits) {
  TokenKey key{};
  const auto bytes = bytes_of_digits(digits);
  if (!bytes || bytes->size() != key.size()) {
    throw Error(ErrorKind::kConfig, "join_token",
                "the key to join tokens is 64 hexadecimal digits, as `shoal token key` prints it");
  }
  std::copy(bytes->begin(), bytes->end(), key.begin());
  return key;
}

std::string issue_join_token(std::string_view secret, std::string_view cluster, TokenTime expires) {
  SHOAL_USER_CHECK(cluster.size() <= kMostClusterName, "join_token",
                   "the name of a cluster has at most {} bytes, this one {}", kMostClusterName,
                   cluster.size());
  const TokenPkey key = private_token_key(secret);
  std::vector<std::byte> bytes(kTokenTime + kTokenNonce + cluster.size());
  const auto time = static_cast<std::uint64_t>(seconds_since_1970(expires));
  for (std::size_t i = 0; i < kTokenTime; ++i)
    bytes[i] = static_cast<std::byte>(time >> (8 * i) & 255);
  SHOAL_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data() + kTokenTime), kTokenNonce) == 1,
      "no random numbers");
  if (!cluster.empty())
    std::memcpy(&bytes[kTokenTime + kTokenNonce], cluster.data(), cluster.size());
  std::array<std::byte, kTokenSignature> signature{};
  std::size_t size = signature.size();
  const SigningContext context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  must_sign(context != nullptr &&
            EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
            EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                           octets(bytes), bytes.size()) == 1 &&
            size == signature.size());
  bytes.insert(bytes.end(), signature.begin(), signature.end());
  return std::string(kTokenPrefix) + hex(bytes);
}

// Nothing that a token says counts before its signature is right.
TokenReading read_join_token(const TokenKey& key, std::string_view cluster, std::string_view token,
                             TokenTime now) {
  TokenReading reading;
  const auto bytes = token_bytes(token);
  if (!bytes) return reading;
  const std::span<const std::byte> all(*bytes);
  const auto terms = all.first(all.size() - kTokenSignature);
  if (!is_signed(key, terms, all.last(kTokenSignature))) return reading;
  std::uint64_t time = 0;
  for (std::size_t i = 0; i < kTokenTime; ++i)
    time |= std::to_integer<std::uint64_t>(terms[i]) << (8 * i);
  reading.expires_s = static_cast<std::int64_t>(time);
  std::memcpy(reading.nonce.data(), terms.data() + kTokenTime, kTokenNonce);
  for (const std::byte letter : terms.subspan(kTokenTime + kTokenNonce))
    reading.cluster += static_cast<char>(letter);
  if (reading.cluster != cluster) {
    reading.verdict = TokenVerdict::kOtherCluster;
  } else if (reading.expires_s <= seconds_since_1970(now)) {
    reading.verdict = TokenVerdict::kExpired;
  } else {
    reading.verdict = TokenVerdict::kGood;
  }
  return reading;
}

}  // namespace shoal::wire
