#include "shoal/wire/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shoal/base/system_error.h"
#include "shoal/wire/chunk_header.h"

namespace shoal::wire {
namespace {

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

Link::~Link() {
  // Operations may still wait for `released` of what was never sent.
  for (auto& [stream, queue] : queues_)
    for (auto& message : queue.messages) release(*message);
  for (Chunk& chunk : writing_) release(*chunk.message);
}

void Link::send(Stream stream, int priority, Bytes message) {
  send(stream, priority, std::move(message), {}, nullptr);
}

void Link::send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
                Released released) {
  const auto [entry, fresh] = queues_.try_emplace(stream);
  Queue& queue = entry->second;
  if (fresh) {
    queue.priority = priority;
    let_wait(stream, queue, kTurn);
  } else if (priority > queue.priority) {
    // Messages of a stream keep their order, so an urgent one lifts those before it as well: it
    // could not overtake them.
    lines_[queue.line].erase(stream, queue.priority);
    queue.priority = priority;
    let_wait(stream, queue, queue.line);
  }
  queue.messages.push_back(
      std::make_shared<Message>(Message{std::move(head), body, {}, std::move(released)}));
}

void Link::let_wait(Stream stream, Queue& queue, Line line) {
  lines_[line].push(stream, queue.priority);
  queue.line = line;
}

// Streams that may not be sent now are put aside on the way, and come back when that changes.
std::optional<Stream> Link::next_stream() {
  while (const auto stream = lines_[kTurn].pop()) {
    Queue& queue = queues_.find(*stream)->second;
    if (stream->group == 0) return stream;
    if (paused_ && !asked_.contains(*stream)) {
      let_wait(*stream, queue, kHeld);
      continue;
    }
    const bool begins = queue.at == 0 && queue.messages.front()->bytes() > Assembler::kChunkBytes;
    if (!begins || begun_ < most_begun()) return stream;
    let_wait(*stream, queue, kLate);
  }
  return std::nullopt;
}

// The stream then goes to the end of the line, so that every stream gets a chunk in turn. Returns
// false when there is nothing that may be sent.
bool Link::make_chunk() {
  const auto next = next_stream();
  if (!next) return false;
  const Stream stream = *next;
  const auto entry = queues_.find(stream);
  Queue& queue = entry->second;
  const auto& message = queue.messages.front();
  Chunk& chunk =
      writing_.emplace_back(Chunk{{},
                                  stream,
                                  message,
                                  queue.at,
                                  std::min(message->bytes() - queue.at, Assembler::kChunkBytes),
                                  false});
  const ChunkHeader header{.length = static_cast<std::uint32_t>(chunk.bytes),
                           .stream = stream,
                           .total = message->bytes()};
  std::memcpy(chunk.header.data(), &header, sizeof header);
  writing_bytes_ += chunk.bytes;
  queue.at += chunk.bytes;
  chunk.last = queue.at == message->bytes();
  if (paused_) {
    if (const auto asked = asked_.find(stream); asked != asked_.end()) {
      asked->second -= std::min(asked->second, window_cost(chunk.bytes));
      if (asked->second == 0) asked_.erase(asked);
    }
  }
  if (!chunk.last && chunk.begin == 0) ++begun_;
  if (chunk.last) {
    if (chunk.begin > 0) --begun_;
    queue.messages.pop_front();
    queue.at = 0;
  }
  if (queue.messages.empty()) {
    queues_.erase(entry);
  } else {
    let_wait(stream, queue, kTurn);
  }
  if (begun_ < most_begun() && !lines_[kLate].empty()) {
    const Stream late = *lines_[kLate].pop();
    let_wait(late, queues_.find(late)->second, kTurn);
  }
  return true;
}

void Link::obey(const FlowMessage& message) {
  if (message.what == FlowMessage::kPause) paused_ = true;
  if (message.what == FlowMessage::kResume) {
    paused_ = false;
    asked_.clear();
    while (const auto stream = lines_[kHeld].pop())
      let_wait(*stream, queues_.find(*stream)->second, kTurn);
  }
  if (message.what == FlowMessage::kAsk && paused_) {
    asked_[message.stream] += message.bytes;
    const auto entry = queues_.find(message.stream);
    if (entry == queues_.end() || entry->second.line == kTurn) return;
    lines_[entry->second.line].erase(message.stream, entry->second.priority);
    let_wait(message.stream, entry->second, kTurn);
  }
}

bool Link::flush() {
  for (;;) {
    for (bool more = true;
         more && writing_bytes_ < kBytesAhead && writing_.size() < kMaxChunksAhead;)
      more = make_chunk();
    // One system call writes what is left of all chunks: of each the rest of its header, then the
    // part of the message that it carries. A message is `head` followed by `body`; `begin` and
    // `end` are positions in it.
    if (writing_.empty()) return true;
    iovec parts[3 * kMaxChunksAhead];
    std::size_t count = 0;
    std::size_t wanted = 0;
    for (const Chunk& chunk : writing_) {
      const std::size_t header_left =
          chunk.header.size() - std::min(chunk.sent, chunk.header.size());
      const std::size_t begin = chunk.begin + (chunk.sent + header_left - chunk.header.size());
      const std::size_t end = chunk.begin + chunk.bytes;
      const Message& m = *chunk.message;
      for (const iovec part :
           {iovec{const_cast<std::byte*>(chunk.header.data()) + chunk.header.size() - header_left,
                  header_left},
            part_in(m.head, 0, begin, end), part_in(m.body, m.head.size(), begin, end)}) {
        if (part.iov_len == 0) continue;
        parts[count++] = part;
        wanted += part.iov_len;
      }
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN) return false;
      if (errno == EINTR) continue;
      throw system_error(ErrorKind::kPeerLost, "send", "the connection broke");
    }
    wrote(static_cast<std::size_t>(n));
    // After a short write the kernel's buffer is full, and another call would only say so.
    if (static_cast<std::size_t>(n) < wanted) return false;
  }
}

void Link::finish_sending() { ::shutdown(fd(), SHUT_WR); }

void Link::wrote(std::size_t bytes) {
  bytes_sent_ += bytes;
  while (!writing_.empty()) {
    Chunk& chunk = writing_.front();
    const std::size_t n = std::min(bytes, chunk.header.size() + chunk.bytes - chunk.sent);
    chunk.sent += n;
    bytes -= n;
    if (chunk.sent < chunk.header.size() + chunk.bytes) return;
    writing_bytes_ -= chunk.bytes;
    // The kernel has copied the last byte, so the memory is not read again.
    if (chunk.last) release(*chunk.message);
    writing_.pop_front();
  }
}

void Link::release(Message& message) {
  if (!message.released) return;
  // The sender may overwrite or free the memory from here on; it loads the flag with acquire.
  message.released->store(true, std::memory_order_release);
  message.released.reset();
  ++releases_;
}

void Link::copy_body(Message& message) {
  if (!message.released) return;
  // Chunks in `writing_` refer to the message and not to its memory: one that is partly written
  // goes on from the copy.
  message.own_body.assign(message.body.begin(), message.body.end());
  message.body = message.own_body;
  release(message);
}

void Link::adopt(Stream stream) {
  if (const auto entry = queues_.find(stream); entry != queues_.end())
    for (auto& message : entry->second.messages) copy_body(*message);
  for (Chunk& chunk : writing_)
    if (chunk.stream == stream) copy_body(*chunk.message);
}

// The rest of the message is not sent any more: the chunk becomes a message of its own.
void Link::keep_chunk_alone(Chunk& chunk) {
  Message& whole = *chunk.message;
  auto alone = std::make_shared<Message>();
  alone->head.reserve(chunk.bytes);
  for (const iovec part :
       {part_in(whole.head, 0, chunk.begin, chunk.begin + chunk.bytes),
        part_in(whole.body, whole.head.size(), chunk.begin, chunk.begin + chunk.bytes)}) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    alone->head.insert(alone->head.end(), bytes, bytes + part.iov_len);
  }
  release(whole);
  chunk.message = std::move(alone);
  chunk.begin = 0;
}

void Link::drop_all() {
  std::erase_if(writing_, [&](Chunk& chunk) {
    if (chunk.stream.group == 0) return false;
    if (chunk.sent > 0) {
      keep_chunk_alone(chunk);
      return false;
    }
    writing_bytes_ -= chunk.bytes;
    release(*chunk.message);
    return true;
  });
  std::erase_if(queues_, [&](auto& entry) {
    if (entry.first.group == 0) return false;
    for (auto& message : entry.second.messages) release(*message);
    return true;
  });
  const auto dropped = [](Stream stream) { return stream.group != 0; };
  for (Turns& line : lines_) line.erase_if(dropped);
  // Messages of group 0 have one chunk, so none of them is begun.
  begun_ = 0;
}

void Link::abandon() {
  writing_.clear();
  writing_bytes_ = 0;
  queues_.clear();
  for (Turns& line : lines_) line.erase_if([](Stream) { return true; });
  begun_ = 0;
}

bool Link::idle(Stream stream) const {
  return !queues_.contains(stream) &&
         std::none_of(writing_.begin(), writing_.end(),
                      [&](const Chunk& chunk) { return chunk.stream == stream; });
}

// One system call reads the rest of what is being received straight to where it belongs, and what
// follows into the buffer: within a chunk that is the next header at most, between chunks whatever
// small messages come together.
bool Link::receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took) {
  buffer_.resize(kBuffer);
  const auto first = assembler_.wanted();
  iovec parts[2] = {
      {first.data(), first.size()},
      {buffer_.data(), assembler_.within_chunk() ? Assembler::kHeaderBytes : buffer_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t n = recvmsg(fd(), &message, MSG_DONTWAIT);
  if (n == 0) return false;
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return true;
    throw system_error(ErrorKind::kPeerLost, "receive", "the connection broke");
  }
  const auto bytes = static_cast<std::size_t>(n);
  const auto direct = std::min(bytes, first.size());
  bytes_received_ += bytes;
  took(direct, std::span(buffer_).first(bytes - direct));
  return true;
}

bool Link::receive(ChunkSink& sink) {
  return receive_some([&](std::size_t direct, std::span<const std::byte> more) {
    assembler_.took(direct, sink);
    assembler_.feed(more, sink);
  });
}

bool Link::receive(const std::function<void(Stream, Bytes)>& message) {
  // The bound lets other connections have their turn while a peer sends without pause.
  for (int turn = 0; turn < 64; ++turn) {
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
