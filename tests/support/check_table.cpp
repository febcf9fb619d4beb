#include "tests/support/check_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"

namespace shoal::collective {
namespace {

/// Stands for the value of an element: `sum` says which contributions are in it, `order` in which
/// order they were added. Zero: no value was ever written.
struct Symbol {
  std::uint64_t sum = 0;
  std::uint64_t order = 0;
  bool operator==(const Symbol&) const = default;
};
Symbol contribution(int rank, std::size_t element) {
  const std::uint64_t value = splitmix64((static_cast<std::uint64_t>(rank) << 40) ^ element) | 1;
  return {value, value};
}
Symbol add(Symbol a, Symbol b) {
  return {a.sum + b.sum, splitmix64(a.order) + 3 * splitmix64(b.order ^ 0x5bd1e995)};
}

using Message = std::vector<Symbol>;

/// Executes a table on symbols.
class TableExecution {
 public:
  TableExecution(const StepTable& table, Kind kind, std::size_t count, int root)
      : table_(table),
        kind_(kind),
        count_(count),
        root_(root),
        ranks_(static_cast<int>(table.size())),
        work_(table.size()),
        held_(table.size()) {
    check_.sent.resize(table.size());
    for (int rank = 0; rank < ranks_; ++rank) fill(rank);
  }

  TableCheck run() {
    std::vector<std::size_t> at(table_.size());
    for (bool moved = true; moved && check_.correct();) {
      moved = false;
      for (int rank = 0; rank < ranks_; ++rank) {
        while (check_.correct() && at[rank] < table_[rank].size() &&
               act(rank, table_[rank][at[rank]])) {
          ++at[rank];
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < ranks_ && check_.correct(); ++rank) {
      if (at[rank] != table_[rank].size()) {
        fail("deadlock: rank {} waits for rank {} in step {}", rank, table_[rank][at[rank]].peer,
             at[rank]);
      }
      if (!held_[rank].empty()) fail("rank {} holds what it never folds", rank);
    }
    for (const auto& [link, queue] : wire_) {
      if (check_.correct() && !queue.empty())
        fail("rank {} never takes a message of rank {}", link.second, link.first);
    }
    if (check_.correct()) compare_results();
    return std::move(check_);
  }

 private:
  /// Records the problem. Returns false, which the step that met it returns.
  template <class... Args>
  bool fail(fmt::format_string<Args...> text, Args&&... args) {
    check_.problem = fmt::format(text, std::forward<Args>(args)...);
    return false;
  }

  std::size_t all() const { return count_ * static_cast<std::size_t>(ranks_); }

  void fill(int rank) {
    const bool wide =
        kind_ != Kind::kAllReduce && kind_ != Kind::kReduce && kind_ != Kind::kBroadcast;
    auto& work = work_[rank];
    work.resize(wide ? all() : count_);
    if (kind_ == Kind::kAllToAll) work.resize(2 * all());
    std::size_t begin = 0;
    std::size_t end = kind_ == Kind::kAllToAll ? all() : work.size();
    if (kind_ == Kind::kAllGather || kind_ == Kind::kGather) {
      begin = rank * count_;
      end = begin + count_;
    }
    if ((kind_ == Kind::kBroadcast || kind_ == Kind::kScatter) && rank != root_) end = 0;
    for (std::size_t i = begin; i < end; ++i) work[i] = contribution(rank, i);
    if (kind_ == Kind::kAllToAll)
      std::copy_n(work.begin() + rank * count_, count_, work.begin() + all() + rank * count_);
  }

  /// True when the step could be taken.
  bool act(int rank, const Step& step) {
    if (step.peer < 0 || step.peer >= ranks_ || step.range.begin > step.range.end ||
        step.range.end > work_[rank].size())
      return fail("rank {} has a step outside of its memory or of the group", rank);
    if (step.range.size() == 0) return true;
    Symbol* mine = work_[rank].data() + step.range.begin;
    switch (step.action) {
      case Action::kSend:
        return send(rank, step);
      case Action::kFold:
        return fold(rank, step);
      default:
        break;
    }
    auto& queue = wire_[{step.peer, rank}];
    if (queue.empty()) return false;
    const Message message = std::move(queue.front());
    queue.pop_front();
    if (message.size() != step.range.size()) {
      return fail("rank {} expects {} elements of rank {}, which sent {}", rank, step.range.size(),
                  step.peer, message.size());
    }
    if (step.action == Action::kHold) {
      held_[rank].emplace(step.peer, message);
      return true;
    }
    for (std::size_t i = 0; i < message.size(); ++i) {
      if (step.action == Action::kReceiveCopy) {
        mine[i] = message[i];
        continue;
      }
      mine[i] = step.peer < rank ? add(message[i], mine[i]) : add(mine[i], message[i]);
    }
    return true;
  }

  bool send(int rank, const Step& step) {
    if (step.peer == rank) return fail("rank {} sends to itself", rank);
    Message message(work_[rank].begin() + step.range.begin, work_[rank].begin() + step.range.end);
    if (std::count(message.begin(), message.end(), Symbol{}) > 0)
      return fail("rank {} sends what it does not have", rank);
    wire_[{rank, step.peer}].push_back(std::move(message));
    check_.sent[rank] += step.range.size();
    ++check_.messages;
    return true;
  }

  bool fold(int rank, const Step& step) {
    held_[rank].emplace(rank, Message(work_[rank].begin() + step.range.begin,
                                      work_[rank].begin() + step.range.end));
    for (std::size_t i = 0; i < step.range.size(); ++i) {
      std::optional<Symbol> sum;
      for (const auto& [peer, message] : held_[rank]) {
        if (message.size() != step.range.size())
          return fail("rank {} folds messages of different sizes", rank);
        sum = sum ? add(*sum, message[i]) : message[i];
      }
      work_[rank][step.range.begin + i] = *sum;
    }
    held_[rank].clear();
    return true;
  }

  /// The sum that element `i` of `rank`'s work vector must hold in the end; empty where any value
  /// is right.
  std::optional<std::uint64_t> wanted(int rank, std::size_t i) const {
    const auto total = [&](std::size_t element) {
      std::uint64_t sum = 0;
      for (int r = 0; r < ranks_; ++r) sum += contribution(r, element).sum;
      return sum;
    };
    const int part = count_ > 0 ? static_cast<int>(i / count_ % ranks_) : 0;
    switch (kind_) {
      case Kind::kReduce:
        return rank == root_ ? std::optional(total(i)) : std::nullopt;
      case Kind::kAllReduce:
        return total(i);
      case Kind::kReduceScatter:
        return part == rank ? std::optional(total(i)) : std::nullopt;
      case Kind::kBroadcast:
        return contribution(root_, i).sum;
      case Kind::kScatter:
        return part == rank ? std::optional(contribution(root_, i).sum) : std::nullopt;
      case Kind::kAllGather:
        return contribution(part, i).sum;
      case Kind::kGather:
        return rank == root_ ? std::optional(contribution(part, i).sum) : std::nullopt;
      case Kind::kAllToAll:
        return i < all()
                   ? std::nullopt
                   : std::optional(contribution(part, rank * count_ + (i - all()) % count_).sum);
      default:
        return std::nullopt;
    }
  }

  void compare_results() {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (std::size_t i = 0; i < work_[rank].size(); ++i) {
        const auto want = wanted(rank, i);
        if (want && work_[rank][i].sum != *want) {
          fail("element {} of rank {} does not hold what it should", i, rank);
          return;
        }
        if (kind_ == Kind::kAllReduce && work_[rank][i].order != work_[0][i].order) {
          fail("element {} was added in another order on rank {} than on rank 0", i, rank);
          return;
        }
      }
    }
  }

  const StepTable& table_;
  const Kind kind_;
  const std::size_t count_;
  const int root_;
  const int ranks_;
  std::vector<std::vector<Symbol>> work_;
  std::vector<std::map<int, Message>> held_;                 // by rank, then by sender
  std::map<std::pair<int, int>, std::deque<Message>> wire_;  // by sender and receiver, in order
  TableCheck check_;
};

}  // namespace

std::size_t TableCheck::most_sent() const {
  return sent.empty() ? 0 : *std::max_element(sent.begin(), sent.end());
}

TableCheck check_table(const StepTable& table, Kind kind, std::size_t count, int root) {
  SHOAL_USER_CHECK(kind != Kind::kSend && kind != Kind::kReceive, "check_table", "{} has no table",
                   name(kind));
  return TableExecution(table, kind == Kind::kBarrier ? Kind::kAllReduce : kind, count, root).run();
}

}  // namespace shoal::collective
