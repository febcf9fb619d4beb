#include "shoal/wire/link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shoal/base/system_error.h"

namespace shoal::wire {
namespace {

constexpr std::uint32_t kMagic = 0x314c4853;  // "SHL1"

struct Header {
  std::uint32_t magic = kMagic, length = 0;
  Stream stream;
  std::uint64_t total = 0;
};
static_assert(sizeof(Header) == Assembler::kHeaderBytes);

}  // namespace

void Assembler::open(std::span<const std::byte> bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto bad = [&](const char* why) {
    throw Error(ErrorKind::kData, "receive",
                fmt::format("a malformed chunk: {}: magic {:#x}, {} of {} bytes", why, header.magic, header.length, header.total));
  };
  if (header.magic != kMagic) bad("not ours");
  if (header.length > kChunkBytes || header.total > most_bytes_) bad("too long");
  if (header.length == 0 && header.total > 0) bad("empty");
  const auto [entry, fresh] = partial_.try_emplace(header.stream);
  Partial& partial = entry->second;
  if (fresh) {
    if (partial_.size() > kMostOpenStreams) bad("too many streams");
    partial.total = header.total;
  }
  if (partial.total != header.total || header.length > partial.total - partial.bytes.size()) bad("more than was announced");
  stream_ = header.stream;
  chunk_left_ = header.length;
}

void Assembler::close_chunk(const std::function<void(Stream, Bytes)>& message) {
  header_.clear();
  const auto entry = partial_.find(stream_);
  if (entry->second.bytes.size() < entry->second.total) return;
  Bytes bytes = std::move(entry->second.bytes);
  partial_.erase(entry);
  message(stream_, std::move(bytes));
}

void Assembler::feed(std::span<const std::byte> bytes, const std::function<void(Stream, Bytes)>& message) {
  while (!bytes.empty()) {
    if (header_.size() < kHeaderBytes) {
      const std::size_t n = std::min(bytes.size(), kHeaderBytes - header_.size());
      header_.insert(header_.end(), bytes.begin(), bytes.begin() + n);
      bytes = bytes.subspan(n);
      if (header_.size() < kHeaderBytes) return;
      open(header_);
    }
    const std::size_t n = std::min(bytes.size(), chunk_left_);
    Bytes& to = partial_[stream_].bytes;
    to.insert(to.end(), bytes.begin(), bytes.begin() + n);
    bytes = bytes.subspan(n);
    chunk_left_ -= n;
    if (chunk_left_ == 0) close_chunk(message);
  }
}

void Link::send(Stream stream, int priority, Bytes message) {
  const auto [entry, fresh] = flows_.try_emplace(stream);
  if (fresh) turns_.push_back(stream);
  entry->second.priority = std::max(entry->second.priority, priority);
  entry->second.messages.push_back(std::move(message));
}

void Link::next_chunk() {
  auto turn = turns_.begin();
  for (auto it = turns_.begin(); it != turns_.end(); ++it)
    if (flows_[*it].priority > flows_[*turn].priority) turn = it;
  chunk_stream_ = *turn;
  turns_.erase(turn);
  const Flow& flow = flows_[chunk_stream_];
  const Header header{.length = static_cast<std::uint32_t>(std::min(flow.messages.front().size() - flow.at, Assembler::kChunkBytes)),
                      .stream = chunk_stream_,
                      .total = flow.messages.front().size()};
  chunk_header_.resize(sizeof header);
  std::memcpy(chunk_header_.data(), &header, sizeof header);
  chunk_length_ = header.length;
  chunk_sent_ = 0;
}

void Link::end_chunk() {
  Flow& flow = flows_[chunk_stream_];
  flow.at += chunk_length_;
  if (flow.at == flow.messages.front().size()) flow.messages.pop_front(), flow.at = 0;
  if (flow.messages.empty())
    flows_.erase(chunk_stream_);
  else
    turns_.push_back(chunk_stream_);
  chunk_header_.clear();
  chunk_sent_ = 0;
}

bool Link::flush() {
  for (;;) {
    if (chunk_header_.empty()) {
      if (turns_.empty()) return true;
      next_chunk();
    }
    const Flow& flow = flows_[chunk_stream_];
    const std::size_t header_sent = std::min(chunk_sent_, chunk_header_.size()), body_sent = chunk_sent_ - header_sent;
    iovec parts[2] = {{chunk_header_.data() + header_sent, chunk_header_.size() - header_sent},
                      {const_cast<std::byte*>(flow.messages.front().data()) + flow.at + body_sent, chunk_length_ - body_sent}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN) return false;
      if (errno == EINTR) continue;
      throw system_error(ErrorKind::kPeerLost, "send", "the connection broke");
    }
    bytes_sent_ += static_cast<std::uint64_t>(n);
    chunk_sent_ += static_cast<std::size_t>(n);
    if (chunk_sent_ == chunk_bytes()) end_chunk();
  }
}

bool Link::receive(const std::function<void(Stream, Bytes)>& message) {
  buffer_.resize(512 << 10);
  for (int turn = 0; turn < 8; ++turn) {
    const ssize_t n = recv(fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EAGAIN) return true;
      if (errno == EINTR) continue;
      throw system_error(ErrorKind::kPeerLost, "receive", "the connection broke");
    }
    bytes_received_ += static_cast<std::uint64_t>(n);
    assembler_.feed(std::span(buffer_).first(static_cast<std::size_t>(n)), message);
    if (static_cast<std::size_t>(n) < buffer_.size()) return true;
  }
  return true;
}

}  // namespace shoal::wire
