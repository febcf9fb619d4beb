#include "shoal/wire/assembler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/wire/chunk_header.h"

namespace shoal::wire {

Assembler::Assembler(std::uint64_t most_bytes, std::shared_ptr<ChunkPool> pool, Carries carries)
    : most_bytes_(most_bytes),
      pool_(pool ? std::move(pool) : std::make_shared<ChunkPool>(kChunkBytes)),
      carries_(carries) {}

std::span<std::byte> Assembler::wanted() {
  if (!within_chunk()) return {header_ + header_bytes_, kHeaderBytes - header_bytes_};
  return {to_ + filled_, length_ - filled_};
}

void Assembler::took(std::size_t bytes, ChunkSink& sink) {
  // A chunk without bytes (a message of none) is closed as soon as its header is complete, so that
  // `wanted` never returns an empty span, with which `feed` would make no progress.
  if (!within_chunk()) {
    header_bytes_ += bytes;
    if (!within_chunk()) return;
    try {
      if (!(carries_ == Carries::kPieces ? open_piece(sink) : open(sink))) return;
    } catch (...) {
      // The chunk has no place: without its header `wanted` is the next one, and not the place of
      // the chunk before.
      header_bytes_ = 0;
      throw;
    }
  } else {
    filled_ += bytes;
  }
  if (filled_ == length_) close(sink);
}

void Assembler::feed(std::span<const std::byte> bytes, ChunkSink& sink) {
  while (!bytes.empty()) {
    const auto to = wanted();
    const std::size_t n = std::min(bytes.size(), to.size());
    std::memcpy(to.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    took(n, sink);
  }
}

void Assembler::reject(const char* why, std::uint32_t magic, std::uint64_t length,
                       std::uint64_t total) {
  throw Error(
      ErrorKind::kData, "receive",
      fmt::format("a malformed chunk: {}: magic {:#x}, {} of {} bytes", why, magic, length, total));
}

// Returns false where the header is all there is: an announcement.
bool Assembler::open(ChunkSink& sink) {
  ChunkHeader header;
  std::memcpy(&header, header_, sizeof header);
  const auto bad = [&](const char* why) { reject(why, header.magic, header.length, header.total); };
  if (header.magic != ChunkHeader{}.magic) bad("not ours");
  if (header.length > kChunkBytes || header.total > most_bytes_) bad("too long");
  const bool announces = header.length == 0 && header.total > 0;
  if (announces && carries_ == Carries::kMessagesAndAnnouncements) {
    header_bytes_ = 0;
    sink.announced(header.stream, header.total);
    return false;
  }
  // Chunks carry no offset: those of one message come in order, each of full length but the last.
  message_ = {header.total, 0};
  if (!partial_.empty()) {
    if (const auto entry = partial_.find(header.stream); entry != partial_.end())
      message_ = entry->second;
  }
  if (message_.total != header.total) bad("another length than was announced");
  if (header.length != std::min<std::uint64_t>(kChunkBytes, message_.total - message_.arrived))
    bad("not cut as ours are");
  // Only messages of more than one chunk take an entry; a peer cannot make the map grow without
  // bound.
  if (message_.arrived == 0 && header.length < header.total && partial_.size() >= kMaxOpenStreams)
    bad("too many streams");
  stream_ = header.stream;
  length_ = header.length;
  filled_ = 0;
  to_ = sink.place(stream_, message_.total, message_.arrived, length_);
  placed_ = to_ != nullptr;
  if (placed_) return true;
  chunk_ = ReceivedChunk(pool_, message_.total, message_.arrived, length_);
  to_ = chunk_.data();
  return true;
}

// The sink knows which pieces a message lacks, and has a place for each. Returns false where the
// header is all there is.
bool Assembler::open_piece(ChunkSink& sink) {
  PieceHeader header;
  std::memcpy(&header, header_, sizeof header);
  const auto bad = [&](const char* why) { reject(why, header.magic, header.length, header.total); };
  if (header.magic != PieceHeader{}.magic) bad("not ours");
  if (header.message == PieceHeader::kBeat && header.total == 0 && header.length == 0) {
    header_bytes_ = 0;
    return false;
  }
  if (header.total > most_bytes_) bad("too long");
  if (header.offset >= header.total || header.offset % kPieceBytes != 0 ||
      header.length != std::min<std::uint64_t>(kPieceBytes, header.total - header.offset))
    bad("not cut as ours are");
  stream_ = {header.message, 0};
  message_ = {header.total, header.offset};
  length_ = header.length;
  filled_ = 0;
  if (header.message == PieceHeader::kLastWords) {
    if (header.offset != 0 || header.total != header.length) bad("too many last words");
    chunk_ = ReceivedChunk(pool_, message_.total, 0, length_);
    to_ = chunk_.data();
    return true;
  }
  to_ = sink.place(stream_, message_.total, message_.arrived, length_);
  placed_ = to_ != nullptr;
  duplicate_ = !placed_;
  if (placed_) return true;
  chunk_ = ReceivedChunk(pool_, message_.total, message_.arrived, length_);
  to_ = chunk_.data();
  return true;
}

void Assembler::close(ChunkSink& sink) {
  // All is settled before the sink runs, which may throw.
  header_bytes_ = 0;
  ReceivedChunk chunk = placed_ ? ReceivedChunk(message_.total, message_.arrived)
                                : std::exchange(chunk_, ReceivedChunk());
  message_.arrived += length_;
  if (carries_ == Carries::kPieces) {
    if (stream_.group == PieceHeader::kLastWords)
      return sink.last_words({chunk.data(), chunk.bytes()});
    if (std::exchange(duplicate_, false)) return sink.duplicate(stream_, std::move(chunk));
    // The sink keeps the account.
  } else if (message_.arrived < message_.total) {
    // A message of one chunk never enters the map.
    partial_[stream_] = message_;
  } else if (message_.arrived > length_) {
    partial_.erase(stream_);
  }
  placed_ = false;
  sink.arrived(stream_, std::move(chunk), length_);
}

void Assembler::forget_places(std::optional<Stream> stream) {
  // The bytes of the chunk that have arrived stay in the caller's memory. The connection still
  // delivers the rest, which must go somewhere, as the next header follows it.
  if (!within_chunk() || !placed_ || (stream && *stream != stream_)) return;
  chunk_ = ReceivedChunk(pool_, message_.total, message_.arrived, length_);
  to_ = chunk_.data();
  placed_ = false;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> Assembler::arriving_piece() const {
  if (!within_chunk() || carries_ != Carries::kPieces) return std::nullopt;
  if (stream_.group == PieceHeader::kLastWords || duplicate_) return std::nullopt;
  return std::pair(stream_.group, message_.arrived);
}

void Assembler::supersede_piece() {
  forget_places();
  duplicate_ = true;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> Assembler::placed_piece() const {
  return placed_ ? arriving_piece() : std::nullopt;
}

/// Puts chunks together to whole messages.
class Assembler::WholeMessages final : public ChunkSink {
 public:
  WholeMessages(std::map<Stream, Bytes>& partial, const std::function<void(Stream, Bytes)>& message)
      : partial_(partial), message_(message) {}
  std::byte* place(Stream, std::uint64_t, std::uint64_t, std::size_t) override { return nullptr; }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    Bytes& to = partial_[stream];
    to.insert(to.end(), chunk.data(), chunk.data() + bytes);
    if (to.size() < chunk.total()) return;
    Bytes whole = std::move(to);
    partial_.erase(stream);
    message_(stream, std::move(whole));
  }

 private:
  std::map<Stream, Bytes>& partial_;
  const std::function<void(Stream, Bytes)>& message_;
};

void Assembler::took(std::size_t bytes, const std::function<void(Stream, Bytes)>& message) {
  WholeMessages whole(whole_, message);
  took(bytes, whole);
}

void Assembler::feed(std::span<const std::byte> bytes,
                     const std::function<void(Stream, Bytes)>& message) {
  WholeMessages whole(whole_, message);
  feed(bytes, whole);
}

}  // namespace shoal::wire
