#include "shoal/wire/assembler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/wire/chunk_header.h"

namespace shoal::wire {

Assembler::Assembler(std::uint64_t most_bytes, std::shared_ptr<ChunkPool> pool)
    : most_bytes_(most_bytes),
      pool_(pool ? std::move(pool) : std::make_shared<ChunkPool>(kChunkBytes)) {}

std::span<std::byte> Assembler::wanted() {
  if (!within_chunk()) return {header_ + header_bytes_, kHeaderBytes - header_bytes_};
  return {to_ + filled_, length_ - filled_};
}

void Assembler::took(std::size_t bytes, Intake& intake) {
  if (!within_chunk()) {
    header_bytes_ += bytes;
    if (!within_chunk()) return;
    open(intake);
  } else {
    filled_ += bytes;
  }
  if (filled_ == length_) close(intake);
}

void Assembler::feed(std::span<const std::byte> bytes, Intake& intake) {
  while (!bytes.empty()) {
    const auto to = wanted();
    const std::size_t n = std::min(bytes.size(), to.size());
    std::memcpy(to.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    took(n, intake);
  }
}

void Assembler::open(Intake& intake) {
  ChunkHeader header;
  std::memcpy(&header, header_, sizeof header);
  const auto bad = [&](const char* why) {
    header_bytes_ = 0;
    throw Error(ErrorKind::kData, "receive",
                fmt::format("a malformed chunk: {}: magic {:#x}, {} of {} bytes", why, header.magic,
                            header.length, header.total));
  };
  if (header.magic != ChunkHeader{}.magic) bad("not ours");
  if (header.length > kChunkBytes || header.total > most_bytes_) bad("too long");
  message_ = {header.total, 0};
  if (!partial_.empty()) {
    if (const auto entry = partial_.find(header.stream); entry != partial_.end())
      message_ = entry->second;
  }
  if (message_.total != header.total) bad("another length than was announced");
  if (header.length != std::min<std::uint64_t>(kChunkBytes, message_.total - message_.arrived))
    bad("not cut as ours are");
  if (message_.arrived == 0 && header.length < header.total && partial_.size() >= kMostOpenStreams)
    bad("too many streams");
  stream_ = header.stream;
  length_ = header.length, filled_ = 0;
  to_ = intake.place(stream_, message_.total, message_.arrived, length_);
  placed_ = to_ != nullptr;
  if (placed_) return;
  piece_ = Piece(pool_, message_.total, message_.arrived, length_);
  to_ = piece_.data();
}

void Assembler::close(Intake& intake) {
  header_bytes_ = 0;
  Piece piece = placed_ ? Piece(message_.total, message_.arrived) : std::exchange(piece_, Piece());
  message_.arrived += length_;
  if (message_.arrived < message_.total) {
    partial_[stream_] = message_;
  } else if (message_.arrived > length_) {
    partial_.erase(stream_);
  }
  placed_ = false;
  intake.arrived(stream_, std::move(piece), length_);
}

void Assembler::forget_places(std::optional<Stream> stream) {
  if (!within_chunk() || !placed_ || (stream && *stream != stream_)) return;
  piece_ = Piece(pool_, message_.total, message_.arrived, length_);
  to_ = piece_.data();
  placed_ = false;
}

class Assembler::Whole final : public Intake {
 public:
  Whole(std::map<Stream, Bytes>& partial, const std::function<void(Stream, Bytes)>& message)
      : partial_(partial), message_(message) {}
  std::byte* place(Stream, std::uint64_t, std::uint64_t, std::size_t) override { return nullptr; }
  void arrived(Stream stream, Piece piece, std::size_t bytes) override {
    Bytes& to = partial_[stream];
    to.insert(to.end(), piece.data(), piece.data() + bytes);
    if (to.size() < piece.total()) return;
    Bytes whole = std::move(to);
    partial_.erase(stream);
    message_(stream, std::move(whole));
  }

 private:
  std::map<Stream, Bytes>& partial_;
  const std::function<void(Stream, Bytes)>& message_;
};

void Assembler::took(std::size_t bytes, const std::function<void(Stream, Bytes)>& message) {
  Whole whole(whole_, message);
  took(bytes, whole);
}

void Assembler::feed(std::span<const std::byte> bytes,
                     const std::function<void(Stream, Bytes)>& message) {
  Whole whole(whole_, message);
  feed(bytes, whole);
}

}  // namespace shoal::wire
