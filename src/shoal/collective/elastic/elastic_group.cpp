#include "shoal/collective/elastic/elastic_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <variant>

#include "shoal/base/check.h"

namespace shoal::collective::elastic {
namespace {

constexpr Duration kLongestWaitForNews = std::chrono::milliseconds(50);

/// Returns true for errors that end a view and are over with the next one. Any other is a mistake
/// of the program, or of this host, and would come again.
bool passes(const Error& error) {
  return error.kind() == ErrorKind::kPeerLost || error.kind() == ErrorKind::kTimeout ||
         error.kind() == ErrorKind::kAborted;
}

}  // namespace

ElasticGroup::ElasticGroup(Options options, std::unique_ptr<LetterCarrier> carrier, bool has_state)
    : options_(std::move(options)), carrier_(std::move(carrier)), has_state_(has_state) {}

std::unique_ptr<ElasticGroup> ElasticGroup::found(Options options) {
  const Digest state = options.state.digest(options.state.write());
  auto carrier = LetterCarrier::found(options.network, state);
  std::unique_ptr<ElasticGroup> group(
      new ElasticGroup(std::move(options), std::move(carrier), true));
  group->take_all_news();
  group->serve_joiners();
  return group;
}

std::unique_ptr<ElasticGroup> ElasticGroup::join(Options options,
                                                 const std::vector<wire::Endpoint>& contacts) {
  options.network.ready_at_once = !options.state.steady;
  auto carrier = LetterCarrier::join(options.network, contacts);
  std::unique_ptr<ElasticGroup> group(
      new ElasticGroup(std::move(options), std::move(carrier), false));
  try {
    if (group->options_.search_timeout) group->find_group(*group->options_.search_timeout);
    const Deadline deadline = Deadline::in(group->options_.step_timeout);
    if (group->options_.state.steady) group->fetch(deadline);
    group->enter_view(deadline);
    group->serve_joiners();
  } catch (...) {
    // Members of its view need not wait until it is silent for long.
    group->leave(Deadline::in(std::chrono::seconds(10)));
    throw;
  }
  return group;
}

void ElasticGroup::find_group(Duration longest) {
  const Deadline deadline = Deadline::in(longest);
  while (view_.members.empty() && carrier_->encounters().in_views == 0) {
    if (deadline.passed()) {
      throw NoGroupFound(Error(ErrorKind::kPeerLost, "elastic",
                               "nobody at the addresses to join is in a group with this key"),
                         carrier_->encounters().joiners);
    }
    wait_for_news(deadline);
    check_alive();
  }
}

ElasticGroup::~ElasticGroup() {
  provider_ = nullptr;
  carrier_->stop();
  retire_world();
}

void ElasticGroup::retire_world() {
  if (!world_) return;
  world_->close();
  endings_.end(std::move(world_));
}

// The silence of a member is noticed in that time, and the next view decided.
Duration ElasticGroup::patience() const {
  const membership::Settings& settings = options_.network.membership;
  return settings.suspect_after + 3 * settings.beat + settings.stand_in;
}

Error ElasticGroup::too_late(const std::string& what) const {
  return Error(ErrorKind::kTimeout, "elastic",
               fmt::format("{} (member {}, epoch {}, step {})", what, self().text(), view_.epoch,
                           next_step_))
      .hint("Look at the logs of the other members: " + membership::text(view_.everybody()));
}

void ElasticGroup::check_alive() const {
  const MemberStatus status = carrier_->status();
  if (status.ended) throw Error(*status.ended);
  if (status.left) {
    throw Error(ErrorKind::kUsage, "elastic",
                fmt::format("member {} has left the group", self().text()))
        .hint("Join again under a new id.");
  }
}

// Whoever is asked may have left the group.
void ElasticGroup::check_going_on() const {
  options_.may_go_on();
  check_alive();
}

// As long as a view change may take after the silence of a member, and the loss of the majority or
// of the etcd.
Duration ElasticGroup::decision_time() const {
  const membership::Settings& settings = options_.network.membership;
  return 2 * patience() + settings.quorum_patience +
         (options_.network.etcd ? settings.chain_patience : Duration::zero());
}

ElasticGroup::Arrival ElasticGroup::take_news(Deadline deadline) {
  const auto news = carrier_->take_news(deadline);
  if (!news) return Arrival::kNothing;
  if (const auto* started = std::get_if<membership::ViewStarted>(&*news)) {
    view_ = started->view;
    return Arrival::kView;
  }
  if (const auto* begins = std::get_if<membership::AttemptBegins>(&*news)) {
    // One that was asked for in a view that has ended meanwhile, or long ago, begins no more.
    if (begins->epoch == view_.epoch && begins->step == next_step_) return Arrival::kBegins;
    return take_news(Deadline::in({}));
  }
  const auto& decided = std::get<membership::StepDecided>(*news);
  const bool is_commit = decided.outcome.kind == membership::Outcome::Kind::kCommit;
  if (!is_commit) options_.on_fault(Error(ErrorKind::kAborted, "step", decided.outcome.cause));
  if (!is_commit || decided.outcome.step != next_step_) return take_news(Deadline::in({}));
  committed_ = decided.outcome;
  return Arrival::kCommit;
}

/// Waits for a moment at most.
ElasticGroup::Arrival ElasticGroup::wait_for_news(Deadline deadline) {
  check_going_on();
  return take_news(Deadline::in(std::min<Duration>(kLongestWaitForNews, deadline.left())));
}

void ElasticGroup::take_all_news() {
  report_streams();
  while (take_news(Deadline::in(Duration::zero())) != Arrival::kNothing) {
  }
}

void ElasticGroup::enter_view(Deadline deadline) {
  while (!try_to_enter(deadline)) {
    if (deadline.passed()) throw too_late("the members of no view could all be connected");
  }
}

bool ElasticGroup::try_to_enter(Deadline deadline) {
  SHOAL_USER_CHECK(!reported_, "elastic",
                   "step {} has been attempted and is not decided: call `step` again first",
                   next_step_);
  take_all_news();
  check_alive();
  if (view_.members.empty()) {
    if (wait_for_news(deadline) == Arrival::kNothing && deadline.passed())
      throw too_late("no member has let this one join: is one at the contacts, with this key?");
    return false;
  }
  const bool is_current =
      world_ && world_->view().epoch == view_.epoch && world_->view().lineage == view_.lineage;
  if (is_current) return true;
  retire_world();
  options_.at(Moment::kNewView);
  try {
    const Deadline meeting =
        Deadline::in(std::min<Duration>(deadline.left(), options_.meeting_timeout));
    world_ = std::make_unique<ViewWorld>(*carrier_, view_, options_.world, meeting);
    exchange_state(*world_->group(), view_, has_state_ || has_fetched(view_), state_access(),
                   options_.on_fault, deadline);
  } catch (const Error& error) {
    if (passes(error)) {
      live_through(error, deadline);
      return false;
    }
    fail_attempt(error);
    throw;
  } catch (const std::exception& error) {
    fail_attempt(Error(ErrorKind::kAborted, "state", error.what()));
    throw;
  }
  if (!has_state_) {
    has_state_ = true;
    next_step_ = view_.first_step;
    samples_ = view_.samples;
  }
  return true;
}

// A member that is gone is removed by the view that follows. Where none follows, all are there and
// something else went wrong, on the way between two of them perhaps: then this member says that it
// has failed, which leads to another view of the same members.
void ElasticGroup::live_through(const Error& cause, Deadline deadline) {
  options_.on_fault(cause);
  const std::uint64_t epoch = view_.epoch;
  retire_world();
  if (await_next_view(epoch, Deadline::in(std::min<Duration>(patience(), deadline.left())))) return;
  carrier_->post(membership::StepFailed{
      .epoch = epoch, .step = has_state_ ? next_step_ : view_.first_step, .cause = cause.what()});
  if (!await_next_view(epoch, deadline))
    throw too_late(fmt::format("no view has followed the one that ended with: {}", cause.what()));
}

bool ElasticGroup::await_next_view(std::uint64_t epoch, Deadline deadline) {
  const std::uint64_t lineage = view_.lineage;
  while (view_.epoch == epoch && view_.lineage == lineage) {
    if (wait_for_news(deadline) != Arrival::kNothing) continue;
    check_alive();
    if (deadline.passed()) return false;
  }
  return true;
}

// The others must not wait for this member's part of a collective.
void ElasticGroup::fail_attempt(const Error& cause) {
  if (world_) {
    world_->abort(Error(ErrorKind::kAborted, "elastic",
                        fmt::format("member {} has failed: {}", self().text(), cause.what())));
  }
  carrier_->post(membership::StepFailed{.epoch = view_.epoch,
                                        .step = has_state_ ? next_step_ : view_.first_step,
                                        .cause = cause.what()});
  retire_world();
}

void ElasticGroup::wait_for_members(std::size_t members, Deadline deadline) {
  for (;;) {
    const bool entered = try_to_enter(deadline);
    if (entered && view_.members.size() >= members) return;
    if (deadline.passed()) {
      throw too_late(fmt::format("{} members are there, of {}", view_.members.size(), members));
    }
    if (!entered) continue;
    carrier_->post(membership::JoinersAwaited{.epoch = view_.epoch, .step = next_step_});
    wait_for_news(deadline);
  }
}

void ElasticGroup::let_join() {
  const auto is_told = [&] {
    return lets_join_ == Waiting{view_.lineage, view_.epoch, next_step_};
  };
  if (is_told() && !carrier_->has_news()) return;
  enter_view(Deadline::in(options_.step_timeout));
  if (is_told()) return;
  carrier_->post(membership::JoinersAwaited{.epoch = view_.epoch, .step = next_step_});
  lets_join_ = Waiting{view_.lineage, view_.epoch, next_step_};
}

// Enters the view of the next attempt, and returns when that may begin.
void ElasticGroup::enter_to_begin(Deadline deadline) {
  do {
    enter_view(deadline);
  } while (!await_beginning(deadline));
}

bool ElasticGroup::await_beginning(Deadline deadline) {
  carrier_->post(membership::AttemptAsked{.epoch = view_.epoch, .step = next_step_});
  return await(Arrival::kBegins, "not all members of the view are ready for the step", deadline);
}

// Returns true when `wanted` has come, and false when another view has begun before.
bool ElasticGroup::await(Arrival wanted, const char* why_late, Deadline deadline) {
  for (;;) {
    // A step that was attempted is not given up: the others may commit it.
    const bool may_give_up = wanted == Arrival::kBegins;
    const Arrival arrival = may_give_up ? wait_for_news(deadline) : take_news(deadline);
    if (arrival == wanted || arrival == Arrival::kView) return arrival == wanted;
    check_alive();
    if (deadline.passed()) throw too_late(why_late);
  }
}

std::optional<Attempt> ElasticGroup::try_attempt(
    const std::function<Attempt(const std::shared_ptr<Communicator>&, const Roster&)>& attempt,
    int attempts, Deadline deadline) {
  enter_to_begin(deadline);
  const View& view = world_->view();
  try {
    return attempt(world_->group(), Roster{.view = view,
                                           .rank = world_->rank(),
                                           .size = static_cast<int>(view.members.size()),
                                           .step = next_step_,
                                           .samples = samples_,
                                           .attempt = attempts});
  } catch (const Error& error) {
    // A peer that has left is no failure of the world, but of the collectives that wait for it.
    const Error failure = world_->failure().value_or(error);
    const bool is_of_peers = world_->failure() || error.kind() == ErrorKind::kPeerLost;
    if (is_of_peers && passes(failure) && passes(error)) {
      live_through(error, deadline);
      return std::nullopt;
    }
    fail_attempt(error);
    throw;
  } catch (const std::exception& error) {
    fail_attempt(Error(ErrorKind::kAborted, "step", error.what()));
    throw;
  }
}

bool ElasticGroup::await_decision(Deadline deadline) {
  return await(Arrival::kCommit, "nothing was decided about the step", deadline);
}

StepResult ElasticGroup::step(
    std::uint64_t number,
    const std::function<Attempt(const std::shared_ptr<Communicator>& group, const Roster& roster)>&
        attempt,
    const std::function<void()>& apply) {
  SHOAL_USER_CHECK(number == next_step_, "step", "step {} is asked for, and {} is the next one",
                   number, next_step_);
  lets_join_.reset();
  const SteadyState::Step attempted(steady_.get());
  const Deadline deadline = Deadline::in(options_.step_timeout);
  for (int attempts = 1;; ++attempts) {
    if (!reported_) report_attempt(attempt, attempts, deadline);
    // What was reported may be committed, so this member must learn what became of it, also where
    // the attempts have used up the time.
    if (reported_ && await_decision(Deadline::in(std::max(deadline.left(), decision_time())))) {
      StepResult result = *std::exchange(reported_, std::nullopt);
      result.samples = committed_->samples - samples_;
      result.state = committed_->state;
      samples_ = committed_->samples;
      ++next_step_;
      apply_commit(apply, result.view);
      return result;
    }
    reported_.reset();
    if (deadline.passed()) throw too_late("no attempt was committed");
  }
}

void ElasticGroup::report_attempt(
    const std::function<Attempt(const std::shared_ptr<Communicator>&, const Roster&)>& attempt,
    int attempts, Deadline deadline) {
  const std::optional<Attempt> made = try_attempt(attempt, attempts, deadline);
  if (!made) return;
  if (deadline.passed()) {
    const Error error = too_late("the attempt took longer than step_timeout");
    fail_attempt(error);
    throw Error(error);
  }
  reported_ = StepResult{.view = world_->view(),
                         .rank = world_->rank(),
                         .step = next_step_,
                         .first_sample = samples_,
                         .samples = 0,
                         .state = {},
                         .attempts = attempts};
  carrier_->post(membership::StepReady{.epoch = world_->view().epoch,
                                       .step = next_step_,
                                       .state = made->state,
                                       .samples = made->samples});
  options_.at(Moment::kReported);
}

bool ElasticGroup::leave(Deadline deadline) {
  provider_ = nullptr;
  carrier_->post(membership::LeaveAsked{});
  carrier_->wait_for_end(deadline);
  retire_world();
  return carrier_->status().left;
}

}  // namespace shoal::collective::elastic
