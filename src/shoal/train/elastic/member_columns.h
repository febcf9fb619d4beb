#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/elastic/view_world.h"
#include "shoal/collective/elastic/world_endings.h"
#include "shoal/train/elastic/member_ranks.h"

namespace shoal::train {

/// The ranks at the same place in all members of a view, of which this is one: what an attempt at a
/// step does with other members. Where one rank of this member fails in it, or the view is over, it
/// fails on all of them (MemberRanks::together).
class Column {
 public:
  /// `group`: of the members. `give_up`: see MemberRanks::Part.
  Column(
      const MemberRanks& ranks, collective::Communicator& group,
      std::function<void(const Error&)> give_up = [](const Error&) {})
      : ranks_(ranks), group_(group), give_up_(std::move(give_up)) {}

  int rank() const { return group_.rank(); }  ///< of the member
  int size() const { return group_.size(); }  ///< members
  const MemberRanks& ranks() const { return ranks_; }

  /// Returns on all ranks `own.size()` numbers of each member, which are those of its leader, in
  /// the order of the members.
  std::vector<double> gather(std::span<const double> own) const;
  /// Carries out an operation of this column, in the time that RunTrace counts as communication.
  /// `in_the_middle` is called when it has begun.
  void carry_out(
      const collective::Operation& operation, const char* name,
      const std::function<void()>& in_the_middle = [] {}) const;

 private:
  const MemberRanks& ranks_;
  collective::Communicator& group_;
  std::function<void(const Error&)> give_up_;
};

/// The connections of the ranks of one member to those of the others, in a view. The leader has its
/// own in ElasticGroup; this connects the others, which find each other through their leaders. All
/// functions are called by all ranks of the member. One thread.
class MemberColumns {
 public:
  struct Options {
    collective::elastic::LetterCarrier::Options network;
    collective::elastic::ViewWorld::Options world;
    Duration meeting_timeout{};  ///< for the ranks of a column to connect to each other
  };
  MemberColumns(const MemberRanks& ranks, Options options);
  ~MemberColumns();
  MemberColumns(const MemberColumns&) = delete;
  MemberColumns& operator=(const MemberColumns&) = delete;

  /// Connects the ranks to those of the other members of a view. `leaders`: the communicator of the
  /// view, on the leader. Throws FailedTogether.
  void connect(const collective::elastic::ColumnWorld::Place& place,
               collective::Communicator* leaders);
  /// Returns the column of this rank, once it is connected: of the leader that of the view.
  Column column(collective::Communicator* leaders);
  /// Ends the connections, which another view may follow.
  void retire();

 private:
  class Connecting;
  std::vector<std::string> exchange(const std::string& own, int members,
                                    collective::Communicator* leaders) const;

  const MemberRanks& ranks_;
  const Options options_;
  std::unique_ptr<collective::elastic::ColumnWorld> world_;  ///< not on the leader
  collective::elastic::WorldEndings endings_;
};

}  // namespace shoal::train
