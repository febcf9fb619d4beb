#include <arpa/inet.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/handshake.h"
#include "shoal/wire/store.h"
#include "tests/fuzz/fuzz.h"

// The store at which ranks meet, with a guest that says anything; and a guest of a store that does.
namespace shoal::wire {
namespace {

using fuzz::must;
using namespace std::chrono_literals;

const std::string kKey = "the key of the job";

void append(Bytes& to, const void* from, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + size);
}

void message(Bytes& to, Stream stream, const Bytes& body) {
  const ChunkHeader header{
      .length = static_cast<std::uint32_t>(body.size()), .stream = stream, .total = body.size()};
  append(to, &header, sizeof header);
  append(to, body.data(), body.size());
}

Bytes request(const std::string& key, const std::string& value, std::uint32_t length) {
  Bytes body;
  append(body, &length, sizeof length);
  append(body, key.data(), key.size());
  append(body, value.data(), value.size());
  return body;
}

/// Requests or answers as a member might send them, true to the rules or not.
Bytes talk(FuzzedDataProvider& input) {
  Bytes bytes;
  while (input.remaining_bytes() > 0) {
    const Stream stream{input.ConsumeIntegralInRange<std::uint64_t>(0, 3),
                        input.ConsumeIntegralInRange<std::uint64_t>(0, 5)};
    const std::string key = input.ConsumeRandomLengthString(4),
                      value = input.ConsumeRandomLengthString(24);
    const int way = input.ConsumeIntegralInRange(0, 4);
    if (way == 0)
      append(bytes, value.data(), value.size());
    else if (way == 1)
      message(bytes, stream, request(key, value, input.ConsumeIntegral<std::uint32_t>()));
    else if (way == 2)
      message(bytes, stream, Bytes(value.size(), std::byte{7}));
    else
      message(bytes, stream, request(key, value, static_cast<std::uint32_t>(key.size())));
  }
  return bytes;
}

/// From an address of its own each time: ports of closed connections rest for a minute.
Descriptor connection_to(std::uint16_t port) {
  static std::uint32_t caller = 0;
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{}, to{};
  own.sin_family = to.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0x7f000002 + ++caller % 0xfffff0);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  must(bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0,
       "an address of loopback");
  must(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0,
       "the store listens");
  return fd;
}

/// Sends all, then reads until the other side hangs up.
void speak(int fd, const Bytes& bytes) {
  [[maybe_unused]] const auto sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char heard[4096];
  while (recv(fd, heard, sizeof heard, 0) > 0) {
  }
}

void lie_to_server(const Bytes& bytes) {
  static StoreServer server("127.0.0.1", {}, kKey);
  static StoreClient member(server.endpoint(), kKey, Deadline::in(30s));
  static std::uint64_t turn = 0;
  const Descriptor liar = connection_to(server.endpoint().port);
  if (!fuzz::accepted([&] { handshake_as_caller(liar.get(), kKey, {}, Deadline::in(30s)); }))
    return;
  speak(liar.get(), bytes);
  const std::string key = "honest", value = std::to_string(++turn);
  member.set(key, value, Deadline::in(30s));
  must(member.get(key, Deadline::in(30s)) == value, "a liar disturbs nobody else");
}

void lie_to_client(const Bytes& bytes) {
  Descriptor listener = listen_on("127.0.0.1", {});
  std::thread liar([&] {
    pollfd ready{listener.get(), POLLIN, 0};
    poll(&ready, 1, 30'000);
    const Descriptor guest(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ListenerHandshake handshake(kKey);
    const Bytes greeting = handshake.greeting();
    send(guest.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    while (!handshake.done()) {
      std::byte part[256];
      const auto n = recv(guest.get(), part, handshake.wanted(), 0);
      if (n <= 0 || !handshake.feed(std::span(part).first(static_cast<std::size_t>(n)))) return;
    }
    const Bytes proof = handshake.proof();
    send(guest.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
    speak(guest.get(), bytes);
  });
  fuzz::accepted([&] {
    StoreClient client(local_endpoint(listener.get()), kKey, Deadline::in(30s));
    client.get("key", Deadline::in(30s));
    client.add("key", 1, Deadline::in(30s));
    client.wait("key", Deadline::in(30s));
  });
  liar.join();
}

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const bool server = input.ConsumeIntegralInRange(0, 7) > 0;
  const auto bytes = shoal::wire::talk(input);
  server ? shoal::wire::lie_to_server(bytes) : shoal::wire::lie_to_client(bytes);
  return 0;
}
