#include "shoal/wire/key_derivation.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "shoal/base/check.h"

namespace shoal::wire {
using Block = std::array<std::byte, 32>;

Block hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> text) {
  Block block;
  unsigned size = 0;
  const bool made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                         reinterpret_cast<unsigned char*>(block.data()), &size) != nullptr;
  SHOAL_CHECK(made && size == block.size(), "HMAC-SHA256 is not available");
  return block;
}

// Extract, then the first block of expand, whose number is 1.
Block derive_key(std::string_view secret, std::string_view salt, std::string_view info) {
  const auto bytes_of = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const Block extracted = hmac_sha256(bytes_of(salt), bytes_of(secret));
  return hmac_sha256(extracted, bytes_of(std::string(info) + '\x01'));
}

}  // namespace shoal::wire
