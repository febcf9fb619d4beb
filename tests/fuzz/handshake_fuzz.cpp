#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "shoal/wire/handshake.h"
#include "shoal/wire/local_rendezvous.h"
#include "tests/fuzz/fuzz.h"

// Nobody gets in, and nobody is believed, without the key.
namespace shoal::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes words(FuzzedDataProvider& input) {
  const auto bytes = input.ConsumeRemainingBytes<std::uint8_t>();
  Bytes result(bytes.size());
  std::transform(bytes.begin(), bytes.end(), result.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return result;
}

/// A stranger calls; `reflect`: it says to the listener what it has heard from it.
void call(FuzzedDataProvider& input, bool reflect) {
  ListenerHandshake listener("the key of the job");
  const auto step = input.ConsumeIntegralInRange<std::size_t>(1, 200);
  Bytes said = reflect ? listener.greeting() : Bytes();
  for (const std::byte byte : words(input)) said.push_back(byte);
  bool welcome = true;
  for (std::span<const std::byte> rest = said; welcome && !rest.empty() && !listener.done();) {
    const auto part = rest.first(std::min({step, rest.size(), listener.wanted()}));
    welcome = listener.feed(part);
    rest = rest.subspan(part.size());
  }
  fuzz::must(!welcome || !listener.done(), "a stranger is not let in");
}

/// This process calls, and a stranger listens.
void answer(FuzzedDataProvider& input, bool honest_magic) {
  int ends[2];
  fuzz::must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "a pair of sockets");
  const Descriptor caller(ends[0]), stranger(ends[1]);
  Bytes said = honest_magic ? ListenerHandshake("another key").greeting() : Bytes();
  for (const std::byte byte : words(input)) said.push_back(byte);
  [[maybe_unused]] const auto sent = send(stranger.get(), said.data(), said.size(), MSG_NOSIGNAL);
  shutdown(stranger.get(), SHUT_WR);
  fuzz::must(!fuzz::accepted([&] {
    handshake_as_caller(caller.get(), "the key of the job", {},
                        Deadline::in(std::chrono::seconds(30)));
  }),
             "a stranger is not taken for the job");
}

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const bool calls = input.ConsumeBool(), half_right = input.ConsumeBool();
  calls ? shoal::wire::call(input, half_right) : shoal::wire::answer(input, half_right);
  return 0;
}
