#include "shoal/checkpoint/snapshot.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <new>
#include <numeric>
#include <random>
#include <thread>

#include "shoal/base/error.h"

namespace shoal::checkpoint::snapshot_test {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kBlock = 1000;
constexpr Duration kLong = std::chrono::seconds(60);

/// Ranges of several lengths, none at all and whole blocks among them.
struct Memory {
  std::vector<std::vector<char>> ranges;

  Memory() {
    std::mt19937 random(1);
    for (const std::size_t bytes :
         {std::size_t{3500}, std::size_t{0}, std::size_t{1}, 2 * kBlock, std::size_t{999}}) {
      ranges.emplace_back(bytes);
      for (char& byte : ranges.back()) byte = static_cast<char>(random());
    }
  }
  std::vector<Snapshot::Range> all() const {
    std::vector<Snapshot::Range> all;
    for (const auto& range : ranges) all.push_back({range.data(), range.size(), kBlock});
    return all;
  }
  void overwrite() {
    for (auto& range : ranges) std::fill(range.begin(), range.end(), char{77});
  }
};

Snapshot::Staging into(std::vector<char>& staging) {
  return [&staging](std::size_t bytes) {
    EXPECT_LE(bytes, staging.size());
    return staging.data();
  };
}

std::vector<std::vector<char>> read_all(Snapshot& snapshot,
                                        const std::vector<Snapshot::Range>& ranges, int pause_us) {
  std::vector<std::vector<char>> found;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    found.emplace_back(ranges[r].bytes);
    for (std::size_t begin = 0; begin < ranges[r].bytes; begin += kBlock) {
      if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      std::memcpy(found[r].data() + begin, snapshot.read(r, begin / kBlock),
                  std::min(kBlock, ranges[r].bytes - begin));
    }
  }
  return found;
}

TEST(Snapshot, HoldsWhatWasThereHoweverSmallStagingIsAndWheneverTheOwnerWrites) {
  for (const std::size_t staging_bytes : {std::size_t{0}, kBlock, 3 * kBlock, 20 * kBlock}) {
    for (int round = 0; round < 20; ++round) {
      Memory memory;
      const auto expected = memory.ranges;
      std::vector<char> staging(staging_bytes);
      Snapshot snapshot(memory.all(), staging.size(), into(staging));
      std::vector<std::vector<char>> found;
      std::thread writer([&] { found = read_all(snapshot, memory.all(), round % 3 * 20); });
      std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
      ASSERT_TRUE(snapshot.detach(kLong));
      memory.overwrite();
      writer.join();
      ASSERT_EQ(found, expected) << "staging of " << staging_bytes << ", round " << round;
    }
  }
}

TEST(Snapshot, TheOwnerWaitsForWhatDoesNotFit) {
  Memory memory;
  const auto ranges = memory.all();
  std::vector<char> staging(3 * kBlock);
  Snapshot snapshot(ranges, staging.size(), into(staging));
  // Range 0 has four blocks of 3,500 bytes. The other ranges, 3,000 bytes, fit.
  EXPECT_FALSE(snapshot.detach(milliseconds(1)));
  for (std::size_t block = 0; block < 3; ++block) {
    snapshot.read(0, block);
    EXPECT_FALSE(snapshot.detach(milliseconds(1))) << "behind block " << block;
  }
  std::thread owner([&] { EXPECT_TRUE(snapshot.detach(kLong)); });
  snapshot.read(0, 3);
  owner.join();
}

TEST(Snapshot, WithoutMemoryForStagingTheWriterReadsAllOfTheOwners) {
  const Memory memory;
  Snapshot snapshot(memory.all(), 20 * kBlock,
                    [](std::size_t) -> char* { throw std::bad_alloc(); });
  EXPECT_THROW((void)snapshot.detach(kLong), std::bad_alloc);
  EXPECT_FALSE(snapshot.detach(Duration::zero()));
  auto writer = std::async(std::launch::async, [&] { return read_all(snapshot, memory.all(), 0); });
  EXPECT_TRUE(snapshot.detach(kLong));
  if (writer.wait_for(kLong) != std::future_status::ready) snapshot.cancel();
  EXPECT_EQ(writer.get(), memory.ranges);
  EXPECT_TRUE(snapshot.detach(Duration::zero()));
}

TEST(Snapshot, RestEndsWhenSomebodyWaits) {
  Memory memory;
  Snapshot snapshot(memory.all(), 0, nullptr);
  std::thread owner([&] { snapshot.hurry(); });
  const auto begin = Clock::now();
  snapshot.rest(std::chrono::seconds(100));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  owner.join();
}

TEST(Snapshot, GivenUpItHoldsNobody) {
  Memory memory;
  Snapshot snapshot(memory.all(), 0, nullptr);
  std::thread owner([&] { EXPECT_TRUE(snapshot.detach(kLong)); });
  std::this_thread::sleep_for(milliseconds(5));
  snapshot.cancel();
  owner.join();
  EXPECT_THROW(snapshot.read(0, 0), Error);
}

}  // namespace
}  // namespace shoal::checkpoint::snapshot_test
