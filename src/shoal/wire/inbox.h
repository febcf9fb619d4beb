#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/wire/flow_message.h"
#include "shoal/wire/received_chunk.h"
#include "shoal/wire/stream_map.h"
#include "shoal/wire/transport.h"

namespace shoal::wire {

/// The arrivals from one peer: chunks that nobody has taken yet, and the receives into which
/// messages go where they arrive.
///
/// The chunks that wait are bounded by a window. When they fill it, the peer is told to pause, and
/// then sends only streams for which somebody here waits: posted receives, and streams for which
/// `take` or `contains` have found nothing. So a receive is never stuck behind messages that nobody
/// wants yet. When half of the window is free again, the peer resumes. Beyond the window lies at
/// most what the peer had handed to its kernel before it read the pause.
///
/// Not thread-safe. The owner sends what `flow_messages` returns after every call.
class Inbox {
 public:
  /// The bytes of a stream that are asked for at a time, where the receiver does not know how long
  /// the message is.
  static constexpr std::uint64_t kAskedBytes = 1 << 20;

  explicit Inbox(std::uint64_t window_bytes = std::uint64_t{64} << 20) : window_(window_bytes) {}

  /// As ChunkSink::place: within the posted receive of the stream, if there is one.
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset);
  /// As ChunkSink::arrived.
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes);

  /// Sets how much more of this peer's messages is held elsewhere: it counts against the window.
  void hold(std::uint64_t bytes);

  std::optional<ReceivedChunk> take(Stream stream);
  bool contains(Stream stream);
  /// As Transport::post_receive.
  void post(Stream stream, std::shared_ptr<PostedReceive> receive);
  /// Forgets the posted receive of a stream, or all of them.
  void forget_posted(Stream stream) { posted_.erase(stream); }
  void forget_posted() { posted_.clear(); }

  /// Returns what is to be sent to the peer, in order, and forgets it.
  std::vector<FlowMessage> flow_messages() { return std::exchange(messages_, {}); }
  bool has_flow_messages() const { return !messages_.empty(); }
  /// Returns what waits, as window_cost counts it, with what is held elsewhere.
  std::uint64_t bytes() const { return bytes_ + held_; }

 private:
  struct Arrived {
    std::deque<ReceivedChunk> chunks;
    /// See StreamMap.
    void reset() { chunks.clear(); }
  };
  void put(Stream stream, ReceivedChunk chunk);
  void took(const ReceivedChunk& chunk);
  void pause_if_full();
  void resume_if_free();
  void ask_for(Stream stream, std::uint64_t bytes);
  void ask_for_rest(Stream stream, const PostedReceive& receive);

  std::uint64_t window_;
  std::uint64_t bytes_ = 0;
  std::uint64_t held_ = 0;
  StreamMap<Arrived> arrived_;
  std::map<Stream, std::shared_ptr<PostedReceive>> posted_;
  bool paused_ = false;
  /// While paused: what was asked for and has not arrived. The peer counts the same when it sends,
  /// so what it may still send is never less than this, but for what is on its way.
  std::map<Stream, std::uint64_t> asked_;
  std::vector<FlowMessage> messages_;
};

}  // namespace shoal::wire
