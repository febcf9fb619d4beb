#include "shoal/collective/algorithm/direct.h"

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

StepTable empty_table(int ranks, const char* who) {
  SHOAL_USER_CHECK(ranks >= 1, who, "at least one rank is needed: ranks={}", ranks);
  return StepTable(static_cast<std::size_t>(ranks));
}

StepTable rooted_table(int ranks, int root, const char* who) {
  StepTable table = empty_table(ranks, who);
  SHOAL_USER_CHECK(root >= 0 && root < ranks, who, "root {} is not one of {} ranks", root, ranks);
  return table;
}

/// The others, beginning with the successor of `rank`.
template <class Visit>
void for_others(int rank, int ranks, Visit&& visit) {
  for (int distance = 1; distance < ranks; ++distance) visit((rank + distance) % ranks);
}

template <class PartOf>
void send_to_others(std::vector<Step>& steps, int ranks, int rank, PartOf&& part) {
  for_others(rank, ranks, [&](int peer) { steps.push_back({Action::kSend, peer, part(peer)}); });
}

/// Folds what all ranks have of `own`. The fold takes what is held in the order of ranks, whichever
/// message comes first.
void hold_and_fold(std::vector<Step>& steps, int ranks, int rank, const Range& own) {
  for_others(rank, ranks, [&](int peer) { steps.push_back({Action::kHold, peer, own}); });
  steps.push_back({Action::kFold, rank, own});
}

template <class PartOf>
void receive_from_others(std::vector<Step>& steps, int ranks, int rank, PartOf&& part) {
  for_others(rank, ranks, [&](int peer) {
    steps.push_back({Action::kReceiveCopy, peer, part(peer)});
  });
}

/// Sends each other rank its part, and folds what the others send of this rank's.
template <class PartOf>
void scatter_and_fold(std::vector<Step>& steps, int ranks, int rank, PartOf&& part) {
  // All sends stand before the first receive. A send waits for nobody, so no two ranks can wait for
  // each other.
  send_to_others(steps, ranks, rank, part);
  hold_and_fold(steps, ranks, rank, part(rank));
}

auto equal_parts(std::size_t count) {
  return [count](int rank) {
    return Range{static_cast<std::size_t>(rank) * count,
                 (static_cast<std::size_t>(rank) + 1) * count};
  };
}

/// Ranges of these sizes, one behind the other from `begin` on.
std::vector<Range> ranges_of(std::span<const std::size_t> counts, std::size_t begin) {
  std::vector<Range> ranges;
  ranges.reserve(counts.size());
  for (const std::size_t count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

}  // namespace

std::vector<Step> one_shot_all_reduce_column(int ranks, std::size_t count, int rank) {
  std::vector<Step> steps;
  scatter_and_fold(steps, ranks, rank, [&](int) { return Range{0, count}; });
  return steps;
}

// All contributions are sent before the first sum, and all sums before the first that is received:
// a segment's sum lies behind the contributions to the segments after it, which the link is still
// busy with.
std::vector<Step> direct_all_reduce_column(int ranks, std::size_t count, int rank, int segments) {
  std::vector<Step> steps;
  const auto part = [&](int r, int segment) {
    const Range whole = part_of(count, ranks, r);
    const Range within = part_of(whole.size(), segments, segment);
    return Range{whole.begin + within.begin, whole.begin + within.end};
  };
  for (int s = 0; s < segments; ++s)
    send_to_others(steps, ranks, rank, [&](int peer) { return part(peer, s); });
  for (int s = 0; s < segments; ++s) {
    const Range own = part(rank, s);
    hold_and_fold(steps, ranks, rank, own);
    send_to_others(steps, ranks, rank, [&](int) { return own; });
  }
  for (int s = 0; s < segments; ++s)
    receive_from_others(steps, ranks, rank, [&](int peer) { return part(peer, s); });
  return steps;
}

std::vector<Step> direct_reduce_scatter_column(int ranks, std::size_t count, int rank) {
  std::vector<Step> steps;
  scatter_and_fold(steps, ranks, rank, equal_parts(count));
  return steps;
}

std::vector<Step> direct_all_gather_column(int ranks, std::size_t count, int rank) {
  std::vector<Step> steps;
  const auto part = equal_parts(count);
  send_to_others(steps, ranks, rank, [&](int) { return part(rank); });
  receive_from_others(steps, ranks, rank, part);
  return steps;
}

StepTable one_shot_all_reduce(int ranks, std::size_t count) {
  StepTable table = empty_table(ranks, "one_shot_all_reduce");
  for (int rank = 0; rank < ranks; ++rank)
    table[rank] = one_shot_all_reduce_column(ranks, count, rank);
  return table;
}

StepTable direct_all_reduce(int ranks, std::size_t count) {
  StepTable table = empty_table(ranks, "direct_all_reduce");
  for (int rank = 0; rank < ranks; ++rank)
    table[rank] = direct_all_reduce_column(ranks, count, rank);
  return table;
}

StepTable direct_reduce_scatter(int ranks, std::size_t count) {
  StepTable table = empty_table(ranks, "direct_reduce_scatter");
  for (int rank = 0; rank < ranks; ++rank)
    table[rank] = direct_reduce_scatter_column(ranks, count, rank);
  return table;
}

StepTable direct_all_gather(int ranks, std::size_t count) {
  StepTable table = empty_table(ranks, "direct_all_gather");
  for (int rank = 0; rank < ranks; ++rank)
    table[rank] = direct_all_gather_column(ranks, count, rank);
  return table;
}

StepTable direct_reduce(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "direct_reduce");
  for_others(root, ranks, [&](int peer) {
    table[peer].push_back({Action::kSend, root, {0, count}});
    table[root].push_back({Action::kHold, peer, {0, count}});
  });
  table[root].push_back({Action::kFold, root, {0, count}});
  return table;
}

StepTable direct_broadcast(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "direct_broadcast");
  for_others(root, ranks, [&](int peer) {
    table[root].push_back({Action::kSend, peer, {0, count}});
    table[peer].push_back({Action::kReceiveCopy, root, {0, count}});
  });
  return table;
}

StepTable direct_gather(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "direct_gather");
  const auto part = equal_parts(count);
  for_others(root, ranks, [&](int peer) {
    table[peer].push_back({Action::kSend, root, part(peer)});
    table[root].push_back({Action::kReceiveCopy, peer, part(peer)});
  });
  return table;
}

StepTable direct_scatter(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "direct_scatter");
  const auto part = equal_parts(count);
  for_others(root, ranks, [&](int peer) {
    table[root].push_back({Action::kSend, peer, part(peer)});
    table[peer].push_back({Action::kReceiveCopy, root, part(peer)});
  });
  return table;
}

std::vector<Step> exchange_steps(int rank, std::span<const std::size_t> send,
                                 std::span<const std::size_t> receive) {
  const int ranks = static_cast<int>(send.size());
  SHOAL_USER_CHECK(send.size() == receive.size() && rank >= 0 && rank < ranks, "all_to_all",
                   "{} counts to send, {} to receive", send.size(), receive.size());
  // What is sent lies in front of what arrives; both lie in the order of ranks.
  const std::vector<Range> sent = ranges_of(send, 0);
  const std::vector<Range> received = ranges_of(receive, sent.back().end);
  std::vector<Step> steps;
  for_others(rank, ranks, [&](int peer) { steps.push_back({Action::kSend, peer, sent[peer]}); });
  // Receives stand in the order in which the messages come: every rank sends to its successor
  // first, so the predecessor's is the first to arrive.
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = (rank + ranks - distance) % ranks;
    steps.push_back({Action::kReceiveCopy, peer, received[peer]});
  }
  return steps;
}

StepTable direct_all_to_all(int ranks, std::size_t count) {
  StepTable table = empty_table(ranks, "direct_all_to_all");
  const std::vector<std::size_t> counts(table.size(), count);
  for (int rank = 0; rank < ranks; ++rank) table[rank] = exchange_steps(rank, counts, counts);
  return table;
}

}  // namespace shoal::collective
