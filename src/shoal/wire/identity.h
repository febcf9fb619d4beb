#pragma once

#include <memory>

#include "shoal/wire/peer_id.h"

// OpenSSL's names; its headers stay in the sources.
struct evp_pkey_st;
struct x509_st;

namespace shoal::wire {

/// A key pair (Ed25519) and a certificate for it that it has signed itself. Both are made by the
/// constructor, so no two processes ever have one id. The private key stays in this process.
/// Peers do not trust the certificate for what it says: they compare its key with the id that they
/// have learned by other means.
class Identity {
 public:
  /// Throws Error(resource) where OpenSSL of this system offers no Ed25519.
  Identity();
  const PeerId& id() const { return id_; }
  evp_pkey_st* key() const { return key_.get(); }
  x509_st* certificate() const { return certificate_.get(); }

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
  PeerId id_;
};

/// Returns the id of whoever has the private key to `certificate`. A certificate of a key that is
/// not of Ed25519 has none: the result is then zero, which no identity has.
PeerId id_of(x509_st* certificate);

}  // namespace shoal::wire
