// TLS over sockets that take little at a time, or nothing, and over those from which little comes.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/handshake.h"
#include "shoal/wire/tls_channel.h"
#include "tests/error_of.h"
#include "tests/wire/socket_pair.h"

namespace shoal::wire::tls_channel_flow_test {
namespace {

using Bytes = std::vector<std::byte>;
using Role = TlsChannel::Role;

const std::shared_ptr<TlsContext>& context_of_caller() {
  static const auto context = std::make_shared<TlsContext>();
  return context;
}
const std::shared_ptr<TlsContext>& context_of_listener() {
  static const auto context = std::make_shared<TlsContext>();
  return context;
}

/// Reads as far as there is something. Returns how many bytes.
std::size_t read_all(Channel& channel) {
  Bytes buffer(1000);
  const iovec to{buffer.data(), buffer.size()};
  std::size_t total = 0;
  for (std::size_t n = 1; n > 0; total += n) n = channel.read({&to, 1}).value_or(0);
  return total;
}

std::byte byte_at(std::size_t index, int direction) {
  return static_cast<std::byte>((index * 2654435761u >> 11) + static_cast<unsigned>(direction));
}

/// One direction of the test below: what has been written and read so far.
struct Flow {
  TlsChannel& from;
  TlsChannel& to;
  int direction;
  std::size_t written = 0;
  std::size_t read = 0;
  bool wrong = false;

  // Parts of odd sizes, more at a time than a record, and the rest of them dropped afterwards.
  void write(std::size_t most) {
    std::array<Bytes, 3> parts;
    std::array<iovec, 3> from_parts;
    std::size_t at = written;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t n = std::min<std::size_t>(most - at, i == 0 ? 48 : 20011 * i);
      for (std::size_t k = 0; k < n; ++k) parts[i].push_back(byte_at(at + k, direction));
      from_parts[i] = {parts[i].data(), n};
      at += n;
    }
    written += from.write(from_parts);
    for (Bytes& part : parts) std::fill(part.begin(), part.end(), std::byte{0xee});
  }
  void receive() {
    std::array<std::byte, 3001> first;
    std::array<std::byte, 17> second;
    const iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
    const std::size_t n = to.read(parts).value_or(0);
    for (std::size_t k = 0; k < n; ++k) {
      const std::byte got = k < first.size() ? first[k] : second[k - first.size()];
      wrong = wrong || got != byte_at(read + k, direction);
    }
    read += n;
  }
};

void shake_hands(TlsChannel& a, TlsChannel& b) {
  for (bool done = false; !done;) {
    const bool first = a.handshake() == Channel::Handshake::kDone;
    done = b.handshake() == Channel::Handshake::kDone && first;
  }
}

// The sockets hold less than a record, so each one is written in parts.
TEST(TlsChannelFlow, MegabytesInBothDirectionsThroughTinySockets) {
  auto [near, far] = socket_pair();
  const int tiny = 4096;
  for (const Descriptor* end : {&near, &far})
    setsockopt(end->get(), SOL_SOCKET, SO_SNDBUF, &tiny, sizeof tiny);
  TlsChannel a(std::move(near), context_of_caller(), Role::kCaller, context_of_listener()->id(), 7);
  TlsChannel b(std::move(far), context_of_listener(), Role::kListener, context_of_caller()->id());
  shake_hands(a, b);
  constexpr std::size_t kMany = 3000001;
  Flow there{a, b, 1};
  Flow back{b, a, 2};
  bool unsent = false;
  for (int turn = 0; turn < 100000 && (there.read < kMany || back.read < kMany); ++turn) {
    there.write(kMany);
    back.write(kMany);
    unsent = unsent || a.holds_unsent();
    there.receive();
    back.receive();
  }
  EXPECT_EQ(there.read, kMany);
  EXPECT_EQ(back.read, kMany);
  EXPECT_FALSE(there.wrong || back.wrong);
  EXPECT_TRUE(unsent);
  // Of some 183 records or more, every seventh is followed by another key.
  EXPECT_GT(a.keys_used(), 25u);
  EXPECT_EQ(b.keys_used(), 1u);
}

// Each record is followed by another key, so the kernel is full before a record or before the word
// for a key, by the size of a record. OpenSSL reads nothing before that word is out.
TEST(TlsChannelFlow, BothRenewTheirKeysWhileNeitherReads) {
  for (std::size_t record = 1; record < 1500; record += 137) {
    auto [near, far] = socket_pair();
    TlsChannel a(std::move(near), context_of_caller(), Role::kCaller, context_of_listener()->id(),
                 1);
    TlsChannel b(std::move(far), context_of_listener(), Role::kListener, context_of_caller()->id(),
                 1);
    shake_hands(a, b);
    const Bytes text(record, std::byte{7});
    const auto fill = [&text](TlsChannel& channel) {
      std::size_t written = 0;
      for (std::size_t n = text.size(); n > 0; written += n) {
        const iovec from{const_cast<std::byte*>(text.data()), text.size()};
        n = channel.write({&from, 1});
      }
      return written;
    };
    const std::size_t of_a = fill(a);
    const std::size_t of_b = fill(b);
    std::size_t read_by_a = 0;
    std::size_t read_by_b = 0;
    for (int turn = 0; turn < 100 && (read_by_b < of_a || read_by_a < of_b); ++turn) {
      read_by_a += read_all(a);
      read_by_b += read_all(b);
      a.flush();
      b.flush();
    }
    EXPECT_EQ(read_by_b, of_a) << "records of " << record;
    EXPECT_EQ(read_by_a, of_b) << "records of " << record;
    // No record but those of the text is sent, and each of them is followed by a key.
    EXPECT_GT(of_a / record, 3u);
    EXPECT_EQ(a.keys_used(), of_a / record + 1);
    EXPECT_EQ(b.keys_used(), of_b / record + 1);
  }
}

// Somebody in the middle sends the header of a record, and then its bytes one at a time.
TEST(TlsChannelFlow, AHandshakeThatTricklesInEndsAtItsDeadlineOrWhenTheCallerIsToldTo) {
  for (const bool told : {false, true}) {
    auto [near, far] = socket_pair();
    TlsChannel caller(std::move(near), context_of_caller(), Role::kCaller,
                      context_of_listener()->id());
    std::atomic<bool> over{false};
    std::thread trickle([&far = far, &over] {
      send(far.get(), "\x16\x03\x03\x40\x00", 5, MSG_NOSIGNAL);
      for (int i = 0; i < 300 && !over; ++i) {
        send(far.get(), "x", 1, MSG_NOSIGNAL);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      far = Descriptor();
    });
    const Error error = error_of([&] {
      complete_handshake(caller, Deadline::in(std::chrono::milliseconds(told ? 60000 : 100)),
                         [&, calls = 0]() mutable {
                           if (++calls == 5 && told)
                             throw Error(ErrorKind::kAborted, "test", "it is told to");
                         });
    });
    over = true;
    trickle.join();
    EXPECT_EQ(error.kind(), told ? ErrorKind::kAborted : ErrorKind::kTimeout) << error.what();
  }
}

}  // namespace
}  // namespace shoal::wire::tls_channel_flow_test
