#include "shoal/wire/inbox.h"

#include <algorithm>
#include <cstring>

namespace shoal::wire {

std::byte* Inbox::place(Stream stream, std::uint64_t total, std::uint64_t offset) {
  if (posted_.empty()) return nullptr;
  const auto entry = posted_.find(stream);
  if (entry == posted_.end()) return nullptr;
  if (total == entry->second->bytes) return entry->second->data + offset;
  // Another message than was posted for: the operation learns its size and takes its chunks.
  entry->second->actual = total;
  posted_.erase(entry);
  return nullptr;
}

void Inbox::arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) {
  if (!asked_.empty()) {
    // When nothing is left of what was asked for, the next look that finds nothing asks again.
    const auto asked = asked_.find(stream);
    if (asked != asked_.end()) {
      asked->second -= std::min(asked->second, window_cost(bytes));
      if (asked->second == 0) asked_.erase(asked);
    }
  }
  const auto posted = posted_.find(stream);
  if (posted == posted_.end()) return put(stream, std::move(chunk));
  // A chunk with memory of its own began to arrive before the receive was posted; the bytes of any
  // other are in place already, and `place` has compared the sizes.
  PostedReceive& to = *posted->second;
  if (chunk.data() && chunk.total() != to.bytes) {
    to.actual = chunk.total();
    posted_.erase(posted);
    return put(stream, std::move(chunk));
  }
  if (chunk.data()) std::memcpy(to.data + chunk.offset(), chunk.data(), bytes);
  const bool complete = chunk.offset() + bytes == to.bytes;
  // Stored after the bytes: the operation reads `arrived` without the lock.
  to.arrived.store(chunk.offset() + bytes, std::memory_order_release);
  if (complete) posted_.erase(posted);
}

void Inbox::put(Stream stream, ReceivedChunk chunk) {
  bytes_ += window_cost(chunk.bytes());
  arrived_.try_emplace(stream).first->second.chunks.push_back(std::move(chunk));
  pause_if_full();
}

void Inbox::hold(std::uint64_t bytes) {
  held_ = bytes;
  pause_if_full();
  resume_if_free();
}

void Inbox::pause_if_full() {
  if (paused_ || bytes() <= window_) return;
  paused_ = true;
  messages_.push_back({.what = FlowMessage::kPause});
  for (const auto& [posted_stream, receive] : posted_) ask_for_rest(posted_stream, *receive);
}

std::optional<ReceivedChunk> Inbox::take(Stream stream) {
  const auto entry = arrived_.find(stream);
  if (entry == arrived_.end()) {
    ask_for(stream, kAskedBytes);
    return std::nullopt;
  }
  auto& chunks = entry->second.chunks;
  ReceivedChunk chunk = std::move(chunks.front());
  chunks.pop_front();
  if (chunks.empty()) arrived_.erase(entry);
  took(chunk);
  return chunk;
}

bool Inbox::contains(Stream stream) {
  if (arrived_.contains(stream)) return true;
  ask_for(stream, kAskedBytes);
  return false;
}

// Chunks of the message that came before the receive was posted wait here.
void Inbox::post(Stream stream, std::shared_ptr<PostedReceive> receive) {
  if (const auto entry = arrived_.find(stream); entry != arrived_.end()) {
    auto& chunks = entry->second.chunks;
    while (!chunks.empty() && receive->arrived < receive->bytes) {
      const ReceivedChunk& chunk = chunks.front();
      if (chunk.total() != receive->bytes) {
        receive->actual = chunk.total();
        return;
      }
      std::memcpy(receive->data + chunk.offset(), chunk.data(), chunk.bytes());
      receive->arrived = chunk.offset() + chunk.bytes();
      took(chunk);
      chunks.pop_front();
    }
    if (chunks.empty()) arrived_.erase(entry);
  }
  if (receive->arrived == receive->bytes) return;
  ask_for_rest(stream, *receive);
  posted_[stream] = std::move(receive);
}

void Inbox::ask_for(Stream stream, std::uint64_t bytes) {
  if (!paused_) return;
  std::uint64_t& asked = asked_[stream];
  // Whoever only looks for the next chunk waits for what was asked for before.
  const bool enough = asked >= bytes || (asked > 0 && bytes == kAskedBytes);
  if (enough) return;
  messages_.push_back({.what = FlowMessage::kAsk, .stream = stream, .bytes = bytes - asked});
  asked = bytes;
}

// What lands in a receive does not wait here, so all of it may come.
void Inbox::ask_for_rest(Stream stream, const PostedReceive& receive) {
  const std::uint64_t left = receive.bytes - receive.arrived;
  const std::uint64_t chunks = left / Assembler::kChunkBytes + 1;
  ask_for(stream, left + chunks * Assembler::kHeaderBytes);
}

void Inbox::took(const ReceivedChunk& chunk) {
  bytes_ -= window_cost(chunk.bytes());
  resume_if_free();
}

void Inbox::resume_if_free() {
  if (!paused_ || bytes() > window_ / 2) return;
  paused_ = false;
  asked_.clear();
  messages_.push_back({.what = FlowMessage::kResume});
}

}  // namespace shoal::wire
