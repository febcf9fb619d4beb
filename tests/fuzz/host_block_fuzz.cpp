#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "tests/fuzz/fuzz.h"

// Shared memory in which the other rank of the host says whatever it likes: what it calls, where
// its buffers lie, how far it is.
namespace shoal::collective {
namespace {

using fuzz::must;
constexpr std::size_t kArena = 1 << 20;

/// Rank 0 of two; rank 1 is the input.
struct Host {
  Host() {
    for (auto& arena : arenas) arena = wire::SharedSegment::create("fuzz-arena", kArena);
    wire::LocalRendezvousResult all;
    all.control = wire::SharedSegment::create("fuzz-control", HostWorld::control_bytes());
    all.arenas.push_back({});
    all.arenas.push_back(wire::SharedSegment::adopt(dup(arenas[1].fd())));
    all.shares = {true, true};
    world = std::make_shared<HostWorld>(0, std::move(all), &arenas[0]);
    group = std::make_unique<HostCommunicator>(world, HostCommunicator::Options{});
  }
  HostBlock block() const {
    return HostBlock(world->at(HostWorld::first_block(), HostBlock::bytes(2)), 2);
  }

  wire::SharedSegment arenas[2];
  std::shared_ptr<HostWorld> world;
  std::unique_ptr<HostCommunicator> group;
};

Operation call(FuzzedDataProvider& input, const Host& host, std::vector<std::byte>& own,
               std::vector<std::size_t>& counts) {
  Operation o;
  o.kind = static_cast<Kind>(input.ConsumeIntegralInRange(0, static_cast<int>(Kind::kBarrier)));
  o.type = input.ConsumeBool() ? ElementType::kF32 : ElementType::kBF16;
  constexpr std::size_t kCounts[] = {0, 1, 100, 700, 60'000};
  const std::size_t count = input.PickValueInArray(kCounts);
  const bool visible = input.ConsumeBool();
  own.resize(visible ? 0 : 4 * 4 * 60'000);
  std::byte* from = visible ? host.arenas[0].data() : own.data();
  o.buffer = {from, from + 2 * 4 * 60'000, count};
  o.peer = input.ConsumeIntegralInRange(0, 1);
  if (o.kind == Kind::kSend || o.kind == Kind::kReceive) o.peer = 1;
  if (o.kind == Kind::kAllToAll && input.ConsumeBool())
    counts.assign(2, count), o.send_counts = o.receive_counts = counts;
  return o;
}

/// Rank 1 does as rank 0 has done, up to here.
void follow(const HostBlock& block, std::uint64_t sequence) {
  if (sequence == 0) return;
  std::memcpy(static_cast<void*>(&block.descriptor(1, sequence)), &block.descriptor(0, sequence),
              sizeof(Descriptor));
  if (block.descriptor(1, sequence).input.visible()) block.descriptor(1, sequence).input.region = 1;
  if (block.descriptor(1, sequence).output.visible())
    block.descriptor(1, sequence).output.region = 1;
  std::memcpy(static_cast<void*>(block.list(1, sequence)), block.list(0, sequence),
              kListEntries * sizeof(ListEntry));
}

/// Rank 1 writes a word where it should not have, or another than it should.
void poke(FuzzedDataProvider& input, const HostBlock& block, std::uint64_t sequence) {
  constexpr std::uint64_t kWords[] = {
      0, 1, 2, 64, 0xffff, 60'000, kArena, ~std::uint64_t{0}, std::uint64_t{1} << 63};
  const std::uint64_t word =
      input.ConsumeBool() ? input.PickValueInArray(kWords) : input.ConsumeIntegral<std::uint64_t>();
  const auto width = input.PickValueInArray<std::size_t>({1, 4, 8});
  struct Place {
    std::byte* begin;
    std::size_t bytes;
  };
  const Place places[] = {
      {reinterpret_cast<std::byte*>(&block.descriptor(1, sequence)), sizeof(Descriptor)},
      {reinterpret_cast<std::byte*>(&block.line(1)), sizeof(RankLine)},
      {reinterpret_cast<std::byte*>(block.list(1, sequence)), 4 * sizeof(ListEntry)},
      {block.mailbox(), std::size_t{64} << 10}};
  const Place& place = input.PickValueInArray(places);
  const auto at = input.ConsumeIntegralInRange<std::size_t>(0, place.bytes - width);
  std::memcpy(place.begin + at, &word, width);
}

}  // namespace
}  // namespace shoal::collective

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::collective;
  FuzzedDataProvider input(data, size);
  const Host host;
  std::vector<std::byte> own;
  std::vector<std::size_t> counts;
  const Operation operation = call(input, host, own, counts);
  shoal::fuzz::accepted([&] {
    const Handle handle = host.group->start(operation);
    const std::uint64_t sequence = host.group->sequence();
    follow(host.block(), sequence);
    while (input.remaining_bytes() > 0) {
      for (int i = input.ConsumeIntegralInRange(0, 3); i > 0; --i)
        poke(input, host.block(), sequence > 0 ? sequence : 1);
      if (host.group->test(handle)) return;
    }
    shoal::fuzz::must(!host.group->report().empty(), "there is something to report");
  });
  return 0;
}
