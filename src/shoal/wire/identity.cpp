#include "shoal/wire/identity.h"

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <array>
#include <cstring>

#include "shoal/base/error.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kPublicKeyBytes = 32;

void must_make(bool done, const char* what) {
  if (done) return;
  throw Error(ErrorKind::kResource, "identity", std::string("OpenSSL makes no ") + what)
      .hint("does this system forbid Ed25519? parallelism.tls = \"off\" does without");
}

PeerId id_of_key(EVP_PKEY* key) {
  std::array<unsigned char, kPublicKeyBytes> text;
  std::size_t size = text.size();
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key, text.data(), &size) != 1 ||
      EVP_Digest(text.data(), size, digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
    return {};
  PeerId id;
  std::memcpy(id.bytes.data(), digest.data(), id.bytes.size());
  return id;
}

// Nobody looks at names and dates: a peer knows the key, and clocks of hosts may differ. TLS wants
// a certificate all the same.
void describe(X509* certificate, EVP_PKEY* key) {
  const auto* name = reinterpret_cast<const unsigned char*>("shoal");
  must_make(X509_set_version(certificate, X509_VERSION_3) == 1 &&
                ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1 &&
                ASN1_TIME_set_string(X509_getm_notBefore(certificate), "19700101000000Z") == 1 &&
                ASN1_TIME_set_string(X509_getm_notAfter(certificate), "99991231235959Z") == 1 &&
                X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                           name, -1, -1, 0) == 1 &&
                X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
                X509_set_pubkey(certificate, key) == 1 && X509_sign(certificate, key, nullptr) > 0,
            "certificate");
}

}  // namespace

Identity::Identity()
    : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free),
      certificate_(X509_new(), X509_free) {
  must_make(key_ != nullptr, "key of Ed25519");
  must_make(certificate_ != nullptr, "certificate");
  describe(certificate(), key());
  id_ = id_of_key(key());
  must_make(id_ != PeerId{}, "SHA-256");
}

PeerId id_of(X509* certificate) {
  return certificate == nullptr ? PeerId{} : id_of_key(X509_get0_pubkey(certificate));
}

}  // namespace shoal::wire
