#include "shoal/wire/rail.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "shoal/wire/chunk_header.h"

namespace shoal::wire {
namespace {

constexpr std::uint64_t kMostAtATime = 4 << 20;
/// Many small messages are read at a time.
constexpr std::size_t kBuffer = 16 << 10;

/// `bytes` begin at position `at` of a message; returns those of them within `[begin, end)`.
iovec part_in(std::span<const std::byte> bytes, std::size_t at, std::size_t begin,
              std::size_t end) {
  const std::size_t from = std::clamp(begin, at, at + bytes.size());
  const std::size_t to = std::clamp(end, from, at + bytes.size());
  return {const_cast<std::byte*>(bytes.data()) + (from - at), to - from};
}

}  // namespace

bool Rail::claim(Claims& claims, Claims::Kind kind) {
  const auto allowed = may_claim(kind);
  auto chunk = allowed ? claims.claim(*allowed) : std::nullopt;
  if (!chunk) return false;
  if (account_) chunk->claimed = Clock::now();
  queue(std::move(*chunk));
  return true;
}

// What was lost comes first on a new connection. A peer that reads and reports nothing gets little
// more, and in the end nothing but reports: it may wait for these as this rank waits for its own.
// Where nothing is sent again, nothing waits for it: the cause of a failure goes out at once.
std::optional<Claims::Kind> Rail::may_claim(Claims::Kind kind) const {
  if (!first_ || first_->abandoned()) return kind;
  if (first_->state() == FirstRailAccount::State::kResuming) return std::nullopt;
  if (first_->is_over_full()) return Claims::Kind::kFirstReports;
  return first_->is_full() ? Claims::Kind::kControl : kind;
}

void Rail::queue(Claims::Chunk chunk) {
  writing_bytes_ += chunk.bytes;
  writing_.push_back(std::move(chunk));
}

// A peer that reads as fast as this rank writes would be sent all there is before its word to pause
// is read: whoever drives the connection comes back after kMostAtATime.
bool Rail::flush(Claims& claims, Claims::Kind kind) {
  for (const std::uint64_t before = bytes_sent_;;) {
    for (bool more = true;
         more && writing_bytes_ < kBytesAhead && writing_.size() < kMaxChunksAhead;)
      more = claim(claims, kind);
    blocked_ = channel_->holds_unsent() && !channel_->flush();
    if (blocked_) return false;
    if (writing_.empty()) return true;
    blocked_ = !write_some(claims) || bytes_sent_ - before >= kMostAtATime;
    if (blocked_) return false;
  }
}

void Rail::flush_one(Claims& claims, Claims::Kind kind) {
  if (blocked_ || broken_) return;
  blocked_ = channel_->holds_unsent() && !channel_->flush();
  if (blocked_) return;
  if (writing_.empty() && !(account_ && account_->is_full())) claim(claims, kind);
  if (!writing_.empty()) blocked_ = !write_some(claims);
}

// One system call writes what is left of all chunks: of each the rest of its header, then the part
// of the message that it carries. A message is `head` followed by `body`; `begin` and `end` are
// positions in it. Returns false when the kernel takes no more. What is sent again may be more than
// one call takes.
bool Rail::write_some(Claims& claims) {
  iovec parts[3 * kMaxChunksAhead];
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < std::min(writing_.size(), kMaxChunksAhead); ++i) {
    const Claims::Chunk& chunk = writing_[i];
    const std::size_t header_left = chunk.header.size() - std::min(chunk.sent, chunk.header.size());
    const std::size_t begin = chunk.begin + (chunk.sent + header_left - chunk.header.size());
    const std::size_t end = chunk.begin + chunk.bytes;
    const Claims::Message& m = *chunk.message;
    for (const iovec part :
         {iovec{const_cast<std::byte*>(chunk.header.data()) + chunk.header.size() - header_left,
                header_left},
          part_in(m.head, 0, begin, end), part_in(m.body, m.head.size(), begin, end)}) {
      if (part.iov_len == 0) continue;
      parts[count++] = part;
      wanted += part.iov_len;
    }
  }
  const std::size_t n = channel_->write(std::span(parts).first(count));
  wrote(claims, n);
  // After a short write the kernel's buffer is full, and another call would only say so.
  return n == wanted && !channel_->holds_unsent();
}

void Rail::wrote(Claims& claims, std::size_t bytes) {
  bytes_sent_ += bytes;
  while (!writing_.empty()) {
    Claims::Chunk& chunk = writing_.front();
    const std::size_t n = std::min(bytes, chunk.header.size() + chunk.bytes - chunk.sent);
    chunk.sent += n;
    bytes -= n;
    if (chunk.sent < chunk.header.size() + chunk.bytes) return;
    writing_bytes_ -= chunk.bytes;
    if (first_) {
      keep(claims, chunk);
    } else if (!account_) {
      claims.wrote(chunk);
    } else if (chunk.stream.group != 0) {  // last words are no piece: the peer reports none
      account_->wrote(std::move(chunk));
    }
    writing_.pop_front();
  }
}

void Rail::send_last_words(const Bytes& words) {
  Claims::Chunk chunk;
  const PieceHeader header{.length = static_cast<std::uint32_t>(words.size()),
                           .message = PieceHeader::kLastWords,
                           .total = words.size()};
  std::memcpy(chunk.header.data(), &header, sizeof header);
  chunk.message = std::make_shared<Claims::Message>();
  chunk.message->head = words;
  chunk.bytes = words.size();
  queue(std::move(chunk));
}

// A copy is kept, of small messages all, so that their memory is released as over one connection.
void Rail::keep(Claims& claims, Claims::Chunk& chunk) {
  if (!FirstRailAccount::has_place(chunk.stream)) return claims.wrote(chunk);
  Claims::Chunk kept = chunk;
  keep_alone(kept);
  claims.wrote(chunk);
  first_->wrote(std::move(kept));
}

void Rail::send_beat() {
  if (!writing_.empty() || broken_) return;
  Claims::Chunk chunk;
  const PieceHeader header{.message = PieceHeader::kBeat};
  std::memcpy(chunk.header.data(), &header, sizeof header);
  chunk.message = std::make_shared<Claims::Message>();
  queue(std::move(chunk));
}

void Rail::send_first(const RailReport& report) {
  Claims::Chunk chunk{.header = {}, .stream = FirstRailAccount::kReports, .message = {}};
  chunk.message = std::make_shared<Claims::Message>();
  chunk.message->head = report.encode();
  chunk.message->unwritten = 1;
  chunk.bytes = chunk.message->bytes();
  const ChunkHeader header{.length = static_cast<std::uint32_t>(chunk.bytes),
                           .stream = chunk.stream,
                           .total = chunk.bytes};
  std::memcpy(chunk.header.data(), &header, sizeof header);
  queue(std::move(chunk));
}

void Rail::resend(std::deque<Claims::Chunk> chunks) {
  for (Claims::Chunk& chunk : chunks) queue(std::move(chunk));
}

std::optional<Claims::Chunk> Rail::move_late(Clock::time_point now, Duration longest) {
  if (!writes_piece()) return std::nullopt;
  Claims::Chunk& piece = writing_.front();
  if (!piece.is_late(now, longest)) return std::nullopt;
  Claims::Chunk copy = piece.move();
  write_from_copy();
  return copy;
}

void Rail::give_up(const std::shared_ptr<Claims::Copies>& copies) {
  if (writing_.empty() || writing_.front().copies != copies || writing_.front().moved) return;
  writing_.front().moved = true;
  write_from_copy();
}

// What is not begun is not written at all.
void Rail::write_from_copy() {
  Claims::Chunk& piece = writing_.front();
  if (piece.sent > 0) return keep_alone(piece);
  writing_bytes_ -= piece.bytes;
  writing_.pop_front();
}

std::deque<Claims::Chunk> Rail::take_unwritten() {
  writing_bytes_ = 0;
  // The other rails have the last words, too, and what is said first on a connection is said anew.
  std::erase_if(writing_, [this](const Claims::Chunk& chunk) {
    return first_ ? !FirstRailAccount::has_place(chunk.stream) : chunk.stream.group == 0;
  });
  return std::exchange(writing_, {});
}

void Rail::adopt(Claims& claims, Stream stream) {
  for (Claims::Chunk& chunk : writing_)
    if (chunk.stream == stream) claims.copy_body(*chunk.message);
}

// The rest of the message is not sent any more: the chunk becomes a message of its own.
void Rail::keep_alone(Claims::Chunk& chunk) {
  const Claims::Message& whole = *chunk.message;
  auto alone = std::make_shared<Claims::Message>();
  alone->head.reserve(chunk.bytes);
  for (const iovec part :
       {part_in(whole.head, 0, chunk.begin, chunk.begin + chunk.bytes),
        part_in(whole.body, whole.head.size(), chunk.begin, chunk.begin + chunk.bytes)}) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    alone->head.insert(alone->head.end(), bytes, bytes + part.iov_len);
  }
  alone->unwritten = 1;
  alone->all_claimed = true;
  chunk.message = std::move(alone);
  chunk.begin = 0;
}

void Rail::drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped) {
  std::erase_if(writing_, [&](Claims::Chunk& chunk) {
    if (chunk.stream.group == 0) return false;
    dropped.push_back(chunk.message);
    if (chunk.sent > 0) {
      keep_alone(chunk);
      return false;
    }
    writing_bytes_ -= chunk.bytes;
    return true;
  });
}

void Rail::abandon() {
  writing_.clear();
  writing_bytes_ = 0;
}

void Rail::release_all(Claims& claims) {
  for (Claims::Chunk& chunk : writing_) claims.release(*chunk.message);
}

bool Rail::idle(Stream stream) const {
  return std::none_of(writing_.begin(), writing_.end(),
                      [&](const Claims::Chunk& chunk) { return chunk.stream == stream; });
}

// One system call reads the rest of what is being received straight to where it belongs, and what
// follows into the buffer: within a chunk that is the next header at most, between chunks whatever
// small messages come together.
bool Rail::receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took) {
  buffer_.resize(kBuffer);
  const auto first = assembler_.wanted();
  iovec parts[2] = {
      {first.data(), first.size()},
      {buffer_.data(), assembler_.within_chunk() ? Assembler::kHeaderBytes : buffer_.size()}};
  const auto read = channel_->read(parts);
  if (!read) return true;
  const std::size_t bytes = *read;
  if (bytes == 0) return false;
  const auto direct = std::min(bytes, first.size());
  bytes_received_ += bytes;
  took(direct, std::span(buffer_).first(bytes - direct));
  return true;
}

bool Rail::receive(ChunkSink& sink) {
  bool open = true;
  do {
    open = receive_some([&](std::size_t direct, std::span<const std::byte> more) {
      assembler_.took(direct, sink);
      assembler_.feed(more, sink);
    });
  } while (open && channel_->holds_unread());
  return open;
}

bool Rail::receive(const std::function<void(Stream, Bytes)>& message) {
  // The bound lets other connections have their turn while a peer sends without pause.
  for (int turn = 0; turn < 64 || channel_->holds_unread(); ++turn) {
    const auto before = bytes_received_;
    const bool open = receive_some([&](std::size_t direct, std::span<const std::byte> more) {
      assembler_.took(direct, message);
      assembler_.feed(more, message);
    });
    if (!open || bytes_received_ == before) return open;
  }
  return true;
}

}  // namespace shoal::wire
