#include "shoal/train/copied_run.h"

namespace shoal::train {

std::int64_t* CopiedRun::State::find(std::uint32_t token) {
  for (auto& [label, target] : next)
    if (label == token) return &target;
  return nullptr;
}

CopiedRun::CopiedRun(std::span<const std::uint32_t> sample) : states_(1) {
  for (const std::uint32_t token : sample) extend(token);
}

// The on-line construction of Blumer et al.: a state stands for all runs that end at the same
// places, its link for the longest suffix that also ends elsewhere.
void CopiedRun::extend(std::uint32_t token) {
  const auto made = static_cast<std::int64_t>(states_.size());
  states_.push_back({.length = states_[last_].length + 1, .end = states_[last_].length + 1});
  std::int64_t at = last_;
  // All suffixes that could not go on with the token do so now.
  for (; at >= 0 && !states_[at].find(token); at = states_[at].link)
    states_[at].next.emplace_back(token, made);
  last_ = made;
  if (at < 0) {
    states_[made].link = 0;
    return;
  }
  const std::int64_t target = *states_[at].find(token);
  if (states_[target].length == states_[at].length + 1) {
    states_[made].link = target;
    return;
  }
  // The target also ends longer runs: split off what is reached by this short way.
  const auto copy = static_cast<std::int64_t>(states_.size());
  states_.push_back(states_[target]);
  states_[copy].length = states_[at].length + 1;
  for (; at >= 0; at = states_[at].link) {
    std::int64_t* next = states_[at].find(token);
    if (!next || *next != target) break;
    *next = copy;
  }
  states_[target].link = states_[made].link = copy;
}

void CopiedRun::feed(std::span<const std::uint32_t> text) {
  for (const std::uint32_t token : text) {
    const std::int64_t* next = states_[at_].find(token);
    // No run of this length goes on with the token: try the next shorter suffix. Each token
    // lengthens the match by one at most, so the text takes linear time.
    while (!next && at_ != 0) {
      at_ = states_[at_].link;
      matched_ = states_[at_].length;
      next = states_[at_].find(token);
    }
    if (!next) continue;
    at_ = *next;
    ++matched_;
    // `end` of a state is where in the sample its runs first end.
    if (matched_ > longest_) {
      longest_ = matched_;
      end_ = states_[at_].end;
    }
  }
}

}  // namespace shoal::train
