#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/elastic/state_exchange.h"
#include "shoal/collective/elastic/state_provider.h"
#include "shoal/collective/elastic/steady_state.h"
#include "shoal/collective/elastic/view_world.h"
#include "shoal/collective/elastic/world_endings.h"

namespace shoal::collective::elastic {

/// Who takes part in one attempt at a step.
struct Roster {
  const View& view;  ///< members by rank
  int rank = 0;      ///< of this member
  int size = 1;      ///< members
  std::uint64_t step = 0;
  std::uint64_t samples = 0;  ///< of all steps before
  int attempt = 1;            ///< counts the attempts of this member at this step
};

/// The outcome of an attempt on one member.
struct Attempt {
  Digest state{};             ///< of the state that it leads to, equal on all members
  std::uint64_t samples = 0;  ///< that this member has used
};

/// A step that is committed.
struct StepResult {
  View view;  ///< of the attempt that was committed
  int rank = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;  ///< samples of all steps before
  std::uint64_t samples = 0;       ///< of this one, from all members
  Digest state{};
  int attempts = 1;  ///< of this member, that began
};

/// Places on the way of a member at which tests let it die.
enum class Moment {
  kNewView,   ///< another view has begun, and this member connects to those that are in it
  kReported,  ///< its report to the owner is on its way, and nothing is decided
};

/// A joiner has found no group in its `search_timeout`.
class NoGroupFound final : public Error {
 public:
  NoGroupFound(const Error& error, std::size_t joiners) : Error(error), joiners(joiners) {}
  std::size_t joiners;  ///< processes that it has found, which look for a group themselves
};

/// Members in processes of their own that train together and come and go. What one of them does in
/// a step becomes true on all or on none: where one is lost in the middle, the others attempt the
/// step again among themselves.
///
///   auto group = ElasticGroup::join(options, {contact});
///   while (group->next_step() < steps)
///     group->step(group->next_step(), attempt, apply);
///   group->leave();
///
/// docs/concepts/elastic.md says what is promised. Threads: one at a time.
class ElasticGroup {
 public:
  struct Options {
    LetterCarrier::Options network;
    ViewWorld::Options world;
    StateAccess state;
    /// For the members of a view to connect to each other.
    Duration meeting_timeout = std::chrono::seconds(60);
    /// For one step with all its attempts, and for a joiner's way to its first step.
    Duration step_timeout = std::chrono::minutes(30);
    /// A joiner that has found nobody who is in a group after so long gives up; otherwise it waits
    /// for somebody until `step_timeout`.
    std::optional<Duration> search_timeout;
    /// A steady state is given to each joiner at so many bytes a second at most; 0: no limit.
    std::uint64_t stream_bytes_per_second = 0;
    /// Is told of each failure that the group lives through: a lost peer, a wrong state.
    std::function<void(const Error&)> on_fault = [](const Error&) {};
    /// Is called now and then while this member waits for news: of a view, or that the others are
    /// there, or are ready to attempt a step. It may throw to give up. That passes, and this member
    /// must `leave`. It is not called while connections are made, a state is given in a view, or
    /// an attempt runs.
    std::function<void()> may_go_on = [] {};
    /// Is told where this member is, for faults that are injected.
    std::function<void(Moment)> at = [](Moment) {};
  };

  /// Begins a group of this member alone, which others join.
  static std::unique_ptr<ElasticGroup> found(Options options);
  /// Joins the group of which a member is found at one of `contacts`, and returns when this member
  /// has the state. Throws Error(timeout), NoGroupFound, Error(data) where no member has the right
  /// state, and Error(mismatch) where the others refuse this member.
  static std::unique_ptr<ElasticGroup> join(Options options,
                                            const std::vector<wire::Endpoint>& contacts);
  /// Stops without leaving: the others find out from silence.
  ~ElasticGroup();
  ElasticGroup(const ElasticGroup&) = delete;
  ElasticGroup& operator=(const ElasticGroup&) = delete;

  const MemberId& self() const { return carrier_->self(); }
  const wire::Endpoint& endpoint() const { return carrier_->endpoint(); }
  /// The view that the next attempt is made in, as far as this member knows.
  const View& view() const { return view_; }
  /// The step that is attempted next, and the samples of those before.
  std::uint64_t next_step() const { return next_step_; }
  std::uint64_t samples() const { return samples_; }
  LetterCarrier& carrier() { return *carrier_; }

  /// Waits until the view has `members` members, and lets them join meanwhile. As no step can end
  /// without this member, joiners may interrupt one that others have begun. Throws Error(timeout).
  void wait_for_members(std::size_t members, Deadline deadline);

  /// Lets joiners in while this member computes between two steps: to be called now and then, as
  /// after each inner step of a round. Joiners that are ready come in at once then, as with
  /// `wait_for_members`. Costs a comparison and an atomic load where nothing has happened. Where
  /// another view has begun, it connects to its members, for which each of them must call this,
  /// `step` or `wait_for_members` within `meeting_timeout`; then `step` finds that done. Throws as
  /// `wait_for_members`. Who never calls this keeps joiners out until the step is committed.
  void let_join();

  /// Carries out step `number`, which must be `next_step()`: calls `attempt(group, roster)` in one
  /// view after another, until all members of one have made it with equal digests and that is
  /// decided. Then it calls `apply`, once, and returns.
  ///
  /// Who joins meanwhile waits until the step is committed. In a new view the attempt begins when
  /// all members have called `step`.
  ///
  /// `attempt` changes nothing that another attempt, or `write` of the state, depends on. Its
  /// collectives throw Error(peer_lost), Error(timeout) or Error(aborted) when the view ends, and
  /// `attempt` lets them pass. Any other exception of `attempt` makes the attempt fail on all
  /// members, and is thrown: the step may be called again, or given up by `leave`.
  ///
  /// Throws Error(timeout) where nothing is decided in `step_timeout`. The others may know of the
  /// last attempt then, and commit it: so the next call of `step` first waits for what becomes of
  /// that one and, where it is committed, applies it. Until then what it has made stays as it is.
  /// Throws what ended this member: Error(peer_lost) where the others have removed it, or the
  /// majority of keepers is lost.
  StepResult step(std::uint64_t number,
                  const std::function<Attempt(const std::shared_ptr<Communicator>& group,
                                              const Roster& roster)>& attempt,
                  const std::function<void()>& apply);

  /// Leaves in order: the others go on without delay. Returns false where they have not agreed by
  /// the deadline. The group is of no more use.
  bool leave(Deadline deadline = Deadline::in(std::chrono::seconds(30)));

 private:
  ElasticGroup(Options options, std::unique_ptr<LetterCarrier> carrier, bool has_state);
  // steady_joining.cpp: a steady state, which joiners get before they come into a view
  void fetch(Deadline deadline);
  bool has_fetched(const View& view);
  void serve_joiners();
  void apply_commit(const std::function<void()>& apply, const View& view);
  StateAccess state_access() const;
  void report_streams();

  void find_group(Duration longest);
  enum class Arrival { kNothing, kView, kCommit, kBegins };
  Arrival take_news(Deadline deadline);
  Arrival wait_for_news(Deadline deadline);
  void take_all_news();
  void enter_view(Deadline deadline);
  bool try_to_enter(Deadline deadline);
  void live_through(const Error& cause, Deadline deadline);
  bool await_next_view(std::uint64_t epoch, Deadline deadline);
  void enter_to_begin(Deadline deadline);
  bool await_beginning(Deadline deadline);
  bool await(Arrival wanted, const char* why_late, Deadline deadline);
  std::optional<Attempt> try_attempt(
      const std::function<Attempt(const std::shared_ptr<Communicator>&, const Roster&)>& attempt,
      int attempts, Deadline deadline);
  bool await_decision(Deadline deadline);
  void fail_attempt(const Error& cause);
  void retire_world();
  void check_alive() const;
  void check_going_on() const;
  Error too_late(const std::string& what) const;
  Duration patience() const;
  Duration decision_time() const;
  void report_attempt(
      const std::function<Attempt(const std::shared_ptr<Communicator>&, const Roster&)>& attempt,
      int attempts, Deadline deadline);

  const Options options_;
  std::unique_ptr<LetterCarrier> carrier_;
  bool has_state_ = false;
  std::shared_ptr<SteadyState> steady_;      ///< null where the state is not steady
  std::unique_ptr<StateProvider> provider_;  ///< once this member gives the state to joiners
  /// Which state this member has got before it was in a view, and from whom.
  struct Fetched {
    membership::Place place;
    MemberId provider;
  };
  std::optional<Fetched> fetched_;
  View view_;
  std::uint64_t next_step_ = 0;
  std::uint64_t samples_ = 0;
  /// The place at which this member has said that it waits for joiners.
  struct Waiting {
    std::uint64_t lineage = 0;
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;
    bool operator==(const Waiting&) const = default;
  };
  std::optional<Waiting> lets_join_;
  /// The attempt that the others know of, until it is decided.
  std::optional<StepResult> reported_;
  std::optional<membership::Outcome> committed_;  ///< the last commit
  std::unique_ptr<ViewWorld> world_;              ///< of `view_`, once all have entered it
  WorldEndings endings_;                          ///< of earlier views
};

}  // namespace shoal::collective::elastic
