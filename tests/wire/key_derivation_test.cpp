#include "shoal/wire/key_derivation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace shoal::wire::key_derivation_test {
namespace {

std::string hex(const std::array<std::byte, 32>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

// Test case 1 of RFC 5869: the first of its two blocks.
TEST(KeyDerivation, GivesTheBytesOfItsStandard) {
  std::string salt;
  for (char c = 0; c <= 0x0c; ++c) salt += c;
  std::string info;
  for (int c = 0xf0; c <= 0xf9; ++c) info += static_cast<char>(c);
  EXPECT_EQ(hex(derive_key(std::string(22, '\x0b'), salt, info)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

}  // namespace
}  // namespace shoal::wire::key_derivation_test
