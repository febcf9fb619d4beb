#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "shoal/wire/descriptor.h"

namespace shoal::wire {

/// The bytes of one connection, on a non-blocking socket: as they are (PlainChannel), or encrypted
/// (TlsChannel). No call waits. Not thread-safe.
class Channel {
 public:
  enum class Handshake : std::uint8_t { kDone, kWaitsToRead, kWaitsToWrite };

  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  int fd() const { return socket_.get(); }

  /// Goes on with the handshake, without which nothing else may be called. Throws Error(peer_lost).
  virtual Handshake handshake() = 0;
  /// Reads what is there to `to`, whose parts are filled in order. Returns how many bytes; 0 at the
  /// end of the connection; nothing where none are there now. Throws Error(peer_lost).
  virtual std::optional<std::size_t> read(std::span<const iovec> to) = 0;
  /// Returns true where `read` has more to tell than the socket shows: whoever waits for the socket
  /// to be readable reads on first.
  bool holds_unread() const { return holds_unread_; }
  /// Takes bytes of `from`, in order, to be sent: as many as there is room for, whose number it
  /// returns. Throws Error(peer_lost).
  virtual std::size_t write(std::span<const iovec> from) = 0;
  /// Returns true where the kernel does not have all bytes yet that `write` has taken.
  bool holds_unsent() const { return holds_unsent_; }
  /// Hands the kernel such bytes. Returns true when none are left. Throws Error(peer_lost).
  virtual bool flush() = 0;
  /// Ends this direction, behind what was written. Returns false where the kernel has no room for
  /// what that takes: it is called again then.
  virtual bool finish_sending() = 0;

 protected:
  Descriptor socket_;
  bool holds_unread_ = false;
  bool holds_unsent_ = false;
};

/// The bytes as they are: whoever is on the way reads them, and may change them.
class PlainChannel final : public Channel {
 public:
  using Channel::Channel;
  Handshake handshake() override { return Handshake::kDone; }
  std::optional<std::size_t> read(std::span<const iovec> to) override;
  std::size_t write(std::span<const iovec> from) override;
  bool flush() override { return true; }
  bool finish_sending() override;
};

}  // namespace shoal::wire
