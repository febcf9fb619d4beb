// Every move between two placements, forward and backward, against the whole tensor.
#include "shoal/parallel/redistribute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/ops/differentiable.h"
#include "tests/error_text.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::redistribute_test {
namespace {

using mesh::Box;
using mesh::Move;
using mesh::Placement;
using Cut = Placement::Cut;
using Kind = Placement::Kind;

/// Numbers that differ from element to element, in double.
at::Tensor numbers(const std::vector<std::int64_t>& shape, double seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + seed).sin().view(shape);
}

/// The tensor that rank `rank` holds of `whole` in this placement. A partial value is another share
/// of it on each rank.
at::Tensor local_of(const at::Tensor& whole, const Placement& placement, int ranks, int rank) {
  if (placement.kind == Kind::kReplicate) return whole.clone();
  if (placement.kind == Kind::kPartial) {
    if (rank > 0) return numbers(whole.sizes().vec(), rank);
    at::Tensor rest = whole.clone();
    for (int other = 1; other < ranks; ++other) rest -= numbers(whole.sizes().vec(), other);
    return rest;
  }
  std::vector<at::Tensor> parts;
  const std::int64_t dim =
      placement.dim < 0 ? placement.dim + whole.dim() : static_cast<std::int64_t>(placement.dim);
  for (const Box& box : mesh::boxes_along(whole.sizes().vec(), placement, ranks, rank))
    parts.push_back(whole.narrow(dim, box.begin[dim], box.end[dim] - box.begin[dim]));
  return at::cat(parts, dim);
}

std::vector<Placement> placements(std::size_t dims) {
  std::vector<Placement> list{Placement::replicate(), Placement::partial()};
  for (std::size_t d = 0; d < dims; ++d) {
    list.push_back(Placement::shard(static_cast<int>(d)));
    list.push_back(Placement::shard(static_cast<int>(d), Cut::kZigzag));
  }
  list.push_back(Placement::shard(-1));
  return list;
}

/// All pairs of placements between which a tensor of so many dimensions can be moved.
std::vector<std::pair<Placement, Placement>> moves(std::size_t dims) {
  std::vector<std::pair<Placement, Placement>> pairs;
  for (const Placement& from : placements(dims)) {
    for (const Placement& to : placements(dims)) {
      if (from.kind == Kind::kReplicate && to.kind == Kind::kPartial) continue;
      pairs.emplace_back(from, to);
    }
  }
  return pairs;
}

/// The whole tensor that all ranks' tensors in this placement stand for: the same on every rank.
at::Tensor whole_of(const at::Tensor& local, const Placement& placement, const comm::Group& group,
                    const std::vector<std::int64_t>& shape) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  if (placement.kind == Kind::kPartial) {
    sum += local;
  } else if (placement.kind == Kind::kReplicate) {
    sum += local / group.size();
  } else {
    const std::int64_t dim =
        placement.dim < 0 ? placement.dim + sum.dim() : static_cast<std::int64_t>(placement.dim);
    std::int64_t offset = 0;
    for (const Box& box : mesh::boxes_along(shape, placement, group.size(), group.rank())) {
      const std::int64_t length = box.end[dim] - box.begin[dim];
      sum.narrow(dim, box.begin[dim], length).copy_(local.narrow(dim, offset, length));
      offset += length;
    }
  }
  group.all_reduce(sum);
  return sum;
}

// The value stays what it is, and so does the gradient: dual(to) to dual(from). Uneven sizes, parts
// without elements, three dimensions.
TEST(Redistribute, EveryPairKeepsValueAndGradient) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{8}, {5, 7}, {4, 8, 2}, {3, 1, 6}, {2, 9}}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      comm::run_on_threads(
          {.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
          [&](const comm::Group& group) {
            for (const auto& [from, to] : moves(shape.size())) {
              const std::string what =
                  fmt::format("{} to {} of {} on {} ranks", from.text(), to.text(), shape, ranks);
              const at::Tensor value = numbers(shape, 0.5);
              const at::Tensor x = local_of(value, from, ranks, group.rank()).requires_grad_();
              const at::Tensor y = redistribute(x, group, from, to, shape);
              const at::Tensor found = whole_of(y.detach(), to, group, shape);
              EXPECT_LT((found - value).abs().max().item<double>(), 1e-12) << what;
              const at::Tensor slope = numbers(shape, 2.5);
              y.backward(local_of(slope, mesh::dual(to), ranks, group.rank()));
              const at::Tensor back = whole_of(x.grad(), mesh::dual(from), group, shape);
              EXPECT_LT((back - slope).abs().max().item<double>(), 1e-12) << what;
              if (to.kind == Kind::kReplicate) {
                const at::Tensor first = y.detach().clone();
                group.broadcast(first, 0);
                EXPECT_TRUE(at::equal(y.detach(), first)) << what << ": ranks differ";
              }
            }
          });
    }
  }
}

// What ranks copy from where it lies has the bits of what they pack and send, forward and backward,
// and nothing is sent.
TEST(Redistribute, ExchangesInPlaceWithTheSameBits) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{5, 7}, {4, 8, 2}, {3, 1, 6}}) {
    for (const int ranks : {2, 3, 4}) {
      comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                           [&](const comm::Group& group) {
                             const comm::Group apart = comm::without_shared_memory(group);
                             for (const auto& [from, to] : moves(shape.size())) {
                               if (mesh::move_between(from, to).kind != Move::Kind::kExchange)
                                 continue;
                               const auto moved = [&](const comm::Group& way) {
                                 const at::Tensor x =
                                     local_of(numbers(shape, 0.5), from, ranks, way.rank());
                                 x.requires_grad_();
                                 const at::Tensor y = redistribute(x, way, from, to, shape);
                                 y.backward(local_of(numbers(shape, 2.5), to, ranks, way.rank()));
                                 return std::pair(y.detach(), x.grad());
                               };
                               const double before = group.bytes_sent();
                               const auto [y, dx] = moved(group);
                               EXPECT_EQ(group.bytes_sent(), before);
                               const auto [y_sent, dx_sent] = moved(apart);
                               EXPECT_TRUE(at::equal(y, y_sent) && at::equal(dx, dx_sent))
                                   << from.text() << " to " << to.text() << " of "
                                   << fmt::format("{}", shape) << " on " << ranks << " ranks";
                             }
                             EXPECT_GT(apart.bytes_sent(), 0);
                           });
    }
  }
}

// The bytes that a group counts for a move are those of its formula, for all pairs of placements
// with equal parts.
TEST(Redistribute, SendsWhatTheFormulaSays) {
  const std::vector<std::int64_t> shape{8, 16};
  for (const int ranks : {2, 4}) {
    comm::run_on_threads(
        {.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
        [&](const comm::Group& in_memory) {
          const comm::Group group = comm::without_shared_memory(in_memory);
          for (const auto& [from, to] : moves(shape.size())) {
            const at::Tensor x = local_of(numbers(shape, 0.5), from, ranks, group.rank());
            const double before = group.bytes_sent();
            redistribute(x, group, from, to, shape);
            const auto elements =
                mesh::elements_sent(mesh::move_between(from, to), shape, ranks, group.rank());
            EXPECT_EQ(group.bytes_sent() - before, 8.0 * static_cast<double>(elements))
                << from.text() << " to " << to.text() << " on " << ranks << " ranks";
          }
        });
  }
}

// What follows on rank 1 gives no gradient back: the rank takes part in the sum all the same.
TEST(Redistribute, RunsOnARankWithoutAGradient) {
  comm::run_on_threads(
      {.size = 2, .arena = false, .timeout = std::chrono::seconds(10)},
      [&](const comm::Group& group) {
        const at::Tensor x = numbers({2, 3}, group.rank()).requires_grad_();
        const at::Tensor y =
            redistribute(x, group, Placement::shard(0), Placement::replicate(), {4, 3});
        const at::Tensor z = ops::differentiable("test", {y}, [&](const ops::Wanted&) {
          const ops::Backward backward = [rank = group.rank()](const ops::Tensors&,
                                                               const ops::Tensors& dz) {
            return ops::Tensors{rank == 0 ? dz[0] * 2 : at::Tensor()};
          };
          return ops::Recorded{{y.detach().clone()}, {}, backward};
        })[0];
        z.sum().backward();
        EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x) + 2));
      });
}

TEST(Redistribute, WhereNothingMovesNothingIsMade) {
  const at::Tensor x = numbers({4}, 0);
  const at::Tensor y = redistribute(x, {}, Placement::shard(0), Placement::shard(0), {4});
  EXPECT_TRUE(y.is_same(x));
}

TEST(Redistribute, MovesWithoutASenseAreRefused) {
  const at::Tensor x = numbers({4}, 0);
  EXPECT_THAT(
      error_text([&] { redistribute(x, {}, Placement::replicate(), Placement::partial(), {4}); }),
      testing::HasSubstr("would count the same values"));
  EXPECT_THAT(error_text([&] {
                redistribute(x, {}, Placement::partial(collective::Reduction::kMax),
                             Placement::replicate(), {4});
              }),
              testing::HasSubstr("only sums are redistributed"));
  EXPECT_THAT(
      error_text([&] { redistribute(x, {}, Placement::shard(0), Placement::replicate(), {6}); }),
      testing::HasSubstr("shard(0) of a tensor of [6] is [6] on rank 0 of 1, not [4]"));
}

TEST(Moves, AreTheCheapestOperation) {
  const auto kind = [](const Placement& from, const Placement& to) {
    return mesh::move_between(from, to).kind;
  };
  const Placement zigzag = Placement::shard(0, Cut::kZigzag);
  EXPECT_EQ(kind(Placement::replicate(), zigzag), Move::Kind::kSlice);
  EXPECT_EQ(kind(Placement::shard(1), Placement::replicate()), Move::Kind::kGather);
  EXPECT_EQ(kind(Placement::partial(), Placement::shard(1)), Move::Kind::kScatterSum);
  EXPECT_EQ(kind(Placement::partial(), Placement::replicate()), Move::Kind::kReduce);
  EXPECT_EQ(kind(Placement::shard(0), zigzag), Move::Kind::kExchange);
  EXPECT_EQ(kind(Placement::shard(0), Placement::partial()), Move::Kind::kPad);
  EXPECT_EQ(kind(zigzag, zigzag), Move::Kind::kNone);
}

TEST(Moves, BackwardMovesAreTheTransposed) {
  const auto backward = [](const Placement& from, const Placement& to) {
    return mesh::backward_of(mesh::move_between(from, to)).kind;
  };
  const Placement whole = Placement::replicate();
  const Placement sum = Placement::partial();
  const Placement part = Placement::shard(0);
  EXPECT_EQ(backward(part, whole), Move::Kind::kScatterSum);
  EXPECT_EQ(backward(sum, part), Move::Kind::kGather);
  EXPECT_EQ(backward(sum, whole), Move::Kind::kReduce);
  EXPECT_EQ(backward(whole, part), Move::Kind::kPad);
  EXPECT_EQ(backward(part, Placement::shard(1)), Move::Kind::kExchange);
}

// Four ranks, 5 x 7: two rows for the first, one for each other.
TEST(Moves, SendWhatTheyMust) {
  const auto sent = [](const Placement& from, const Placement& to, int rank) {
    return mesh::elements_sent(mesh::move_between(from, to), {5, 7}, 4, rank);
  };
  const Placement rows = Placement::shard(0);
  const Placement columns = Placement::shard(1);
  EXPECT_EQ(sent(rows, Placement::replicate(), 0), 3 * 14);
  EXPECT_EQ(sent(rows, Placement::replicate(), 3), 3 * 7);
  EXPECT_EQ(sent(Placement::partial(), rows, 0), 35 - 14);
  EXPECT_EQ(sent(Placement::partial(), rows, 1), 35 - 7);
  EXPECT_EQ(sent(Placement::partial(), Placement::replicate(), 0), 35 - 9 + 3 * 9);
  EXPECT_EQ(sent(Placement::partial(), Placement::replicate(), 3), 35 - 8 + 3 * 8);
  // Of its two rows the first rank keeps two of seven columns, the last of its row the last column.
  EXPECT_EQ(sent(rows, columns, 0), 14 - 2 * 2);
  EXPECT_EQ(sent(rows, columns, 3), 7 - 1);
  EXPECT_EQ(sent(Placement::replicate(), rows, 0), 0);
  EXPECT_EQ(sent(rows, Placement::partial(), 0), 0);
  EXPECT_EQ(sent(rows, rows, 0), 0);
}

}  // namespace
}  // namespace shoal::parallel::redistribute_test
