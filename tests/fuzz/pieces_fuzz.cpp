#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/wire/assembler.h"
#include "shoal/wire/chunk_header.h"
#include "shoal/wire/gathering.h"
#include "tests/fuzz/fuzz.h"

// Frames of several connections of one peer: announcements and pieces, whatever they say and in
// whichever order they come. What is passed on is what was written there, each message in chunks
// from its beginning on; where the network cuts a connection decides nothing.
namespace shoal::wire {
namespace {

using fuzz::must;
constexpr std::uint64_t kChunkOfMessage = Assembler::kChunkBytes;
constexpr std::uint64_t kPieceOfMessage = Assembler::kPieceBytes;
constexpr std::uint64_t kMostOfMessage = std::uint64_t{1} << 40;
constexpr std::size_t kRails = 3;

/// Byte `at` of an announced message.
std::byte value(std::uint64_t message, std::uint64_t at) {
  return static_cast<std::byte>(message * 7 + at / kPieceOfMessage * 3 + at % 251);
}

struct Part {
  std::size_t rail = 0;
  Bytes bytes;
  bool noise = false;
};

Bytes with_header(const void* header) {
  Bytes bytes(Assembler::kHeaderBytes);
  std::memcpy(bytes.data(), header, bytes.size());
  return bytes;
}

/// What a peer might write, rail by rail: true to the rules or not.
std::vector<Part> connections(FuzzedDataProvider& input) {
  std::vector<Part> parts;
  // What a rail has still to write of a piece: parts of other rails come in between.
  std::map<std::size_t, Part> rests;
  const auto end_piece = [&](std::size_t rail) {
    if (auto rest = rests.extract(rail)) parts.push_back(std::move(rest.mapped()));
  };
  constexpr std::uint64_t kTotals[] = {1,
                                       1000,
                                       kPieceOfMessage,
                                       kPieceOfMessage + 1,
                                       kChunkOfMessage,
                                       2 * kChunkOfMessage + 9,
                                       ~std::uint64_t{0}};
  std::map<std::uint64_t, std::uint64_t> total_of;  // by number
  std::uint64_t announced = 0;
  const auto total_for = [&](std::uint64_t number) {
    const std::uint64_t total = input.PickValueInArray(kTotals);
    return total_of.try_emplace(number, total).first->second;
  };
  for (std::size_t written = 0; input.remaining_bytes() > 0 && written < std::size_t{1} << 20;) {
    Part part;
    const Stream stream{input.ConsumeIntegralInRange<std::uint64_t>(0, 2),
                        input.ConsumeIntegralInRange<std::uint64_t>(0, 2)};
    switch (input.ConsumeIntegralInRange(0, 5)) {
      case 0: {
        const ChunkHeader header{.length = 0, .stream = stream, .total = total_for(announced++)};
        part.bytes = with_header(&header);
        break;
      }
      case 1: {
        const auto length = input.ConsumeIntegralInRange<std::uint32_t>(0, 300);
        const ChunkHeader header{.length = length, .stream = stream, .total = length};
        part.bytes = with_header(&header);
        part.bytes.resize(part.bytes.size() + length, std::byte{9});
        break;
      }
      case 2: {
        const std::string noise = input.ConsumeRandomLengthString(64);
        part.rail = input.ConsumeIntegralInRange<std::size_t>(0, kRails - 1);
        part.noise = true;
        part.bytes.resize(noise.size());
        std::memcpy(part.bytes.data(), noise.data(), noise.size());
        break;
      }
      default: {
        PieceHeader header;
        header.message = input.ConsumeIntegralInRange<std::uint64_t>(0, announced + 1);
        header.total = total_for(header.message);
        if (input.ConsumeIntegralInRange(0, 15) == 0)
          header.total = input.PickValueInArray(kTotals);
        header.offset = kPieceOfMessage * input.ConsumeIntegralInRange<std::uint64_t>(0, 9);
        header.length = static_cast<std::uint32_t>(
            std::min(kPieceOfMessage, header.total - std::min(header.total, header.offset)));
        if (input.ConsumeIntegralInRange(0, 15) == 0) header.offset = input.ConsumeIntegral<int>();
        if (input.ConsumeIntegralInRange(0, 15) == 0) header.length = input.ConsumeIntegral<int>();
        part.rail = input.ConsumeIntegralInRange<std::size_t>(1, kRails - 1);
        part.bytes = with_header(&header);
        const std::uint64_t length = std::min<std::uint64_t>(header.length, kPieceOfMessage);
        for (std::uint64_t i = 0; i < length; ++i)
          part.bytes.push_back(value(header.message, header.offset + i));
      }
    }
    written += part.bytes.size();
    end_piece(part.rail);
    if (input.ConsumeBool()) {
      const auto cut = static_cast<std::ptrdiff_t>(
          input.ConsumeIntegralInRange<std::size_t>(0, part.bytes.size()));
      Part& rest = rests[part.rail];
      rest = part;
      rest.bytes.erase(rest.bytes.begin(), rest.bytes.begin() + cut);
      part.bytes.resize(static_cast<std::size_t>(cut));
    }
    parts.push_back(std::move(part));
  }
  while (!rests.empty()) end_piece(rests.begin()->first);
  return parts;
}

/// Takes chunks, some of them in memory of its own, and notes what came.
class Noting final : public ChunkSink {
 public:
  using Note = std::tuple<Stream, std::uint64_t, std::uint64_t, Bytes>;

  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset,
                   std::size_t bytes) override {
    must(bytes <= total && offset <= total - bytes, "a chunk lies inside its message");
    if (stream.sequence != 1) return nullptr;
    Bytes& to = placed_[{stream, offset}];
    to.assign(bytes, std::byte{0});
    return to.data();
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    std::uint64_t& next = next_[stream];
    must(chunk.offset() == next, "a message comes from its beginning on");
    next = chunk.offset() + bytes == chunk.total() ? 0 : chunk.offset() + bytes;
    Bytes contents(bytes);
    const auto placed = placed_.find({stream, chunk.offset()});
    if (chunk.data()) {
      std::copy_n(chunk.data(), bytes, contents.begin());
    } else {
      must(placed != placed_.end() && placed->second.size() == bytes, "it has memory");
      contents = std::move(placed->second);
      placed_.erase(placed);
    }
    notes.emplace_back(stream, chunk.total(), chunk.offset(), std::move(contents));
  }

  std::vector<Note> notes;

 private:
  std::map<std::pair<Stream, std::uint64_t>, Bytes> placed_;
  std::map<Stream, std::uint64_t> next_;
};

/// Feeds all parts, at most `step` bytes at a time, until a connection is refused. Returns whether
/// none was.
bool feed(const std::vector<Part>& parts, std::size_t step, Noting& sink) {
  const auto pool = std::make_shared<ChunkPool>(kChunkOfMessage);
  Gathering gathering(pool);
  Gathering::Messages messages(gathering, sink);
  std::uint64_t received = 0;
  std::vector<Assembler> rails;
  Gathering::Pieces pieces(gathering, sink, received,
                           [&](std::uint64_t message, std::uint64_t offset) {
                             for (Assembler& rail : rails)
                               if (rail.arriving_piece() == std::pair(message, offset))
                                 rail.supersede_piece();
                           });
  rails.reserve(kRails);
  for (std::size_t rail = 0; rail < kRails; ++rail) {
    rails.emplace_back(
        kMostOfMessage, pool,
        rail == 0 ? Assembler::Carries::kMessagesAndAnnouncements : Assembler::Carries::kPieces);
  }
  const bool accepted = fuzz::accepted([&] {
    for (const Part& part : parts) {
      ChunkSink& to = part.rail == 0 ? static_cast<ChunkSink&>(messages) : pieces;
      for (std::span<const std::byte> rest = part.bytes; !rest.empty();
           rest = rest.subspan(std::min(step, rest.size())))
        rails[part.rail].feed(rest.first(std::min(step, rest.size())), to);
    }
  });
  must(!gathering.complete() || !accepted || gathering.held_bytes() == 0,
       "nothing is held where nothing is missing");
  return accepted;
}

/// Checks the bytes of what came in pieces. The number of its message is not known here, but it is
/// the same for all of a chunk.
void check_contents(const Noting& sink) {
  for (const auto& [stream, total, offset, contents] : sink.notes) {
    if (contents.empty() || contents.front() == std::byte{9}) continue;
    for (std::uint64_t at = 0; at < contents.size(); at += 4099) {
      const int shift = static_cast<int>(contents[at]) - static_cast<int>(value(0, offset + at)) -
                        static_cast<int>(contents[0]) + static_cast<int>(value(0, offset));
      must((shift & 0xff) == 0, "every byte is that of its place");
    }
  }
}

}  // namespace
}  // namespace shoal::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::wire;
  FuzzedDataProvider input(data, size);
  const auto step = input.ConsumeIntegralInRange<std::size_t>(1, 100'000);
  const std::vector<Part> parts = connections(input);
  Noting at_once;
  Noting in_cuts;
  const bool one = feed(parts, std::size_t{1} << 30, at_once);
  const bool other = feed(parts, step, in_cuts);
  shoal::fuzz::must(one == other, "where a connection is cut decides nothing");
  shoal::fuzz::must(at_once.notes == in_cuts.notes, "nor of what is passed on");
  // Noise may look like a header, and then bytes of another one are its contents.
  const auto is_noise = [](const Part& part) { return part.noise; };
  if (std::none_of(parts.begin(), parts.end(), is_noise)) check_contents(at_once);
  return 0;
}
