#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "shoal/collective/choice.h"
#include "shoal/collective/communicator.h"
#include "shoal/wire/peers.h"

namespace shoal::collective {

/// Collectives among ranks on any hosts, over TCP: each operation is a rank's column of a step table, taken up again whenever a message has arrived.
///
/// Any number of operations may be in flight, messages are matched by group and sequence number, and those of higher priority overtake. Every message
/// says which call it belongs to, and at the start of an operation each rank tells its successor what it calls: a disagreement is an Error(mismatch)
/// on all ranks that names both calls. What is sent is copied first, so that inputs are free once an operation is complete. All ranks end with the
/// same bits; types narrower than fp32, kAverage and kPremulSum are folded once, in the order of ranks.
class TcpCommunicator final : public Communicator {
 public:
  struct Settings {
    Duration timeout = std::chrono::minutes(10);  ///< of operations that bring none of their own
    std::vector<int> hosts;                       ///< of each rank, for the choice of algorithms; empty: all ranks have equal links
    CostModel model;
    std::string algorithms;  ///< overrides, as Choice reads them
  };
  TcpCommunicator(std::shared_ptr<wire::Peers> peers, Settings settings);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  Handle start(const Operation& operation) override;
  bool test(Handle handle) override;
  bool complete(Handle handle) const override;
  void wait(Handle handle, Deadline deadline) override;
  void poll(Duration budget) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// Ends everything on all ranks, other groups included.
  void abort(const Error& cause) override;

  const Choice& choice() const { return choice_; }

 private:
  /// What travels in front of every message.
  struct Call {
    std::uint8_t kind = 0, type = 0, reduction = 0, algorithm = 0;
    std::int32_t peer = -1;
    std::uint64_t count = 0;
    double scale = 1;
    bool operator==(const Call&) const = default;
  };
  /// Elements `[begin, end)` of a work vector and where they lie.
  struct Segment {
    std::size_t begin, end;
    std::byte* data;
  };
  struct Pending {
    Handle handle = 0;
    Operation operation;
    Call call;
    wire::Stream stream;
    std::vector<Step> steps;
    std::size_t at = 0;
    bool announced = true;  ///< the predecessor's call is known to be the same
    std::vector<Segment> work;
    wire::Bytes scratch;
    std::map<int, wire::Bytes> held;  ///< by sender, headers included
    Clock::time_point give_up;
  };

  TcpCommunicator(std::shared_ptr<wire::Peers> peers, Settings settings, std::vector<int> members, int rank, std::uint64_t group);
  void validate(const Operation& operation) const;
  void enqueue(const Operation& operation, Handle handle);
  void lay_out(Pending& pending);
  std::vector<Step> steps_for(const Operation& operation, Algorithm algorithm);
  bool advance(Pending& pending);
  bool receive(Pending& pending, const Step& step);
  bool receive_message(Pending& pending);
  void fold_held(Pending& pending, const Step& step);
  void compare(const Pending& pending, const wire::Bytes& message, int from) const;
  std::byte* at(const Pending& pending, Range range) const;
  void advance_all();
  void check_times(Handle handle, Deadline deadline, std::uint64_t seen);
  int awaited(const Pending& pending) const;
  std::string describe(const Call& call) const;
  Error error_in(const Pending& pending, ErrorKind kind, std::string what) const;

  std::shared_ptr<wire::Peers> peers_;
  Settings settings_;
  std::vector<int> members_;  ///< rank here -> rank in the world
  int rank_;
  std::uint64_t group_;
  Choice choice_;
  Handle started_ = 0;
  std::uint64_t sequence_ = 0;  ///< of collectives; coalesced buffers have one each
  std::list<Pending> in_flight_;
  std::map<std::tuple<Algorithm, Kind, std::size_t, int>, std::vector<Step>> tables_;  ///< this rank's columns, by algorithm, kind, count, root
};

}  // namespace shoal::collective
