#include "shoal/wire/identity.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

namespace shoal::wire::identity_test {
namespace {

TEST(Identity, TheIdIsTheBeginningOfTheHashOfThePublicKey) {
  const Identity identity;
  // The DER encoding of an Ed25519 key (RFC 8410) ends with its 32 bytes.
  unsigned char* text = nullptr;
  const int size = i2d_PUBKEY(identity.key(), &text);
  ASSERT_EQ(size, 44);
  std::array<unsigned char, 32> digest;
  EVP_Digest(text + 12, 32, digest.data(), nullptr, EVP_sha256(), nullptr);
  OPENSSL_free(text);
  EXPECT_EQ(std::memcmp(identity.id().bytes.data(), digest.data(), 16), 0);
  EXPECT_EQ(id_of(identity.certificate()), identity.id());
}

TEST(Identity, NoTwoAreTheSame) {
  std::set<std::array<std::byte, 16>> ids;
  for (int i = 0; i < 20; ++i) ids.insert(Identity().id().bytes);
  EXPECT_EQ(ids.size(), 20u);
  EXPECT_FALSE(ids.contains(PeerId{}.bytes));
}

TEST(Identity, TheCertificateIsSignedWithTheKeyAndIsOfNoEnd) {
  const Identity identity;
  EXPECT_EQ(X509_verify(identity.certificate(), identity.key()), 1);
  EXPECT_NE(X509_verify(identity.certificate(), Identity().key()), 1);
  EXPECT_LT(X509_cmp_current_time(X509_get0_notBefore(identity.certificate())), 0);
  EXPECT_GT(X509_cmp_current_time(X509_get0_notAfter(identity.certificate())), 0);
}

TEST(Identity, OtherKindsOfKeysHaveNoId) {
  EXPECT_EQ(id_of(nullptr), PeerId{});
  const std::shared_ptr<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::shared_ptr<X509> certificate(X509_new(), X509_free);
  EXPECT_EQ(id_of(certificate.get()), PeerId{});
  ASSERT_EQ(X509_set_pubkey(certificate.get(), key.get()), 1);
  EXPECT_EQ(id_of(certificate.get()), PeerId{});
}

}  // namespace
}  // namespace shoal::wire::identity_test
