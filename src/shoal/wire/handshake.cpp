#include "shoal/wire/handshake.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "shoal/base/check.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::wire {
namespace {

constexpr std::array<char, 8> kMagic = {'S', 'H', 'O', 'A', 'L', 'T', '0', '6'};
using Proof = std::array<std::byte, 32>;
constexpr std::size_t kGreetingBytes = kMagic.size() + sizeof(Nonce);
/// All that a caller says, and all that a listener says: the greeting, the hello and the proof.
constexpr std::size_t kAnswerBytes = kGreetingBytes + sizeof(Hello) + sizeof(Proof);

Nonce random_nonce() {
  Nonce nonce;
  SHOAL_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) == 1,
              "no random numbers");
  return nonce;
}

void append(std::vector<std::byte>& to, const void* from, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + size);
}

/// HMAC-SHA256 of the key over a label, both challenges and the hello messages that were said until
/// then. The label differs by direction: a caller that sends the listener's own proof back does not
/// pass.
Proof prove(const std::string& key, const char* label,
            std::initializer_list<std::span<const std::byte>> said) {
  std::vector<std::byte> text;
  append(text, label, std::strlen(label) + 1);
  for (const auto part : said) append(text, part.data(), part.size());
  return hmac_sha256(std::as_bytes(std::span(key)), text);
}

// Looks at the deadline before it waits: bytes that keep coming, one at a time, do not put it off.
void wait_ready(int socket, short events, Deadline deadline, const std::function<void()>& check) {
  if (check) check();
  if (deadline.passed())
    throw Error(ErrorKind::kTimeout, "handshake", "the other side does not answer");
  pollfd ready{socket, events, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
  poll(&ready, 1, static_cast<int>(std::min<long long>(ms + 1, 250)));
}

/// Sends or receives exactly `size` bytes on a non-blocking socket.
void exchange(int socket, std::byte* data, std::size_t size, bool out, Deadline deadline,
              const std::function<void()>& check) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t n = out ? ::send(socket, data + at, size - at, MSG_NOSIGNAL)
                          : ::recv(socket, data + at, size - at, 0);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      wait_ready(socket, out ? POLLOUT : POLLIN, deadline, check);
    } else {
      throw Error(ErrorKind::kPeerLost, "handshake", "the other side closed the connection")
          .hint("do both sides have the same job key?");
    }
  }
}

}  // namespace

ListenerHandshake::ListenerHandshake(std::string key, const Hello& own)
    : key_(std::move(key)), own_hello_(own), own_(random_nonce()) {}

std::vector<std::byte> ListenerHandshake::greeting() const {
  std::vector<std::byte> bytes;
  append(bytes, kMagic.data(), kMagic.size());
  append(bytes, own_.data(), own_.size());
  return bytes;
}

std::size_t ListenerHandshake::wanted() const { return kAnswerBytes - received_.size(); }

bool ListenerHandshake::feed(std::span<const std::byte> bytes) {
  append(received_, bytes.data(), std::min(bytes.size(), wanted()));
  // Noise is turned away at its first wrong byte.
  if (std::memcmp(received_.data(), kMagic.data(), std::min(received_.size(), kMagic.size())) != 0)
    return false;
  if (!done()) return true;
  const auto received = std::span<const std::byte>(received_);
  // The listener's own challenge is part of the text: a proof that was recorded on another
  // connection does not pass.
  const Proof want = prove(key_, "caller",
                           {own_, received.subspan(kMagic.size(), sizeof(Nonce)),
                            received.subspan(kGreetingBytes, sizeof(Hello))});
  // In constant time: how long the comparison takes says nothing about the right proof.
  return CRYPTO_memcmp(want.data(), received_.data() + kGreetingBytes + sizeof(Hello),
                       want.size()) == 0;
}

std::vector<std::byte> ListenerHandshake::proof() const {
  const auto received = std::span<const std::byte>(received_);
  const Proof proof = prove(key_, "listener",
                            {own_, received.subspan(kMagic.size(), sizeof(Nonce)),
                             received.subspan(kGreetingBytes, sizeof(Hello)), own_hello_});
  std::vector<std::byte> bytes;
  append(bytes, own_hello_.data(), own_hello_.size());
  append(bytes, proof.data(), proof.size());
  return bytes;
}

Hello ListenerHandshake::hello() const {
  Hello hello;
  std::memcpy(hello.data(), received_.data() + kGreetingBytes, hello.size());
  return hello;
}

CallerHandshake::CallerHandshake(std::string key, const Hello& own)
    : key_(std::move(key)), own_hello_(own), own_(random_nonce()) {}

std::size_t CallerHandshake::wanted() const {
  return (received_.size() < kGreetingBytes ? kGreetingBytes : kAnswerBytes) - received_.size();
}

void CallerHandshake::feed(std::span<const std::byte> bytes) {
  append(received_, bytes.data(), std::min(bytes.size(), wanted()));
  if (std::memcmp(received_.data(), kMagic.data(), std::min(received_.size(), kMagic.size())) !=
      0) {
    throw Error(ErrorKind::kPeerLost, "handshake",
                "the program that listens there does not speak this protocol");
  }
  if (!done()) return;
  const auto received = std::span<const std::byte>(received_);
  const Proof want = prove(key_, "listener",
                           {received.subspan(kMagic.size(), sizeof(Nonce)), own_, own_hello_,
                            received.subspan(kGreetingBytes, sizeof(Hello))});
  if (CRYPTO_memcmp(received_.data() + kGreetingBytes + sizeof(Hello), want.data(), want.size()) !=
      0)
    throw Error(ErrorKind::kPeerLost, "handshake", "the other side does not know the job key");
}

std::vector<std::byte> CallerHandshake::answer() const {
  std::vector<std::byte> answer;
  if (received_.size() < kGreetingBytes) return answer;
  const auto listener = std::span<const std::byte>(received_).subspan(kMagic.size(), sizeof(Nonce));
  // The proof covers the hello, so that nobody without the key can change who it names.
  const Proof mine = prove(key_, "caller", {listener, own_, own_hello_});
  append(answer, kMagic.data(), kMagic.size());
  append(answer, own_.data(), own_.size());
  append(answer, own_hello_.data(), own_hello_.size());
  append(answer, mine.data(), mine.size());
  return answer;
}

Hello CallerHandshake::hello() const {
  Hello hello;
  std::memcpy(hello.data(), received_.data() + kGreetingBytes, hello.size());
  return hello;
}

Hello handshake_as_caller(int socket, const std::string& key, const Hello& hello, Deadline deadline,
                          const std::function<void()>& check) {
  CallerHandshake handshake(key, hello);
  const auto receive = [&] {
    std::vector<std::byte> bytes(handshake.wanted());
    exchange(socket, bytes.data(), bytes.size(), false, deadline, check);
    handshake.feed(bytes);
  };
  receive();
  // The listener proves itself last: it shows nothing to a caller that does not know the key.
  std::vector<std::byte> answer = handshake.answer();
  exchange(socket, answer.data(), answer.size(), true, deadline, check);
  receive();
  return handshake.hello();
}

void complete_handshake(Channel& channel, Deadline deadline, const std::function<void()>& check) {
  for (;;) {
    const Channel::Handshake state = channel.handshake();
    if (state == Channel::Handshake::kDone) return;
    const bool reads = state == Channel::Handshake::kWaitsToRead;
    wait_ready(channel.fd(), reads ? POLLIN : POLLOUT, deadline, check);
  }
}

}  // namespace shoal::wire
