#include "shoal/schedule/generators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>

#include "shoal/base/check.h"

namespace shoal::schedule {
namespace {

void require_counts(const char* name, int ranks, int micro_batches) {
  SHOAL_USER_CHECK(ranks >= 1, name, "a pipeline needs at least one rank: ranks={}", ranks);
  SHOAL_USER_CHECK(micro_batches >= 1, name,
                   "a step needs at least one micro-batch: micro_batches={}", micro_batches);
}

/// Puts stage s on rank s mod p.
Schedule looped(std::string name, int ranks, int chunks, int micro_batches) {
  Schedule schedule{std::move(name), micro_batches, std::vector<int>(ranks * chunks),
                    std::vector<std::vector<Action>>(ranks)};
  for (int stage = 0; stage < ranks * chunks; ++stage)
    schedule.rank_of_stage[stage] = stage % ranks;
  return schedule;
}

/// Puts stages i and 2p - 1 - i on rank i.
Schedule v_shaped(std::string name, int ranks, int micro_batches) {
  Schedule schedule = looped(std::move(name), ranks, 2, micro_batches);
  for (int stage = ranks; stage < 2 * ranks; ++stage)
    schedule.rank_of_stage[stage] = 2 * ranks - 1 - stage;
  return schedule;
}

/// Appends actions to a rank's list and counts the micro-batches of each kind and stage itself. It
/// leaves out a micro-batch beyond the last.
class RankActions {
 public:
  RankActions(std::vector<Action>& actions, int micro_batches)
      : actions_(actions), micro_batches_(micro_batches) {}

  void forward(int stage) { add(Kind::kForward, stage, forwards_); }
  void backward(int stage) { add(Kind::kBackward, stage, backwards_); }
  void input_gradient(int stage) {
    pending_.push_back({Kind::kWeightGradient, stage, backwards_[stage]});
    add(Kind::kInputGradient, stage, backwards_);
  }
  /// Appends the oldest pending weight gradient.
  void weight_gradient() {
    if (pending_.empty()) return;
    if (pending_.front().micro_batch < micro_batches_) actions_.push_back(pending_.front());
    pending_.pop_front();
  }
  /// Appends the oldest pending weight gradient of this stage.
  void weight_gradient(int stage) {
    const auto at = std::find_if(pending_.begin(), pending_.end(),
                                 [&](const Action& action) { return action.stage == stage; });
    if (at == pending_.end()) return;
    if (at->micro_batch < micro_batches_) actions_.push_back(*at);
    pending_.erase(at);
  }
  std::size_t pending() const { return pending_.size(); }
  int forwards(int stage) { return forwards_[stage]; }
  int backwards(int stage) { return backwards_[stage]; }

 private:
  void add(Kind kind, int stage, std::map<int, int>& counter) {
    // The patterns below are written for an unlimited number of micro-batches; their edges come
    // from leaving out those that do not exist.
    const int micro_batch = counter[stage]++;
    if (micro_batch < micro_batches_) actions_.push_back({kind, stage, micro_batch});
  }

  std::vector<Action>& actions_;
  int micro_batches_;
  std::map<int, int> forwards_;
  std::map<int, int> backwards_;
  std::deque<Action> pending_;
};

/// 1F1B whose backward is cut in two: rank i starts with `warm_up(i)` forwards and runs its weight
/// gradients `delay(i)` micro-batches late.
template <class WarmUp, class Delay>
Schedule zero_bubble_h(const char* name, int ranks, int micro_batches, WarmUp warm_up,
                       Delay delay) {
  require_counts(name, ranks, micro_batches);
  Schedule schedule = looped(name, ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    // Warm-up, then input gradients and forwards in turns. Behind the last micro-batch forwards
    // fall away and pending weight gradients fill what were bubbles.
    for (int i = 0; i < warm_up(rank); ++i) actions.forward(rank);
    for (int i = 0; i < micro_batches; ++i) {
      actions.input_gradient(rank);
      if (actions.pending() > static_cast<std::size_t>(delay(rank))) actions.weight_gradient();
      actions.forward(rank);
    }
    while (actions.pending() > 0) actions.weight_gradient();
  }
  add_transfers(schedule);
  return schedule;
}

}  // namespace

Schedule in_turn(int ranks, int micro_batches) {
  require_counts("in_turn", ranks, micro_batches);
  Schedule schedule = looped("in_turn", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    // Rank 0 has the last backward pass of a micro-batch, and begins the next one behind it.
    for (int i = 0; i < micro_batches; ++i) {
      actions.forward(rank);
      actions.backward(rank);
    }
  }
  add_transfers(schedule);
  return schedule;
}

Schedule gpipe(int ranks, int micro_batches) {
  require_counts("gpipe", ranks, micro_batches);
  Schedule schedule = looped("gpipe", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    for (int i = 0; i < micro_batches; ++i) actions.forward(rank);
    for (int i = 0; i < micro_batches; ++i) actions.backward(rank);
  }
  add_transfers(schedule);
  return schedule;
}

Schedule one_forward_one_backward(int ranks, int micro_batches) {
  require_counts("1f1b", ranks, micro_batches);
  Schedule schedule = looped("1f1b", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    // Warm-up: a forward for each rank behind this one, which is when the first micro-batch reaches
    // the last rank.
    for (int i = 0; i < ranks - rank - 1; ++i) actions.forward(rank);
    for (int i = 0; i < micro_batches; ++i) {
      actions.forward(rank);
      actions.backward(rank);
    }
  }
  add_transfers(schedule);
  return schedule;
}

Schedule interleaved(int ranks, int chunks, int micro_batches) {
  require_counts("interleaved", ranks, micro_batches);
  SHOAL_USER_CHECK(chunks >= 1, "interleaved", "a rank needs at least one stage: chunks={}",
                   chunks);
  if (chunks == 1 || ranks == 1) {
    Schedule plain = ranks == 1 ? looped("interleaved", 1, chunks, micro_batches)
                                : one_forward_one_backward(ranks, micro_batches);
    plain.name = "interleaved";
    if (ranks > 1) return plain;
    RankActions actions(plain.table[0], micro_batches);
    for (int i = 0; i < micro_batches; ++i) {
      for (int stage = 0; stage < chunks; ++stage) actions.forward(stage);
      for (int stage = chunks - 1; stage >= 0; --stage) actions.backward(stage);
    }
    return plain;
  }
  SHOAL_USER_CHECK(micro_batches % ranks == 0, "interleaved",
                   "micro-batches must be a multiple of ranks: micro_batches={} ranks={}",
                   micro_batches, ranks);
  Schedule schedule = looped("interleaved", ranks, chunks, micro_batches);
  const int total = micro_batches * chunks;
  // Groups of p micro-batches pass through one chunk after the other, and back through the chunks
  // in reverse.
  const auto chunk_of = [&](int turn) { return turn % (ranks * chunks) / ranks; };
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    // Megatron-LM's warm-up: the way to the last rank and back, and p forwards for each chunk but
    // the last. With m = p the pattern has no steady state: all forwards come first.
    const int warm_up = micro_batches == ranks
                            ? total
                            : std::min(total, 2 * (ranks - rank - 1) + (chunks - 1) * ranks);
    const auto forward = [&](int turn) { actions.forward(chunk_of(turn) * ranks + rank); };
    const auto backward = [&](int turn) {
      actions.backward((chunks - 1 - chunk_of(turn)) * ranks + rank);
    };
    for (int turn = 0; turn < warm_up; ++turn) forward(turn);
    for (int turn = 0; turn < total; ++turn) {
      if (warm_up + turn < total) forward(warm_up + turn);
      backward(turn);
    }
  }
  add_transfers(schedule);
  return schedule;
}

Schedule zero_bubble_h1(int ranks, int micro_batches) {
  // H1 keeps the memory of 1F1B: one forward more than its warm-up, as the loop begins with a
  // backward, and weight gradients late by the rank's place.
  return zero_bubble_h(
      "zb-h1", ranks, micro_batches, [&](int rank) { return ranks - rank; },
      [](int rank) { return rank; });
}

Schedule zero_bubble_h2(int ranks, int micro_batches) {
  // H2 fills the warm-up with further forwards, up to 2p - 1 activations on rank 0.
  return zero_bubble_h(
      "zb-h2", ranks, micro_batches, [&](int rank) { return 2 * (ranks - rank) - 1; },
      [](int rank) { return 2 * rank; });
}

Schedule zero_bubble_v(int ranks, int micro_batches) {
  require_counts("zb-v", ranks, micro_batches);
  Schedule schedule = v_shaped("zb-v", ranks, micro_batches);
  // The pattern needs 2p - 1 micro-batches to close; those beyond the real ones are left out.
  const int rounds = std::max(2 * ranks - 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    const int down = rank;
    const int up = 2 * ranks - 1 - rank;
    // Phases and counts are those of PyTorch's ScheduleZBVZeroBubble: warm-up down the V, then both
    // halves in turns, the steady state, and a cool-down whose gaps weight gradients fill.
    const auto whole_backward = [&](int stage) {
      actions.input_gradient(stage);
      actions.weight_gradient(stage);
    };
    // Warm-up 1: the first micro-batches go down to the last rank and come back up.
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) actions.forward(down);
    // Warm-up 2: both halves forward in turns.
    for (int i = 0; i < rank; ++i) {
      actions.forward(up);
      actions.forward(down);
    }
    // Warm-up 3: the second half forward and backward in turns.
    for (int i = 0; i < ranks - rank; ++i) {
      actions.forward(up);
      whole_backward(up);
    }
    // Steady state: forward and backward of each half in turns.
    while (actions.forwards(up) < actions.forwards(down) || actions.forwards(down) < rounds) {
      if (actions.forwards(down) < rounds) actions.forward(down);
      whole_backward(down);
      actions.forward(up);
      whole_backward(up);
    }
    // Cool-down 1: input gradients alone, for which the ranks before wait.
    for (int i = 0; i < rank; ++i) {
      actions.input_gradient(down);
      actions.input_gradient(up);
    }
    // Cool-down 2: weight gradients fill the waits.
    for (int i = 0; i < ranks - rank; ++i) {
      actions.input_gradient(down);
      actions.weight_gradient(down);
    }
    while (actions.pending() > 0) actions.weight_gradient();
  }
  add_transfers(schedule);
  return schedule;
}

Schedule dual_pipe_v(int ranks, int micro_batches) {
  require_counts("dualpipe-v", ranks, micro_batches);
  SHOAL_USER_CHECK(micro_batches >= 2 * ranks, "dualpipe-v",
                   "needs at least two micro-batches a rank: micro_batches={} ranks={}",
                   micro_batches, ranks);
  Schedule schedule = v_shaped("dualpipe-v", ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankActions actions(schedule.table[rank], micro_batches);
    const int down = rank;
    const int up = 2 * ranks - 1 - rank;
    // The eight steps are those of DeepSeek's dualpipev.py; `behind` is how many ranks come after
    // this one.
    const int behind = ranks - rank - 1;
    // Step 1: forwards of the first half.
    for (int i = 0; i < 2 * behind; ++i) actions.forward(down);
    // Step 2: the second half of the V begins to come back.
    for (int i = 0; i < rank + 1; ++i) {
      actions.forward(down);
      actions.forward(up);
    }
    // Step 3: first backward passes of the second half; their weight gradients follow at once.
    for (int i = 0; i < behind; ++i) {
      actions.input_gradient(up);
      actions.weight_gradient();
      actions.forward(up);
    }
    // Step 4, the main step: both halves, forward and backward.
    for (int i = 0; i < micro_batches - 2 * ranks + rank + 1; ++i) {
      actions.forward(down);
      actions.backward(up);
      actions.forward(up);
      actions.backward(down);
    }
    // Step 5: no forward of the first half is left.
    for (int i = 0; i < behind; ++i) {
      actions.backward(up);
      actions.forward(up);
      actions.backward(down);
    }
    // Weight gradients of the second half wait until the cool-down, whose gaps they fill.
    bool deferred = false;
    const auto backward = [&](int stage) {
      if (deferred) {
        actions.input_gradient(stage);
      } else {
        actions.backward(stage);
      }
    };
    // Step 6: both halves backward; from the middle on only input gradients, for which others wait.
    for (int i = 0; i < rank + 1; ++i) {
      if (i == (rank + 1) / 2 && rank % 2 == 1) deferred = true;
      backward(up);
      if (i == (rank + 1) / 2 && rank % 2 == 0) deferred = true;
      backward(down);
    }
    // Step 7: a deferred weight gradient fills each wait for a gradient of the first half.
    for (int i = 0; i < behind; ++i) {
      actions.weight_gradient();
      actions.input_gradient(down);
    }
    // Step 8: the weight gradients that are left.
    while (actions.pending() > 0) actions.weight_gradient();
  }
  add_transfers(schedule);
  return schedule;
}

std::vector<std::string> schedule_names() {
  return {"in_turn", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"};
}

Schedule make_schedule(const std::string& name, int ranks, int chunks, int micro_batches) {
  if (name == "interleaved") return interleaved(ranks, chunks, micro_batches);
  const bool v = name == "zb-v" || name == "dualpipe-v";
  const auto names = schedule_names();
  SHOAL_USER_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "schedule",
                   "no schedule \"{}\"; there are {}", name, fmt::join(names, ", "));
  SHOAL_USER_CHECK(chunks == (v ? 2 : 1), "schedule", "{} has {} a rank: chunks={}", name,
                   v ? "two stages" : "one stage", chunks);
  if (name == "in_turn") return in_turn(ranks, micro_batches);
  if (name == "gpipe") return gpipe(ranks, micro_batches);
  if (name == "1f1b") return one_forward_one_backward(ranks, micro_batches);
  if (name == "zb-h1") return zero_bubble_h1(ranks, micro_batches);
  if (name == "zb-h2") return zero_bubble_h2(ranks, micro_batches);
  if (name == "zb-v") return zero_bubble_v(ranks, micro_batches);
  return dual_pipe_v(ranks, micro_batches);
}

}  // namespace shoal::schedule
