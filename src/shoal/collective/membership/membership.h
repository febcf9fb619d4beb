#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/membership/broken_pairs.h"
#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/decision.h"
#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/register.h"
#include "shoal/collective/membership/rules.h"
#include "shoal/collective/membership/suspicion.h"

namespace shoal::collective::membership {

/// What members do that hear too few of the keepers for a decision.
enum class OnQuorumLoss : std::uint8_t {
  kWitness,    ///< a witness makes it rarer; where it happens all the same, they end
  kSurvivors,  ///< they go on in a lineage of their own
  kStop,       ///< they end
};

struct Settings {
  Duration beat = std::chrono::milliseconds(500);
  Duration suspect_after = std::chrono::seconds(2);
  Duration repeat = std::chrono::milliseconds(300);  ///< letters without an answer
  Duration stand_in = std::chrono::seconds(1);  ///< so long each keeper waits for the one before
  /// Before the policy is followed; and before one of two members is removed that do not hear each
  /// other, where no step is committed meanwhile.
  Duration quorum_patience = std::chrono::seconds(10);
  OnQuorumLoss on_quorum_loss = OnQuorumLoss::kStop;
  /// Names the keeper outside of the group that holds what is decided, for who founds or joins a
  /// view of it; empty: the keepers among the members do. The policy is kStop with one.
  std::string kept_by{};
  Duration chain_patience = std::chrono::seconds(60);  ///< with a keeper that does not answer
  /// The time by which join tokens expire.
  wire::TokenTime (*wall_clock)() = std::chrono::system_clock::now;
};

// What happens to a member.

/// Time has passed. At least four come in a `beat`.
struct Tick {};
struct Received {
  Letter letter;
};
/// This member is ready to attempt the next step of its view. It begins when AttemptBegins comes.
struct AttemptAsked {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
};
/// This member attempts nothing until it asks: it waits for others to join.
struct JoinersAwaited {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
};
/// This member's attempt at a step is done: nothing is changed yet, and this is what it leads to.
/// A step that is not the next one of the view is ignored: the attempt came too late.
struct StepReady {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  Digest state{};
  std::uint64_t samples = 0;
};
struct StepFailed {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::string cause;
};
/// A joiner has the state and follows the steps: it may be a member of any view from here on.
struct JoinerReady {};
/// This member wants to go.
struct LeaveAsked {};
/// A joiner has found somebody who may know the view.
struct ContactFound {
  MemberId who;
};
/// The host of a member says that nobody listens at its address: its process has probably ended.
struct NobodyListens {
  MemberId who;
};
using Event =
    std::variant<Tick, Received, AttemptAsked, JoinersAwaited, StepReady, StepFailed, JoinerReady,
                 LeaveAsked, ContactFound, NobodyListens, ChainAnswered, ChainSilent>;

// What a member learns.

/// It is in this view from now on. Steps of the one before that were not decided are undone; the
/// next step to attempt is `view.first_step`.
struct ViewStarted {
  View view;
};
/// A commit: what was attempted becomes true now. After an abort the step is attempted again, in
/// the view that follows.
struct StepDecided {
  std::uint64_t epoch = 0;
  Outcome outcome;
};
/// The attempt that this member has asked for begins. Nobody who joins interrupts it, unless one of
/// the members waits for joiners and so does not take part in it.
struct AttemptBegins {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
};
using News = std::variant<ViewStarted, StepDecided, AttemptBegins>;

/// One member's part in the agreement on views and on steps' commits: a state machine that is told
/// what happens and when, and says which letters to send. It has no thread, no socket and no clock.
/// Letters may be lost, doubled, late and in any order; members may crash, and do not lie.
/// docs/notes/membership.md has what it promises, and why that holds. Not thread-safe.
class Membership {
 public:
  /// A member or a witness of the first view. Throws Error(usage) where it is neither.
  Membership(MemberId self, View first, Settings settings, Clock::time_point now, Rules rules = {});
  /// Who wants to join a view that it does not know, through members of it. It shows `token` where
  /// the view asks for one.
  static Membership joiner(Member self, std::vector<MemberId> contacts, Settings settings,
                           Clock::time_point now, bool as_witness = false, Rules rules = {},
                           std::string token = {});

  /// Returns the letters to send, each to its `hop`.
  std::vector<Letter> on(const Event& event, Clock::time_point now);
  /// Returns what has happened since the last call, in order.
  std::vector<News> take_news();
  /// Returns what the keeper outside of the group is to be asked. Each comes again every `repeat`
  /// until ChainAnswered says what is there.
  std::vector<ChainQuestion> take_questions();

  const MemberId& self() const { return self_.id; }
  /// The view that this member acts in; a joiner has none.
  const std::optional<View>& view() const { return view_; }
  /// The next view, once this member knows that it is decided, until it acts in it.
  const std::optional<View>& held() const { return held_; }
  /// The first view of a fork that this member has promised to join, until it acts in it.
  const std::optional<View>& fork_held() const { return fork_held_; }
  /// The next step, and what is committed.
  const Place& place() const { return place_; }
  /// Why this member takes part no longer: it was removed, or the majority is lost, or the lineage
  /// ended. It may join again under another id.
  const std::optional<Error>& ended() const { return ended_; }
  /// Whether it has left as it wanted.
  bool has_left() const { return left_; }
  /// Returns what a joiner asks those that it has found, again and again.
  Join own_join() const;
  /// Returns why this member's view admits no such joiner; nothing where it may come in.
  std::optional<JoinRefused> refuses(const Join& join) const;
  /// Its half of the registers of the view, if it is a keeper.
  const std::optional<Register>& keeper() const { return register_; }

 private:
  Membership(Member self, Settings settings, Rules rules);

  // membership.cpp: events, letters, beats
  void take(const Letter& letter);
  void tick();
  void beat();
  void send(const MemberId& to, Body body);
  void send_to_all(const std::vector<MemberId>& to, const Body& body);
  void relay(const Letter& letter);
  bool is_about_this_view(const Letter& letter);
  bool is_owner() const { return view_ && view_->owner() == self_.id; }
  void enter(const View& view);
  void end(ErrorKind kind, std::string what, std::string hint);
  void take(const Letter& letter, const Beat& beat);

  // joining.cpp: who asks to join, and who may
  void add_contact(const MemberId& who);
  std::optional<JoinRefused> why_refused(const Join& join) const;
  wire::TokenReading reading_of(const Join& join) const;
  std::optional<JoinRefused> note_joiner(const Join& join);
  void take(const Letter& letter, const Join& join);
  void take(const Letter& letter, const JoinRefused& refused);

  // beginning.cpp: when a step begins, and when joiners may come in
  bool is_next_step(std::uint64_t epoch, std::uint64_t step) const;
  void ask_to_begin(const AttemptAsked& asked);
  void await_joiners(const JoinersAwaited& awaited);
  void begin_attempt();
  void tell_readiness(bool ready);
  void let_members_begin();
  bool has_ready_joiners() const;
  bool wants_another_view() const;
  bool interrupts_no_attempt() const;
  void take(const Letter& letter, const Readiness& readiness);
  void take(const Letter& letter, const MayBegin& may_begin);

  // steps.cpp: what a step came to
  void report(const Event& event);
  void propose_step();
  void finish_step();
  Outcome outcome_of_reports() const;
  void repeat_step_letters();
  void take(const Letter& letter, const Report& report);
  void take(const Letter& letter, const AcceptStep& request);
  void take(const Letter& letter, const AcceptedStep& accepted);
  void take(const Letter& letter, const Decided& decided);
  void settle(const Outcome& outcome, bool may_begin_next);

  // view_change.cpp: the next view
  void consider_change();
  std::set<MemberId> lost_members() const;
  bool must_change(const std::set<MemberId>& lost) const;
  bool may_change_between_steps() const;
  std::optional<std::size_t> place_in_line(const std::set<MemberId>& lost) const;
  void hold_as_joiner();
  void begin_change();
  void advance_change();
  void end_without_members();
  bool is_sealed() const { return register_ && register_->sealed(); }
  bool is_held() const;
  void repeat_change_letters();
  View compose(const std::optional<Outcome>& last_step) const;
  void begin_holding(View view);
  void announce_start();
  void start(const View& view);
  void end_as_removed(const View& view);
  bool settle_last_step(const View& next);
  bool may_vote_on_views(const MemberId& proposer);
  void take(const Letter& letter, const Prepare& request);
  void take(const Letter& letter, const Promise& promise);
  void take(const Letter& letter, const AcceptView& request);
  void take(const Letter& letter, const AcceptedView& accepted);
  void take(const Letter& letter, const Refusal& refusal);
  void take(const Letter& letter, const Hold& hold);
  void take(const Letter& letter, const Held& held);
  void take(const Letter& letter, const Start& start);

  // chain.cpp: decisions that a keeper outside of the group holds
  bool uses_chain() const;
  bool is_asking_for_view() const;
  void ask(ChainEntry wish, const std::optional<Outcome>& last);
  void propose_to_chain(const std::optional<Outcome>& last);
  bool may_lack_state() const;
  void watch_providers(const std::set<MemberId>& gone);
  void learn(const ChainAnswered& answer);
  void note_silence(const ChainSilent& silent);
  void end_with_foreign_entry(const ChainSlot& slot);
  void watch_chain();

  // lost_majority.cpp: the policy, lineages
  void watch_majority();
  bool hears_majority() const;
  void begin_fork();
  bool is_fork_of_this_view(const View& view) const;
  void compare_with_lineage(const MemberId& who, const Place& place);
  void yield_to(const Place& place);
  void take(const Letter& letter, const ForkAsk& ask);
  void take(const Letter& letter, const ForkPromise& promise);
  void take(const Letter& letter, const Met& met);
  void take(const Letter& letter, const Yield& yield);

  Member self_;
  Settings settings_;
  Rules rules_;
  Clock::time_point now_{};
  std::vector<Letter> out_;
  std::deque<Letter> to_self_;
  std::vector<News> news_;

  std::optional<View> view_;
  Digest view_digest_{};
  Place place_;
  std::optional<Register> register_;
  Suspicion suspicion_;
  BrokenPairs pairs_;
  std::vector<MemberId> accused_;  ///< in the last beat
  Clock::time_point next_beat_{};
  std::uint64_t beats_ = 0;
  Clock::time_point next_repeat_{};
  std::optional<Error> ended_;
  std::optional<Place> yielded_to_;
  bool left_ = false;
  bool leaving_ = false;

  // A joiner's.
  bool ready_ = false;
  bool as_witness_ = false;
  std::string token_;
  std::vector<MemberId> contacts_;

  // When the next step begins, for this member.
  bool may_begin_ = false;         ///< without the owner's word
  bool begun_ = false;             ///< this member's attempt
  std::optional<bool> readiness_;  ///< that the owner has been told, until the attempt begins

  // And at the owner.
  enum class Phase : std::uint8_t {
    kNewView,       ///< nobody begins before all members are ready
    kBetweenSteps,  ///< the same, because a view is to follow the last commit
    kRunning,       ///< members may have begun
  };
  Phase phase_ = Phase::kNewView;
  std::set<MemberId> ready_members_;
  std::set<MemberId> waiting_members_;  ///< for joiners
  std::set<MemberId> let_go_;           ///< members that were told to begin this step

  // Steps: this member's report, and at the owner those of all and what it has proposed.
  std::optional<Report> report_;
  std::map<MemberId, Report> reports_;
  std::optional<StepDecision> step_;
  std::optional<Outcome> last_outcome_;
  bool aborted_ = false;    ///< a step of this view: the next view goes on
  bool committed_ = false;  ///< a step of this view

  // The next view.
  struct Waiting {
    Join join;
    wire::TokenReading token;  ///< as it was read when it was first shown
    Clock::time_point asked;
  };
  std::map<MemberId, Waiting> joiners_;
  std::set<MemberId> leavers_;
  std::optional<ViewDecision> change_;
  struct Holding {
    View view;
    Digest digest;
    Tally held;
  };
  std::optional<Holding> holding_;
  std::optional<View> held_;
  std::uint64_t highest_round_ = 0;
  std::uint64_t refusals_ = 0;
  std::optional<Clock::time_point> change_wanted_;

  // With a keeper outside: what it is asked, which is not answered yet.
  std::vector<ChainQuestion> questions_;
  std::optional<ChainQuestion> question_;
  Clock::time_point asked_{};  ///< or when this member began to hold the next view
  Clock::time_point watched_{};
  std::string chain_trouble_;

  // Without a majority.
  std::optional<Clock::time_point> majority_lost_;
  std::optional<Ballot> fork_promised_;  ///< while it is set, this member has no vote in its view
  struct Fork {
    Ballot ballot;
    std::vector<MemberId> survivors;
    std::map<MemberId, Place> places;
    Clock::time_point begun;
  };
  std::optional<Fork> fork_;
  std::optional<View> fork_held_;
  std::uint64_t fork_round_ = 0;  ///< the highest one of this view that was promised or asked for
};

}  // namespace shoal::collective::membership
