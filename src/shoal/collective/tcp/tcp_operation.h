#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/codec/coded_exchange.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/tcp/tcp_call.h"
#include "shoal/collective/work_vector.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// The members of a TcpCommunicator and its connections: shared by its operations.
struct TcpMembers {
  std::shared_ptr<wire::Transport> peers;
  std::vector<int> ranks;  ///< rank here -> rank in the world
  int rank = 0;
  /// Those beside this one in a ring. Each rank tells the next one what it calls.
  int next = 0;
  int previous = 0;
  std::vector<int> hosts;  ///< the host of each rank; empty: unknown
  /// Bytes that this rank has sent to ranks of other hosts, headers of messages and chunks
  /// included.
  std::uint64_t bytes_between_hosts = 0;
  /// Bytes that operations have taken from the transport and keep until those of other ranks, with
  /// which they are folded, have come. Beyond `most_held_bytes` the first operation alone takes
  /// more, a chunk of each sender, so that it goes on.
  std::uint64_t held_bytes = 0;
  std::uint64_t most_held_bytes = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

/// One operation of one rank in flight over TCP: it executes the rank's column of a step table and
/// resumes whenever a message has arrived.
///
/// Every message says which call it belongs to. Up to kInlineBytes travel in one message behind the
/// call. A larger payload follows as a message of its own: it is received into the work vector, or
/// folded into it chunk by chunk as it arrives. Payloads are sent from where they lie; no step
/// writes to a range that is still being sent. With a codec the steps move bytes of a CodedExchange
/// instead of elements, and its kFold adds up what has arrived.
class TcpOperation {
 public:
  static constexpr std::size_t kInlineBytes = 64 << 10;
  /// `in_flight`: the list of all operations in flight, this one among them. `coded`: the steps go
  /// over its bytes; null without a codec.
  TcpOperation(TcpMembers& members, const std::list<TcpOperation>& in_flight, Handle handle,
               const Operation& operation, Algorithm algorithm, wire::Stream stream,
               std::shared_ptr<const std::vector<Step>> steps,
               std::unique_ptr<CodedExchange> coded = nullptr);
  ~TcpOperation();
  TcpOperation(const TcpOperation&) = delete;
  TcpOperation& operator=(const TcpOperation&) = delete;

  /// Executes steps until one has to wait. Returns true when all are done. Throws Error(mismatch).
  bool advance();
  /// Returns the rank whose message is awaited; -1: any rank.
  int awaited() const;
  Handle handle() const { return handle_; }
  Kind kind() const { return operation_.kind; }
  wire::Stream stream() const { return stream_; }
  const TcpCall& call() const { return call_; }
  std::string text() const { return call_.text(); }
  /// Returns true for a receive that has not found its message yet and would take one from `peer`.
  bool wants_message_from(int peer) const;
  bool receives_from_any() const {
    return operation_.kind == Kind::kReceive && operation_.peer < 0;
  }
  /// Returns the rank whose message a complete receive took.
  int source() const { return source_; }
  /// Errors name ranks as the world counts them.
  Error error(ErrorKind kind, std::string what) const;

  Clock::time_point give_up;

 private:
  /// A message that a receive step waits for.
  struct Arrival {
    int peer;
    Range range;
    /// Bytes of the range that have been consumed; where several messages are folded together,
    /// bytes that have arrived.
    std::uint64_t done = 0;
    bool call_arrived = false;
    std::shared_ptr<wire::PostedReceive> posted;
    std::list<wire::ReceivedChunk> chunks;  ///< to be folded with those of others
    bool complete = false;
  };
  struct Sent {
    int peer;
    Range range;
    wire::Released released;
  };

  void announce();
  void send_message(int peer, wire::Stream stream, wire::Bytes head,
                    std::span<const std::byte> body = {}, wire::Released released = nullptr);
  bool check_announcement();
  void send(const Step& step);
  void open_batch();
  bool advance_batch();
  void advance_arrival(Arrival& arrival);
  bool receive_call(Arrival& arrival);
  void receive_in_place(Arrival& arrival);
  void fold_chunks(Arrival& arrival);
  bool folds() const { return batch_end_ != 0 && batch_action_ == Action::kFold; }
  bool may_hold(const Arrival& arrival) const;
  void hold(Arrival& arrival, wire::ReceivedChunk chunk);
  void drop_held(Arrival& arrival);
  void fold_batch();
  void fold_into(Range range, std::size_t from_byte, std::size_t bytes,
                 std::vector<std::pair<int, const std::byte*>>& others);
  bool may_write(Range range);
  bool all_released();
  int sender() const;
  bool may_take_from(int peer) const;
  /// `elements`: how many the message has by this rank's counts.
  void compare(const wire::ReceivedChunk& chunk, int from, std::size_t elements = 0) const;
  std::byte* at(Range range) const;
  std::size_t bytes_of(Range range) const { return range.size() * element_; }
  /// Empty parts of a collective are not sent where all ranks know that they are empty. An empty
  /// message between two ranks is sent, and so is one of an exchange with per-rank counts: the
  /// other rank may expect more.
  bool skips(const Step& step) const {
    return step.range.size() == 0 && !point_to_point(operation_.kind) && call_.per_rank_counts == 0;
  }
  int world_rank(int rank) const { return members_.ranks[static_cast<std::size_t>(rank)]; }
  int previous() const { return members_.previous; }

  TcpMembers& members_;
  /// All operations in flight, in the order of their starts: earlier receives choose their messages
  /// first, and earlier folds keep theirs.
  const std::list<TcpOperation>& in_flight_;
  Handle handle_;
  Operation operation_;
  TcpCall call_;
  wire::Stream stream_;
  std::shared_ptr<const std::vector<Step>> steps_;
  std::size_t element_;
  std::unique_ptr<CodedExchange> coded_;
  WorkVector work_;        ///< not used where the steps are those of `coded_`
  std::size_t at_ = 0;     ///< index of the next step
  int source_ = -1;        ///< the rank whose message a receive took
  bool announced_ = true;  ///< the predecessor's call is known to be the same
  // A batch: consecutive receive steps that wait at the same time.
  std::vector<Arrival> batch_;
  std::size_t batch_end_ = 0;  ///< index of the step behind the batch; 0: no batch is open
  Action batch_action_ = Action::kSend;
  std::size_t folded_ = 0;  ///< bytes that a batch of kHold has folded so far
  std::vector<Sent> sent_;
};

}  // namespace shoal::collective
