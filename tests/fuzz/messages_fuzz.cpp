#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "tests/collective/simulated_network.h"
#include "tests/fuzz/fuzz.h"

// Messages of a member that has the key: any calls, any sizes, in pieces, under any stream, while
// this rank is inside an operation.
namespace shoal::collective {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 300, 20'000};

Operation call(FuzzedDataProvider& input, std::vector<float>& in, std::vector<float>& out,
               std::vector<std::size_t>& counts) {
  Operation o;
  o.kind = static_cast<Kind>(input.ConsumeIntegralInRange(0, static_cast<int>(Kind::kBarrier)));
  o.type = input.ConsumeBool() ? ElementType::kF32 : ElementType::kBF16;
  const std::size_t count = input.PickValueInArray(kCounts);
  in.assign(2 * count, 1), out.assign(2 * count, 0);
  o.buffer = {in.data(), out.data(), count};
  o.peer = o.kind == Kind::kReceive ? input.ConsumeIntegralInRange(-1, 0) * 2 + 1
           : o.kind == Kind::kSend  ? 1
                                    : input.ConsumeIntegralInRange(0, 1);
  if (o.kind == Kind::kReceive && o.peer < 0) o.peer = -1;
  o.tag = static_cast<std::uint32_t>(input.ConsumeIntegralInRange(0, 1));
  if (o.kind == Kind::kAllToAll && input.ConsumeBool())
    counts.assign(2, count), o.send_counts = o.receive_counts = counts;
  return o;
}

wire::Stream stream(FuzzedDataProvider& input) {
  constexpr std::uint64_t kAnnouncements = std::uint64_t{1} << 62,
                          kMessages = std::uint64_t{1} << 63;
  constexpr std::uint64_t kSequences[] = {
      1, 2, kAnnouncements | 1, kAnnouncements | 2, kMessages, kMessages | 1};
  return {input.ConsumeIntegralInRange<std::uint64_t>(1, 2), input.PickValueInArray(kSequences)};
}

/// A message as a sender would begin it, or nearly, or anything.
wire::Bytes message(FuzzedDataProvider& input, const Operation& o) {
  const std::size_t bytes = o.buffer.count * size_of(o.type);
  const std::size_t sizes[] = {bytes,
                               bytes + TcpCall::kBytes,
                               bytes / 2,
                               bytes / 2 + TcpCall::kBytes,
                               TcpCall::kBytes,
                               0,
                               input.ConsumeIntegralInRange<std::size_t>(0, 70'000)};
  wire::Bytes whole(sizes[input.ConsumeIntegralInRange<std::size_t>(0, std::size(sizes) - 1)]);
  if (whole.size() >= TcpCall::kBytes && input.ConsumeBool()) {
    const auto algorithms = algorithms_for(o.kind);
    TcpCall::of(
        o, algorithms.empty()
               ? Algorithm::kDirect
               : algorithms[input.ConsumeIntegralInRange<std::size_t>(0, algorithms.size() - 1)])
        .write(whole.data());
  }
  for (int i = input.ConsumeIntegralInRange(0, 3); i > 0 && !whole.empty(); --i)
    whole[input.ConsumeIntegralInRange<std::size_t>(0,
                                                    std::min<std::size_t>(whole.size(), 64) - 1)] =
        static_cast<std::byte>(input.ConsumeIntegral<std::uint8_t>());
  return whole;
}

}  // namespace
}  // namespace shoal::collective

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::collective;
  FuzzedDataProvider input(data, size);
  std::vector<float> in, out;
  std::vector<std::size_t> counts;
  const Operation operation = call(input, in, out, counts);
  SimulatedNetwork network(2, 1);
  shoal::fuzz::accepted([&] {
    TcpCommunicator group(network.end(0), {});
    const Handle handle = group.start(operation);
    while (input.remaining_bytes() > 0) {
      const auto where = stream(input);
      const shoal::wire::Bytes whole = message(input, operation);
      const std::size_t total = whole.size();
      for (std::size_t at = 0; at == 0 || at < total; at += SimulatedNetwork::kChunk) {
        const std::size_t bytes = std::min(SimulatedNetwork::kChunk, total - at);
        network.inject(1, 0, where, std::span(whole).subspan(at, bytes), total, at);
        if (input.ConsumeBool()) group.test(handle);
      }
      while (input.ConsumeBool() && network.step()) continue;
      if (group.test(handle)) return;
    }
    shoal::fuzz::must(!group.recorder().entries(0).empty() || point_to_point(operation.kind),
                      "there is something to report");
  });
  return 0;
}
