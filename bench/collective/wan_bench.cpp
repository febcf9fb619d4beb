// All-reduce of 256 MiB between two sites that a link of 1 Gbit/s and a round trip of 100 ms joins
// (tests/emulation/wan.h), beside plain TCP connections on the same link: megabits a second in one
// direction, of payload. Shoal has as many connections as it chooses; the last number of a case is
// how many the peer has. Needs the right to make network namespaces. bench/run.py says how this
// program is called.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/emulation/wan.h"

namespace shoal::emulation {
namespace {

using collective::Kind;
using collective::TcpCommunicator;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array kConnections{1, 8, 64};
constexpr std::size_t kElements = 64 << 20;
constexpr int kRounds = 3;
constexpr double kMega = 1e6;

std::string name_of(int connections) { return fmt::format("wan/all_reduce/raw/{}", connections); }

Deadline soon() { return Deadline::in(std::chrono::minutes(2)); }

/// Runs a rank that all-reduces twice. Returns the bits that the second one sent a second.
double run_rank(const Wan& wan, int rank, const wire::Endpoint& store) {
  wan.enter(rank);
  wire::StoreClient client(store, "key", soon());
  // The raw sockets beside it encrypt nothing either.
  const wire::TcpTransport::Options options{.key = "key", .tls = wire::TlsMode::kOff};
  TcpCommunicator c(std::make_shared<wire::TcpTransport>(options, client, rank, 2, soon()), {});
  std::vector<float> x(kElements, 1);
  const collective::Operation operation{.kind = Kind::kAllReduce,
                                        .type = ElementType::kF32,
                                        .buffer = {x.data(), x.data(), x.size()}};
  c.run(operation, soon());
  const auto begin = Clock::now();
  c.run(operation, soon());
  const double taken = to_seconds(Clock::now() - begin);
  if (std::any_of(x.begin(), x.end(), [](float one) { return one != 4; }))
    throw Error(ErrorKind::kInternal, "wan_bench", "a sum is wrong");
  // Two ranks each send as many bytes as the tensor has.
  return static_cast<double>(kElements * sizeof(float)) * 8 / taken;
}

double ours(const Wan& wan) {
  const auto store = wan.at(0, [&] {
    return std::make_unique<wire::StoreServer>(wan.address(0), wire::PortRange{}, "key");
  });
  const wire::Endpoint endpoint = store->endpoint();
  auto second = std::async(std::launch::async, [&] { return run_rank(wan, 1, endpoint); });
  const double first = wan.at(0, [&] { return run_rank(wan, 0, endpoint); });
  return std::min(first, second.get());
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(int connections) {
  Wan wan(2, {.packets = Wan::Packets::kFast});
  // The queue holds what the link does in a round trip, so that it drops little.
  wan.set_all({.delay = milliseconds(50), .bits_per_second = 1e9, .queue_bytes = 12 << 20});
  if (const std::string why = why_void(wan, 0, 1); !why.empty())
    throw Error(ErrorKind::kResource, "wan_bench", why);
  std::vector<double> us;
  std::vector<double> them;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    us.push_back(ours(wan) / kMega);
    them.push_back(tcp_bits_per_second(wan, 0, 1, connections, seconds(2), seconds(2)) / kMega);
    ratios.push_back(us.back() / them.back());
    wan.settle(Deadline::in(seconds(10)));
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const double ratio = median_of(us) / median_of(them);
  fmt::print(
      "{{\"case\": \"{}\", \"unit\": \"Mbit/s\", \"ours\": {:.1f}, \"peer\": {:.1f}, \"ratio\": "
      "{:.3f}, \"spread\": {:.3f}, \"limit\": null}}\n",
      name_of(connections), median_of(us), median_of(them), ratio, (*most - *least) / ratio);
  std::fflush(stdout);
}

}  // namespace
}  // namespace shoal::emulation

int main(int count, char** words) {
  using namespace shoal::emulation;
  const std::vector<std::string> asked(words + 1, words + count);
  const auto is_asked = [&](const std::string& word) {
    return std::find(asked.begin(), asked.end(), word) != asked.end();
  };
  try {
    for (const int connections : kConnections) {
      if (is_asked("--list")) fmt::print("{}\n", name_of(connections));
      if (is_asked(name_of(connections))) measure(connections);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "wan_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
