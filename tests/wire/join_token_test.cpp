#include "shoal/wire/join_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tests/error_of.h"

namespace shoal::wire::join_token_test {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::HasSubstr;

const TokenTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

TEST(JoinToken, IsGoodOnce) {
  JoinTokens tokens("secret", "north");
  const std::string one = issue_join_token("secret", "north", kNow + hours(1));
  const std::string other = issue_join_token("secret", "north", kNow + hours(1));
  EXPECT_NE(one, other);
  EXPECT_EQ(tokens.use(one, kNow), TokenVerdict::kGood);
  EXPECT_EQ(tokens.use(one, kNow), TokenVerdict::kUsed);
  EXPECT_EQ(tokens.use(other, kNow), TokenVerdict::kGood);
  EXPECT_EQ(tokens.use(one, kNow + seconds(3599)), TokenVerdict::kUsed);
}

TEST(JoinToken, ExpiresAndIsThenForgotten) {
  JoinTokens tokens("secret", "north");
  const std::string token = issue_join_token("secret", "north", kNow + seconds(10));
  const std::string late = issue_join_token("secret", "north", kNow + seconds(10));
  EXPECT_EQ(tokens.use(token, kNow + seconds(9)), TokenVerdict::kGood);
  EXPECT_EQ(tokens.remembered(), 1u);
  EXPECT_EQ(tokens.use(late, kNow + seconds(10)), TokenVerdict::kExpired);
  EXPECT_EQ(tokens.remembered(), 0u);
  // A clock that is set back makes none good again: neither the used one nor the other.
  EXPECT_EQ(tokens.use(token, kNow), TokenVerdict::kExpired);
  EXPECT_EQ(tokens.use(late, kNow), TokenVerdict::kExpired);
}

TEST(JoinToken, IsOfOneClusterAndOneSecret) {
  const std::string token = issue_join_token("secret", "north", kNow + hours(1));
  EXPECT_EQ(JoinTokens("secret", "south").use(token, kNow), TokenVerdict::kOtherCluster);
  EXPECT_EQ(JoinTokens("secret", "nort").use(token, kNow), TokenVerdict::kOtherCluster);
  EXPECT_EQ(JoinTokens("Secret", "north").use(token, kNow), TokenVerdict::kForged);
  const std::string nameless = issue_join_token("secret", "", kNow + hours(1));
  EXPECT_EQ(JoinTokens("secret", "").use(nameless, kNow), TokenVerdict::kGood);
}

TEST(JoinToken, AlteredAnywhereItIsForged) {
  JoinTokens tokens("secret", "north");
  const std::string token = issue_join_token("secret", "north", kNow + hours(1));
  for (std::size_t at = 0; at < token.size(); ++at) {
    for (const char other : {'0', '1', 'f', 'A', 'F', 'x', '\0', '\n'}) {
      std::string altered = token;
      if (altered[at] == other) continue;
      altered[at] = other;
      EXPECT_EQ(tokens.use(altered, kNow), TokenVerdict::kForged) << at;
    }
    EXPECT_EQ(tokens.use(token.substr(0, at), kNow), TokenVerdict::kForged) << at;
    EXPECT_EQ(tokens.use(token.substr(at + 1), kNow), TokenVerdict::kForged) << at;
  }
  for (const char* more : {"0", "00", " "})
    EXPECT_EQ(tokens.use(token + more, kNow), TokenVerdict::kForged);
  EXPECT_EQ(tokens.use(std::string(100000, '0'), kNow), TokenVerdict::kForged);
  EXPECT_EQ(tokens.use(token, kNow), TokenVerdict::kGood) << "no attempt has used it up";
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
  const auto key = hkdf("secret", "shoal", "join token");
  std::array<unsigned char, 32> mac{};
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes.data(), bytes.size(),
       mac.data(), &size);
  bytes.insert(bytes.end(), mac.begin(), mac.end());
  std::string token = "shoal-join-1-";
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    token += digits.data();
  }
  EXPECT_EQ(JoinTokens("secret", "north").use(token, kNow - seconds(1)), TokenVerdict::kGood);
  EXPECT_EQ(JoinTokens("secret", "north").use(token, kNow), TokenVerdict::kExpired);
}

TEST(JoinToken, AnEmptySecretAndALongNameAreRefused) {
  EXPECT_EQ(error_of([] { JoinTokens("", "north"); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { issue_join_token("", "north", kNow); }).kind(), ErrorKind::kUsage);
  const std::string longest(100, 'n');
  EXPECT_EQ(JoinTokens("s", longest).use(issue_join_token("s", longest, kNow + hours(1)), kNow),
            TokenVerdict::kGood);
  EXPECT_THAT(error_of([&] { issue_join_token("s", longest + "n", kNow); }).what(),
              HasSubstr("at most 100 bytes, this one 101"));
}

TEST(JoinToken, ARefusalHasAWordForPeople) {
  EXPECT_STREQ(name(TokenVerdict::kExpired), "expired");
  EXPECT_STREQ(name(TokenVerdict::kUsed), "used before");
  EXPECT_STREQ(name(TokenVerdict::kOtherCluster), "of another cluster");
  EXPECT_STREQ(name(TokenVerdict::kForged), "forged");
  EXPECT_STREQ(name(TokenVerdict::kGood), "good");
}

}  // namespace
}  // namespace shoal::wire::join_token_test
