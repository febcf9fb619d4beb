#include "shoal/wire/claims.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/tcp_control.h"

namespace shoal::wire {

void Claims::send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
                  Released released) {
  const auto [entry, fresh] = queues_.try_emplace(stream);
  Queue& queue = entry->second;
  if (fresh) {
    queue.priority = priority;
    let_wait(stream, queue, kReady);
  } else if (priority > queue.priority) {
    // Messages of a stream keep their order, so an urgent one lifts those before it as well: it
    // could not overtake them.
    lines_[queue.line].erase(stream, queue.priority);
    queue.priority = priority;
    let_wait(stream, queue, queue.line);
  }
  auto message = std::make_shared<Message>();
  message->head = std::move(head);
  message->body = body;
  message->released = std::move(released);
  queue.messages.push_back(std::move(message));
}

void Claims::let_wait(Stream stream, Queue& queue, Line line) {
  lines_[line].push(stream, queue.priority);
  queue.line = line;
}

bool Claims::is_large(Stream stream, const Message& message) const {
  const std::size_t most = in_pieces_ ? kMostSmall : Assembler::kChunkBytes;
  return stream.group != 0 && message.bytes() > most;
}

// Streams that may not be sent now are put aside on the way, and come back when that changes. The
// receiver asks for whole chunks, so one of which a piece was claimed is always completed.
Claims::Waiting Claims::next_in(Line line) {
  while (const auto stream = lines_[line].pop()) {
    const Waiting entry = queues_.find(*stream);
    Queue& queue = entry->second;
    if (stream->group == 0) return entry;
    const bool begins_chunk = queue.at % Assembler::kChunkBytes == 0;
    if (paused_ && begins_chunk && !asked_.contains(*stream)) {
      let_wait(*stream, queue, kHeld);
      continue;
    }
    const bool begins = queue.at == 0 && !queue.number && is_large(*stream, *queue.messages[0]);
    if (!begins || begun_ < most_begun()) return entry;
    let_wait(*stream, queue, kLate);
  }
  return queues_.end();
}

std::optional<Claims::Chunk> Claims::claim(Kind kind) {
  if (kind == Kind::kPiece && !returned_.empty()) {
    ++claimed_;
    Chunk piece = std::move(returned_.front());
    returned_.pop_front();
    return piece;
  }
  if (kind == Kind::kFirstReports) return claim_of({0, kFirstRail});
  if (kind == Kind::kControl) {
    const auto next = lines_[kReady].next();
    if (!next || next->group != 0) return std::nullopt;
  }
  const Waiting next = next_in(kind == Kind::kPiece ? kPieces : kReady);
  if (next == queues_.end()) return std::nullopt;
  ++claimed_;
  if (kind == Kind::kPiece) return cut(next, Assembler::kPieceBytes);
  if (in_pieces_ && is_large(next->first, *next->second.messages[0])) return announce(next);
  return cut(next, Assembler::kChunkBytes);
}

std::optional<Claims::Chunk> Claims::claim_of(Stream stream) {
  const Waiting entry = queues_.find(stream);
  if (entry == queues_.end()) return std::nullopt;
  const Queue& queue = entry->second;
  if (!lines_[queue.line].erase(stream, queue.priority)) return std::nullopt;
  ++claimed_;
  return cut(entry, Assembler::kChunkBytes);
}

Claims::Chunk Claims::announce(Waiting entry) {
  auto& [stream, queue] = *entry;
  const auto& message = queue.messages.front();
  Chunk chunk{.header = {}, .stream = stream, .message = message};
  const ChunkHeader header{.length = 0, .stream = stream, .total = message->bytes()};
  std::memcpy(chunk.header.data(), &header, sizeof header);
  ++message->unwritten;
  queue.number = announced_++;
  ++begun_;
  let_wait(stream, queue, kPieces);
  return chunk;
}

Claims::Chunk Claims::cut(Waiting entry, std::size_t most_bytes) {
  auto& [stream, queue] = *entry;
  Chunk chunk{.header = {}, .stream = stream, .message = queue.messages.front(), .begin = queue.at};
  Message& message = *chunk.message;
  const std::size_t total = message.bytes();
  chunk.bytes = std::min(total - queue.at, most_bytes);
  const auto length = static_cast<std::uint32_t>(chunk.bytes);
  if (queue.number) {
    const PieceHeader header{
        .length = length, .message = *queue.number, .offset = queue.at, .total = total};
    std::memcpy(chunk.header.data(), &header, sizeof header);
  } else {
    const ChunkHeader header{.length = length, .stream = stream, .total = total};
    std::memcpy(chunk.header.data(), &header, sizeof header);
  }
  // The receiver counts what it gets chunk by chunk, in whatever pieces they travel.
  if (queue.at % Assembler::kChunkBytes == 0)
    count_asked(stream, std::min(total - queue.at, Assembler::kChunkBytes));
  ++message.unwritten;
  queue.at += chunk.bytes;
  message.all_claimed = queue.at == total;
  const bool in_pieces = queue.number.has_value();
  if (!in_pieces && !message.all_claimed && chunk.begin == 0) ++begun_;
  if (message.all_claimed) {
    if (in_pieces || chunk.begin > 0) --begun_;
    queue.messages.pop_front();
    queue.at = 0;
    queue.number.reset();
  }
  end_turn(entry);
  return chunk;
}

void Claims::count_asked(Stream stream, std::size_t bytes) {
  if (!paused_) return;
  const auto asked = asked_.find(stream);
  if (asked == asked_.end()) return;
  asked->second -= std::min(asked->second, window_cost(bytes));
  if (asked->second == 0) asked_.erase(asked);
}

// The stream goes to the end of its line, so that every stream gets a chunk in turn.
void Claims::end_turn(Waiting entry) {
  auto& [stream, queue] = *entry;
  if (queue.messages.empty()) {
    queues_.erase(entry);
  } else {
    let_wait(stream, queue, line_of(queue));
  }
  if (begun_ < most_begun() && !lines_[kLate].empty()) {
    const Stream late = *lines_[kLate].pop();
    let_wait(late, queues_.find(late)->second, kReady);
  }
}

void Claims::obey(const FlowMessage& message) {
  if (message.what == FlowMessage::kPause) paused_ = true;
  if (message.what == FlowMessage::kResume) {
    paused_ = false;
    asked_.clear();
    while (const auto stream = lines_[kHeld].pop()) {
      Queue& queue = queues_.find(*stream)->second;
      let_wait(*stream, queue, line_of(queue));
    }
  }
  if (message.what == FlowMessage::kAsk && paused_) {
    asked_[message.stream] += message.bytes;
    const auto entry = queues_.find(message.stream);
    if (entry == queues_.end()) return;
    Queue& queue = entry->second;
    if (queue.line == kReady || queue.line == kPieces) return;
    lines_[queue.line].erase(message.stream, queue.priority);
    let_wait(message.stream, queue, line_of(queue));
  }
}

Claims::Chunk Claims::Chunk::move() {
  if (!copies) copies = std::make_shared<Copies>(Copies{.message = message});
  Chunk copy = *this;
  copy.sent = 0;
  ++copy.moves;
  moved = true;
  return copy;
}

void Claims::wrote(const Chunk& chunk) {
  // Copies that wait to be claimed are of no use any more, and their memory is not to be read.
  if (chunk.copies)
    std::erase_if(returned_, [&](const Chunk& other) { return other.copies == chunk.copies; });
  Message& message = chunk.copies ? *chunk.copies->message : *chunk.message;
  // Connections write the chunks of a message in any order.
  if (--message.unwritten == 0 && message.all_claimed) release(message);
}

void Claims::take_back(std::vector<Chunk> pieces) {
  for (Chunk& piece : pieces) {
    piece.sent = 0;
    returned_.push_back(std::move(piece));
  }
}

void Claims::release(Message& message) {
  if (!message.released) return;
  // The sender may overwrite or free the memory from here on; it loads the flag with acquire.
  message.released->store(true, std::memory_order_release);
  message.released.reset();
  ++releases_;
}

void Claims::copy_body(Message& message) {
  if (!message.released) return;
  // Chunks refer to the message and not to its memory: one that is partly written goes on from the
  // copy.
  message.own_body.assign(message.body.begin(), message.body.end());
  message.body = message.own_body;
  release(message);
}

void Claims::adopt(Stream stream) {
  if (const auto entry = queues_.find(stream); entry != queues_.end())
    for (auto& message : entry->second.messages) copy_body(*message);
  for (Chunk& piece : returned_)
    if (piece.stream == stream) copy_body(*piece.message);
}

void Claims::drop_all() {
  queues_.erase_if([&](auto& entry) {
    if (entry.first.group == 0) return false;
    for (auto& message : entry.second.messages) release(*message);
    return true;
  });
  const auto dropped = [](Stream stream) { return stream.group != 0; };
  for (Turns& line : lines_) line.erase_if(dropped);
  // Messages of group 0 have one chunk, so none of them is begun.
  begun_ = 0;
  for (Chunk& piece : returned_) release(*piece.message);
  returned_.clear();
}

void Claims::abandon() {
  queues_.clear();
  returned_.clear();
  for (Turns& line : lines_) line.erase_if([](Stream) { return true; });
  begun_ = 0;
}

void Claims::release_all() {
  for (auto& [stream, queue] : queues_)
    for (auto& message : queue.messages) release(*message);
  for (Chunk& piece : returned_) release(*piece.message);
}

}  // namespace shoal::wire
