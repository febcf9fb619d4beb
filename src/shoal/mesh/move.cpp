#include "shoal/mesh/move.h"

#include "shoal/base/check.h"

namespace shoal::mesh {
namespace {

using Kind = Placement::Kind;

std::int64_t count_of(const std::vector<Box>& boxes) {
  std::int64_t count = 0;
  for (const Box& box : boxes) count += box.count();
  return count;
}

}  // namespace

Move move_between(const Placement& from, const Placement& to) {
  for (const Placement& one : {from, to}) {
    SHOAL_USER_CHECK(one.kind != Kind::kPartial || one.reduction == Reduction::kSum, "redistribute",
                     "{}: only sums are redistributed", one.text());
  }
  const auto kind = [&] {
    if (from == to) return Move::Kind::kNone;
    switch (from.kind) {
      case Kind::kReplicate:
        SHOAL_USER_CHECK(to.kind != Kind::kPartial, "redistribute",
                         "replicate to partial: every rank would count the same values");
        return Move::Kind::kSlice;
      case Kind::kPartial:
        return to.kind == Kind::kShard ? Move::Kind::kScatterSum : Move::Kind::kReduce;
      case Kind::kShard:
        break;
    }
    if (to.kind == Kind::kReplicate) return Move::Kind::kGather;
    return to.kind == Kind::kPartial ? Move::Kind::kPad : Move::Kind::kExchange;
  }();
  return {kind, from, to};
}

Move backward_of(const Move& move) { return move_between(dual(move.to), dual(move.from)); }

std::int64_t elements_sent(const Move& move, const std::vector<std::int64_t>& whole, int ranks,
                           int rank) {
  const std::int64_t all = Box{std::vector<std::int64_t>(whole.size(), 0), whole}.count();
  const auto own_from = boxes_along(whole, move.from, ranks, rank);
  const auto own_to = boxes_along(whole, move.to, ranks, rank);
  switch (move.kind) {
    case Move::Kind::kNone:
    case Move::Kind::kSlice:
    case Move::Kind::kPad:
      return 0;
    case Move::Kind::kGather:
      return (ranks - 1) * count_of(own_from);
    case Move::Kind::kScatterSum:
      return all - count_of(own_to);
    case Move::Kind::kReduce: {
      // A reduce-scatter of even parts, then a gather of them.
      const auto [begin, end] = even_part(all, ranks, rank);
      return all - (end - begin) + (ranks - 1) * (end - begin);
    }
    case Move::Kind::kExchange: {
      std::int64_t stays = 0;
      for (const Box& a : own_from)
        for (const Box& b : own_to) stays += intersection(a, b).count();
      return count_of(own_from) - stays;
    }
  }
  return 0;
}

std::vector<Box> boxes_along(const std::vector<std::int64_t>& whole, const Placement& placement,
                             int ranks, int rank) {
  return local_boxes(whole, {{Axis::kTensor, placement}}, {.tp = ranks}, rank);
}

}  // namespace shoal::mesh
