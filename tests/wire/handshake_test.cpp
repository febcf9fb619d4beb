// The handshake against its description in the header: what a proof covers, and who is not let in
// because of it.
#include "shoal/wire/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::handshake_test {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

constexpr std::size_t kMagic = 8;
constexpr std::size_t kGreeting = kMagic + 32;
constexpr std::size_t kAnswer = kGreeting + sizeof(Hello) + 32;

Hello hello_of(int value) {
  Hello hello{};
  hello.fill(static_cast<std::byte>(value));
  return hello;
}

Bytes read_bytes(const Descriptor& socket, std::size_t bytes) {
  Bytes result(bytes);
  std::size_t at = 0;
  for (const Deadline end = soon(); at < bytes && !end.passed();) {
    const ssize_t n = recv(socket.get(), result.data() + at, bytes - at, 0);
    if (n > 0) at += static_cast<std::size_t>(n);
    if (n == 0) break;
    if (n < 0) std::this_thread::yield();
  }
  EXPECT_EQ(at, bytes);
  return result;
}

void write_bytes(const Descriptor& socket, const Bytes& bytes) {
  ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

/// The answer of a caller that knows `key` to the greeting of `listener`. The caller then loses its
/// connection.
Bytes answer_to(const ListenerHandshake& listener, const std::string& key, const Hello& hello) {
  auto [caller, other] = socket_pair();
  std::thread thread([&caller = caller, &key, &hello] {
    EXPECT_THROW(handshake_as_caller(caller.get(), key, hello, soon()), Error);
  });
  write_bytes(other, listener.greeting());
  Bytes answer = read_bytes(other, kAnswer);
  other = Descriptor();
  thread.join();
  return answer;
}

/// HMAC-SHA256 of `key` over a label with its zero byte, both challenges and the hello messages.
Bytes proof_of(std::string_view key, std::string_view label,
               std::initializer_list<std::span<const std::byte>> said) {
  Bytes text;
  for (const char c : label) text.push_back(static_cast<std::byte>(c));
  text.push_back(std::byte{0});
  for (const auto part : said) text.insert(text.end(), part.begin(), part.end());
  Bytes proof(32);
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(proof.data()), &size);
  EXPECT_EQ(size, 32u);
  return proof;
}

TEST(Handshake, AMemberIsLetInWithItsHelloMessage) {
  ListenerHandshake listener("key");
  EXPECT_EQ(listener.wanted(), kAnswer);
  EXPECT_TRUE(listener.feed(answer_to(listener, "key", hello_of(3))));
  EXPECT_TRUE(listener.done());
  EXPECT_EQ(listener.wanted(), 0u);
  EXPECT_EQ(listener.hello(), hello_of(3));
}

TEST(Handshake, ProofsAreThoseOfTheProtocol) {
  const Hello own = hello_of(4);
  const Hello other = hello_of(9);
  ListenerHandshake listener("key", own);
  const Bytes greeting = listener.greeting();
  ASSERT_EQ(greeting.size(), kGreeting);
  EXPECT_EQ(std::memcmp(greeting.data(), "SHOALT06", kMagic), 0);
  const Bytes answer = answer_to(listener, "key", other);
  ASSERT_TRUE(listener.feed(answer));
  const auto challenge = std::span(greeting).subspan(kMagic);
  const auto caller = std::span(answer).subspan(kMagic, 32);
  const Bytes proof(answer.end() - 32, answer.end());
  EXPECT_EQ(proof, proof_of("key", "caller", {challenge, caller, other}));
  Bytes last(own.begin(), own.end());
  const Bytes listeners = proof_of("key", "listener", {challenge, caller, other, own});
  last.insert(last.end(), listeners.begin(), listeners.end());
  EXPECT_EQ(listener.proof(), last);
}

/// What a caller makes of the last message of a listener, which `change` has changed.
std::optional<Hello> heard(const std::function<void(Bytes&)>& change) {
  ListenerHandshake listener("key", hello_of(4));
  auto [caller, other] = socket_pair();
  std::optional<Hello> result;
  std::thread thread([&caller = caller, &result] {
    try {
      result = handshake_as_caller(caller.get(), "key", hello_of(9), soon());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    }
  });
  write_bytes(other, listener.greeting());
  EXPECT_TRUE(listener.feed(read_bytes(other, kAnswer)));
  Bytes last = listener.proof();
  change(last);
  write_bytes(other, last);
  thread.join();
  return result;
}

// The listener's hello has the id by which its certificate is known.
TEST(Handshake, TheCallerHearsTheListenersHelloOrNothingOfOneThatWasChanged) {
  EXPECT_EQ(heard([](Bytes&) {}), hello_of(4));
  for (std::size_t i = 0; i < sizeof(Hello) + 32; ++i)
    EXPECT_EQ(heard([i](Bytes& last) { last[i] ^= std::byte{1}; }), std::nullopt) << "byte " << i;
}

TEST(Handshake, ChallengesAreNeverTheSame) {
  EXPECT_NE(ListenerHandshake("key").greeting(), ListenerHandshake("key").greeting());
  const ListenerHandshake listener("key");
  const Bytes first = answer_to(listener, "key", {});
  const Bytes second = answer_to(listener, "key", {});
  EXPECT_NE(Bytes(first.begin() + kMagic, first.begin() + kGreeting),
            Bytes(second.begin() + kMagic, second.begin() + kGreeting));
}

// Whoever has listened to the network repeats what a member has sent.
TEST(Handshake, AnAnswerIsOfUseOnce) {
  const ListenerHandshake first("key");
  const Bytes answer = answer_to(first, "key", hello_of(1));
  ListenerHandshake second("key");
  EXPECT_FALSE(second.feed(answer));
}

TEST(Handshake, AnAnswerThatWasChangedIsRefusedWhereverItWas) {
  ListenerHandshake listener("key");
  const Bytes answer = answer_to(listener, "key", hello_of(1));
  for (std::size_t i = 0; i < answer.size(); ++i) {
    Bytes changed = answer;
    changed[i] ^= std::byte{1};
    ListenerHandshake same = listener;  // with the same challenge
    EXPECT_FALSE(same.feed(changed)) << "byte " << i;
  }
  ListenerHandshake other_key("another");
  EXPECT_FALSE(other_key.feed(answer_to(other_key, "key", hello_of(1))));
}

TEST(Handshake, NoiseIsTurnedAwayAtItsFirstByte) {
  ListenerHandshake listener("key");
  EXPECT_TRUE(listener.feed(Bytes{std::byte{'S'}}));
  EXPECT_EQ(listener.wanted(), kAnswer - 1);
  EXPECT_FALSE(listener.feed(Bytes{std::byte{'x'}}));
}

// A listener that repeats what it has heard of another one shows no knowledge of the key.
TEST(Handshake, AListenerThatRepeatsAnotherIsNotBelieved) {
  ListenerHandshake genuine("key");
  ASSERT_TRUE(genuine.feed(answer_to(genuine, "key", {})));
  auto [caller, other] = socket_pair();
  std::thread thread([&caller = caller] {
    try {
      handshake_as_caller(caller.get(), "key", {}, soon());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("does not know the job key"));
    }
  });
  write_bytes(other, genuine.greeting());
  read_bytes(other, kAnswer);
  write_bytes(other, genuine.proof());
  thread.join();
}

TEST(Handshake, AnotherProgramThatListensIsToldFromTheJob) {
  auto [caller, other] = socket_pair();
  write_bytes(other, Bytes(kGreeting, std::byte{'x'}));
  try {
    handshake_as_caller(caller.get(), "key", {}, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_THAT(error.what(), HasSubstr("does not speak this protocol"));
  }
}

TEST(Handshake, ASilentListenerIsATimeoutAndOneThatHangsUpIsLost) {
  auto [caller, silent] = socket_pair();
  try {
    handshake_as_caller(caller.get(), "key", {}, Deadline::in(std::chrono::milliseconds(20)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
  silent = Descriptor();
  try {
    handshake_as_caller(caller.get(), "key", {}, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_THAT(error.hint(), HasSubstr("job key"));
  }
}

}  // namespace
}  // namespace shoal::wire::handshake_test
