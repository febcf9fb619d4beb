// What lies between the members of a Simulation and the keeper outside: questions and answers are
// lost, come twice and late, and the keeper stands still, without losing what it has answered.
#include "tests/collective/membership/simulated_keeper.h"

#include <algorithm>

#include "tests/collective/membership/simulation.h"

namespace shoal::collective::membership {

void Simulation::stop_keeper(Duration duration) {
  keeper_down_until_ = std::max(keeper_down_until_, now_ + duration);
}

void Simulation::ask_keeper(std::size_t node, const ChainQuestion& question) {
  const int copies = !quiet_ && happens(scenario_.copies) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    if (!quiet_ && happens(scenario_.loss)) continue;
    at(now_ + any_delay(), [this, node, question] {
      if (now_ < keeper_down_until_ || cut_from_keeper_[node]) return;
      ChainAnswered answer{.slot = question.slot, .entry = keeper_->answer(question, check_)};
      if (scenario_.as_bytes && answer.entry)
        answer.entry = decode_chain_entry(encode(*answer.entry));
      // It may have decided, and its answer never comes.
      if (!quiet_ && happens(scenario_.loss)) return;
      at(now_ + any_delay(), [this, node, answer] { bring_answer(node, answer); });
    });
  }
}

void Simulation::bring_answer(std::size_t node, const ChainAnswered& answer) {
  if (now_ >= nodes_[node].paused_until) return tell(node, answer);
  at(nodes_[node].paused_until, [this, node, answer] { bring_answer(node, answer); });
}

Duration Simulation::any_delay() {
  Duration delay = milliseconds(1) + any_duration(milliseconds(40));
  if (!quiet_ && happens(scenario_.late)) delay += any_duration(milliseconds(1500));
  return delay;
}

// What else may happen where there is a keeper outside.
void Simulation::any_fault_of_keeper() {
  const std::size_t node = random_() % nodes_.size();
  switch (random_() % 3) {
    case 0:
      return stop_keeper(any_duration(seconds(3)));
    case 1:
      cut_from_keeper(node);
      return at(now_ + any_duration(seconds(5)), [this] { cut_from_keeper_ = {}; });
    default:
      // Alone with the keeper, which it reaches.
      deafen(node);
      return mute(node);
  }
}

}  // namespace shoal::collective::membership
