#include "shoal/comm/allocator.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "shoal/comm/world.h"

namespace shoal::comm::allocator_test {
namespace {

/// Runs `body(group)` in `ranks` processes, forked before this process has computed anything with
/// threads; the exit codes.
std::vector<int> on_processes(int ranks, const std::function<int(const Group&)>& body) {
  const std::string name = "comm-test-" + std::to_string(getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() > 0) continue;
    int code = 99;
    at::set_num_threads(1);
    try {
      code = body(connect({.name = name,
                           .key = "k",
                           .rank = rank,
                           .size = ranks,
                           .memory_limit_bytes = std::size_t{1} << 31,
                           .timeout = std::chrono::seconds(60)}));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    _exit(code);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

// These come first: the parent has no arena yet, so each child makes its own.
TEST(AProcess, SharesBuffersUnderEpochsWithDelayedReadersAndRandomAllocations) {
  const auto codes = on_processes(3, [](const Group& group) {
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    const auto buffer = group.shared_buffer(3 * 4096);
    const at::Tensor whole = buffer->tensor(0, {3, 1024}, at::kFloat);
    const at::Tensor mine =
        buffer->tensor(static_cast<std::size_t>(group.rank()) * 4096, {1024}, at::kFloat);
    std::vector<at::Tensor> live;
    for (int round = 1; round <= 200; ++round) {
      mine.fill_(static_cast<float>(round));
      buffer->publish();
      if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3));
      if (!whole.eq(round).all().item<bool>()) return 1;
      buffer->end_reading();
      if (live.size() > 20) live.erase(live.begin() + static_cast<long>(random() % live.size()));
      live.push_back(
          at::full({static_cast<std::int64_t>(random() % 100000) + 1}, static_cast<float>(round)));
      at::Tensor sum =
          at::full({static_cast<std::int64_t>(round) * 50}, static_cast<float>(group.rank()));
      group.all_reduce(sum);
      if (!sum.eq(3).all().item<bool>()) return 2;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

// Every rank counts its part, the owner and the others alike, under the purpose that it names.
TEST(AProcess, CountsItsPartOfASharedBuffer) {
  const auto codes = on_processes(3, [](const Group& group) {
    const auto in_use = [] {
      return installed_arena()
          ->ledger()
          .categories[static_cast<int>(MemoryCategory::kParameters)]
          .in_use;
    };
    const std::size_t before = in_use();
    {
      const ScopedCategory category(MemoryCategory::kParameters);
      const auto buffer = group.shared_buffer(std::size_t{3} << 20);
      const std::size_t part = in_use() - before;
      if (part < (1u << 20) || part > (1u << 20) + 4096) return 1;
      if (!group.visible_to_peers(buffer->tensor(0, {16}, at::kFloat))) return 2;
    }
    group.barrier();
    // The owner frees the block when it next allocates after the last rank has let it go.
    const at::Tensor some = at::full({10}, 1.0f);
    return in_use() == before ? 0 : 3;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(AProcess, ThatIsKilledLeavesErrorsAndNothingElse) {
  const auto codes = on_processes(2, [](const Group& group) {
    const auto buffer = group.shared_buffer(1 << 20);
    try {
      for (int i = 0;; ++i) {
        if (i == 100 && group.rank() == 0) kill(getpid(), SIGKILL);  // the owner of the buffer
        buffer->publish();
      }
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kPeerLost ? 0 : 1;
    }
  });
  EXPECT_EQ(codes, (std::vector<int>{128 + SIGKILL, 0}));
}

std::shared_ptr<wire::Arena> arena() {
  run_on_threads({.size = 1, .memory_limit_bytes = std::size_t{1} << 31}, [](const Group&) {});
  return installed_arena();
}

TEST(Allocator, EveryTensorLiesInTheArenaUnderItsCategory) {
  const at::Tensor before =
      at::ones({1000});  // may be older than the arena: frees must tell the two apart
  const auto memory = arena();
  const auto in_use = [&] {
    return memory->ledger().categories[static_cast<int>(MemoryCategory::kGradients)].in_use;
  };
  const std::size_t none = in_use();
  {
    const ScopedCategory category(MemoryCategory::kGradients);
    const at::Tensor x = at::ones({300, 300});
    EXPECT_TRUE(memory->contains(x.const_data_ptr(), x.nbytes()));
    EXPECT_GE(in_use(), none + x.nbytes());
    const at::Tensor y = at::mm(x, x);
    EXPECT_EQ(y[0][0].item<float>(), 300);
    EXPECT_EQ(at::empty({0}).data_ptr(), nullptr);
  }
  EXPECT_EQ(in_use(), none);
}

TEST(Allocator, IsInstalledOnce) {
  const auto memory = arena();
  EXPECT_EQ(ensure_arena(1 << 20, 5), memory);
  EXPECT_NO_THROW(install_arena(memory));
  const auto other = std::make_shared<wire::Arena>(
      wire::Arena::Options{.virtual_bytes = 1 << 20, .limit_bytes = 1 << 20});
  EXPECT_THROW(install_arena(other), Error);
  EXPECT_EQ(installed_arena(), memory);
}

TEST(Allocator, TensorsMoveFromOneCategoryToAnother) {
  const auto memory = arena();
  const auto in_use = [&](MemoryCategory category) {
    return memory->ledger().categories[static_cast<int>(category)].in_use;
  };
  const std::size_t gradients = in_use(MemoryCategory::kGradients);
  const at::Tensor x = at::ones({1024});
  retag(x, MemoryCategory::kTemporary, MemoryCategory::kGradients);
  EXPECT_EQ(in_use(MemoryCategory::kGradients), gradients + 4096);
  retag(x, MemoryCategory::kTemporary, MemoryCategory::kGradients);
  EXPECT_EQ(in_use(MemoryCategory::kGradients), gradients + 4096) << "it is one already";
  retag(at::Tensor(), MemoryCategory::kTemporary, MemoryCategory::kGradients);
  retag(at::empty({0}), MemoryCategory::kTemporary, MemoryCategory::kGradients);
  retag(x, MemoryCategory::kGradients, MemoryCategory::kTemporary);
  EXPECT_EQ(in_use(MemoryCategory::kGradients), gradients);
}

TEST(Allocator, OutOfMemoryIsOurError) {
  arena();
  try {
    const ScopedCategory category(MemoryCategory::kActivations);
    at::empty({std::int64_t{1} << 32});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(error.what()).find("(activations)"), std::string::npos) << error.what();
  }
}

// What a DataLoader worker does: it inherits tensors, frees some, makes its own, and ends.
TEST(Allocator, AForkedChildComputesAndDisturbsNobody) {
  const auto memory = arena();
  at::Tensor inherited = at::full({100000}, 3.0f);
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(1);  // as a worker does: OpenMP's threads did not come along
    inherited.fill_(4);
    at::Tensor own = inherited + 1;
    const bool right = own[99999].item<float>() == 5 && !memory->contains(own.const_data_ptr());
    inherited = at::Tensor();
    own = at::ones({5000});
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(inherited.eq(3).all().item<bool>());
}

}  // namespace
}  // namespace shoal::comm::allocator_test
