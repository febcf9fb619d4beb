#include "shoal/wire/gathering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/wire/flow_message.h"

namespace shoal::wire {
namespace {

constexpr std::uint64_t kChunk = Assembler::kChunkBytes;
static_assert(kChunk / Assembler::kPieceBytes <= 32);

/// The bit of a piece among those of its chunk.
std::uint32_t bit_of(std::uint64_t offset) {
  return 1U << offset % kChunk / Assembler::kPieceBytes;
}

Error not_awaited(std::uint64_t number, std::uint64_t total, std::uint64_t offset) {
  return Error(ErrorKind::kData, "receive",
               fmt::format("a malformed chunk: a piece of no message that is awaited: message {} "
                           "of {} bytes, at {}",
                           number, total, offset));
}

}  // namespace

std::byte* Gathering::Messages::place(Stream stream, std::uint64_t total, std::uint64_t offset,
                                      std::size_t bytes) {
  // A message behind one that is not complete is not the one for which memory was posted.
  if (!gathering_.waiting_.empty() && gathering_.waiting_.contains(stream)) return nullptr;
  return out_.place(stream, total, offset, bytes);
}

void Gathering::Messages::arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) {
  if (gathering_.waiting_.empty() || !gathering_.waiting_.contains(stream))
    return out_.arrived(stream, std::move(chunk), bytes);
  gathering_.hold(stream, std::move(chunk), bytes);
}

void Gathering::Messages::announced(Stream stream, std::uint64_t total) {
  if (!gathering_.announced(stream, total, out_)) {
    throw Error(ErrorKind::kData, "receive",
                "an announcement of a message of which pieces of another length have come, or one "
                "too many");
  }
}

bool Gathering::is_current(std::uint64_t message, const Open& open) const {
  if (!open.stream) return false;
  const auto waiting = waiting_.find(*open.stream);
  return waiting != waiting_.end() && waiting->second.front().message == message;
}

bool Gathering::announced(Stream stream, std::uint64_t total, ChunkSink& out) {
  const std::uint64_t number = announced_++;
  const auto [entry, fresh] = open_.try_emplace(number);
  Open& open = entry->second;
  if (fresh) open.total = total;
  if (open.total != total || open_.size() > kMostOpen || stream.group == 0) return false;
  open.stream = stream;
  Item item;
  item.message = number;
  waiting_[stream].push_back(std::move(item));
  // Its pieces may have come before.
  if (!open.parts.empty()) pass_on(stream, out);
  return true;
}

void Gathering::hold(Stream stream, ReceivedChunk chunk, std::size_t bytes) {
  Item item;
  item.chunk = std::move(chunk);
  item.bytes = bytes;
  held_bytes_ += window_cost(bytes);
  waiting_[stream].push_back(std::move(item));
}

// Returns null for a piece that has come or is coming on another connection: a sender that waits
// long for a report sends it again. Where the first piece of a chunk goes, the others follow.
std::byte* Gathering::place_piece(std::uint64_t number, std::uint64_t total, std::uint64_t offset,
                                  ChunkSink& out) {
  auto entry = open_.find(number);
  if (entry == open_.end()) {
    if (number < announced_) return nullptr;
    if (open_.size() >= kMostOpen) throw not_awaited(number, total, offset);
    entry = open_.try_emplace(number).first;
    entry->second.total = total;
  }
  Open& open = entry->second;
  const std::uint64_t begin = offset / kChunk * kChunk;
  if (open.total != total) throw not_awaited(number, total, offset);
  if (begin < open.passed_on) return nullptr;
  auto found = open.parts.find(begin);
  if (found == open.parts.end()) {
    // A chunk is noted when it has its memory: there may be none, and then it is as if the piece
    // had not come.
    Part fresh;
    fresh.bytes = std::min(kChunk, total - begin);
    if (is_current(number, open)) fresh.placed = out.place(*open.stream, total, begin, fresh.bytes);
    if (!fresh.placed) fresh.memory = ReceivedChunk(pool_, total, begin, fresh.bytes);
    const std::uint64_t held = fresh.placed ? 0 : window_cost(fresh.bytes);
    found = open.parts.emplace(begin, std::move(fresh)).first;
    held_bytes_ += held;
  }
  Part& part = found->second;
  const std::uint32_t bit = bit_of(offset);
  if ((part.begun & bit) != 0) return nullptr;
  part.begun |= bit;
  return (part.placed ? part.placed : part.memory.data()) + (offset - begin);
}

void Gathering::piece_arrived(std::uint64_t number, std::uint64_t offset, std::size_t bytes,
                              ChunkSink& out) {
  Open& open = open_.at(number);
  Part& part = open.parts.at(offset / kChunk * kChunk);
  part.come |= bit_of(offset);
  part.arrived += bytes;
  if (part.arrived == part.bytes && is_current(number, open)) pass_on(Stream(*open.stream), out);
}

bool Gathering::duplicate_arrived(std::uint64_t number, const ReceivedChunk& piece) {
  const auto entry = open_.find(number);
  if (entry == open_.end()) return false;
  const std::uint64_t begin = piece.offset() / kChunk * kChunk;
  const auto found = entry->second.parts.find(begin);
  if (found == entry->second.parts.end()) return false;
  Part& part = found->second;
  const std::uint32_t bit = bit_of(piece.offset());
  if ((part.come & bit) != 0) return false;
  part.begun |= bit;
  std::byte* to = part.placed ? part.placed : part.memory.data();
  std::memcpy(to + (piece.offset() - begin), piece.data(), piece.bytes());
  return true;
}

void Gathering::Pieces::duplicate(Stream message, ReceivedChunk piece) {
  ++pieces_;
  if (!gathering_.duplicate_arrived(message.group, piece)) return;
  if (superseded_) superseded_(message.group, piece.offset());
  gathering_.piece_arrived(message.group, piece.offset(), piece.bytes(), out_);
}

// All is settled before the sink runs, which may throw.
void Gathering::pass_on(Stream stream, ChunkSink& out) {
  for (;;) {
    const auto waiting = waiting_.find(stream);
    if (waiting == waiting_.end()) return;
    if (const auto message = waiting->second.front().message) {
      if (!pass_on_message(*message, out)) return;
      continue;
    }
    Item item = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) waiting_.erase(waiting);
    held_bytes_ -= window_cost(item.bytes);
    out.arrived(stream, std::move(item.chunk), item.bytes);
  }
}

// Passes on the next chunk of a stream's current message. Returns false where it is not there.
bool Gathering::pass_on_message(std::uint64_t number, ChunkSink& out) {
  const auto entry = open_.find(number);
  Open& open = entry->second;
  const auto found = open.parts.find(open.passed_on);
  if (found == open.parts.end() || found->second.arrived < found->second.bytes) return false;
  Part part = std::move(found->second);
  open.parts.erase(found);
  const Stream stream = *open.stream;
  ReceivedChunk chunk =
      part.placed ? ReceivedChunk(open.total, open.passed_on) : std::move(part.memory);
  if (!part.placed) held_bytes_ -= window_cost(part.bytes);
  open.passed_on += part.bytes;
  if (open.passed_on == open.total) {
    open_.erase(entry);
    const auto waiting = waiting_.find(stream);
    waiting->second.pop_front();
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
  out.arrived(stream, std::move(chunk), part.bytes);
  return true;
}

void Gathering::forget_places(std::optional<Stream> stream) {
  for (auto& [number, open] : open_) {
    if (!open.stream || (stream && *stream != *open.stream)) continue;
    for (auto& [begin, part] : open.parts) {
      if (!part.placed) continue;
      part.placed = nullptr;
      part.memory = ReceivedChunk(pool_, open.total, begin, part.bytes);
      held_bytes_ += window_cost(part.bytes);
    }
  }
}

void Gathering::lose_piece(std::uint64_t number, std::uint64_t offset) {
  const std::uint64_t begin = offset / kChunk * kChunk;
  open_.at(number).parts.at(begin).begun &= ~bit_of(offset);
}

bool Gathering::is_placed(std::uint64_t message, std::uint64_t offset,
                          std::optional<Stream> stream) const {
  const auto entry = open_.find(message);
  if (entry == open_.end() || !entry->second.stream) return false;
  if (stream && *stream != *entry->second.stream) return false;
  const auto part = entry->second.parts.find(offset / kChunk * kChunk);
  return part != entry->second.parts.end() && part->second.placed != nullptr;
}

}  // namespace shoal::wire
