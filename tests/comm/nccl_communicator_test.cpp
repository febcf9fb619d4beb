// What Shoal asks of NCCL, carried out by a fake of it on host memory (fake_nccl.cpp): every
// operation of a group, groups that were split, and failures. tests/cuda/ runs the real one.
#include "shoal/comm/nccl_communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/comm/world.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/group_checks.h"

namespace shoal::comm::nccl_communicator_test {
namespace {

using collective::Communicator;
using collective::Handle;
using collective::Kind;
using collective::Operation;

/// A queue of the fake's.
class FakeQueue final : public DeviceQueue {
 public:
  void* native() const override { return stream_.get(); }
  void follow_current() override {}
  std::unique_ptr<Mark> mark() override { return std::make_unique<FakeMark>(stream_); }
  std::unique_ptr<DeviceQueue> another() const override { return std::make_unique<FakeQueue>(); }

 private:
  class FakeMark final : public Mark {
   public:
    explicit FakeMark(std::shared_ptr<FakeStream> stream)
        : stream_(std::move(stream)), place_(stream_->given) {}
    bool passed() const override { return stream_->done >= place_; }

   private:
    std::shared_ptr<FakeStream> stream_;
    std::uint64_t place_;
  };

  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
};

/// Says of every operation that NCCL carries that its memory is a device's.
class AllOnDevice final : public Communicator {
 public:
  AllOnDevice(std::shared_ptr<Communicator> nccl, std::shared_ptr<std::atomic<int>> count)
      : nccl_(std::move(nccl)), count_(std::move(count)) {}
  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override {
    return nccl_->supports(kind, type, reduction);
  }
  Handle start(const Operation& given) override {
    Operation operation = given;
    if (given.coding.codec == collective::Codec::kNone &&
        nccl_->carries_device_memory(given.kind, given.type, given.reduction)) {
      operation.memory = collective::MemoryKind::kDevice;
      ++*count_;
    }
    return nccl_->start(operation);
  }
  bool test(Handle handle) override { return nccl_->test(handle); }
  bool complete(Handle handle) const override { return nccl_->complete(handle); }
  void wait(Handle handle, Deadline deadline) override { nccl_->wait(handle, deadline); }
  void wait(Handle handle) override { nccl_->wait(handle); }
  int take_source(Handle handle) override { return nccl_->take_source(handle); }
  void poll(Duration budget) override { nccl_->poll(budget); }
  void advance_others() override { nccl_->advance_others(); }
  bool idle() const override { return nccl_->idle(); }
  void look_for_failure() override { nccl_->look_for_failure(); }
  bool has_room() const override { return nccl_->has_room(); }
  std::uint64_t sequence() const override { return nccl_->sequence(); }
  std::string report() const override { return nccl_->report(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = nccl_->split(color, key);
    if (!part || part->size() == 1) return part;
    return std::make_unique<AllOnDevice>(std::move(part), count_);
  }
  void abort(const Error& cause) override { nccl_->abort(cause); }
  int node() const override { return nccl_->node(); }
  collective::SharedMemory* shared_memory() override { return nccl_->shared_memory(); }

 private:
  std::shared_ptr<Communicator> nccl_;
  std::shared_ptr<std::atomic<int>> count_;
};

/// Runs `body` on ranks whose groups go by the fake; returns how many operations did.
int with_fake(int ranks, const std::function<void(const Group&)>& body,
              Duration timeout = std::chrono::seconds(30)) {
  const auto count = std::make_shared<std::atomic<int>>(0);
  run_on_threads(
      {.size = ranks, .arena = false, .timeout = std::chrono::seconds(30)}, [&](const Group& host) {
        body(host.over([&](std::shared_ptr<Communicator> inner) {
          auto nccl = std::make_shared<NcclCommunicator>(NcclLibrary::load(SHOAL_FAKE_NCCL),
                                                         std::move(inner),
                                                         std::make_unique<FakeQueue>(), timeout);
          return std::make_shared<AllOnDevice>(std::move(nccl), count);
        }));
      });
  return *count;
}

TEST(Nccl, CarriesEveryTypeAndReduction) {
  for (const int ranks : {2, 3}) {
    const int carried = with_fake(ranks, [](const Group& group) {
      for (const std::string& wrong : check_types(group)) ADD_FAILURE() << wrong;
    });
    EXPECT_GT(carried, 100);
  }
}

TEST(Nccl, CarriesEveryWayOfCalling) {
  for (const int ranks : {2, 3, 4}) {
    with_fake(ranks, [](const Group& group) {
      for (const std::string& wrong : check_calls(group)) ADD_FAILURE() << wrong;
    });
  }
}

TEST(Nccl, CarriesOperationsOfSplitGroups) {
  with_fake(4, [](const Group& group) {
    const Group half = group.split(group.rank() % 2, group.rank());
    const at::Tensor x = at::full({3}, static_cast<double>(group.rank()), at::kFloat);
    auto first = half.all_reduce(x, {.async = true});
    const at::Tensor y = at::full({2}, 1.0, at::kFloat);
    group.all_reduce(y);
    first.order();
    EXPECT_TRUE(x.equal(at::full({3}, group.rank() % 2 == 0 ? 2.0 : 4.0, at::kFloat)));
    EXPECT_TRUE(y.equal(at::full({2}, 4.0, at::kFloat)));
    EXPECT_EQ(group.split(-1, 0).size(), 1);
  });
}

// More messages than fit between two ranks, so that the sender must look after them. The receiver
// comes to the sum only behind them, and the sender waits for the sum.
TEST(Nccl, AWaitForTheDeviceLetsMessagesOfOtherGroupsGoOn) {
  constexpr int kMessages = 50;
  std::atomic<bool> all_started = false;
  with_fake(
      2,
      [&](const Group& group) {
        const Group messages = group.split(0, group.rank());
        const at::Tensor x = at::full({3}, 1.0, at::kFloat);
        if (group.rank() == 0) {
          std::vector<Work> sent;
          for (int i = 0; i < kMessages; ++i)
            sent.push_back(messages.send(at::full({2}, i, at::kInt), 1, 1, {.async = true}));
          all_started = true;
          group.all_reduce(x);
          for (Work& work : sent) work.order();
        } else {
          while (!all_started) std::this_thread::yield();
          for (int i = 0; i < kMessages; ++i) {
            const at::Tensor message = at::full({2}, -1, at::kInt);
            messages.recv(message, 0, 1);
            EXPECT_TRUE(message.eq(i).all().item<bool>());
          }
          group.all_reduce(x);
        }
        EXPECT_TRUE(x.eq(2).all().item<bool>());
      },
      std::chrono::seconds(5));
}

TEST(Nccl, ARankThatFailsIsTheCauseOnAllRanks) {
  try {
    with_fake(3, [](const Group& group) {
      const at::Tensor x = at::arange(4, at::kFloat);
      group.all_reduce(x);
      if (group.rank() == 1) throw Error(ErrorKind::kData, "test", "rank 1 has had enough");
      try {
        group.all_reduce(x);
        ADD_FAILURE() << "rank " << group.rank() << " went on";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 has had enough"));
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
  }
}

TEST(Nccl, ARankThatDoesNotComeIsATimeout) {
  const auto begin = Clock::now();
  try {
    with_fake(
        2,
        [](const Group& group) {
          const at::Tensor x = at::arange(4, at::kFloat);
          group.all_reduce(x);
          if (group.rank() == 0) group.all_reduce(x);
          // The other rank lives, and does something else until it hears of the end.
          if (group.rank() == 1) group.barrier();
        },
        std::chrono::milliseconds(300));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr("over NCCL"));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
}

TEST(Nccl, AnErrorOfTheLibraryEndsTheGroup) {
  void* const fake = ::dlopen(SHOAL_FAKE_NCCL, RTLD_NOW);
  ASSERT_NE(fake, nullptr);
  const auto fail = reinterpret_cast<void (*)(int)>(::dlsym(fake, "fakeNcclFail"));
  try {
    with_fake(2, [&](const Group& group) {
      const at::Tensor x = at::arange(4, at::kFloat);
      group.all_reduce(x);
      group.barrier();
      if (group.rank() == 0) fail(6);
      group.barrier();
      group.all_reduce(x);
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr("an error of the fake"));
  }
  fail(0);
}

TEST(Nccl, ALibraryThatIsMissingIsNamed) {
  try {
    NcclLibrary::load("/nowhere/libnccl.so.2");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/nowhere/libnccl.so.2"));
  }
}

}  // namespace
}  // namespace shoal::comm::nccl_communicator_test
