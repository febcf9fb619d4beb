// Links whose rails are lost and connected again at random, the first of them too, in the middle of
// pieces and messages, against what was sent: every message once, in order, with its bytes, and
// memory that is released only when it is not read any more.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/link.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::replaced_rails_test {
namespace {

using State = RailAccount::State;

/// Byte `at` of message `number` of a stream.
std::byte value(std::uint64_t stream, std::size_t number, std::size_t at) {
  return static_cast<std::byte>((stream * 31 + number * 7 + at * 3 + (at >> 16)) & 0xff);
}

/// Takes messages, those of every other stream in memory of its own, and compares them.
class Comparing final : public ChunkSink {
 public:
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    if (stream.sequence % 2 == 0) return nullptr;
    Bytes& memory = memory_[stream];
    memory.resize(total);
    return memory.data() + offset;
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (stream == FirstRailAccount::kReports)
      return reported(*RailReport::decode({chunk.data(), bytes}));
    const std::size_t number = messages_[stream];
    const std::byte* from = chunk.data() ? chunk.data() : memory_[stream].data() + chunk.offset();
    for (std::size_t i = 0; i < bytes; i += i + 64 < bytes ? 61 : 1)
      wrong += from[i] != value(stream.sequence, number, chunk.offset() + i);
    wrong += chunk.offset() != next_[stream];
    next_[stream] = chunk.offset() + bytes;
    if (next_[stream] < chunk.total()) return;
    next_[stream] = 0;
    ++messages_[stream];
    ++complete;
  }
  std::size_t wrong = 0;
  std::size_t complete = 0;
  std::function<void(const RailReport&)> reported;  ///< of rail 0

 private:
  std::map<Stream, Bytes> memory_;
  std::map<Stream, std::uint64_t> next_;
  std::map<Stream, std::size_t> messages_;
};

/// One end, with what its peer has said of rails other than the first and it has not read yet.
struct End {
  Link link;
  Comparing sink = {};
  std::deque<RailReport> heard = {};
};

/// Messages whose memory is overwritten once it is released.
struct Sent {
  std::deque<Bytes> bodies;
  std::vector<Released> released;
  std::vector<bool> overwritten;
  void overwrite_released() {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      if (!*released[i] || overwritten[i]) continue;
      bodies[i].assign(bodies[i].size(), std::byte{0xee});
      overwritten[i] = true;
    }
  }
};

class Pair {
 public:
  explicit Pair(unsigned seed) : random_(seed), rails_(2 + static_cast<int>(below(4))) {
    auto [left, right] = socket_pair();
    for (Descriptor* end : {&left, &right})
      ends_.push_back(std::make_unique<End>(End{Link(std::move(*end), 1 << 30, nullptr, rails_)}));
    for (int rail = 1; rail < rails_; ++rail) connect(rail);
    for (End* end : {&a(), &b()}) {
      end->sink.reported = [end](const RailReport& report) { end->link.obey(report); };
      send(*end);
    }
  }

  void run() {
    const Deadline end = soon();
    while (!done() && !end.passed()) {
      End& one = *ends_[below(2)];
      const int rail = static_cast<int>(below(static_cast<std::size_t>(rails_)));
      switch (below(6)) {
        case 0:
          hear(one);
          break;
        case 1:
          if (losses_[rail > 0] < 40 && one.link.has_rail(rail) && below(4) == 0) {
            lose(one, rail);
            ++losses_[rail > 0];
          }
          break;
        case 2:
          // The other end need not know yet that its connection is broken.
          if (rail == 0 && !(a().link.has_rail(0) && b().link.has_rail(0))) connect_first();
          if (rail > 0 && is_closed(a(), rail) && is_closed(b(), rail)) connect(rail);
          break;
        default:
          move(one, rail);
      }
      sent_.overwrite_released();
    }
  }
  bool done() { return all_complete() && a().link.idle() && b().link.idle(); }
  bool all_complete() {
    return a().sink.complete == messages_ / 2 && b().sink.complete == messages_ / 2;
  }
  void check() {
    EXPECT_TRUE(done());
    EXPECT_EQ(a().sink.wrong + b().sink.wrong, 0u);
    EXPECT_GT(losses_[0], 0);
    EXPECT_GT(losses_[1], 0);
    for (const auto& released : sent_.released) EXPECT_TRUE(*released);
    EXPECT_TRUE(a().link.complete() && b().link.complete());
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_()) % n; }
  End& a() { return *ends_[0]; }
  End& b() { return *ends_[1]; }
  End& other(const End& one) { return &one == &a() ? b() : a(); }
  static bool is_closed(End& end, int rail) {
    return !end.link.has_rail(rail) && end.link.account(rail).state() == State::kClosed;
  }
  void connect(int rail) {
    auto [left, right] = socket_pair();
    a().link.add_rail(rail, std::move(left));
    b().link.add_rail(rail, std::move(right));
  }
  void connect_first() {
    auto [left, right] = socket_pair();
    ++number_;
    Descriptor* sockets[] = {&left, &right};
    for (std::size_t i = 0; i < 2; ++i) {
      Link& link = ends_[i]->link;
      if (link.has_rail(0)) link.lose_first_rail();
      link.add_first_rail(std::make_unique<PlainChannel>(std::move(*sockets[i])), number_);
    }
  }
  void send(End& end) {
    for (std::uint64_t stream = 1; stream <= 3; ++stream) {
      for (std::size_t number = 0; number < 8; ++number) {
        const std::size_t sizes[] = {0, 40, 3000, 16'384, 20'000, 70'000, 300'000, 900'000};
        Bytes& body = sent_.bodies.emplace_back(sizes[below(std::size(sizes))]);
        for (std::size_t i = 0; i < body.size(); ++i) body[i] = value(stream, number, i);
        sent_.released.push_back(std::make_shared<std::atomic<bool>>(false));
        sent_.overwritten.push_back(false);
        end.link.send({1, stream}, static_cast<int>(below(3)), {}, body, sent_.released.back());
        ++messages_;
      }
    }
  }
  void lose(End& one, int rail) {
    if (rail == 0) return one.link.lose_first_rail();
    other(one).heard.push_back(one.link.lose_rail(rail));
  }
  /// Reads the next word of the peer, as rail 0 keeps them in order.
  void hear(End& one) {
    if (one.heard.empty()) return;
    const RailReport report = one.heard.front();
    one.heard.pop_front();
    ASSERT_EQ(report.connection, one.link.account(report.rail).connection());
    if (report.closed != 0 && one.link.has_rail(report.rail)) lose(one, report.rail);
    one.link.obey(report);
  }
  void move(End& one, int rail) {
    if (!one.link.has_rail(rail)) return;
    one.link.writable(rail);
    one.link.flush();
    bool open = false;
    try {
      open = one.link.receive(rail, one.sink);
    } catch (const Error&) {  // what the other end has not read resets a connection
    }
    if (!open) return lose(one, rail);
    if (rail == 0) {
      const auto report = one.link.report_first_rail(below(3) == 0);
      if (report) one.link.send(FirstRailAccount::kReports, 9, report->encode());
      return;
    }
    if (const auto report = one.link.report(rail)) other(one).heard.push_back(*report);
  }

  std::mt19937 random_;
  int rails_;
  std::vector<std::unique_ptr<End>> ends_;
  Sent sent_;
  std::size_t messages_ = 0;
  int losses_[2] = {};  ///< of rail 0, and of the others
  std::uint8_t number_ = 0;
};

TEST(ReplacedRails, WhateverIsLostEveryMessageArrivesOnceWithItsBytes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Pair pair(seed);
    pair.run();
    pair.check();
  }
}

}  // namespace
}  // namespace shoal::wire::replaced_rails_test
