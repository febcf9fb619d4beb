#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "shoal/wire/descriptor_passing.h"
#include "shoal/wire/local_rendezvous.h"
#include "tests/fuzz/fuzz.h"

// The rendezvous of the ranks of a host, with another program of this user that connects and sends
// noise, and with a rank 0 that lies.
namespace shoal::wire {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t kControl = 4096;

struct RuntimeDirectory {
  RuntimeDirectory() {
    char name[] = "/tmp/shoal-fuzz-XXXXXX";
    fuzz::must(mkdtemp(name) != nullptr, "a folder");
    path = name;
  }
  ~RuntimeDirectory() {
    rmdir((path + "/shoal-" + std::to_string(getuid())).c_str());
    rmdir(path.c_str());
  }
  std::string path;
};

const std::string& runtime() {
  static const RuntimeDirectory directory;
  return directory.path;
}

sockaddr_un address_of_socket(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = rendezvous_directory(runtime()) + "/" + name;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

Descriptor memory(int kind) {
  Descriptor fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  fuzz::must(ftruncate(fd.get(), kind == 1 ? 100 : kControl) == 0, "memory");
  if (kind > 1) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  return fd;
}

/// Sends a message with up to two descriptors, as the input says.
void speak(int socket, FuzzedDataProvider& input, bool framed) {
  std::string words;
  if (framed) {  // an Answer: magic, the rank it describes, whether it shares, the token
    const std::int32_t front[3] = {0x53484f31, input.ConsumeIntegralInRange(-3, 2),
                                   input.ConsumeIntegralInRange(0, 2)};
    words.assign(reinterpret_cast<const char*>(front), sizeof front);
    words += input.ConsumeBool() ? std::string(32, '\0') : input.ConsumeBytesAsString(32);
  } else {
    words = input.ConsumeRandomLengthString(200);
  }
  const Descriptor first = memory(input.ConsumeIntegralInRange(0, 3)),
                   second = memory(input.ConsumeIntegralInRange(0, 3));
  std::vector<int> descriptors{first.get(), second.get()};
  descriptors.resize(input.ConsumeIntegralInRange<std::size_t>(0, 2));
  send_with(socket, words.data(), words.size(), descriptors);
}

LocalRendezvousOptions meeting(int rank) {
  return {.name = "fuzz",
          .key = "the key of the job",
          .rank = rank,
          .size = 2,
          .control_bytes = kControl};
}

void noise_from_a_caller(FuzzedDataProvider& input) {
  std::thread host([&] { local_rendezvous(meeting(0), Deadline::in(30s), runtime()); });
  const sockaddr_un address = address_of_socket("fuzz");
  for (int turn = 0; turn < 3; ++turn) {
    const Descriptor noise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (connect(noise.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      std::this_thread::yield();
    speak(noise.get(), input, false);
  }
  local_rendezvous(meeting(1), Deadline::in(30s), runtime());
  host.join();
}

void lying_host(FuzzedDataProvider& input) {
  const sockaddr_un address = address_of_socket("fuzz");
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  fuzz::must(
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
          listen(listener.get(), 4) == 0,
      "a door");
  std::thread host([&] {
    const Descriptor guest(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char hello[256];
    [[maybe_unused]] const auto heard = recv(guest.get(), hello, sizeof hello, 0);
    while (input.remaining_bytes() > 0) speak(guest.get(), input, input.ConsumeBool());
  });
  fuzz::accepted([&] { local_rendezvous(meeting(1), Deadline::in(30s), runtime()); });
  host.join();
  unlink(address.sun_path);
}

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  input.ConsumeBool() ? shoal::wire::noise_from_a_caller(input) : shoal::wire::lying_host(input);
  return 0;
}
