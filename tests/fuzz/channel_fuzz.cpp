#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shoal/wire/tls_channel.h"
#include "tests/fuzz/fuzz.h"

// Nobody completes a handshake without the key of its certificate, and what arrives over a
// connection that somebody meddles with is the beginning of what was said.
namespace shoal::wire {
namespace {

using Bytes = std::vector<std::byte>;
using Role = TlsChannel::Role;

std::pair<Descriptor, Descriptor> ends() {
  int both[2];
  fuzz::must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0, "a pair of sockets");
  return {Descriptor(both[0]), Descriptor(both[1])};
}

const std::shared_ptr<TlsContext>& context(Role role) {
  static const auto caller = std::make_shared<TlsContext>();
  static const auto listener = std::make_shared<TlsContext>();
  return role == Role::kCaller ? caller : listener;
}

Bytes words(FuzzedDataProvider& input) {
  const auto bytes = input.ConsumeRemainingBytes<std::uint8_t>();
  Bytes result(bytes.size());
  std::transform(bytes.begin(), bytes.end(), result.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return result;
}

/// A stranger says something in parts.
void speak(FuzzedDataProvider& input, Role role) {
  auto sockets = ends();
  const Descriptor& stranger = sockets.second;
  TlsChannel channel(std::move(sockets.first), context(role), role, context(Role::kCaller)->id());
  const auto step = input.ConsumeIntegralInRange<std::size_t>(1, 300);
  const Bytes said = words(input);
  bool done = false;
  fuzz::accepted([&] {
    for (std::span<const std::byte> rest = said; !rest.empty();) {
      const auto part = rest.first(std::min(step, rest.size()));
      if (send(stranger.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
      rest = rest.subspan(part.size());
      done = done || channel.handshake() == Channel::Handshake::kDone;
    }
  });
  fuzz::must(!done, "a stranger does not complete a handshake");
}

/// A connection whose records pass through somebody's hands, who changes some bytes.
void meddle(FuzzedDataProvider& input) {
  auto [near, far] = ends();
  const int to_listener = dup(near.get());
  TlsChannel caller(std::move(near), context(Role::kCaller), Role::kCaller,
                    context(Role::kListener)->id(), 2);
  TlsChannel listener(std::move(far), context(Role::kListener), Role::kListener,
                      context(Role::kCaller)->id());
  for (bool done = false; !done;) {
    const bool first = caller.handshake() == Channel::Handshake::kDone;
    done = listener.handshake() == Channel::Handshake::kDone && first;
  }
  // What the caller writes from here on waits at the listener's end, and is taken from there.
  const Bytes said(input.ConsumeIntegralInRange<std::size_t>(1, 5000), std::byte{7});
  for (int times = 0; times < 3; ++times) {
    const iovec from{const_cast<std::byte*>(said.data()), said.size()};
    fuzz::must(caller.write({&from, 1}) == said.size(), "there is room for it");
  }
  Bytes records(3 * said.size() + 1000);
  const ssize_t n = recv(listener.fd(), records.data(), records.size(), MSG_DONTWAIT);
  fuzz::must(n > 0, "records");
  records.resize(static_cast<std::size_t>(n));
  const Bytes genuine = records;
  while (input.remaining_bytes() > 3) {
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, records.size() - 1);
    records[at] = std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  const Descriptor way(to_listener);
  fuzz::must(send(way.get(), records.data(), records.size(), MSG_NOSIGNAL) == n, "the way is free");
  std::size_t heard = 0;
  const bool whole = fuzz::accepted([&] {
    Bytes buffer(700);
    for (bool more = true; more;) {
      const iovec to{buffer.data(), buffer.size()};
      const auto got = listener.read({&to, 1});
      more = got && *got > 0;
      for (std::size_t i = 0; more && i < *got; ++i)
        fuzz::must(buffer[i] == std::byte{7}, "what arrives was said");
      heard += got.value_or(0);
    }
  });
  fuzz::must(heard <= 3 * said.size(), "no more arrives than was said");
  fuzz::must(records != genuine || (whole && heard == 3 * said.size()), "all arrives unchanged");
}

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using shoal::wire::Role;
  FuzzedDataProvider input(data, size);
  switch (input.ConsumeIntegralInRange(0, 2)) {
    case 0:
      shoal::wire::speak(input, Role::kCaller);
      break;
    case 1:
      shoal::wire::speak(input, Role::kListener);
      break;
    default:
      shoal::wire::meddle(input);
  }
  return 0;
}
