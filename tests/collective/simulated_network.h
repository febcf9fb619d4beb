#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Connections among ranks that all live in one thread: nothing moves but by `step`, which does one
/// thing that a network may do next, chosen by a seed. Chunks of different streams take turns as
/// they like, a sender's memory is read as late as it likes, links stand still as long as they
/// like; those of one stream keep their order. What fails is told to the others by messages, which
/// take their time too.
class SimulatedNetwork {
 public:
  static constexpr std::size_t kChunk =
      (64 << 10) + 64;  ///< a call and 64 KiB, the least that a communicator needs

  SimulatedNetwork(int ranks, std::uint64_t seed)
      : random_(seed),
        links_(static_cast<std::size_t>(ranks * ranks)),
        pool_(std::make_shared<wire::ChunkPool>(kChunk)) {
    for (int r = 0; r < ranks; ++r) ends_.push_back(std::make_shared<End>(*this, r, ranks));
  }

  std::shared_ptr<wire::Transport> end(int rank) { return ends_[static_cast<std::size_t>(rank)]; }
  std::mt19937_64& random() { return random_; }

  /// False when there is nothing to do.
  bool step() {
    std::vector<std::pair<int, int>> ready;
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        if (const Link& l = link(from, to);
            !l.stands && (!l.queued.empty() || !l.under_way.empty()))
          ready.emplace_back(from, to);
      }
    }
    if (ready.empty()) return false;
    const auto [from, to] = ready[random_() % ready.size()];
    Link& l = link(from, to);
    if (!l.queued.empty() && (l.under_way.empty() || random_() % 2 == 0)) {
      cut(l);
    } else {
      deliver(from, to);
    }
    return true;
  }

  /// The link carries nothing, in either direction, until it is mended.
  void stand_still(int a, int b, bool stands) { link(a, b).stands = link(b, a).stands = stands; }
  /// `rank` has noticed the loss of `peer`.
  void notice(int rank, int peer) {
    end_of(rank).fail(Error(ErrorKind::kPeerLost, "peers", "it says nothing any more")
                          .at(rank, size())
                          .from(peer),
                      true);
  }
  /// Chunks from `rank` are changed from now on, one in `every`.
  void lie(int rank, std::uint64_t every) { liar_ = rank, every_ = every; }
  /// The next part of a message arrives at `to` as if `from` had sent it. Parts of a stream come in
  /// order.
  void inject(int from, int to, wire::Stream stream, std::span<const std::byte> bytes,
              std::uint64_t total, std::uint64_t offset) {
    wire::ReceivedChunk piece(pool_, total, offset, bytes.size());
    if (!bytes.empty()) std::memcpy(piece.data(), bytes.data(), bytes.size());
    end_of(to).put(from, stream, std::move(piece));
  }
  /// What `rank` has sent and what is on its way to it is lost; its memory is read no more.
  void lose(int rank) {
    for (int r = 0; r < size(); ++r) {
      for (Link* l : {&link(rank, r), &link(r, rank)}) {
        for (Message& m : l->queued)
          if (m.released) *m.released = true;
        l->queued.clear(), l->under_way.clear(), l->stands = true;
      }
      end_of(r).happened();
    }
  }

 private:
  struct Message {
    wire::Stream stream;
    wire::Bytes head;
    std::span<const std::byte> body;
    wire::Bytes own;  ///< of the body, once nobody vouches for its memory
    wire::Released released;
    std::size_t at = 0;
    std::size_t bytes() const { return head.size() + body.size(); }
  };
  struct Chunk {
    wire::Stream stream;
    wire::Bytes bytes;
    std::uint64_t total, offset;
  };
  struct Link {
    std::list<Message> queued;
    std::deque<Chunk> under_way;
    bool stands = false;
  };

  class End final : public wire::Transport {
   public:
    End(SimulatedNetwork& network, int rank, int size)
        : network_(network),
          rank_(rank),
          size_(size),
          inbox_(static_cast<std::size_t>(size)),
          sent_(static_cast<std::size_t>(size)) {}

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    bool send(int peer, wire::Stream stream, int, wire::Bytes head, std::span<const std::byte> body,
              wire::Released released) override {
      if (failure_ && released) *released = true;
      sent_[static_cast<std::size_t>(peer)] += head.size() + body.size();
      if (!failure_) {
        network_.link(rank_, peer)
            .queued.push_back({stream, std::move(head), body, {}, std::move(released), 0});
      }
      return true;
    }
    void flush() override {}
    std::optional<wire::ReceivedChunk> take(int peer, wire::Stream stream) override {
      auto& streams = inbox_.at(static_cast<std::size_t>(peer)).pieces;
      const auto found = streams.find(stream);
      if (found == streams.end()) return std::nullopt;
      wire::ReceivedChunk piece = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) streams.erase(found);
      return piece;
    }
    bool has_arrived(int peer, wire::Stream stream) override {
      return inbox_.at(static_cast<std::size_t>(peer)).pieces.contains(stream);
    }
    void post_receive(int peer, wire::Stream stream,
                      std::shared_ptr<wire::PostedReceive> receive) override {
      auto& from = inbox_.at(static_cast<std::size_t>(peer));
      from.posted[stream] = receive;
      for (auto found = from.pieces.find(stream);
           found != from.pieces.end() && from.posted.contains(stream);
           found = from.pieces.find(stream)) {
        if (found->second.front().total() != receive->bytes) {
          receive->actual = found->second.front().total();
          from.posted.erase(stream);
          return;
        }
        auto piece = take(peer, stream);
        put(peer, stream, std::move(*piece));
      }
    }
    void release_buffers(wire::Stream stream) override {
      for (int r = 0; r < size_; ++r) {
        inbox_[static_cast<std::size_t>(r)].posted.erase(stream);
        for (Message& m : network_.link(rank_, r).queued) {
          if (m.stream == stream && m.released) {
            m.own.assign(m.body.begin(), m.body.end());
            m.body = m.own;
            *m.released = true;
          }
        }
      }
    }
    std::uint64_t bytes_sent(int peer) const override {
      return sent_[static_cast<std::size_t>(peer)];
    }
    bool gone(int) const override { return false; }
    void check() const override {
      if (failure_) throw Error(*failure_);
    }
    void abort(const Error& cause) override { fail(cause, true); }
    std::uint64_t events() const override { return events_; }
    void wait_for_event(std::uint64_t, Duration) override {}
    void answer_for(std::uint64_t group, std::function<wire::Bytes()> say) override {
      answers_[group] = std::move(say);
    }
    std::vector<std::optional<wire::Bytes>> ask(std::uint64_t group, Duration) override {
      std::vector<std::optional<wire::Bytes>> said(static_cast<std::size_t>(size_));
      for (int r = 0; r < size_; ++r) {
        if (const auto& answer = network_.end_of(r).answers_[group]; r != rank_ && answer)
          said[static_cast<std::size_t>(r)] = answer();
      }
      return said;
    }

    void happened() { ++events_; }
    void put(int peer, wire::Stream stream, wire::ReceivedChunk piece) {
      auto& from = inbox_[static_cast<std::size_t>(peer)];
      happened();
      const auto posted = from.posted.find(stream);
      if (posted == from.posted.end()) {
        from.pieces[stream].push_back(std::move(piece));
        return;
      }
      wire::PostedReceive& to = *posted->second;
      if (piece.total() != to.bytes) {  // another message than is waited for
        to.actual = piece.total();
        from.pieces[stream].push_back(std::move(piece));
        from.posted.erase(posted);
        return;
      }
      std::memcpy(to.data + piece.offset(), piece.data(), piece.bytes());
      to.arrived = piece.offset() + piece.bytes();
      if (to.arrived == to.bytes) from.posted.erase(posted);
    }
    /// The first cause wins. Nothing is read or written any more.
    void fail(const Error& cause, bool tell) {
      if (failure_) return;
      failure_ = cause;
      for (auto& from : inbox_) from.posted.clear();
      for (int r = 0; r < size_; ++r) {
        auto& link = network_.link(rank_, r);
        for (Message& m : link.queued)
          if (m.released) *m.released = true;
        link.queued.clear();
        if (tell && r != rank_) {
          link.queued.push_back({{0, 0}, {}, {}, {}, nullptr, 0}),
              network_.causes_.insert_or_assign({rank_, r}, cause);
        }
      }
      happened();
    }

   private:
    friend class SimulatedNetwork;
    struct From {
      std::map<wire::Stream, std::list<wire::ReceivedChunk>> pieces;
      std::map<wire::Stream, std::shared_ptr<wire::PostedReceive>> posted;
    };
    SimulatedNetwork& network_;
    const int rank_, size_;
    std::vector<From> inbox_;
    std::vector<std::uint64_t> sent_;  ///< by peer
    std::map<std::uint64_t, std::function<wire::Bytes()>> answers_;
    std::optional<Error> failure_;
    std::uint64_t events_ = 0;
  };

  int size() const { return static_cast<int>(ends_.size()); }
  End& end_of(int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  Link& link(int from, int to) { return links_[static_cast<std::size_t>(from * size() + to)]; }

  /// The next chunk of some stream's first message leaves its sender.
  void cut(Link& l) {
    std::vector<std::list<Message>::iterator> first;
    for (auto it = l.queued.begin(); it != l.queued.end(); ++it) {
      if (std::none_of(first.begin(), first.end(),
                       [&](const auto& f) { return f->stream == it->stream; }))
        first.push_back(it);
    }
    const auto it = first[random_() % first.size()];
    Message& m = *it;
    const std::size_t end = std::min(m.bytes(), m.at + kChunk);
    Chunk chunk{m.stream, {}, m.bytes(), m.at};
    for (; m.at < std::min(end, m.head.size()); ++m.at) chunk.bytes.push_back(m.head[m.at]);
    if (m.at < end) {
      const auto rest = m.body.subspan(m.at - m.head.size(), end - m.at);
      chunk.bytes.insert(chunk.bytes.end(), rest.begin(), rest.end());
      m.at = end;
    }
    l.under_way.push_back(std::move(chunk));
    if (m.at < m.bytes()) return;
    if (m.released) *m.released = true;
    l.queued.erase(it);
    for (const auto& e : ends_) e->happened();
  }

  void deliver(int from, int to) {
    Link& l = link(from, to);
    Chunk chunk = std::move(l.under_way.front());
    l.under_way.pop_front();
    if (chunk.stream.group == 0) return end_of(to).fail(causes_.at({from, to}), false);
    if (from == liar_ && random_() % every_ == 0) change(chunk);
    wire::ReceivedChunk piece(pool_, chunk.total, chunk.offset, chunk.bytes.size());
    if (!chunk.bytes.empty()) std::memcpy(piece.data(), chunk.bytes.data(), chunk.bytes.size());
    end_of(to).put(from, chunk.stream, std::move(piece));
  }

  /// What an Assembler lets pass: any bytes, and any whole message under any stream.
  void change(Chunk& chunk) {
    const bool whole = chunk.total == chunk.bytes.size();
    switch (whole ? random_() % 4 : 0) {
      case 0:
        if (!chunk.bytes.empty()) {
          chunk.bytes[random_() % std::min<std::size_t>(chunk.bytes.size(), 40)] =
              static_cast<std::byte>(random_());
        }
        return;
      case 1:
        chunk.bytes.resize(random_() % 200);
        chunk.total = chunk.bytes.size();
        return;
      case 2:
        chunk.stream.sequence = random_() % 3 == 0 ? random_() : chunk.stream.sequence ^ 1;
        return;
      default:
        chunk.stream.group = random_() % 4 + 1;
    }
  }

  std::mt19937_64 random_;
  std::vector<Link> links_;
  std::vector<std::shared_ptr<End>> ends_;
  std::shared_ptr<wire::ChunkPool> pool_;
  std::map<std::pair<int, int>, Error> causes_;
  int liar_ = -1;
  std::uint64_t every_ = 1;
};

}  // namespace shoal::collective
