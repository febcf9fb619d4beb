#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "shoal/wire/assembler.h"
#include "shoal/wire/chunk_header.h"
#include "tests/fuzz/fuzz.h"

// Frames of a connection: whatever comes, cut wherever the network likes, the same messages arrive,
// or the same refusal.
namespace shoal::wire {
namespace {

using fuzz::must;
using Messages = std::vector<std::pair<Stream, Bytes>>;

void append(Bytes& to, const void* from, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + size);
}

/// What a peer might write: chunks, true to the rules or not, and noise between them.
Bytes connection(FuzzedDataProvider& input) {
  Bytes bytes;
  while (input.remaining_bytes() > 0 && bytes.size() < std::size_t{1} << 20) {
    if (input.ConsumeIntegralInRange(0, 7) == 0) {
      const std::string noise = input.ConsumeRandomLengthString(64);
      append(bytes, noise.data(), noise.size());
      continue;
    }
    ChunkHeader header;
    header.stream = {input.ConsumeIntegralInRange<std::uint64_t>(0, 2),
                     input.ConsumeIntegralInRange<std::uint64_t>(0, 2)};
    constexpr std::uint64_t kChunk = Assembler::kChunkBytes;
    constexpr std::uint64_t kTotals[] = {
        0, 1, 31, 1000, kChunk, kChunk + 1, 2 * kChunk + 77, ~std::uint64_t{0}};
    header.total = input.ConsumeBool() ? input.PickValueInArray(kTotals)
                                       : input.ConsumeIntegral<std::uint64_t>();
    header.length = static_cast<std::uint32_t>(std::min(kChunk, header.total));
    if (input.ConsumeIntegralInRange(0, 7) == 0)
      header.length = input.ConsumeIntegral<std::uint32_t>();
    append(bytes, &header, sizeof header);
    const auto fill = static_cast<std::byte>(input.ConsumeIntegral<std::uint8_t>());
    bytes.resize(bytes.size() + std::min<std::size_t>(header.length, kChunk), fill);
  }
  return bytes;
}

/// Places what is of one group in memory of its own and takes the rest in pieces.
class Placing final : public ChunkSink {
 public:
  explicit Placing(Messages& messages) : messages_(messages) {}
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset,
                   std::size_t bytes) override {
    must(bytes <= total && offset <= total - bytes, "a chunk lies inside its message");
    if (stream.group != 1) return nullptr;
    Bytes& to = open_[stream];
    to.resize(std::max(to.size(), offset + bytes));
    return to.data() + offset;
  }
  void arrived(Stream stream, ReceivedChunk piece, std::size_t bytes) override {
    Bytes& to = open_[stream];
    if (piece.data()) append(to, piece.data(), bytes);
    must(to.size() <= piece.total(), "no more arrives than was announced");
    if (to.size() < piece.total()) return;
    messages_.emplace_back(stream, std::move(to));
    open_.erase(stream);
  }

 private:
  Messages& messages_;
  std::map<Stream, Bytes> open_;
};

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::wire;
  FuzzedDataProvider input(data, size);
  const auto step = input.ConsumeIntegralInRange<std::size_t>(1, 100'000);
  const Bytes bytes = connection(input);
  Messages whole, placed;
  Assembler at_once, in_cuts;
  const bool one = shoal::fuzz::accepted([&] {
    at_once.feed(bytes, [&](Stream stream, Bytes message) { whole.emplace_back(stream, message); });
  });
  Placing intake(placed);
  const bool other = shoal::fuzz::accepted([&] {
    for (std::span<const std::byte> rest = bytes; !rest.empty();
         rest = rest.subspan(std::min(step, rest.size())))
      in_cuts.feed(rest.first(std::min(step, rest.size())), intake);
  });
  shoal::fuzz::must(one == other, "where a connection is cut decides nothing");
  shoal::fuzz::must(whole == placed, "messages arrive as they were sent, wherever they are put");
  return 0;
}
