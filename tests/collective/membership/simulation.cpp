#include "tests/collective/membership/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <variant>

#include "shoal/base/hash.h"

namespace shoal::collective::membership {
namespace {

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
  View first = membership::first_view(scenario.members, scenario.witnesses);
  first.admission = scenario.admission;
  if (scenario.has_chain) {
    first.kept_by = "the keeper outside";
    keeper_.emplace(first, scenario.keeper_compares);
  }
  settings_ = Settings{.beat = scenario.beat,
                       .suspect_after = scenario.suspect_after,
                       .repeat = milliseconds(300),
                       .stand_in = seconds(1),
                       .quorum_patience = kPatience,
                       .on_quorum_loss = scenario.on_quorum_loss,
                       .kept_by = first.kept_by,
                       .chain_patience = kPatience};
  check_.first_view(first);
  for (const MemberId& id : first.everybody())
    add_node(id, Membership(id, first, settings_, time(), scenario.rules));
}

void Simulation::at(Duration when, std::function<void()> what) {
  scripts_.push_back(std::move(what));
  push(when, {.kind = Kind::kScript, .index = scripts_.size() - 1});
}

std::optional<std::string> Simulation::run() {
  at(kFaults, [this] {
    heal();
    cut_from_keeper_ = {};
    keeper_down_until_ = {};
    quiet_ = true;
  });
  at(kHealed, [this] { must_go_on_ = must_go_on(); });
  while (!events_.empty() && !check_.violation()) {
    handle_next();
    if (now_ <= kHealed || handled_ % 64 != 0) continue;
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
    deliver(event.node, std::move(letter));
  } else if (event.kind == Kind::kAsk) {
    ask_to_begin(event);
  } else {
    finish_attempt(event);
  }
}

void Simulation::deliver(std::size_t node, Letter letter) {
  const std::optional<View>& view = nodes_[node].member.view();
  const auto* join = std::get_if<Join>(&letter.body);
  if (join && join->ready && acts(nodes_[node]) && view->owner() == nodes_[node].id) {
    Node& joiner = nodes_[simulated_index(join->who.id)];
    if (!joiner.commits_when_known && !joiner.member.view())
      joiner.commits_when_known = check_.commits();
  }
  tell(node, Received{std::move(letter)});
}

void Simulation::forget(const Happening& event) {
  if (event.kind == Kind::kDeliver) free_.push_back(event.index);
}

void Simulation::tell(std::size_t node, const Event& event) {
  if (!nodes_[node].lives) return;
  Membership& member = nodes_[node].member;
  const std::optional<View> before = member.view();
  for (const Letter& letter : member.on(event, time())) post(node, letter);
  for (const ChainQuestion& question : member.take_questions()) ask_keeper(node, question);
  take_news(node, before);
  if (member.view() && member.keeper())
    check_.note_keeper(nodes_[node].id, *member.view(), *member.keeper());
  if (member.view()) check_.note_place(nodes_[node].id, member.place());
  if (member.held()) check_.note_holder(nodes_[node].id, *member.held());
  if (member.fork_held()) check_.note_holder(nodes_[node].id, *member.fork_held());
}

void Simulation::post(std::size_t from, const Letter& letter) {
  const std::size_t to = simulated_index(letter.hop);
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
      enter(node, *view);
      continue;
    }
    if (std::holds_alternative<AttemptBegins>(news[i])) {
      nodes_[node].is_attempting = true;
      attempt(node, Kind::kAttemptDone, scenario_.attempt_takes + any_duration(milliseconds(200)));
      continue;
    }
    const Outcome& outcome = std::get<StepDecided>(news[i]).outcome;
    // A step that the beginning of a fork has settled is one of the fork's.
    const bool is_last = i + 1 == news.size();
    const auto* next = is_last ? nullptr : std::get_if<ViewStarted>(&news[i + 1]);
    check_.learned(next ? next->view.lineage : view->lineage, *view, outcome);
    nodes_[node].is_attempting = false;
    if (outcome.kind == Outcome::Kind::kAbort) continue;
    ++nodes_[node].commits;
    nodes_[node].committed_at = now_;
    if (!next) attempt(node, Kind::kAsk, any_duration(milliseconds(20)));
  }
}

void Simulation::enter(std::size_t index, const View& view) {
  Node& node = nodes_[index];
  // Whoever acts in a view holds it; it may have come to both in one event.
  check_.note_holder(node.id, view);
  check_.started(view);
  node.entered = now_;
  node.without_links.reset();
  if (std::exchange(node.is_attempting, false)) ++node.interrupted;
  if (scenario_.only_joins) {
    check_.expect(node.interrupted == 0,
                  "a joiner has interrupted an attempt of " + node.id.text());
    // No step is committed without a member, but steps are without a witness that does not know yet
    // that it is in the view.
    if (view.has_member(node.id) && node.commits_when_known) {
      check_.expect(check_.commits() - *node.commits_when_known <= 1,
                    node.id.text() + " has waited for two commits");
    }
    node.commits_when_known.reset();
  }
  if (!node.token.empty()) {
    const auto [user, is_new] = admitted_.emplace(std::pair(view.lineage, node.token), node.id);
    check_.expect(user->second == node.id, "two members have joined with one token");
  }
  attempt(index, Kind::kAsk, any_duration(milliseconds(20)));
}

void Simulation::attempt(std::size_t node, Kind kind, Duration after) {
  const Membership& member = nodes_[node].member;
  if (!member.view()->has_member(nodes_[node].id)) return;
  const Place& place = member.place();
  push(now_ + after, {.kind = kind,
                      .node = node,
                      .lineage = place.lineage,
                      .epoch = place.epoch,
                      .step = place.step});
}

bool Simulation::is_of_next_step(const Happening& event) const {
  const Place& place = nodes_[event.node].member.place();
  return std::tuple(place.lineage, place.epoch, place.step) ==
         std::tuple(event.lineage, event.epoch, event.step);
}

bool Simulation::has_all_links(const View& view) const {
  for (const Member& a : view.members) {
    for (const Member& b : view.members)
      if (cut_[simulated_index(a.id)][simulated_index(b.id)]) return false;
  }
  return true;
}

// Looks again in a while, or lets the attempt fail.
bool Simulation::must_wait_for_links(const Happening& event) {
  Node& node = nodes_[event.node];
  if (!scenario_.attempts_need_links || has_all_links(*node.member.view())) {
    node.without_links.reset();
    return false;
  }
  if (!node.without_links) node.without_links = now_;
  if (scenario_.links_timeout == Duration::zero() ||
      now_ - *node.without_links < scenario_.links_timeout) {
    push(now_ + milliseconds(100), event);
  } else {
    node.without_links.reset();
    tell(event.node, StepFailed{event.epoch, event.step, "a member is not connected"});
  }
  return true;
}

void Simulation::ask_to_begin(const Happening& event) {
  if (!is_of_next_step(event) || must_wait_for_links(event)) return;
  if (nodes_[event.node].waits) return tell(event.node, JoinersAwaited{event.epoch, event.step});
  tell(event.node, AttemptAsked{event.epoch, event.step});
}

void Simulation::finish_attempt(const Happening& event) {
  if (!is_of_next_step(event) || must_wait_for_links(event)) return;
  Node& node = nodes_[event.node];
  const Place& place = node.member.place();
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

/// Pairs of these that are never connected again.
std::size_t Simulation::lasting_cuts(const std::vector<MemberId>& keepers) const {
  std::size_t cuts = 0;
  for (const MemberId& a : keepers) {
    for (const MemberId& b : keepers) {
      const std::size_t from = simulated_index(a);
      const std::size_t to = simulated_index(b);
      cuts += from < to && (stays_cut_[from][to] || stays_cut_[to][from]);
    }
  }
  return cuts;
}

// One of each pair that is never connected again counts for nothing.
bool Simulation::most_act(const std::vector<MemberId>& keepers) const {
  std::vector<MemberId> acting;
  for (const MemberId& keeper : keepers)
    if (acts(nodes_[simulated_index(keeper)])) acting.push_back(keeper);
  return 2 * (acting.size() - std::min(acting.size(), lasting_cuts(acting))) > keepers.size();
}

// Most keepers of a view act in it, and so do most of the next one's, if that is decided; nobody
// wants to leave. Then whatever happened before, somebody must go on. Where a keeper is outside,
// one that acts is enough, if it is in the last view.
bool Simulation::must_go_on() const {
  if (keeper_) return must_go_on_with_keeper();
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<MemberId>> keepers_in;
  bool most_are_there = false;
  for (const Node& node : nodes_) {
    if (node.lives && node.wants_to_leave && !node.member.has_left()) return false;
    if (!acts(node)) continue;
    if (node.member.held() && !most_act(node.member.held()->keepers)) return false;
    const View& view = *node.member.view();
    std::vector<MemberId>& keepers = keepers_in[{view.lineage, view.epoch}];
    if (view.is_kept_by(node.id)) keepers.push_back(node.id);
    const std::size_t apart = std::min(keepers.size(), lasting_cuts(keepers));
    most_are_there = most_are_there || 2 * (keepers.size() - apart) > view.keepers.size();
  }
  return most_are_there;
}

bool Simulation::must_go_on_with_keeper() const {
  bool somebody_is_there = false;
  for (const Node& node : nodes_) {
    if (node.lives && node.wants_to_leave && !node.member.has_left()) return false;
    const auto& last = keeper_->last_view();
    somebody_is_there =
        somebody_is_there || (acts(node) && node.member.view()->has_member(node.id) &&
                              (!last || last->has_member(node.id)));
  }
  return somebody_is_there;
}

// A joiner that is ready, and that somebody in the view knows.
bool Simulation::must_be_admitted(const Node& joiner) const {
  const Membership& member = joiner.member;
  if (!joiner.lives || !joiner.is_ready || member.view() || member.ended() || member.has_left())
    return false;
  const std::size_t own = simulated_index(joiner.id);
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (acts(nodes_[node]) && is_cut(own, node)) return false;
  return std::any_of(joiner.contacts.begin(), joiner.contacts.end(),
                     [&](std::size_t contact) { return acts(nodes_[contact]); });
}

std::size_t Simulation::joined() const {
  return static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.is_ready && node.member.view();
  }));
}

// All that act are in one view and have committed two steps since faults have ended. Those that are
// ready to join are in it, and where a majority was left, somebody acts.
bool Simulation::has_gone_on() {
  bool all = !must_go_on_ || !all_have_ended();
  const Place* first = nullptr;
  for (Node& node : nodes_) {
    if (must_be_admitted(node)) all = false;
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
