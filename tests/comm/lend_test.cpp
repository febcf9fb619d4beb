// Tensors that ranks lend each other: in place and copied with the same bits, and alive as long as
// anybody reads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "shoal/comm/world.h"
#include "tests/comm/group_checks.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::comm::lend_test {
namespace {

void on_ranks(int ranks, const std::function<void(const Group&)>& body) {
  run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)}, body);
}

/// What a rank lends: [2, 3 + rank, 5].
at::Tensor part_of(int rank, at::ScalarType type = at::kFloat) {
  return at::arange(2 * (3 + rank) * 5, type).view({2, 3 + rank, 5}) + 100 * rank;
}

TEST(Lend, PartsAreThoseOfTheirRanksInPlaceAndCopied) {
  on_ranks(3, [](const Group& group) {
    for (const Group& ranks : {group, without_shared_memory(group)}) {
      const bool shares = ranks.communicator() == group.communicator();
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
        const at::Tensor own = part_of(ranks.rank(), type);
        // As it is, and as what is not contiguous.
        for (const at::Tensor& tensor : {own, own.transpose(0, 2).contiguous().transpose(0, 2)}) {
          const Lent lent = ranks.lend(tensor, 1);
          EXPECT_EQ(lent.in_place(), shares);
          for (int r = 0; r < 3; ++r) {
            EXPECT_TRUE(lent.part(r).equal(part_of(r, type)));
            EXPECT_TRUE(lent.part(r).is_contiguous());
          }
        }
        EXPECT_EQ(ranks.lend_in_place(own, 1).has_value(), shares);
      }
    }
  });
}

TEST(Lend, InPlaceIsWithoutACopyAndSendsNothing) {
  std::array<const void*, 2> places{};
  on_ranks(2, [&](const Group& group) {
    const at::Tensor own = part_of(group.rank());
    places[static_cast<std::size_t>(group.rank())] = own.const_data_ptr();
    const Lent lent = group.lend(own, 1);
    for (int r = 0; r < 2; ++r)
      EXPECT_EQ(lent.part(r).const_data_ptr(), places[static_cast<std::size_t>(r)]);
    EXPECT_EQ(group.bytes_sent(), 0);
    group.barrier();
  });
}

TEST(Lend, AGroupOfOneLendsToItself) {
  const Group group;
  const at::Tensor own = part_of(0);
  EXPECT_TRUE(group.lend(own, 1).part(0).equal(own));
  EXPECT_TRUE(group.lend_in_place(own, 1)->part(0).is_alias_of(own));
}

TEST(Lend, ShapesThatDoNotFitAreAnError) {
  on_ranks(2, [](const Group& group) {
    const auto refused = thrown([&] { group.lend(part_of(0), 3); });
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->kind(), ErrorKind::kUsage);
    EXPECT_THAT(refused->what(), testing::HasSubstr("dimension 3 of a tensor of 3"));
  });
  // Another size in another dimension, and another type.
  for (const at::Tensor& other : {part_of(1), part_of(0, at::kInt)}) {
    for (const bool shares : {true, false}) {
      on_ranks(2, [&](const Group& group) {
        const Group ranks = shares ? group : without_shared_memory(group);
        const auto error = thrown([&] { ranks.lend(group.rank() == 0 ? part_of(0) : other, 0); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
      });
    }
  }
}

/// Set when memory is freed, which may be after its test.
using Freed = std::shared_ptr<std::atomic<bool>>;
Freed not_freed() { return std::make_shared<std::atomic<bool>>(false); }

/// A tensor that says when its memory is freed.
at::Tensor watched(const Freed& freed, float value) {
  auto* memory = new float[64];
  std::fill(memory, memory + 64, value);
  return at::from_blob(memory, {64}, [freed](void* p) {
    *freed = true;
    std::fill(static_cast<float*>(p), static_cast<float*>(p) + 64, -1.0F);
    delete[] static_cast<float*>(p);
  });
}

TEST(Lend, TheOwnersMemoryLivesUntilAllHaveGivenBack) {
  const std::array<Freed, 3> freed{not_freed(), not_freed(), not_freed()};
  on_ranks(3, [&](const Group& group) {
    const int rank = group.rank();
    std::optional<Lent> lent =
        group.lend(watched(freed[static_cast<std::size_t>(rank)], 1.0F + rank));
    at::Tensor view;
    const auto expect_alive = [&] {
      group.barrier();
      group.poll();  // looks for what came back
      group.barrier();
      for (const Freed& memory : freed) EXPECT_FALSE(*memory);
      group.barrier();
    };
    for (int reader = 0; reader < 3; ++reader) {
      expect_alive();
      if (reader == rank) {
        view = lent->part((rank + 1) % 3).slice(0, 60);
        lent.reset();
      }
      expect_alive();  // by the view
      if (reader == rank) {
        EXPECT_TRUE(view.eq(1.0 + (rank + 1) % 3).all().item<bool>());
        view.reset();
      }
    }
    group.barrier();
    group.poll();
    group.barrier();
    for (const Freed& memory : freed) EXPECT_TRUE(*memory);
  });
}

TEST(Lend, ManyLoansBetweenOtherCollectives) {
  on_ranks(3, [](const Group& group) {
    std::vector<Lent> open;
    for (int round = 0; round < 200; ++round) {
      // The table holds 64: of 80, the last come as copies, with the same bits.
      const at::Tensor own = at::full({1 + group.rank()}, 10 * round + group.rank());
      const at::Tensor sum = at::full({1000}, 1.0);
      Work work = group.all_reduce(sum, {.async = true});
      open.push_back(group.lend(own));
      EXPECT_EQ(open.back().in_place(), open.size() <= 64) << "round " << round;
      work.order();
      EXPECT_EQ(sum[999].item<double>(), 3);
      for (std::size_t i = 0; i < open.size(); i += 7) {
        const int lent_in = round - static_cast<int>(open.size() - 1 - i);
        for (int r = 0; r < 3; ++r)
          EXPECT_TRUE(open[i].part(r).equal(at::full({1 + r}, 10 * lent_in + r)));
      }
      if (open.size() == 80) {
        open.clear();
        group.barrier();
      }
    }
  });
}

// The rank that fails takes its tensors and its group with it; who reads reads on.
TEST(Lend, AnAbortFreesNothingThatIsRead) {
  const std::array<Freed, 2> freed{not_freed(), not_freed()};
  std::atomic<bool> gone{false};
  const auto failure = thrown([&] {
    on_ranks(2, [&](const Group& world) {
      const int rank = world.rank();
      Group group = world.split(0, rank);
      std::optional<Lent> lent =
          group.lend(watched(freed[static_cast<std::size_t>(rank)], 1.0F + rank));
      if (rank == 0) {
        group.abort(Error(ErrorKind::kNonFinite, "step", "the loss is nan"));
        lent.reset();
        group = Group();
        gone = true;
        EXPECT_FALSE(*freed[0]);
        return;
      }
      while (!gone) std::this_thread::yield();
      EXPECT_TRUE(lent->part(0).eq(1).all().item<bool>());
      EXPECT_FALSE(*freed[0]);
      const auto refused = thrown([&] { group.lend(at::full({1}, 1)); });
      ASSERT_TRUE(refused);
      EXPECT_EQ(refused->kind(), ErrorKind::kNonFinite);
    });
  });
  EXPECT_FALSE(*freed[0]) << "it is kept: nobody was left to see it come back";
  EXPECT_TRUE(*freed[1]) << "rank 0 had given back";
}

}  // namespace
}  // namespace shoal::comm::lend_test
