#include "tests/collective/membership/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <variant>

#include "shoal/base/hash.h"

namespace shoal::collective::membership {
namespace {

std::size_t index_of(const MemberId& id) { return std::to_integer<std::size_t>(id.bytes[0]) - 1; }

/// What an attempt at a step leads to.
Digest next_state(const Digest& before, std::uint64_t step) {
  std::uint64_t hash = step;
  for (const std::byte byte : before)
    hash = splitmix64(hash ^ std::to_integer<std::uint64_t>(byte));
  Digest state{};
  for (std::size_t i = 0; i < 8; ++i) state[i] = static_cast<std::byte>(hash >> (8 * i));
  return state;
}

}  // namespace

Simulation::Simulation(std::uint64_t seed, const Scenario& scenario)
    : scenario_(scenario), random_(splitmix64(seed)) {
  const View first = membership::first_view(scenario.members, scenario.witnesses);
  settings_ = Settings{.beat = scenario.beat,
                       .suspect_after = scenario.suspect_after,
                       .repeat = milliseconds(300),
                       .stand_in = seconds(1),
                       .quorum_patience = kPatience,
                       .on_quorum_loss = scenario.on_quorum_loss};
  check_.first_view(first);
  for (const MemberId& id : first.everybody())
    add_node(id, Membership(id, first, settings_, time(), scenario.rules));
}

void Simulation::at(Duration when, std::function<void()> what) {
  scripts_.push_back(std::move(what));
  push(when, {.kind = Kind::kScript, .index = scripts_.size() - 1});
}

void Simulation::cut_both(std::size_t a, std::size_t b) {
  cut(a, b);
  cut(b, a);
}

void Simulation::partition(std::uint32_t side) {
  for (std::size_t a = 0; a < kMostNodes; ++a)
    for (std::size_t b = 0; b < kMostNodes; ++b)
      if (((side >> a) & 1u) != ((side >> b) & 1u)) cut(a, b);
}

void Simulation::deafen(std::size_t node) {
  for (std::size_t i = 0; i < kMostNodes; ++i) cut(i, node);
}

void Simulation::mute(std::size_t node) {
  for (std::size_t i = 0; i < kMostNodes; ++i) cut(node, i);
}

std::size_t Simulation::join(Duration ready_after, bool as_witness) {
  const std::uint64_t number = nodes_.size() + 1;
  std::vector<MemberId> contacts;
  for (const Node& node : nodes_)
    if (acts(node)) contacts.push_back(node.id);
  add_node(id_of(number), Membership::joiner(member_of(number), contacts, settings_, time(),
                                             as_witness, scenario_.rules));
  const std::size_t joiner = nodes_.size() - 1;
  at(now_ + ready_after, [this, joiner] { tell(joiner, JoinerReady{}); });
  return joiner;
}

void Simulation::make_faults() {
  const auto faults = random_() % static_cast<std::uint64_t>(scenario_.most_faults + 1);
  for (std::uint64_t i = 0; i < faults; ++i) at(any_duration(kFaults), [this] { any_fault(); });
}

void Simulation::any_fault() {
  const std::size_t node = random_() % nodes_.size();
  const std::size_t other = random_() % nodes_.size();
  switch (random_() % 11) {
    case 0:
    case 1:
      return crash(node);
    case 2:
      return partition(static_cast<std::uint32_t>(random_()));
    case 3:
      partition(static_cast<std::uint32_t>(random_()));
      return at(now_ + any_duration(seconds(5)), [this] { heal(); });
    case 4:
      return cut_both(node, other);
    case 5:
      return cut(node, other);
    case 6:
      return random_() % 2 == 0 ? deafen(node) : mute(node);
    case 7:
      return pause(node, any_duration(seconds(4)));
    case 8:
      if (nodes_.size() < kMostNodes - 1) join(any_duration(seconds(2)), random_() % 8 == 0);
      return;
    case 9:
      return leave(node);
    default:
      return random_() % 3 == 0 ? fail_once(node) : be_odd(node);
  }
}

std::optional<std::string> Simulation::run() {
  at(kFaults, [this] {
    heal();
    quiet_ = true;
  });
  while (!events_.empty() && !check_.violation()) {
    handle_next();
    if (!quiet_ || handled_ % 64 != 0) continue;
    if (has_gone_on()) return std::nullopt;
    if (now_ > kFaults + kBound) return "no progress: " + describe();
  }
  return check_.violation();  // or all have crashed
}

std::optional<std::string> Simulation::run_until(Duration until) {
  while (!events_.empty() && events_.top().when <= until && !check_.violation()) handle_next();
  now_ = until;
  return check_.violation();
}

void Simulation::handle_next() {
  const Scheduled next = events_.top();
  events_.pop();
  now_ = next.when;
  handle(next.event);
  ++handled_;
}

bool Simulation::all_have_ended() const { return std::none_of(nodes_.begin(), nodes_.end(), acts); }

bool Simulation::somebody_crashed_or_left() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return !node.lives || node.member.has_left(); });
}

std::string Simulation::describe() const {
  std::string text = fmt::format("after {} ms:", now_ / milliseconds(1));
  for (const Node& node : nodes_) {
    const Membership& member = node.member;
    text += "\n  " + node.id.text() + ": ";
    if (!node.lives) text += "crashed, ";
    if (member.has_left()) text += "left, ";
    if (member.ended()) text += std::string(member.ended()->what()) + ", ";
    if (!member.view()) {
      text += "a joiner";
      continue;
    }
    const Place& place = member.place();
    text += fmt::format("lineage {:x}, epoch {}, step {}, members {}, keepers {}", place.lineage,
                        place.epoch, place.step, membership::text(member.view()->everybody()),
                        member.view()->keepers.size());
    if (member.held()) text += ", holds the next view";
    if (member.keeper() && member.keeper()->sealed()) text += ", has sealed this one";
  }
  return text;
}

Duration Simulation::any_duration(Duration most) {
  return Duration(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most.count())));
}

bool Simulation::happens(double probability) {
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

void Simulation::add_node(const MemberId& id, Membership member) {
  nodes_.push_back(Node{.id = id, .member = std::move(member)});
  const std::size_t node = nodes_.size() - 1;
  take_news(node, std::nullopt);
  push(now_ + any_duration(scenario_.beat / 2), {.kind = Kind::kTick, .node = node});
}

void Simulation::handle(const Happening& event) {
  if (event.kind == Kind::kScript) {
    const std::function<void()> script = std::move(scripts_[event.index]);
    return script();
  }
  const Node& node = nodes_[event.node];
  if (!node.lives) return forget(event);
  if (now_ < node.paused_until) return push(node.paused_until, event);
  if (event.kind == Kind::kTick) {
    push(now_ + scenario_.beat / 4, event);
    tell(event.node, Tick{});
  } else if (event.kind == Kind::kDeliver) {
    Letter letter = std::move(letters_[event.index]);
    forget(event);
    tell(event.node, Received{std::move(letter)});
  } else {
    finish_attempt(event);
  }
}

void Simulation::forget(const Happening& event) {
  if (event.kind == Kind::kDeliver) free_.push_back(event.index);
}

void Simulation::tell(std::size_t node, const Event& event) {
  if (!nodes_[node].lives) return;
  Membership& member = nodes_[node].member;
  const std::optional<View> before = member.view();
  for (const Letter& letter : member.on(event, time())) post(node, letter);
  take_news(node, before);
  if (member.view() && member.keeper())
    check_.note_keeper(nodes_[node].id, *member.view(), *member.keeper());
  if (member.held()) check_.note_holder(nodes_[node].id, *member.held());
}

void Simulation::post(std::size_t from, const Letter& letter) {
  const std::size_t to = index_of(letter.hop);
  if (to >= nodes_.size() || cut_[from][to]) return;
  if (!quiet_ && happens(scenario_.loss)) return;
  const int copies = !quiet_ && happens(scenario_.copies) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    Duration delay = milliseconds(1) + any_duration(milliseconds(40));
    if (!quiet_ && happens(scenario_.late)) delay += any_duration(milliseconds(1500));
    if (free_.empty()) {
      free_.push_back(letters_.size());
      letters_.emplace_back();
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    letters_[index] = scenario_.as_bytes ? decode_letter(encode(letter)) : letter;
    push(now_ + delay, {.kind = Kind::kDeliver, .node = to, .index = index});
  }
}

void Simulation::take_news(std::size_t node, const std::optional<View>& before) {
  const std::vector<News> news = nodes_[node].member.take_news();
  std::optional<View> view = before;
  for (std::size_t i = 0; i < news.size(); ++i) {
    if (const auto* started = std::get_if<ViewStarted>(&news[i])) {
      view = started->view;
      // Whoever acts in a view holds it; it may have come to both in one event.
      check_.note_holder(nodes_[node].id, *view);
      check_.started(*view);
      nodes_[node].entered = now_;
      continue;
    }
    const Outcome& outcome = std::get<StepDecided>(news[i]).outcome;
    // A step that the beginning of a fork has settled is one of the fork's.
    const bool is_last = i + 1 == news.size();
    const auto* next = is_last ? nullptr : std::get_if<ViewStarted>(&news[i + 1]);
    check_.learned(next ? next->view.lineage : view->lineage, *view, outcome);
    if (outcome.kind == Outcome::Kind::kAbort) continue;
    ++nodes_[node].commits;
    nodes_[node].committed_at = now_;
  }
  if (!news.empty()) attempt(node);
}

void Simulation::attempt(std::size_t node) {
  const Membership& member = nodes_[node].member;
  if (!member.view()->has_member(nodes_[node].id)) return;
  const Place& place = member.place();
  push(now_ + milliseconds(50) + any_duration(milliseconds(200)), {.kind = Kind::kAttemptDone,
                                                                   .node = node,
                                                                   .lineage = place.lineage,
                                                                   .epoch = place.epoch,
                                                                   .step = place.step});
}

void Simulation::finish_attempt(const Happening& event) {
  Node& node = nodes_[event.node];
  const Place& place = node.member.place();
  if (std::tuple(place.lineage, place.epoch, place.step) !=
      std::tuple(event.lineage, event.epoch, event.step))
    return;
  if (node.fails) {
    node.fails = false;
    return tell(event.node, StepFailed{event.epoch, event.step, "not a number"});
  }
  Digest state = next_state(place.state, event.step);
  if (node.is_odd) state[31] ^= std::byte{1};
  node.is_odd = false;
  check_.attempted(node.id, place, state);
  tell(event.node, StepReady{event.epoch, event.step, state, 8});
}

// All that act are in one view and have committed two steps since faults have ended.
bool Simulation::has_gone_on() {
  bool all = true;
  const Place* first = nullptr;
  for (Node& node : nodes_) {
    if (!acts(node)) continue;
    if (!node.commits_when_quiet) node.commits_when_quiet = node.commits;
    const Place& place = node.member.place();
    if (!first) first = &place;
    const bool is_together =
        std::pair(first->lineage, first->epoch) == std::pair(place.lineage, place.epoch);
    const bool is_done =
        !node.member.view()->has_member(node.id) || node.commits >= *node.commits_when_quiet + 2;
    all = all && is_together && is_done;
  }
  return all;
}

}  // namespace shoal::collective::membership
