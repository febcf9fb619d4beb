#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Connections among thousands of ranks that all live in one thread: what is sent is there at once.
/// A rank takes memory for what waits for it, and none for each of the others.
class QuickNetwork {
 public:
  explicit QuickNetwork(int ranks)
      : pool_(std::make_shared<wire::ChunkPool>(wire::Assembler::kChunkBytes)) {
    for (int rank = 0; rank < ranks; ++rank) ends_.push_back(std::make_shared<End>(*this, rank));
  }
  std::shared_ptr<wire::Transport> end(int rank) { return ends_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ends_.size()); }
  std::uint64_t messages() const { return messages_; }

 private:
  class End final : public wire::Transport {
   public:
    End(QuickNetwork& network, int rank) : network_(network), rank_(rank) {}

    int rank() const override { return rank_; }
    int size() const override { return network_.size(); }
    bool send(int peer, wire::Stream stream, int, wire::Bytes head, std::span<const std::byte> body,
              wire::Released released) override {
      ++network_.messages_;
      head.insert(head.end(), body.begin(), body.end());
      network_.ends_[static_cast<std::size_t>(peer)]->put(rank_, stream, head);
      if (released) *released = true;
      ++events_;
      return true;
    }
    void flush() override {}
    std::optional<wire::ReceivedChunk> take(int peer, wire::Stream stream) override {
      const auto found = pieces_.find({peer, stream});
      if (found == pieces_.end()) return std::nullopt;
      wire::ReceivedChunk piece = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) pieces_.erase(found);
      return piece;
    }
    bool has_arrived(int peer, wire::Stream stream) override {
      return pieces_.contains({peer, stream});
    }
    /// Where another message than is waited for has come, `take` gets it.
    void post_receive(int peer, wire::Stream stream,
                      std::shared_ptr<wire::PostedReceive> receive) override {
      posted_[{peer, stream}] = receive;
      while (posted_.contains({peer, stream}) && has_arrived(peer, stream)) {
        if (pieces_.at({peer, stream}).front().total() != receive->bytes) {
          receive->actual = pieces_.at({peer, stream}).front().total();
          posted_.erase({peer, stream});
          return;
        }
        land({peer, stream}, *take(peer, stream));
      }
    }
    void release_buffers(wire::Stream) override {}
    std::uint64_t bytes_sent(int) const override { return 0; }
    bool gone(int) const override { return false; }
    void check() const override {
      if (failure_) throw Error(*failure_);
    }
    void abort(const Error& cause) override {
      for (const auto& end : network_.ends_)
        if (!end->failure_) end->failure_ = cause;
    }
    std::uint64_t events() const override { return events_; }
    void wait_for_event(std::uint64_t, Duration) override {}
    void answer_for(std::uint64_t, std::function<wire::Bytes()>) override {}
    std::vector<std::optional<wire::Bytes>> ask(std::uint64_t, Duration) override {
      return std::vector<std::optional<wire::Bytes>>(static_cast<std::size_t>(size()));
    }

   private:
    using From = std::pair<int, wire::Stream>;

    void put(int peer, wire::Stream stream, const wire::Bytes& message) {
      std::size_t at = 0;
      do {
        const std::size_t bytes = std::min(message.size() - at, wire::Assembler::kChunkBytes);
        wire::ReceivedChunk piece(network_.pool_, message.size(), at, bytes);
        if (bytes > 0) std::memcpy(piece.data(), message.data() + at, bytes);
        at += bytes;
        land({peer, stream}, std::move(piece));
      } while (at < message.size());
      ++events_;
    }
    void land(const From& from, wire::ReceivedChunk piece) {
      const auto posted = posted_.find(from);
      if (posted == posted_.end()) {
        pieces_[from].push_back(std::move(piece));
        return;
      }
      wire::PostedReceive& to = *posted->second;
      if (piece.total() != to.bytes) {
        to.actual = piece.total();
        posted_.erase(posted);
        pieces_[from].push_back(std::move(piece));
        return;
      }
      std::memcpy(to.data + piece.offset(), piece.data(), piece.bytes());
      to.arrived = piece.offset() + piece.bytes();
      if (to.arrived == to.bytes) posted_.erase(posted);
    }

    QuickNetwork& network_;
    const int rank_;
    std::map<From, std::deque<wire::ReceivedChunk>> pieces_;
    std::map<From, std::shared_ptr<wire::PostedReceive>> posted_;
    std::optional<Error> failure_;
    std::uint64_t events_ = 0;
  };

  std::vector<std::shared_ptr<End>> ends_;
  std::shared_ptr<wire::ChunkPool> pool_;
  std::uint64_t messages_ = 0;
};

}  // namespace shoal::collective
