#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::wire {

/// Guesses the connection on which the next bytes come: of two ranks that of the other one, in a
/// ring that of the one before. To read there takes one system call, and to ask about all
/// connections first takes two. Yet all are asked at every fourth look, whoever speaks and however
/// many waits the looks are made in: nobody is kept waiting by one who speaks all the time.
class NextSpeaker {
 public:
  static constexpr int kNobody = -1;
  /// A peer that has spoken so often in a row is likely to be the next.
  static constexpr int kHeardInARow = 4;
  static constexpr unsigned kLooksOfWhichOneAsks = 4;
  /// Within a large message the next bytes are better read when more of them are there: to look
  /// before holds up the kernel, which puts them into the same socket.
  static constexpr std::uint64_t kFewBytes = 32 << 10;

  /// So many bytes have come from `peer`, and end `within` a chunk or with it.
  void heard(int peer, std::uint64_t bytes, bool within) {
    if (bytes > kFewBytes || within) {
      forget();
      return;
    }
    in_a_row_ = last_ == peer ? std::min(in_a_row_ + 1, kHeardInARow) : 1;
    last_ = peer;
  }
  void forget() {
    last_ = kNobody;
    in_a_row_ = 0;
  }
  /// For a look: the peer to read from, or kNobody where all are to be asked.
  int next() {
    const bool asks = ++looks_ % kLooksOfWhichOneAsks == 0;
    return asks || in_a_row_ < kHeardInARow ? kNobody : last_;
  }

 private:
  int last_ = kNobody;  ///< from whom bytes have come last
  int in_a_row_ = 0;    ///< times that few have come, from there alone
  unsigned looks_ = 0;
};

}  // namespace shoal::wire
