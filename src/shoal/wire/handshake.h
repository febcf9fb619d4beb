#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/channel.h"

namespace shoal::wire {

using Nonce = std::array<std::byte, 32>;
/// What each side says of itself; its proof covers it. Whoever uses the handshake gives its bytes a
/// meaning.
using Hello = std::array<std::byte, 36>;

/// Both ends of a connection prove that they know the job's key before a byte of anything else is
/// read: HMAC-SHA256 over both sides' random challenges, with a different label for each direction
/// (so that an answer cannot be reflected). The key never travels. Nothing of this is encrypted:
/// what both say in their hello messages is signed, and may be the key by which each knows the
/// other in what follows (TlsChannel).
///   listener -> caller: magic, challenge
///   caller -> listener: magic, challenge, hello, proof
///   listener -> caller: hello, proof
/// This class is the listener's side. It is fed as bytes come, and never waits.
class ListenerHandshake {
 public:
  explicit ListenerHandshake(std::string key, const Hello& own = {});
  std::vector<std::byte> greeting() const;
  /// Returns how many bytes are still needed. No more are taken: what follows belongs to the
  /// connection.
  std::size_t wanted() const;
  /// Takes at most `wanted()` bytes. Returns false when the caller does not know the key.
  bool feed(std::span<const std::byte> bytes);
  bool done() const { return wanted() == 0; }
  /// Returns the last message: the listener's hello and its proof.
  std::vector<std::byte> proof() const;
  /// Returns the caller's hello.
  Hello hello() const;

 private:
  std::string key_;
  Hello own_hello_;
  Nonce own_;
  std::vector<std::byte> received_;
};

/// The caller's side, fed as bytes come. It never waits.
class CallerHandshake {
 public:
  CallerHandshake(std::string key, const Hello& own);
  /// Returns how many bytes are needed next: of the greeting, then of the listener's proof. 0:
  /// done.
  std::size_t wanted() const;
  /// Takes at most `wanted()` bytes. Throws Error(peer_lost) where the listener speaks another
  /// protocol, or does not know the key.
  void feed(std::span<const std::byte> bytes);
  /// Returns what is to be sent once the greeting has come, and until then nothing.
  std::vector<std::byte> answer() const;
  bool done() const { return wanted() == 0; }
  /// Returns the listener's hello, once done.
  Hello hello() const;

 private:
  std::string key_;
  Hello own_hello_;
  Nonce own_;
  std::vector<std::byte> received_;
};

/// Performs the caller's side on a connected non-blocking socket, and returns the listener's hello.
/// Throws Error(peer_lost) when the listener does not know the key, Error(timeout). Calls `check`,
/// which may throw to give up, at least every quarter of a second while it waits.
Hello handshake_as_caller(int socket, const std::string& key, const Hello& hello, Deadline deadline,
                          const std::function<void()>& check = {});

/// Carries out the handshake of a channel, behind the one above. Throws and calls `check` as that.
void complete_handshake(Channel& channel, Deadline deadline,
                        const std::function<void()>& check = {});

}  // namespace shoal::wire
