#include "shoal/collective/elastic/letter_carrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/wire/advertised.h"
#include "shoal/wire/tls_channel.h"

namespace shoal::collective::elastic {
namespace {

using membership::Letter;
using membership::Membership;

/// A joiner that is in no view looks for its contacts again after so long: it may be connected to
/// joiners only, and where it has found a member, that may be gone.
constexpr Duration kSearchPause = std::chrono::seconds(1);
constexpr Duration kSearchPauseWhenConnected = std::chrono::seconds(10);
/// How often the addresses of others than the members are looked through, and how long somebody
/// who has asked to join is remembered.
constexpr Duration kForgetPause = std::chrono::seconds(10);
constexpr Duration kRememberJoiner = std::chrono::minutes(1);
constexpr Duration kDrainLimit = std::chrono::seconds(1);
/// Views whose addresses have been noted; the set begins anew when there are more.
constexpr std::size_t kMostKnownViews = 64;

/// A broken connection is replaced before the silence on it is taken for a death.
constexpr Duration kLeastUnacknowledged = std::chrono::milliseconds(500);
constexpr Duration kMostUnacknowledged = std::chrono::seconds(5);

membership::Member description(const LetterCarrier::Options& options, const MemberId& self,
                               const wire::Endpoint& endpoint) {
  return {.id = self,
          .endpoints = options.advertised.empty() ? std::vector{endpoint} : options.advertised,
          .width = options.width,
          .site = options.site,
          .mesh = options.mesh};
}

std::vector<wire::Endpoint> numeric(const std::vector<wire::Endpoint>& names) {
  std::vector<wire::Endpoint> addresses;
  for (const wire::Endpoint& name : names) {
    const auto found = wire::resolve_all(name);
    addresses.insert(addresses.end(), found.begin(), found.end());
  }
  return addresses;
}

}  // namespace

LetterCarrier::LetterCarrier(Options options, std::vector<wire::Endpoint> contacts)
    : options_(std::move(options)), contacts_(std::move(contacts)) {
  wire::Descriptor listener = wire::listen_on(options_.host, options_.ports);
  endpoint_ = wire::local_endpoint(listener.get());
  if (!options_.advertise.empty()) {
    options_.advertised.insert(options_.advertised.begin(),
                               wire::advertised_at(options_.advertise, endpoint_, options_.ports));
  }
  options_.advertised = numeric(options_.advertised);
  const bool everywhere = endpoint_.host == "0.0.0.0" || endpoint_.host == "::";
  SHOAL_USER_CHECK(!everywhere || !options_.advertised.empty(), "elastic",
                   "host {} is no address at which others reach this member: name one, or set "
                   "`advertised`",
                   endpoint_.host);
  std::shared_ptr<const wire::TlsContext> context;
  if (options_.tls != wire::TlsMode::kOff)
    context = std::make_shared<const wire::TlsContext>(identity_);
  if (options_.etcd) etcd_ = std::make_unique<EtcdKeeper>(*options_.etcd);
  options_.membership.kept_by = etcd_ ? etcd_->name() : std::string();
  links_ = std::make_unique<wire::PeerLinks>(
      loop_, std::move(listener),
      wire::PeerLinks::Options{
          .key = options_.key,
          .cluster = options_.cluster,
          .self = self(),
          .tls = options_.tls,
          .context = std::move(context),
          .unacknowledged = std::clamp<Duration>(options_.membership.suspect_after / 3,
                                                 kLeastUnacknowledged, kMostUnacknowledged),
          .received = [this](const MemberId& from, std::uint64_t kind, const wire::Bytes& bytes) {
            received(from, kind, bytes);
          }});
}

std::unique_ptr<LetterCarrier> LetterCarrier::found(Options options, const Digest& state) {
  std::unique_ptr<LetterCarrier> carrier(new LetterCarrier(std::move(options), {}));
  const MemberId& self = carrier->self();
  View first;
  // The name of the lineage: no other group has it, as no other process has this id.
  std::memcpy(&first.lineage, self.bytes.data(), sizeof first.lineage);
  first.state = state;
  first.kept_by = carrier->options_.membership.kept_by;
  first.members = {description(carrier->options_, self, carrier->endpoint_)};
  first.keepers = {self};
  if (carrier->options_.admission) {
    first.admission.by_token = true;
    first.admission.cluster = carrier->options_.cluster;
    first.admission.key = *carrier->options_.admission;
  }
  if (carrier->etcd_) carrier->etcd_->begin(first);
  carrier->start(Membership(self, first, carrier->options_.membership, Clock::now()));
  return carrier;
}

std::unique_ptr<LetterCarrier> LetterCarrier::join(Options options,
                                                   const std::vector<wire::Endpoint>& contacts) {
  SHOAL_USER_CHECK(!contacts.empty(), "join", "no address of a member is given");
  std::unique_ptr<LetterCarrier> carrier(new LetterCarrier(std::move(options), numeric(contacts)));
  carrier->start(
      Membership::joiner(description(carrier->options_, carrier->self(), carrier->endpoint_), {},
                         carrier->options_.membership, Clock::now(), carrier->options_.as_witness,
                         {}, carrier->options_.token));
  if (carrier->options_.ready_at_once) carrier->post(membership::JoinerReady{});
  return carrier;
}

void LetterCarrier::start(Membership membership) {
  membership_.emplace(std::move(membership));
  publish();
  if (etcd_) {
    keeper_thread_ = std::make_unique<KeeperThread>(
        std::move(etcd_), [this](membership::Event answer) { post(std::move(answer)); });
  }
  thread_ = std::thread([this] { run(); });
}

LetterCarrier::~LetterCarrier() { stop(); }

void LetterCarrier::stop() {
  stop_ = true;
  loop_.wake();
  if (thread_.joinable()) thread_.join();
  keeper_thread_.reset();
}

void LetterCarrier::post(membership::Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  loop_.wake();
}

MemberStatus LetterCarrier::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::optional<membership::News> LetterCarrier::take_news(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return !news_.empty() || status_.ended || status_.left; };
  if (!changed_.wait_until(lock, deadline.at(), is_over) || news_.empty()) return std::nullopt;
  membership::News news = std::move(news_.front());
  news_.pop_front();
  has_news_ = !news_.empty() || status_.ended || status_.left;
  return news;
}

bool LetterCarrier::wait_for_end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.at(), [&] { return status_.ended || status_.left; });
}

wire::PeerLinks::Counts LetterCarrier::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void LetterCarrier::disconnect_all() {
  {
    const std::lock_guard lock(mutex_);
    disconnect_ = true;
  }
  loop_.wake();
}

void LetterCarrier::run() {
  while (!stop_) {
    try {
      run_once();
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(Error(ErrorKind::kInternal, "membership", error.what()));
    }
  }
  drain();
}

void LetterCarrier::run_once() {
  const Duration tick = options_.membership.beat / 8;
  loop_.run_once(std::max<Duration>(std::chrono::milliseconds(1),
                                    std::min<Duration>(tick, next_tick_ - Clock::now())));
  std::deque<membership::Event> events;
  std::deque<std::pair<MemberId, StateMessage>> state_messages;
  bool disconnect = false;
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    state_messages.swap(state_messages_);
    disconnect = std::exchange(disconnect_, false);
    tell = std::exchange(texts_changed_, false);
    if (std::exchange(question_due_, false)) next_question_ = {};
  }
  if (disconnect && membership_->view())
    for (const MemberId& other : membership_->view()->everybody()) links_->disconnect(other);
  for (const membership::Event& event : events) handle(event);
  for (const auto& [to, message] : state_messages) send_state_message(to, message);
  for (const MemberId& arrival : links_->take_arrivals()) {
    send_standing(arrival);
    if (!membership_->view()) handle(membership::ContactFound{arrival});
  }
  for (const MemberId& absent : links_->take_absent()) handle(membership::NobodyListens{absent});
  if (tell && membership_->view())
    for (const membership::Member& member : membership_->view()->members) send_texts(member.id);
  const auto now = Clock::now();
  if (now >= next_question_) {
    next_question_ = now + options_.membership.repeat;
    ask_for_texts();
  }
  if (now < next_tick_) return;
  next_tick_ = now + tick;
  handle(membership::Tick{});
  find_contacts(now);
  links_->tick(now);
  if (membership_->view() && now >= next_forgetting_) forget_others(now);
  const std::lock_guard lock(mutex_);
  counts_ = links_->counts();
}

void LetterCarrier::drain() {
  try {
    for (const Deadline end = Deadline::in(kDrainLimit); !links_->idle() && !end.passed();)
      loop_.run_once(std::chrono::milliseconds(10));
  } catch (const std::exception&) {
    // Letters may be lost.
  }
}

void LetterCarrier::find_contacts(Clock::time_point now) {
  if (membership_->view() || contacts_.empty() || now < next_search_) return;
  next_search_ = now + (encounters().in_views > 0 ? kSearchPauseWhenConnected : kSearchPause);
  links_->find(contacts_);
}

void LetterCarrier::handle(const membership::Event& event) {
  const std::vector<Letter> letters = membership_->on(event, Clock::now());
  learn_addresses();
  for (const Letter& letter : letters) send(letter);
  for (membership::ChainQuestion& question : membership_->take_questions())
    keeper_thread_->ask(std::move(question));
  if (publish()) forget_others(Clock::now());
}

// Those that are of no view any more are reached only as long as they stay connected.
void LetterCarrier::forget_others(Clock::time_point now) {
  next_forgetting_ = now + kForgetPause;
  std::erase_if(joiners_, [&](const auto& one) { return now - one.second > kRememberJoiner; });
  std::set<MemberId> kept;
  for (const auto* view : {&membership_->view(), &membership_->held(), &membership_->fork_held()}) {
    if (!*view) continue;
    for (const MemberId& id : (*view)->everybody()) kept.insert(id);
    for (const membership::Member& removed : (*view)->removed) kept.insert(removed.id);
  }
  for (const auto& [id, asked] : joiners_) kept.insert(id);
  links_->keep_only(kept);
  // Somebody who was forgotten may be of a view that was noted before.
  known_views_.clear();
}

// Views say where their members are reached. Each is noted once, before letters go to them.
void LetterCarrier::learn_addresses() {
  if (membership_->view()) know(*membership_->view());
  if (membership_->held()) know(*membership_->held());
  if (membership_->fork_held()) know(*membership_->fork_held());
}

void LetterCarrier::know(const View& view) {
  if (!known_views_.emplace(view.lineage, view.epoch, view.parent).second) return;
  if (known_views_.size() > kMostKnownViews) known_views_.clear();
  for (const auto* list : {&view.members, &view.witnesses, &view.removed})
    for (const membership::Member& member : *list) links_->know(member.id, member.endpoints);
}

void LetterCarrier::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!status_.ended) status_.ended = error;
  failed_ = true;
  has_news_ = true;
  stop_ = true;
  if (over_) std::exchange(over_, nullptr)(error);
  changed_.notify_all();
}

// Tells the callers what the membership has come to. Returns true where a view begins.
bool LetterCarrier::publish() {
  std::vector<membership::News> news = membership_->take_news();
  const bool begins = std::any_of(news.begin(), news.end(), [](const membership::News& one) {
    return std::holds_alternative<membership::ViewStarted>(one);
  });
  const std::lock_guard lock(mutex_);
  const bool was_over = status_.ended || status_.left;
  status_.place = membership_->place();
  // Letters that come while the last ones go out change nothing of a failure.
  if (!failed_) status_.ended = membership_->ended();
  status_.left = membership_->has_left();
  const bool has_ended = status_.ended || status_.left;
  if (begins) {
    status_.view = membership_->view();
    view_digest_ = membership::digest(*status_.view);
    own_texts_.clear();
    texts_.clear();
  }
  if (news.empty() && was_over == has_ended) return false;
  news_.insert(news_.end(), std::make_move_iterator(news.begin()),
               std::make_move_iterator(news.end()));
  has_news_ = true;
  if (over_ && (has_ended || over_view_ != view_digest_))
    std::exchange(over_, nullptr)(why_over(over_view_));
  changed_.notify_all();
  return begins;
}

Error LetterCarrier::why_over(const Digest& view) const {
  if (status_.ended) return *status_.ended;
  if (status_.left) return Error(ErrorKind::kAborted, "elastic", "this member has left the group");
  if (view == view_digest_) return Error(ErrorKind::kAborted, "elastic", "the view is over");
  return Error(ErrorKind::kAborted, "elastic",
               fmt::format("the view is over: epoch {} has begun, with {} members",
                           status_.view->epoch, status_.view->members.size()))
      .hint("The step is attempted again.");
}

void LetterCarrier::check_view(const Digest& view) const {
  const std::lock_guard lock(mutex_);
  if (status_.ended || status_.left || view != view_digest_) throw why_over(view);
}

void LetterCarrier::when_over(const Digest& view, std::function<void(const Error& why)> over) {
  std::unique_lock lock(mutex_);
  if (status_.ended || status_.left || view != view_digest_) {
    const Error why = why_over(view);
    lock.unlock();
    return over(why);
  }
  over_ = std::move(over);
  over_view_ = view;
}

}  // namespace shoal::collective::elastic
