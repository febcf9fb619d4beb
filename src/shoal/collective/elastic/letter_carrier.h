#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/elastic/etcd_keeper.h"
#include "shoal/collective/elastic/keeper_thread.h"
#include "shoal/collective/membership/membership.h"
#include "shoal/wire/address.h"
#include "shoal/wire/event_loop.h"
#include "shoal/wire/identity.h"
#include "shoal/wire/join_token.h"
#include "shoal/wire/peer_links.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::collective::elastic {

using membership::Digest;
using membership::MemberId;
using membership::View;

/// How far a member's part in the agreement has come.
struct MemberStatus {
  std::optional<View> view;  ///< that it acts in; a joiner has none at first
  membership::Place place;
  std::optional<Error> ended;  ///< why it takes part no longer
  bool left = false;           ///< as it wanted
};

/// The kind of the messages between carriers that are a StateMessage.
constexpr std::uint64_t kStateKind = 5;

/// A message about the state between a member and a joiner that is in no view yet.
struct StateMessage {
  enum class Kind : std::uint8_t {
    kAsk,   ///< the joiner to a member: it wants the state
    kMeet,  ///< the member: it gives the state to who connects to it at `text`
    kBusy,  ///< the member: it cannot now, and another one may
    kNone,  ///< the member: the group gives it none before it is in a view, because of `text`
    /// The joiner to a member: as kAsk, but it waits for the end of a step that is attempted now,
    /// because all members were busy.
    kAskAndWait,
  };
  static bool asks(Kind kind) { return kind == Kind::kAsk || kind == Kind::kAskAndWait; }
  Kind kind = Kind::kAsk;
  Digest stream{};  ///< names what they talk about; the joiner has made it up
  std::string text{};
};

/// One member of an elastic group, as far as agreement goes: a Membership, and a thread that tells
/// it the time and carries its letters to the other members, over connections that come and go
/// (wire::PeerLinks). A lost connection is replaced and means nothing; that a member is gone is
/// found by Membership, from silence. Letters may be lost, and what comes from outside is checked:
/// a letter that cannot be read, or that claims to be from another member than the connection's,
/// ends that connection.
///
/// The members of a view also tell each other short texts through it, such as the addresses at
/// which they can be reached for the view's collectives.
///
/// Whoever knows the key may join, unless the group was begun with an `admission`. Threads: any
/// thread may call any function.
class LetterCarrier {
 public:
  struct Options {
    std::string key;                 ///< the cluster's secret
    std::string cluster = "shoal";   ///< members of others are refused, also with the same key
    std::string host = "127.0.0.1";  ///< the address to listen on, and that the others are told
    /// It listens on the first of these that is free, and each view's collectives on another one.
    wire::PortRange ports;
    /// Where the others reach this member, if not at the address that it listens on (behind an
    /// address translator, or where `host` is 0.0.0.0). Names are resolved once. The collectives of
    /// views are reached at the first of them, see wire::advertised_like.
    std::vector<wire::Endpoint> advertised;
    /// One more such address, before these, that follows the port on which it listens, see
    /// wire::advertised_at; empty: none.
    std::string advertise;
    wire::TlsMode tls = wire::TlsMode::kAuto;
    membership::Settings membership;
    /// Whoever begins a group may set it: others then join with a token that is issued with the
    /// secret of this key (wire::token_key). Where there is none, whoever knows `key` may join.
    std::optional<wire::TokenKey> admission;
    /// An etcd that keeps what is decided, in place of the keepers among the members: all members
    /// name the same one.
    std::optional<EtcdKeeper::Options> etcd;
    /// A joiner may be in any view from the start, as it is given the state there. Otherwise it
    /// posts JoinerReady when it is ready.
    bool ready_at_once = true;
    std::string token;        ///< of who joins, where the group asks for one
    bool as_witness = false;  ///< who joins may be a keeper, and trains nothing
    std::uint32_t width = 1;  ///< ranks of the member
    std::string site;
    std::string mesh;  ///< how its ranks divide the model, as membership::Member has it
  };
  /// Begins a group, with a view of this member alone. `state`: the digest of what it begins with.
  /// Throws Error(resource) where it cannot listen, and Error(peer_lost) where its etcd does not
  /// answer.
  static std::unique_ptr<LetterCarrier> found(Options options, const Digest& state);
  /// Joins the group that a member at one of these addresses is in. Names are resolved once.
  /// Returns at once; `take_news` tells the first view. Throws Error(config), Error(resource), and
  /// Error(peer_lost) where its etcd does not answer.
  static std::unique_ptr<LetterCarrier> join(Options options,
                                             const std::vector<wire::Endpoint>& contacts);
  ~LetterCarrier();
  /// Stops without leaving: nothing is heard of this member any more. Letters that are on their way
  /// out are given a second. Called once, by whoever owns it.
  void stop();
  LetterCarrier(const LetterCarrier&) = delete;
  LetterCarrier& operator=(const LetterCarrier&) = delete;

  const MemberId& self() const { return identity_.id(); }
  const wire::Endpoint& endpoint() const { return endpoint_; }  ///< that it listens on
  const Options& options() const { return options_; }

  /// Tells the membership what has happened: StepReady, StepFailed, LeaveAsked.
  void post(membership::Event event);
  MemberStatus status() const;
  /// Returns the next thing that the membership has decided; nothing at the deadline, and nothing
  /// any more once this member has ended or left, which `status` tells.
  std::optional<membership::News> take_news(Deadline deadline);
  /// Returns true where `take_news` has something to tell, or this member has ended or left.
  bool has_news() const { return has_news_.load(std::memory_order_acquire); }
  /// Waits until this member has ended or left. Returns false at the deadline.
  bool wait_for_end(Deadline deadline);
  /// Has `over` called once this member acts in that view no longer: at once, where that is so
  /// already, else by the carrier's thread. It must not call back. Replaces the one before.
  void when_over(const Digest& view, std::function<void(const Error& why)> over);

  /// The processes that a joiner has found, or that have called it, before it is in a view.
  struct Encounters {
    std::size_t in_views = 0;  ///< members, and witnesses
    std::size_t joiners = 0;   ///< those that are in no view either
  };
  Encounters encounters() const;

  /// Returns the view that this member acts in; before it is in one, the last one that others have
  /// told it of.
  std::optional<View> known_view() const;
  /// Sends a message about the state, which may be lost.
  void send(const MemberId& to, StateMessage message);
  /// Has `received` called with each such message, by the carrier's thread, until it is replaced:
  /// null stands for nobody. A joiner's question comes where this member is in a view that does not
  /// refuse it, and is answered with kBusy where there is nobody. `received` must not block.
  void when_state_message(
      std::function<void(const MemberId& from, const StateMessage& message)> received);

  /// Throws Error(aborted) where this member acts in that view no longer.
  void check_view(const Digest& view) const;

  /// Tells the other members of a view that `key` has this value. Ignored where the view is over.
  void tell(const Digest& view, const std::string& key, const std::string& value);
  /// Returns the value that a member of the view, or this one, has told. Returns nothing after
  /// `longest`. Throws Error(aborted) where the view is over.
  std::optional<std::string> told(const Digest& view, const std::string& key, Duration longest);

  wire::PeerLinks::Counts counts() const;
  /// For tests of what a lost connection does.
  void disconnect_all();

 private:
  LetterCarrier(Options options, std::vector<wire::Endpoint> contacts);
  void start(membership::Membership membership);
  void run();
  void run_once();
  void drain();
  void send(const membership::Letter& letter);
  void handle(const membership::Event& event);
  void received(const MemberId& from, std::uint64_t kind, const wire::Bytes& bytes);
  void receive_letter(const MemberId& from, const wire::Bytes& bytes);
  void receive_text(const MemberId& from, const wire::Bytes& bytes);
  void answer_question(const MemberId& from, const wire::Bytes& bytes);
  void send_standing(const MemberId& to);
  void receive_standing(const MemberId& from, const wire::Bytes& bytes);
  void send_state_message(const MemberId& to, const StateMessage& message);
  void receive_state_message(const MemberId& from, const wire::Bytes& bytes);
  void answer_state_question(const MemberId& from, const StateMessage& question,
                             const membership::Join& join);
  bool pass_state_message(const MemberId& from, const StateMessage& message);
  void learn_addresses();
  void forget_others(Clock::time_point now);
  void know(const View& view);
  void find_contacts(Clock::time_point now);
  void ask_for_texts();
  void send_texts(const MemberId& to);
  bool publish();
  void fail(const Error& error);
  Error why_over(const Digest& view) const;

  Options options_;  ///< set before there is a thread
  const wire::Identity identity_;
  const std::vector<wire::Endpoint> contacts_;
  wire::Endpoint endpoint_;

  // These belong to the thread.
  wire::EventLoop loop_;
  std::unique_ptr<wire::PeerLinks> links_;
  std::optional<membership::Membership> membership_;
  Clock::time_point next_tick_{};
  Clock::time_point next_question_{};
  Clock::time_point next_search_{};
  Clock::time_point next_forgetting_{};
  std::map<MemberId, Clock::time_point> joiners_;  ///< when they last asked to join
  std::set<std::tuple<std::uint64_t, std::uint64_t, Digest>> known_views_;
  std::unique_ptr<EtcdKeeper> etcd_;  ///< until its thread has it
  std::unique_ptr<KeeperThread> keeper_thread_;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::deque<membership::Event> events_;
  std::deque<membership::News> news_;
  MemberStatus status_;
  bool failed_ = false;   ///< the thread has ended by an error
  Digest view_digest_{};  ///< of the view that this member acts in
  std::function<void(const Error&)> over_;
  Digest over_view_{};
  std::map<std::string, std::string> own_texts_;
  std::map<MemberId, std::map<std::string, std::string>> texts_;
  bool texts_changed_ = false;            ///< own ones, which the others are to be told
  std::map<MemberId, bool> encountered_;  ///< by a joiner, and whether they are in a view
  std::optional<View> seen_view_;         ///< by a joiner
  std::deque<std::pair<MemberId, StateMessage>> state_messages_;  ///< to be sent
  int waiting_for_texts_ = 0;
  bool question_due_ = false;  ///< the others are asked for theirs at once
  bool disconnect_ = false;
  wire::PeerLinks::Counts counts_;

  std::mutex state_mutex_;  ///< is held while it is called
  std::function<void(const MemberId&, const StateMessage&)> on_state_message_;

  std::atomic<bool> has_news_{false};  ///< written under `mutex_`
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace shoal::collective::elastic
