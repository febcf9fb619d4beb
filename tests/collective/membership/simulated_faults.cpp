// What a Simulation does to its members: cuts, joins, and faults that a seed chooses.
#include <utility>

#include "tests/collective/membership/simulation.h"

namespace shoal::collective::membership {

void Simulation::cut_both(std::size_t a, std::size_t b) {
  cut(a, b);
  cut(b, a);
}

void Simulation::crash_and_tell(std::size_t node) {
  crash(node);
  tell_absent(node);
}

void Simulation::tell_absent(std::size_t node) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto told = [this, i, node] { tell(i, NobodyListens{nodes_[node].id}); };
    if (i != node) at(now_ + any_duration(milliseconds(500)), told);
  }
}

void Simulation::cut_a_pair_for_good() {
  const std::size_t members = scenario_.members;
  const std::size_t a = random_() % members;
  const std::size_t b = (a + 1 + random_() % (members - 1)) % members;
  const auto ways = random_() % 3;
  if (ways != 0) cut_for_good(a, b);
  if (ways != 1) cut_for_good(b, a);
}

void Simulation::partition(std::uint32_t side) {
  for (std::size_t a = 0; a < kMostNodes; ++a) {
    for (std::size_t b = 0; b < kMostNodes; ++b)
      if (((side >> a) & 1u) != ((side >> b) & 1u)) cut(a, b);
  }
}

void Simulation::deafen(std::size_t node) {
  for (std::size_t i = 0; i < kMostNodes; ++i) cut(i, node);
}

void Simulation::mute(std::size_t node) {
  for (std::size_t i = 0; i < kMostNodes; ++i) cut(node, i);
}

std::size_t Simulation::join(Duration ready_after, bool as_witness) {
  std::vector<MemberId> contacts;
  for (const Node& node : nodes_)
    if (acts(node)) contacts.push_back(node.id);
  const auto& tokens = scenario_.tokens;
  const std::string token = tokens.empty() ? "" : tokens[random_() % tokens.size()];
  const std::size_t joiner = add_joiner(contacts, as_witness, token);
  nodes_[joiner].is_ready = as_witness;
  at(now_ + ready_after, [this, joiner] {
    nodes_[joiner].is_ready = true;
    tell(joiner, JoinerReady{});
  });
  return joiner;
}

std::size_t Simulation::join_by_way_of(std::size_t contact, const std::string& token) {
  const std::size_t joiner = add_joiner({nodes_[contact].id}, false, token);
  nodes_[joiner].is_ready = true;
  tell(joiner, JoinerReady{});
  return joiner;
}

std::size_t Simulation::add_joiner(std::vector<MemberId> contacts, bool as_witness,
                                   std::string token) {
  const std::uint64_t number = nodes_.size() + 1;
  std::vector<std::size_t> known;
  for (const MemberId& contact : contacts) known.push_back(simulated_index(contact));
  add_node(id_of(number), Membership::joiner(member_of(number), std::move(contacts), settings_,
                                             time(), as_witness, scenario_.rules, token));
  nodes_.back().contacts = std::move(known);
  nodes_.back().token = std::move(token);
  return nodes_.size() - 1;
}

void Simulation::make_faults() {
  const auto faults = random_() % static_cast<std::uint64_t>(scenario_.most_faults + 1);
  for (std::uint64_t i = 0; i < faults; ++i) at(any_duration(kFaults), [this] { any_fault(); });
}

void Simulation::any_fault() {
  const std::size_t node = random_() % nodes_.size();
  const std::size_t other = random_() % nodes_.size();
  if (scenario_.only_joins) {
    if (random_() % 4 == 0) return pause(node, any_duration(seconds(2)));
    if (nodes_.size() < kMostNodes - 1) join(any_duration(seconds(2)), random_() % 8 == 0);
    return;
  }
  if (keeper_ && random_() % 4 == 0) return any_fault_of_keeper();
  switch (random_() % 11) {
    case 0:
      return crash(node);
    case 1:
      return crash_and_tell(node);
    case 2:
      return partition(static_cast<std::uint32_t>(random_()));
    case 3:
      partition(static_cast<std::uint32_t>(random_()));
      return at(now_ + any_duration(seconds(5)), [this] { heal(); });
    case 4:
      return cut_both(node, other);
    case 5:
      // A firewall that lets nothing through may refuse connections as well.
      if (random_() % 2 == 0) tell_absent(node);
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

}  // namespace shoal::collective::membership
