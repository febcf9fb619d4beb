#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/channel.h"
#include "shoal/wire/identity.h"
#include "shoal/wire/tls_mode.h"

// OpenSSL's names; its headers stay in the sources.
struct bio_method_st;
struct ssl_ctx_st;
struct ssl_st;

namespace shoal::wire {

/// What the TLS connections of one identity have in common.
class TlsContext {
 public:
  explicit TlsContext(Identity identity = Identity());
  const PeerId& id() const { return identity_.id(); }

 private:
  friend class TlsChannel;
  Identity identity_;
  std::shared_ptr<bio_method_st> socket_method_;
  std::shared_ptr<ssl_ctx_st> context_;
};

/// Returns what TLS takes in this mode; null where it is off, and where it is auto and OpenSSL of
/// this system refuses: connections that stay on the host do without. Throws Error(resource).
std::shared_ptr<const TlsContext> context_for(TlsMode mode);

/// Returns true where a connection runs TLS in this mode. `socket` is connected.
bool wants_tls(TlsMode mode, int socket);

/// TLS 1.3 and no other version, without session tickets and early data. Each side shows a
/// certificate, and the other one must have the id that is expected of it.
///
/// A connection that ends without TLS's own word for it (close_notify) is broken: somebody on the
/// way may have cut it.
class TlsChannel final : public Channel {
 public:
  enum class Role : std::uint8_t { kCaller, kListener };
  /// AES-GCM is safe for some 24 million records under one key (RFC 8446, 5.5), so this side takes
  /// a new key after each so many.
  static constexpr std::uint64_t kRecordsOfAKey = std::uint64_t{1} << 22;

  /// Throws Error(resource).
  TlsChannel(Descriptor socket, std::shared_ptr<const TlsContext> context, Role role, PeerId peer,
             std::uint64_t records_of_a_key = kRecordsOfAKey);
  ~TlsChannel() override;
  Handshake handshake() override;
  std::optional<std::size_t> read(std::span<const iovec> to) override;
  std::size_t write(std::span<const iovec> from) override;
  bool flush() override;
  bool finish_sending() override;
  /// Counts the keys under which this side has sent.
  std::uint64_t keys_used() const { return keys_used_; }

 private:
  /// Text of the largest record.
  static constexpr std::size_t kMostText = 16 << 10;

  Error broken(const char* operation, int result);
  std::size_t read_text(std::byte* to, std::size_t bytes);
  std::optional<std::size_t> what_was_read(std::size_t total);
  bool write_record();
  bool renew_key();

  std::shared_ptr<const TlsContext> context_;
  PeerId peer_;
  std::shared_ptr<ssl_st> tls_;
  std::uint64_t records_of_a_key_;
  std::uint64_t records_ = 0;
  std::uint64_t keys_used_ = 1;
  std::vector<std::byte> text_;   ///< of the record that the kernel has not taken whole, if any
  bool renewal_due_ = false;      ///< this side sends no more before it has taken a new key
  bool finished_ = false;         ///< the kernel has the word that this side sends nothing more
  bool ended_ = false;            ///< the peer has said that it sends nothing more
  std::optional<Error> failure_;  ///< what `read` throws from now on
};

/// Returns the channel of a connected socket: TLS towards the peer of that id, or plain where
/// `context` is null.
std::unique_ptr<Channel> channel_over(Descriptor socket, std::shared_ptr<const TlsContext> context,
                                      TlsChannel::Role role, const PeerId& peer);

}  // namespace shoal::wire
