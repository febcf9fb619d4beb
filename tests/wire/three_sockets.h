#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/first_rail_account.h"
#include "shoal/wire/rail_report.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/sanitized.h"
#include "tests/wire/soon.h"

namespace shoal::wire::three_sockets {

constexpr std::size_t kPiece = Assembler::kPieceBytes;

/// The silence after which the peer is lost. A sanitizer makes the test, which is that peer,
/// several times slower.
constexpr Duration kSilence = kSanitized ? std::chrono::seconds(4) : std::chrono::seconds(1);

inline void send_bytes(const Descriptor& socket, const void* data, std::size_t bytes) {
  ASSERT_EQ(send(socket.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

constexpr std::uint32_t kConnection = 77;

/// Connects to rank 0 of 2 as a rail of rank 1.
inline Descriptor call_rank_0(const Endpoint& address, int rail, int rails = 3,
                              std::uint32_t connection = kConnection, int attempt = 0) {
  Descriptor socket = connect_to(address, soon());
  const PeerHello hello{.rank = 1,
                        .size = 2,
                        .rail = static_cast<std::uint8_t>(rail),
                        .attempt = static_cast<std::uint8_t>(attempt),
                        .rails = static_cast<std::uint16_t>(rails),
                        .connection = connection};
  handshake_as_caller(socket.get(), "key", hello.encode(), soon());
  return socket;
}

/// A message of one chunk with its header.
inline Bytes message_bytes(Stream stream, const Bytes& bytes) {
  const ChunkHeader header{
      .length = static_cast<std::uint32_t>(bytes.size()), .stream = stream, .total = bytes.size()};
  Bytes all(sizeof header);
  std::memcpy(all.data(), &header, sizeof header);
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

/// Returns true when the other end closes the connection without a byte.
inline bool is_closed(const Descriptor& socket) {
  pollfd wait{socket.get(), POLLIN, 0};
  char byte = 0;
  return poll(&wait, 1, 10000) == 1 && recv(socket.get(), &byte, 1, 0) == 0;
}

/// A transport of rank 0 of 2 whose peer has three connections that the test writes.
class TransportWithThreeSockets : public testing::Test {
 protected:
  explicit TransportWithThreeSockets(Duration heartbeat = std::chrono::seconds(1)) {
    auto connected = std::async(std::launch::async, [&] {
      StoreClient client(store_.endpoint(), "key", soon());
      address_ = parse_endpoint(client.wait("peers/world/0", soon()));
      for (const int rail : {0, 2, 1}) peer_[rail] = call_rank_0(address_, rail);
    });
    StoreClient client(store_.endpoint(), "key", soon());
    transport_.emplace(
        TcpTransport::Options{.key = "key", .heartbeat = heartbeat, .silence = kSilence}, client, 0,
        2, soon());
    connected.get();
  }
  void message(Stream stream, const Bytes& bytes) {
    const Bytes all = message_bytes(stream, bytes);
    send_bytes(peer_[0], all.data(), all.size());
  }
  void announce(Stream stream, std::uint64_t total) {
    const ChunkHeader header{.length = 0, .stream = stream, .total = total};
    send_bytes(peer_[0], &header, sizeof header);
  }
  void piece(int rail, std::uint64_t number, std::uint64_t offset, std::uint64_t total) {
    const PieceHeader header{.length = kPiece, .message = number, .offset = offset, .total = total};
    send_bytes(peer_[rail], &header, sizeof header);
    const Bytes bytes(kPiece, std::byte{1});
    send_bytes(peer_[rail], bytes.data(), bytes.size());
  }
  /// Ends a connection so that its peer meets an error.
  void reset(int rail) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(peer_[rail].get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    peer_[rail] = Descriptor();
  }
  using Messages = std::vector<std::pair<Stream, Bytes>>;
  /// Reads what the transport has said on rail 0.
  Messages messages() {
    Messages result;
    Bytes buffer(1 << 16);
    const auto keep = [&](Stream stream, Bytes bytes) {
      result.emplace_back(stream, std::move(bytes));
    };
    while (true) {
      const ssize_t n = recv(peer_[0].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n <= 0) break;
      said_->feed(std::span(buffer).first(static_cast<std::size_t>(n)), keep);
    }
    return result;
  }
  /// As above, until there are `count` of `stream`.
  Messages messages_until(Stream stream, std::size_t count) {
    Messages all;
    within(std::chrono::seconds(10), [&] {
      for (auto& message : messages()) all.push_back(std::move(message));
      const auto is_wanted = [&](const auto& message) { return message.first == stream; };
      return static_cast<std::size_t>(std::ranges::count_if(all, is_wanted)) >= count;
    });
    return all;
  }
  /// As above. Returns the reports on other rails.
  std::vector<RailReport> reports() {
    std::vector<RailReport> result;
    for (const auto& [stream, bytes] : messages()) {
      const auto report = RailReport::decode(bytes);
      if (stream == Stream{0, kRail} && report) result.push_back(*report);
    }
    return result;
  }
  /// Waits for the final report of a connection.
  std::optional<RailReport> final_report(int rail, Duration longest = std::chrono::seconds(10)) {
    std::optional<RailReport> last;
    within(longest, [&] {
      message({0, kHeartbeat}, {});
      for (const RailReport& report : reports())
        if (report.rail == rail && report.closed != 0) last = report;
      return last.has_value();
    });
    return last;
  }
  void report(const RailReport& report) { message({0, kRail}, report.encode()); }
  /// Returns those that have a place in the order of rail 0, which are counted.
  static Messages with_place(Messages messages) {
    std::erase_if(messages,
                  [](const auto& one) { return !FirstRailAccount::has_place(one.first); });
    return messages;
  }
  /// Calls again as rail 0, and says nothing.
  void call_silently(int attempt) {
    peer_[0] = call_rank_0(address_, 0, 3, kConnection, attempt);
    said_.emplace(std::uint64_t{1} << 42, nullptr, Assembler::Carries::kMessagesAndAnnouncements);
  }
  /// Calls again as rail 0, of which `chunks` have come until now, and says so.
  void call_again(int attempt, std::uint64_t chunks) {
    call_silently(attempt);
    message(FirstRailAccount::kReports, RailReport{.pieces = chunks}.encode());
  }
  /// Says on the other rails that the peer lives.
  void beat_on_others() {
    const PieceHeader beat{.message = PieceHeader::kBeat};
    for (const int rail : {1, 2}) send_bytes(peer_[rail], &beat, sizeof beat);
  }
  /// Returns what the transport has said first on rail 0.
  static std::optional<RailReport> first_report(const Messages& messages) {
    if (messages.empty() || messages[0].first != FirstRailAccount::kReports) return std::nullopt;
    return RailReport::decode(messages[0].second);
  }

  /// Waits for `done`, at most `longest`, while the transport moves bytes.
  template <class Done>
  bool within(Duration longest, Done&& done) {
    for (const Deadline end = Deadline::in(longest); !done();) {
      if (end.passed()) return false;
      transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(5));
    }
    return true;
  }
  std::string failure() {
    try {
      transport_->check();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  Endpoint address_;
  std::optional<TcpTransport> transport_;
  Descriptor peer_[3];
  std::optional<Assembler> said_{std::in_place, std::uint64_t{1} << 42, nullptr,
                                 Assembler::Carries::kMessagesAndAnnouncements};
};

}  // namespace shoal::wire::three_sockets
