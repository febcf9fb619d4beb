// TLS over pairs of sockets. Between the two sides stands this test, which decides which bytes
// arrive, and which others.
#include "shoal/wire/tls_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/error_of.h"
#include "tests/wire/socket_pair.h"

namespace shoal::wire::tls_channel_test {
namespace {

using Bytes = std::vector<std::byte>;
using Role = TlsChannel::Role;
using testing::HasSubstr;

Bytes bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

/// Whatever is there on a socket.
Bytes take(const Descriptor& socket) {
  Bytes all;
  std::array<std::byte, 4096> part;
  for (ssize_t n = 0; (n = recv(socket.get(), part.data(), part.size(), MSG_DONTWAIT)) > 0;)
    all.insert(all.end(), part.begin(), part.begin() + n);
  return all;
}

void put(const Descriptor& socket, std::span<const std::byte> bytes) {
  ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

/// Reads to the end or as far as there is something, with buffers of `part` bytes.
struct Heard {
  Bytes bytes;
  bool ended = false;
  std::optional<Error> failure;
};
Heard hear(Channel& channel, std::size_t part = 1000) {
  Heard heard;
  Bytes buffer(part);
  try {
    for (;;) {
      const iovec to{buffer.data(), buffer.size()};
      const auto n = channel.read({&to, 1});
      heard.ended = n && *n == 0;
      if (!n || *n == 0) return heard;
      heard.bytes.insert(heard.bytes.end(), buffer.begin(),
                         buffer.begin() + static_cast<std::ptrdiff_t>(*n));
    }
  } catch (const Error& error) {
    heard.failure = error;
  }
  return heard;
}

void say(Channel& channel, const Bytes& bytes) {
  const iovec from{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ASSERT_EQ(channel.write({&from, 1}), bytes.size());
  ASSERT_FALSE(channel.holds_unsent());
}

const std::shared_ptr<TlsContext>& context_of_caller() {
  static const auto context = std::make_shared<TlsContext>();
  return context;
}
const std::shared_ptr<TlsContext>& context_of_listener() {
  static const auto context = std::make_shared<TlsContext>();
  return context;
}

/// A caller and a listener, each connected with the test instead of the other one.
class Sides {
 public:
  Sides(PeerId callers_peer = context_of_listener()->id(),
        PeerId listeners_peer = context_of_caller()->id()) {
    auto [near, a] = socket_pair();
    auto [far, b] = socket_pair();
    caller_end = std::move(a);
    listener_end = std::move(b);
    caller.emplace(std::move(near), context_of_caller(), Role::kCaller, callers_peer);
    listener.emplace(std::move(far), context_of_listener(), Role::kListener, listeners_peer);
  }
  /// Has a side go on with its handshake. Returns true when it is done.
  static bool goes_on(TlsChannel& channel, std::optional<Error>& failure) {
    try {
      return channel.handshake() == Channel::Handshake::kDone;
    } catch (const Error& error) {
      failure = error;
      return false;
    }
  }
  /// Carries out the handshake. `pass` gets what one side has said and returns what the other one
  /// is to hear; nothing ends the connection.
  using Pass = std::function<std::optional<Bytes>(bool from_caller, Bytes)>;
  void shake_hands(const Pass& pass = [](bool, Bytes b) { return b; }) {
    for (int turn = 0; turn < 6; ++turn) {
      caller_done = caller_done || goes_on(*caller, caller_failure);
      carry(true, pass);
      listener_done = listener_done || goes_on(*listener, listener_failure);
      carry(false, pass);
    }
  }
  void carry(bool from_caller, const Pass& pass) {
    const Descriptor& from = from_caller ? caller_end : listener_end;
    const Descriptor& to = from_caller ? listener_end : caller_end;
    const Bytes said = take(from);
    if (said.empty()) return;
    const auto heard = pass(from_caller, said);
    if (heard) {
      put(to, *heard);
    } else {
      shutdown(caller_end.get(), SHUT_RDWR);
      shutdown(listener_end.get(), SHUT_RDWR);
    }
  }
  bool both_done() const { return caller_done && listener_done; }

  Descriptor caller_end;
  Descriptor listener_end;
  std::optional<TlsChannel> caller;
  std::optional<TlsChannel> listener;
  bool caller_done = false;
  bool listener_done = false;
  std::optional<Error> caller_failure;
  std::optional<Error> listener_failure;
};

TEST(TlsChannel, WhatIsSaidArrivesAndDoesNotShowOnTheWay) {
  Sides sides;
  sides.shake_hands();
  ASSERT_TRUE(sides.both_done());
  const Bytes text = bytes_of("a gradient that is nobody's business");
  say(*sides.caller, text);
  const Bytes seen = take(sides.caller_end);
  EXPECT_EQ(std::search(seen.begin(), seen.end(), text.begin(), text.begin() + 8), seen.end());
  put(sides.listener_end, seen);
  EXPECT_EQ(hear(*sides.listener).bytes, text);
  say(*sides.listener, text);
  put(sides.caller_end, take(sides.listener_end));
  EXPECT_EQ(hear(*sides.caller).bytes, text);
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

// The sockets hold less than a record, so each one is written in parts.
TEST(TlsChannel, MegabytesInBothDirectionsThroughTinySockets) {
  auto [near, far] = socket_pair();
  const int tiny = 4096;
  for (const Descriptor* end : {&near, &far})
    setsockopt(end->get(), SOL_SOCKET, SO_SNDBUF, &tiny, sizeof tiny);
  TlsChannel a(std::move(near), context_of_caller(), Role::kCaller, context_of_listener()->id(), 7);
  TlsChannel b(std::move(far), context_of_listener(), Role::kListener, context_of_caller()->id());
  for (bool done = false; !done;) {
    const bool first = a.handshake() == Channel::Handshake::kDone;
    done = b.handshake() == Channel::Handshake::kDone && first;
  }
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

// Nothing is left on the socket when half of a record has been read.
TEST(TlsChannel, TheRestOfARecordIsAnnouncedAndIsReadWithoutMoreOfTheSocket) {
  Sides sides;
  sides.shake_hands();
  say(*sides.caller, Bytes(1000, std::byte{1}));
  say(*sides.caller, Bytes(1000, std::byte{2}));
  put(sides.listener_end, take(sides.caller_end));
  EXPECT_FALSE(sides.listener->holds_unread());
  Bytes buffer(700);
  const iovec to{buffer.data(), buffer.size()};
  EXPECT_EQ(sides.listener->read({&to, 1}), 700u);
  EXPECT_TRUE(sides.listener->holds_unread());
  EXPECT_EQ(sides.listener->read({&to, 1}), 300u) << "the other record is on the socket yet";
  EXPECT_FALSE(sides.listener->holds_unread());
  EXPECT_EQ(sides.listener->read({&to, 1}), 700u);
  EXPECT_EQ(sides.listener->read({&to, 1}), 300u);
  EXPECT_EQ(sides.listener->read({&to, 1}), std::nullopt);
  EXPECT_FALSE(sides.listener->holds_unread());
}

// Both come at once, and nothing shows on the socket when the bytes have been read.
TEST(TlsChannel, AnEndBehindBytesIsAnnounced) {
  Sides sides;
  sides.shake_hands();
  say(*sides.caller, Bytes(10, std::byte{1}));
  EXPECT_TRUE(sides.caller->finish_sending());
  put(sides.listener_end, take(sides.caller_end));
  Bytes buffer(700);
  const iovec to{buffer.data(), buffer.size()};
  EXPECT_EQ(sides.listener->read({&to, 1}), 10u);
  EXPECT_TRUE(sides.listener->holds_unread());
  EXPECT_EQ(sides.listener->read({&to, 1}), 0u);
  EXPECT_EQ(sides.listener->read({&to, 1}), 0u);
  // The other direction goes on.
  say(*sides.listener, bytes_of("the last words"));
  put(sides.caller_end, take(sides.listener_end));
  EXPECT_EQ(hear(*sides.caller).bytes, bytes_of("the last words"));
}

/// Counts what each side says in a handshake.
std::pair<std::size_t, std::size_t> bytes_of_handshake() {
  std::size_t caller = 0;
  std::size_t listener = 0;
  Sides sides;
  sides.shake_hands([&](bool from_caller, Bytes bytes) {
    (from_caller ? caller : listener) += bytes.size();
    return bytes;
  });
  EXPECT_TRUE(sides.both_done());
  return {caller, listener};
}

/// Passes the bytes of one side up to `cut`, and ends the connection there.
Sides::Pass cut_at(bool of_caller, std::size_t cut) {
  return [of_caller, cut, passed = std::size_t{0}](bool from_caller,
                                                   Bytes bytes) mutable -> std::optional<Bytes> {
    if (from_caller != of_caller) return bytes;
    if (passed >= cut) return std::nullopt;
    bytes.resize(std::min(bytes.size(), cut - passed));
    passed += bytes.size();
    return bytes;
  };
}

TEST(TlsChannel, AHandshakeThatIsCutAnywhereIsNotDone) {
  const auto [caller, listener] = bytes_of_handshake();
  for (std::size_t cut = 0; cut < caller; ++cut) {
    Sides sides;
    sides.shake_hands(cut_at(true, cut));
    EXPECT_FALSE(sides.listener_done) << "byte " << cut << " of the caller";
  }
  for (std::size_t cut = 0; cut < listener; ++cut) {
    Sides sides;
    sides.shake_hands(cut_at(false, cut));
    EXPECT_FALSE(sides.caller_done) << "byte " << cut << " of the listener";
    EXPECT_FALSE(sides.listener_done);
  }
}

// A few bits on the way mean nothing, such as the version in a record's header: these may change.
// What must not happen is that the sides end up with different ideas, or with a text that was not
// said.
TEST(TlsChannel, AHandshakeThatIsChangedAnywhereIsRefusedOrTheSame) {
  const auto [caller, listener] = bytes_of_handshake();
  std::size_t passed = 0;
  for (std::size_t at = 0; at < caller + listener; ++at) {
    const bool of_caller = at < caller;
    std::size_t left = of_caller ? at : at - caller;
    Sides sides;
    sides.shake_hands([&](bool from_caller, Bytes bytes) {
      if (from_caller != of_caller) return bytes;
      if (left < bytes.size()) bytes[left] ^= std::byte{4};
      left = left < bytes.size() ? ~std::size_t{0} : left - bytes.size();
      return bytes;
    });
    if (!sides.both_done()) continue;
    ++passed;
    const Bytes text = bytes_of("text");
    say(*sides.caller, text);
    put(sides.listener_end, take(sides.caller_end));
    const Heard heard = hear(*sides.listener);
    EXPECT_TRUE(heard.failure || heard.bytes == text) << "byte " << at;
  }
  EXPECT_LT(passed, 10u);
}

/// Two records and the end of a connection, as they go over the wire.
Bytes spoken(Sides& sides) {
  sides.shake_hands();
  EXPECT_TRUE(sides.both_done());
  say(*sides.caller, bytes_of("the first record"));
  say(*sides.caller, bytes_of("and the second"));
  EXPECT_TRUE(sides.caller->finish_sending());
  return take(sides.caller_end);
}
const Bytes kSpoken = bytes_of("the first recordand the second");

void expect_beginning(const Heard& heard, std::size_t at) {
  ASSERT_LE(heard.bytes.size(), kSpoken.size());
  EXPECT_TRUE(std::equal(heard.bytes.begin(), heard.bytes.end(), kSpoken.begin())) << at;
  ASSERT_TRUE(heard.failure) << "at " << at;
  EXPECT_EQ(heard.failure->kind(), ErrorKind::kPeerLost);
  EXPECT_FALSE(heard.ended);
}

TEST(TlsChannel, WhateverByteIsChangedTheReceiverFails) {
  Sides first;
  const std::size_t bytes = spoken(first).size();
  for (std::size_t at = 0; at < bytes; ++at) {
    Sides sides;
    Bytes said = spoken(sides);
    said[at] ^= std::byte{1};
    put(sides.listener_end, said);
    shutdown(sides.listener_end.get(), SHUT_WR);
    const Heard heard = hear(*sides.listener);
    expect_beginning(heard, at);
    EXPECT_TRUE(hear(*sides.listener).failure) << "it fails for good";
  }
}

// Somebody who cuts the connection is told from a peer that has said all.
TEST(TlsChannel, AStreamThatIsCutAnywhereHasNoEnd) {
  Sides first;
  const std::size_t bytes = spoken(first).size();
  for (std::size_t at = 0; at <= bytes; ++at) {
    Sides sides;
    const Bytes said = spoken(sides);
    put(sides.listener_end, std::span(said).first(at));
    shutdown(sides.listener_end.get(), SHUT_WR);
    const Heard heard = hear(*sides.listener);
    if (at < bytes) {
      expect_beginning(heard, at);
      EXPECT_THAT(heard.failure->what(), HasSubstr("ended without the word of TLS")) << at;
    } else {
      EXPECT_TRUE(heard.ended);
      EXPECT_EQ(heard.bytes, kSpoken);
    }
  }
}

TEST(TlsChannel, ARecordIsOfUseOnceAndInItsPlace) {
  Sides twice;
  twice.shake_hands();
  say(*twice.caller, bytes_of("pay once"));
  const Bytes record = take(twice.caller_end);
  put(twice.listener_end, record);
  put(twice.listener_end, record);
  const Heard heard = hear(*twice.listener);
  EXPECT_EQ(heard.bytes, bytes_of("pay once"));
  EXPECT_TRUE(heard.failure);

  Sides swapped;
  swapped.shake_hands();
  say(*swapped.caller, bytes_of("first"));
  const Bytes one = take(swapped.caller_end);
  say(*swapped.caller, bytes_of("second"));
  put(swapped.listener_end, take(swapped.caller_end));
  put(swapped.listener_end, one);
  EXPECT_TRUE(hear(*swapped.listener).bytes.empty());
}

// A ticket, with which a session is taken up again, would be sent behind the caller's last word.
TEST(TlsChannel, TheListenerSpeaksOnceAndGivesNoTickets) {
  int times = 0;
  Sides sides;
  sides.shake_hands([&](bool from_caller, Bytes bytes) {
    times += from_caller ? 0 : 1;
    return bytes;
  });
  EXPECT_TRUE(sides.both_done());
  EXPECT_EQ(times, 1);
}

// Who has recorded a connection says the caller's part of it again.
TEST(TlsChannel, AHandshakeIsOfUseOnce) {
  Bytes recorded;
  Sides sides;
  sides.shake_hands([&](bool from_caller, Bytes bytes) {
    if (from_caller) recorded.insert(recorded.end(), bytes.begin(), bytes.end());
    return bytes;
  });
  Sides again;
  put(again.listener_end, recorded);
  for (int turn = 0; turn < 4; ++turn)
    again.listener_done = Sides::goes_on(*again.listener, again.listener_failure);
  EXPECT_FALSE(again.listener_done);
  EXPECT_TRUE(again.listener_failure);
}

TEST(TlsChannel, ACertificateOfAnotherIsRefusedByName) {
  const PeerId other = TlsContext().id();
  Sides wrong_listener(other, context_of_caller()->id());
  wrong_listener.shake_hands();
  EXPECT_FALSE(wrong_listener.caller_done);
  ASSERT_TRUE(wrong_listener.caller_failure);
  EXPECT_THAT(wrong_listener.caller_failure->what(), HasSubstr("its certificate is not of"));
  EXPECT_FALSE(wrong_listener.listener_done);

  Sides wrong_caller(context_of_listener()->id(), other);
  wrong_caller.shake_hands();
  EXPECT_FALSE(wrong_caller.listener_done);
  ASSERT_TRUE(wrong_caller.listener_failure);
  EXPECT_THAT(wrong_caller.listener_failure->what(), HasSubstr("its certificate is not of"));
  // The caller learns it when it reads.
  const auto refused = hear(*wrong_caller.caller).failure;
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind(), ErrorKind::kPeerLost);
}

// A certificate is public: whoever shows it must have its key, too.
TEST(TlsChannel, ACertificateWithoutItsKeyIsOfNoUse) {
  const Identity thief;
  const Identity owner;
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  EXPECT_EQ(SSL_CTX_use_certificate(context.get(), owner.certificate()), 1);
  EXPECT_NE(SSL_CTX_use_PrivateKey(context.get(), thief.key()), 1);
}

/// What a listener makes of a caller that is OpenSSL with other settings.
std::string refusal_of(const std::function<void(SSL_CTX*)>& settings, const PeerId& expected) {
  auto [near, far] = socket_pair();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  settings(context.get());
  const std::shared_ptr<SSL> caller(SSL_new(context.get()), SSL_free);
  SSL_set_fd(caller.get(), near.get());
  TlsChannel listener(std::move(far), context_of_listener(), Role::kListener, expected);
  for (int turn = 0; turn < 6; ++turn) {
    SSL_connect(caller.get());
    std::optional<Error> failure;
    if (Sides::goes_on(listener, failure)) return "accepted";
    if (failure) return failure->what();
  }
  return "it waits";
}

TEST(TlsChannel, OlderVersionsAndCallersWithoutACertificateAreRefused) {
  const Identity identity;
  const auto with_certificate = [&](SSL_CTX* context) {
    SSL_CTX_use_certificate(context, identity.certificate());
    SSL_CTX_use_PrivateKey(context, identity.key());
  };
  EXPECT_EQ(refusal_of(with_certificate, identity.id()), "accepted")
      << "what is refused below is not refused for another reason";
  EXPECT_THAT(refusal_of(
                  [&](SSL_CTX* context) {
                    with_certificate(context);
                    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
                  },
                  identity.id()),
              HasSubstr("unsupported protocol"));
  EXPECT_THAT(refusal_of([](SSL_CTX*) {}, identity.id()),
              HasSubstr("did not return a certificate"));
}

TEST(TlsChannel, APeerThatSpeaksPlainTextIsRefused) {
  auto [near, far] = socket_pair();
  TlsChannel listener(std::move(far), context_of_listener(), Role::kListener, {});
  put(near, Bytes(100, std::byte{'x'}));
  EXPECT_THAT(error_of([&] { listener.handshake(); }).what(), HasSubstr("[handshake]"));
  // It neither waits for a peer that says nothing, nor does it take an end for one.
  auto [silent, other] = socket_pair();
  TlsChannel caller(std::move(other), context_of_caller(), Role::kCaller, {});
  EXPECT_EQ(caller.handshake(), Channel::Handshake::kWaitsToRead);
  silent = Descriptor();
  EXPECT_THAT(error_of([&] { caller.handshake(); }).what(), HasSubstr("[handshake]"));
}

// Writing to a connection whose other end is gone raises no signal. What the peer has said before
// its end, the cause perhaps, is read all the same.
TEST(TlsChannel, WhatAPeerSaidBeforeItsEndIsReadAfterAWriteHasFailed) {
  Sides sides;
  sides.shake_hands();
  say(*sides.listener, bytes_of("the cause"));
  put(sides.caller_end, take(sides.listener_end));
  sides.caller_end = Descriptor();
  EXPECT_THROW(say(*sides.caller, bytes_of("more")), Error);
  const Heard heard = hear(*sides.caller);
  EXPECT_EQ(heard.bytes, bytes_of("the cause"));
  EXPECT_TRUE(heard.failure);
}

// OpenSSL keeps a queue of errors for each thread: those of one connection are not another's.
TEST(TlsChannel, TheFailureOfOneConnectionLeavesAnotherAlone) {
  Sides good;
  good.shake_hands();
  Sides bad(PeerId{}, PeerId{});
  bad.shake_hands();
  EXPECT_FALSE(bad.both_done());
  SSL_CTX_use_certificate(nullptr, nullptr);  // leaves an error in the queue
  EXPECT_EQ(hear(*good.listener).failure, std::nullopt);
  say(*good.caller, bytes_of("all is well"));
  put(good.listener_end, take(good.caller_end));
  EXPECT_EQ(hear(*good.listener).bytes, bytes_of("all is well"));
}

}  // namespace
}  // namespace shoal::wire::tls_channel_test
