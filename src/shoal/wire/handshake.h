#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::wire {

using Nonce = std::array<std::byte, 32>;
/// The caller's hello message, which its proof covers. The listener gives its bytes a meaning.
using Hello = std::array<std::byte, 16>;

/// Both ends of a connection prove that they know the job's key before a byte of anything else is
/// read: HMAC-SHA256 over both sides' random challenges, with a different label for each direction
/// (so that an answer cannot be reflected). The key never travels. Bytes behind it are not
/// encrypted.
///   listener -> caller: magic, challenge
///   caller -> listener: magic, challenge, hello, proof
///   listener -> caller: proof
/// This class is the listener's side. It is fed as bytes come, and never waits.
class ListenerHandshake {
 public:
  explicit ListenerHandshake(std::string key);
  std::vector<std::byte> greeting() const;
  /// Returns how many bytes are still needed. No more are taken: what follows belongs to the
  /// connection.
  std::size_t wanted() const;
  /// Takes at most `wanted()` bytes. Returns false when the caller does not know the key.
  bool feed(std::span<const std::byte> bytes);
  bool done() const { return wanted() == 0; }
  std::vector<std::byte> proof() const;
  Hello hello() const;

 private:
  std::string key_;
  Nonce own_;
  std::vector<std::byte> received_;
};

/// Performs the caller's side on a connected non-blocking socket. Throws Error(peer_lost) when the
/// listener does not know the key, Error(timeout). Calls `check`, which may throw to give up, every
/// quarter of a second while it waits.
void handshake_as_caller(int socket, const std::string& key, const Hello& hello, Deadline deadline,
                         const std::function<void()>& check = {});

}  // namespace shoal::wire
