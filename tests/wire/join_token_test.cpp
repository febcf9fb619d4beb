#include "shoal/wire/join_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/hex.h"
#include "tests/error_of.h"

namespace shoal::wire::join_token_test {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::HasSubstr;

const TokenTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

TokenVerdict verdict(const std::string& secret, const std::string& cluster,
                     const std::string& token, TokenTime now = kNow) {
  return read_join_token(token_key(secret), cluster, token, now).verdict;
}

TEST(JoinToken, SaysUntilWhenAndWhichOneItIs) {
  const std::string one = issue_join_token("secret", "north", kNow + hours(1));
  const std::string other = issue_join_token("secret", "north", kNow + hours(1));
  const TokenKey key = token_key("secret");
  const TokenReading reading = read_join_token(key, "north", one, kNow);
  EXPECT_EQ(reading.verdict, TokenVerdict::kGood);
  EXPECT_EQ(reading.expires_s, 1'800'003'600);
  EXPECT_EQ(reading.cluster, "north");
  EXPECT_EQ(read_join_token(key, "north", one, kNow).nonce, reading.nonce);
  EXPECT_NE(read_join_token(key, "north", other, kNow).nonce, reading.nonce);
}

TEST(JoinToken, Expires) {
  const std::string token = issue_join_token("secret", "north", kNow + seconds(10));
  EXPECT_EQ(verdict("secret", "north", token, kNow + seconds(9)), TokenVerdict::kGood);
  EXPECT_EQ(verdict("secret", "north", token, kNow + seconds(10)), TokenVerdict::kExpired);
}

TEST(JoinToken, IsOfOneClusterAndOneSecret) {
  const std::string token = issue_join_token("secret", "north", kNow + hours(1));
  EXPECT_EQ(verdict("secret", "south", token), TokenVerdict::kOtherCluster);
  EXPECT_EQ(verdict("secret", "nort", token), TokenVerdict::kOtherCluster);
  EXPECT_EQ(verdict("Secret", "north", token), TokenVerdict::kForged);
  EXPECT_EQ(verdict("secret", "", issue_join_token("secret", "", kNow + hours(1))),
            TokenVerdict::kGood);
}

TEST(JoinToken, AlteredAnywhereItIsForged) {
  const TokenKey key = token_key("secret");
  const std::string token = issue_join_token("secret", "north", kNow + hours(1));
  const auto is_forged = [&](const std::string& altered) {
    return read_join_token(key, "north", altered, kNow).verdict == TokenVerdict::kForged;
  };
  for (std::size_t at = 0; at < token.size(); ++at) {
    for (const char other : {'0', '1', 'f', 'A', 'F', 'x', '\0', '\n'}) {
      std::string altered = token;
      if (altered[at] == other) continue;
      altered[at] = other;
      EXPECT_TRUE(is_forged(altered)) << at;
    }
    EXPECT_TRUE(is_forged(token.substr(0, at))) << at;
    EXPECT_TRUE(is_forged(token.substr(at + 1))) << at;
  }
  for (const char* more : {"0", "00", " "}) EXPECT_TRUE(is_forged(token + more));
  EXPECT_TRUE(is_forged(std::string(100000, '0')));
  EXPECT_FALSE(is_forged(token));
}

// Whoever reads tokens has the public key, which makes none.
TEST(JoinToken, TheKeyOfReadersIssuesNone) {
  const TokenKey key = token_key("secret");
  const std::string text(reinterpret_cast<const char*>(key.data()), key.size());
  EXPECT_EQ(verdict("secret", "north", issue_join_token(text, "north", kNow + hours(1))),
            TokenVerdict::kForged);
}

/// HKDF-SHA256 as OpenSSL has it.
std::array<unsigned char, 32> hkdf(const std::string& secret, const std::string& salt,
                                   const std::string& info) {
  std::array<unsigned char, 32> key{};
  const std::shared_ptr<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                              EVP_PKEY_CTX_free);
  const auto text = [](const std::string& s) {
    return reinterpret_cast<const unsigned char*>(s.data());
  };
  std::size_t size = key.size();
  EXPECT_EQ(EVP_PKEY_derive_init(context.get()), 1);
  EXPECT_EQ(EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()), 1);
  EXPECT_EQ(EVP_PKEY_CTX_set1_hkdf_salt(context.get(), text(salt), static_cast<int>(salt.size())),
            1);
  EXPECT_EQ(
      EVP_PKEY_CTX_set1_hkdf_key(context.get(), text(secret), static_cast<int>(secret.size())), 1);
  EXPECT_EQ(EVP_PKEY_CTX_add1_hkdf_info(context.get(), text(info), static_cast<int>(info.size())),
            1);
  EXPECT_EQ(EVP_PKEY_derive(context.get(), key.data(), &size), 1);
  return key;
}

// A token of this version is one of every later one: the format is a promise.
TEST(JoinToken, IsMadeAsItsDescriptionSays) {
  std::vector<unsigned char> bytes{0x00, 0xd2, 0x49, 0x6b, 0, 0, 0, 0};  // 1'800'000'000
  for (unsigned char i = 1; i <= 16; ++i) bytes.push_back(i);
  for (const char c : std::string("north")) bytes.push_back(static_cast<unsigned char>(c));
  const auto seed = hkdf("secret", "shoal", "join token");
  const std::shared_ptr<EVP_PKEY> key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()),
      EVP_PKEY_free);
  const std::shared_ptr<EVP_MD_CTX> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  ASSERT_EQ(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()), 1);
  std::array<unsigned char, 64> signature{};
  std::size_t size = signature.size();
  ASSERT_EQ(EVP_DigestSign(context.get(), signature.data(), &size, bytes.data(), bytes.size()), 1);
  bytes.insert(bytes.end(), signature.begin(), signature.end());
  std::string token = "shoal-join-2-";
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    token += digits.data();
  }
  EXPECT_EQ(verdict("secret", "north", token, kNow - seconds(1)), TokenVerdict::kGood);
  EXPECT_EQ(verdict("secret", "north", token), TokenVerdict::kExpired);
}

TEST(JoinToken, TheKeyOfReadersIsReadAsItIsPrinted) {
  const TokenKey key = token_key("secret");
  const std::string digits = hex(key);
  EXPECT_EQ(parse_token_key(digits), key);
  for (const std::string& wrong :
       {std::string(), digits + "00", digits + "0", digits.substr(1), digits.substr(2),
        digits.substr(1) + "A", digits.substr(1) + "g", " " + digits.substr(1)})
    EXPECT_EQ(error_of([&] { parse_token_key(wrong); }).kind(), ErrorKind::kConfig) << wrong;
}

TEST(JoinToken, AnEmptySecretAndALongNameAreRefused) {
  EXPECT_EQ(error_of([] { token_key(""); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { issue_join_token("", "north", kNow); }).kind(), ErrorKind::kUsage);
  const std::string longest(100, 'n');
  EXPECT_EQ(verdict("s", longest, issue_join_token("s", longest, kNow + hours(1))),
            TokenVerdict::kGood);
  EXPECT_THAT(error_of([&] { issue_join_token("s", longest + "n", kNow); }).what(),
              HasSubstr("at most 100 bytes, this one 101"));
}

}  // namespace
}  // namespace shoal::wire::join_token_test
