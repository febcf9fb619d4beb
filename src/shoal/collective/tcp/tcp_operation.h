#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/tcp/tcp_call.h"
#include "shoal/collective/work_vector.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Who takes part in a TcpCommunicator, and what it has sent: shared by its operations.
struct TcpMembers {
  std::shared_ptr<wire::Transport> peers;
  std::vector<int> ranks;  ///< rank here -> rank in the world
  int rank = 0;
  std::vector<int> hosts;  ///< of each rank; empty: unknown
  std::uint64_t bytes_between_hosts =
      0;  ///< sent by this rank to ranks of other hosts, headers of messages and chunks included

  int size() const { return static_cast<int>(ranks.size()); }
};

/// One operation of one rank under way over TCP: its column of a step table, taken up again
/// whenever something has arrived.
///
/// A message of up to kTogether bytes is one with its call in front. A larger one follows its call
/// as a message of its own: it lands in the work vector, or is folded into it chunk by chunk as it
/// comes. What is sent is read where it lies, and nothing is written over it before that is over.
class TcpOperation {
 public:
  static constexpr std::size_t kTogether = 64 << 10;
  TcpOperation(TcpMembers& members, Handle handle, const Operation& operation, Algorithm algorithm,
               wire::Stream stream, std::shared_ptr<const std::vector<Step>> steps);
  ~TcpOperation();
  TcpOperation(const TcpOperation&) = delete;
  TcpOperation& operator=(const TcpOperation&) = delete;

  /// Goes as far as it can; true when all is done. Throws Error(mismatch).
  bool advance();
  /// The rank whose message is awaited; -1: that of any.
  int awaited() const;
  Handle handle() const { return handle_; }
  Kind kind() const { return operation_.kind; }
  wire::Stream stream() const { return stream_; }
  const TcpCall& call() const { return call_; }
  std::string text() const { return call_.text(); }
  /// A receive that has not found its message yet and would take one from `peer`.
  bool looks_for(int peer) const;
  bool takes_from_any() const { return operation_.kind == Kind::kReceive && operation_.peer < 0; }
  /// Of a receive that is complete: the rank whose message it took.
  int heard() const { return heard_; }
  /// For a receive: all that is under way, in the order of start. Those before this one have the
  /// first choice among messages.
  void stand_in(const std::list<TcpOperation>& line) { line_ = &line; }
  /// Errors name ranks as the world counts them.
  Error error(ErrorKind kind, std::string what) const;

  Clock::time_point give_up;

 private:
  /// A message that a step waits for.
  struct Arrival {
    int peer;
    Range range;
    std::uint64_t done =
        0;  ///< bytes of the range that have been used, or, to be folded, that are here
    bool named = false;  ///< its call has come
    std::shared_ptr<wire::Landing> landing;
    std::list<wire::Piece> pieces;  ///< to be folded with those of others
    bool complete = false;
  };
  struct Sent {
    int peer;
    Range range;
    wire::Released released;
  };

  void announce();
  void deliver(int peer, wire::Stream stream, wire::Bytes head,
               std::span<const std::byte> body = {}, wire::Released released = nullptr);
  bool hear_announcement();
  void send(const Step& step);
  void open_batch();
  bool advance_batch();
  void advance_arrival(Arrival& arrival);
  bool name_arrival(Arrival& arrival);
  void use_small(Arrival& arrival, const std::byte* data);
  void land(Arrival& arrival);
  void fold_pieces(Arrival& arrival);
  void fold_batch();
  void fold_into(Range range, std::size_t from_byte, std::size_t bytes,
                 std::vector<std::pair<int, const std::byte*>>& others);
  bool may_write(Range range);
  bool all_released();
  int sender() const;
  bool may_take_from(int peer) const;
  void compare(const wire::Piece& piece, int from) const;
  std::byte* at(Range range) const;
  std::size_t bytes_of(Range range) const { return range.size() * element_; }
  /// A part of nothing is not sent; a message of nothing is.
  bool skips(const Step& step) const {
    return step.range.size() == 0 && !point_to_point(operation_.kind);
  }
  int world_rank(int rank) const { return members_.ranks[static_cast<std::size_t>(rank)]; }
  int previous() const { return (members_.rank + members_.size() - 1) % members_.size(); }

  TcpMembers& members_;
  Handle handle_;
  Operation operation_;
  TcpCall call_;
  wire::Stream stream_;
  std::shared_ptr<const std::vector<Step>> steps_;
  std::size_t element_;
  WorkVector work_;
  std::size_t at_ = 0;     ///< the next step
  int heard_ = -1;         ///< whose message a receive took
  bool announced_ = true;  ///< the predecessor's call is known to be the same
  // Receive steps that wait at the same time, and what follows them.
  std::vector<Arrival> batch_;
  std::size_t batch_end_ = 0;  ///< 0: none is open
  Action batch_action_ = Action::kSend;
  std::size_t folded_ = 0;  ///< bytes, of a batch of kHold
  std::vector<Sent> sent_;
  const std::list<TcpOperation>* line_ = nullptr;
};

}  // namespace shoal::collective
