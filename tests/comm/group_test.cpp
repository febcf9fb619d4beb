#include "shoal/comm/group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/comm/world.h"
#include "tests/comm/group_checks.h"
#include "tests/support/fake_communicator.h"

namespace shoal::comm::group_test {
namespace {

WorldOptions threads(int ranks, bool arena = true) {
  return {.size = ranks,
          .arena = arena,
          .memory_limit_bytes = std::size_t{1} << 31,
          .timeout = std::chrono::seconds(60)};
}

TEST(Group, OfOneIsLocal) {
  const Group group;
  const at::Tensor x = at::arange(4, at::kFloat);
  const at::Tensor y = at::empty({4}, at::kFloat);
  group.all_reduce(x);
  group.all_gather(y, x);
  EXPECT_TRUE(y.equal(x));
  group.reduce_scatter(y, x);
  group.barrier();
  EXPECT_TRUE(y.equal(x));
  group.all_reduce(x, {.reduction = Reduction::kPremulSum, .scale = 0.5});
  EXPECT_TRUE(x.equal(at::arange(4, at::kFloat) / 2));
  group.reduce_scatter(y.t(), at::arange(4, at::kFloat),
                       {.reduction = Reduction::kPremulSum, .scale = 4});
  EXPECT_TRUE(y.equal(4 * at::arange(4, at::kFloat)));
  const auto refused = thrown([&] { group.all_reduce(x, {.reduction = Reduction::kBitOr}); });
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->what(), ::testing::HasSubstr("there is no all_reduce of f32 by bitwise_or"));
  EXPECT_EQ(group.split(0, 0).size(), 1);
  EXPECT_EQ(group.on_host().size(), 1);
  EXPECT_EQ(group.shared_buffer(100)->bytes(), 100u);
}

// The bits of codecs are tested below the tensors; here that they reach them: the error of i8 is
// there, is equal on all ranks and goes into the residuals, and nothing else is lost.
TEST(Group, AllReducesInACodec) {
  for (const int ranks : {1, 3}) {
    run_on_threads(threads(ranks), [&](const Group& group) {
      const at::Tensor whole = at::arange(1000, at::kFloat).view({20, 50}).t() / 7;
      const at::Tensor x = whole + group.rank();  // not contiguous
      const at::Tensor sum = whole * ranks + (ranks - 1) * ranks / 2;
      collective::ErrorFeedback residuals(1000);
      Options options{.coding = {collective::Codec::kI8, true, 128, Key(1)}};
      const double before = group.bytes_sent();
      at::Tensor total = at::zeros({50, 20}, at::kFloat);
      for (int step = 0; step < 16; ++step) {
        options.coding.key = Key(1).child(static_cast<std::uint64_t>(step));
        const auto feedback = residuals.begin(options.coding, ranks, group.rank());
        options.feedback = &feedback;
        const at::Tensor y = x.clone();
        group.all_reduce(y, options);
        residuals.commit();
        EXPECT_FALSE(y.equal(sum));
        // A unit is 1/127 of at most 145 a rank and 435 of the sum.
        EXPECT_LT((y - sum).abs().max().item<float>(), 5 * ranks);
        total += y;
        at::Tensor all = at::empty({ranks, 1000}, at::kFloat);
        group.all_gather(all, y.contiguous());
        for (int r = 0; r < ranks; ++r) EXPECT_TRUE(all[r].equal(all[0]));
      }
      EXPECT_LT((total / 16 - sum).abs().max().item<float>(), 5.0f * ranks / 8);
      // 1000 values are eight blocks, each with a unit of two bytes; all_gathers sent the rest.
      if (ranks == 3) {
        EXPECT_NEAR(group.bytes_sent() - before, 16 * (1000 + 8 * 2) * 4.0 / 3 + 16 * 2 * 4000, 1);
      }
      EXPECT_TRUE(thrown([&] { group.all_reduce({x, x}, options); }));
      options.feedback = nullptr;
      EXPECT_TRUE(thrown([&] { group.reduce_scatter(at::empty({1000}), total, options); }));
    });
  }
}

TEST(Group, CollectivesTakeTensorsOfAnyStride) {
  run_on_threads(threads(2), [](const Group& group) {
    const int rank = group.rank();
    at::Tensor x = at::arange(12, at::kDouble).view({3, 4}).t() + rank;  // not contiguous
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(2 * at::arange(12, at::kDouble).view({3, 4}).t() + 1));

    at::Tensor gathered = at::empty({2, 5}, at::kLong);
    group.all_gather(gathered, at::full({5}, rank, at::kLong));
    EXPECT_TRUE(
        gathered.equal(at::cat({at::zeros({1, 5}, at::kLong), at::ones({1, 5}, at::kLong)})));

    at::Tensor part = at::empty({3}, at::kFloat);
    group.reduce_scatter(part, at::arange(6, at::kFloat));
    EXPECT_TRUE(part.equal(2 * at::arange(3 * rank, 3 * rank + 3, at::kFloat)));

    at::Tensor received = at::empty({3}, at::kFloat);
    // Rank 0 keeps 1 and sends 2 elements; rank 1 sends 2 and keeps 1 (and so receives 2 + 1).
    const at::Tensor sent = at::arange(3, at::kFloat) + 10 * rank;
    const std::vector<std::size_t> send =
        rank == 0 ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{2, 1};
    group.all_to_all(received, sent, send, send);
    EXPECT_EQ(received[0].item<float>(), rank == 0 ? 0 : 1);
    EXPECT_EQ(received[2].item<float>(), rank == 0 ? 11 : 12);
  });
}

TEST(Group, EveryOperationTypeAndReductionOnThreads) {
  for (const int ranks : {2, 3}) {
    run_on_threads(threads(ranks), [](const Group& group) {
      EXPECT_THAT(check_types(group), ::testing::IsEmpty());
      EXPECT_THAT(check_calls(group), ::testing::IsEmpty());
    });
  }
}

TEST(Group, AsynchronousCallsKeepTheirTensorsAlive) {
  run_on_threads(threads(2), [](const Group& group) {
    std::vector<Work> works;
    at::Tensor kept = at::full({100000}, 1.0f);
    for (int i = 0; i < 20; ++i)
      works.push_back(group.all_reduce(at::full({50000}, static_cast<float>(i)), {.async = true}));
    works.push_back(group.all_reduce(kept, {.async = true}));
    works.back().order();
    EXPECT_TRUE(works.front().test());
    EXPECT_EQ(kept[99999].item<float>(), 2);
    EXPECT_GT(works.back().duration().count(), 0);
  });
}

TEST(Group, ManyTensorsAtOnce) {
  run_on_threads(threads(3), [](const Group& group) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 40; ++i)
      tensors.push_back(at::full({i * 37}, static_cast<float>(group.rank() + 1)));
    tensors.push_back(at::ones({4, 6}).t());
    group.all_reduce(tensors);
    for (int i = 1; i < 40; ++i) EXPECT_TRUE(tensors[i].eq(6).all().item<bool>());
    EXPECT_TRUE(tensors.back().eq(3).all().item<bool>());
  });
}

TEST(Group, ShapesThatDoNotFitAreTheCallersMistake) {
  const Group group(std::make_shared<collective::FakeCommunicator>(0, 4));
  EXPECT_THROW(group.all_gather(at::empty({7}), at::empty({2})), Error);
  EXPECT_THROW(group.reduce_scatter(at::empty({2}), at::empty({7})), Error);
  EXPECT_THROW(group.all_to_all(at::empty({6}), at::empty({6})), Error);
  EXPECT_THROW(group.all_to_all(at::empty({4}), at::empty({4}), {1, 1, 1, 1}, {1, 1, 1, 2}), Error);
  EXPECT_THROW(group.all_reduce(at::empty({4}, at::kQInt8)), std::exception);
}

TEST(Group, ListsAndRootsThatDoNotFitAreTheCallersMistake) {
  const Group group(std::make_shared<collective::FakeCommunicator>(1, 4));
  const auto mistake = [&](const std::function<void()>& call) {
    const auto error = thrown(call);
    return error && error->kind() == ErrorKind::kUsage ? error->message() : std::string();
  };
  const at::Tensor two = at::zeros({2});
  const at::Tensor seven = at::zeros({7});
  const at::Tensor eight = at::zeros({8});
  EXPECT_THAT(mistake([&] {
                group.all_gather({eight, eight}, {two});
              }),
              ::testing::HasSubstr("2 outputs for 1 inputs"));
  EXPECT_THAT(mistake([&] {
                group.all_gather({eight, seven}, {two, two});
              }),
              ::testing::HasSubstr("output 1 has 7 elements"));
  EXPECT_THAT(mistake([&] {
                group.all_gather(std::vector<at::Tensor>{eight}, std::vector<at::Tensor>{two},
                                 {.shared_output = true});
              }),
              ::testing::HasSubstr("needs a call with one tensor"));
  EXPECT_THAT(mistake([&] {
                group.reduce_scatter({two}, {eight, eight});
              }),
              ::testing::HasSubstr("1 outputs for 2 inputs"));
  EXPECT_THAT(mistake([&] {
                group.reduce_scatter({two, two}, {eight, seven});
              }),
              ::testing::HasSubstr("input 1 has 7 elements"));
  EXPECT_THAT(mistake([&] { group.gather(seven, two, 1); }), ::testing::HasSubstr("not 4 x 2"));
  EXPECT_THAT(mistake([&] { group.scatter(two, seven, 1); }), ::testing::HasSubstr("not 4 x 2"));
  EXPECT_THAT(mistake([&] { group.all_to_all(eight, seven); }),
              ::testing::HasSubstr("input has 7 elements, output 8"));
  EXPECT_THAT(mistake([&] {
                group.all_reduce({two, at::zeros({2}, at::kDouble)});
              }),
              ::testing::HasSubstr("all tensors of a call have one type"));
  EXPECT_THAT(mistake([&] {
                group.all_to_all(two, eight, {1, 1, 0, 0}, {1, 2, 3, 1});
              }),
              ::testing::HasSubstr("counts to send [1, 2, 3, 1] of 8 elements and to receive"));
  for (const int peer : {-1, 1, 4}) {
    EXPECT_THAT(mistake([&] { group.send(two, peer); }), ::testing::HasSubstr("cannot send"));
  }
  for (const int peer : {-2, 1, 4}) {
    EXPECT_THAT(mistake([&] { group.recv(two, peer); }), ::testing::HasSubstr("cannot receive"));
  }
  EXPECT_THAT(mistake([&] { group.recv(two, -1); }), ::testing::HasSubstr("fake communicator"))
      << "from any rank is a call that makes sense";
}

TEST(Group, NoTensorsAreNoCall) {
  const auto fake = std::make_shared<collective::FakeCommunicator>(1, 4);
  const Group group(fake);
  const std::vector<at::Tensor> none;
  group.all_reduce(none);
  group.all_gather(none, none);
  group.reduce_scatter(none, none);
  group.broadcast(none, 0);
  EXPECT_TRUE(fake->calls().empty());
}

// What a call hands to the communicator.
TEST(Group, CountsElementsAsTheCommunicatorDoes) {
  const auto fake = std::make_shared<collective::FakeCommunicator>(1, 4);
  const Group group(fake);
  const at::Tensor two = at::zeros({2});
  const at::Tensor eight = at::zeros({8});
  group.all_gather(eight, two);
  group.scatter(two, eight, 1);
  group.gather(eight, two, 1);
  group.all_to_all(at::zeros({8}), eight);
  group.broadcast(two, 3);
  group.reduce({two}, 0);
  std::vector<std::tuple<Kind, std::size_t, int>> calls;
  for (const auto& call : fake->calls()) calls.emplace_back(call.kind, call.count, call.peer);
  EXPECT_EQ(calls, (std::vector<std::tuple<Kind, std::size_t, int>>{{Kind::kAllGather, 2, -1},
                                                                    {Kind::kScatter, 2, 1},
                                                                    {Kind::kGather, 2, 1},
                                                                    {Kind::kAllToAll, 2, -1},
                                                                    {Kind::kBroadcast, 2, 3},
                                                                    {Kind::kReduce, 2, 0}}));
}

// By the algorithms that send least; counts of two tensors in one call add up.
TEST(Group, CountsTheBytesThatItHasToSend) {
  run_on_threads({.size = 4, .arena = false}, [](const Group& group) {
    double before = 0;
    const auto sent = [&] {
      return group.bytes_sent() - std::exchange(before, group.bytes_sent());
    };
    const at::Tensor part = at::ones({6});
    const at::Tensor whole = at::ones({24});
    const bool root = group.rank() == 1;
    group.all_reduce(whole);
    EXPECT_EQ(sent(), 2 * 3 * 6 * 4);
    group.all_gather(whole, part);
    EXPECT_EQ(sent(), 3 * 6 * 4);
    group.reduce_scatter(part, whole);
    EXPECT_EQ(sent(), 3 * 6 * 4);
    group.all_to_all(at::ones({24}), whole);
    EXPECT_EQ(sent(), 3 * 6 * 4);
    // What a rank keeps is not sent: one element to rank 0, two to rank 1 and so on.
    const auto counted = static_cast<std::size_t>(group.rank()) + 1;
    group.all_to_all(at::ones({static_cast<std::int64_t>(4 * counted)}), at::ones({10}),
                     {counted, counted, counted, counted}, {1, 2, 3, 4});
    EXPECT_EQ(sent(), static_cast<double>(10 - counted) * 4);
    group.broadcast(whole, 1);
    EXPECT_EQ(sent(), root ? 24 * 4 : 0);
    group.reduce(whole, 1);
    EXPECT_EQ(sent(), root ? 0 : 24 * 4);
    group.all_reduce(
        std::vector<at::Tensor>{at::ones({4}, at::kDouble), at::ones({8}, at::kDouble)});
    EXPECT_EQ(sent(), 2 * 3 * 3 * 8);
    group.barrier();
    EXPECT_EQ(sent(), 0);
    // What parts of the group send counts in it, also when they are gone.
    group.split(group.rank() % 2, 0).split(0, 0).all_reduce(whole);
    EXPECT_EQ(sent(), 2 * 12 * 4);
  });
  EXPECT_EQ(Group().bytes_sent(), 0);
}

TEST(Group, HandsOnTheOptionsOfACall) {
  const auto fake = std::make_shared<collective::FakeCommunicator>(1, 4);
  const Group group(fake);
  const Options options{.reduction = Reduction::kPremulSum,
                        .priority = 3,
                        .timeout = std::chrono::seconds(5),
                        .scale = 0.5,
                        .label = 7};
  const at::Tensor two = at::zeros({2});
  const at::Tensor eight = at::zeros({8});
  group.all_reduce(two, options);
  group.all_reduce({two, eight}, options);
  group.all_gather(eight, two, options);
  group.all_gather(std::vector<at::Tensor>{eight}, std::vector<at::Tensor>{two}, options);
  group.reduce_scatter(two, eight, options);
  group.reduce_scatter(std::vector<at::Tensor>{two}, std::vector<at::Tensor>{eight}, options);
  group.all_to_all(at::zeros({8}), eight, {}, {}, options);
  group.broadcast(two, 0, options);
  group.broadcast({two, eight}, 0, options);
  group.reduce(two, 0, options);
  group.gather(eight, two, 1, options);
  group.scatter(two, eight, 1, options);
  group.barrier(options);
  ASSERT_EQ(fake->calls().size(), 13u);
  for (const auto& call : fake->calls()) {
    EXPECT_EQ(call.tag, 7u) << name(call.kind);
    EXPECT_EQ(call.priority, 3) << name(call.kind);
    EXPECT_EQ(call.timeout, std::chrono::seconds(5)) << name(call.kind);
    if (collective::reduces(call.kind)) {
      EXPECT_EQ(call.scale, 0.5) << name(call.kind);
    }
  }
}

TEST(Group, HasTheDefaultsOfItsDocumentation) {
  const Options options;
  EXPECT_EQ(options.reduction, Reduction::kSum);
  EXPECT_FALSE(options.async);
  EXPECT_EQ(options.priority, 0);
  EXPECT_EQ(options.timeout, Duration::zero());
  EXPECT_EQ(options.scale, 1);
  EXPECT_EQ(options.label, 0u);
  EXPECT_FALSE(options.shared_output);
  const WorldOptions world;
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.size, 1);
  EXPECT_TRUE(world.arena);
  EXPECT_EQ(world.memory_limit_bytes, 0u);
  EXPECT_EQ(world.transport, Transport::kAutomatic);
  EXPECT_EQ(world.meeting_timeout, std::chrono::minutes(2));
  EXPECT_EQ(world.timeout, std::chrono::minutes(10));
}

TEST(ElementTypes, AreThoseOfLibTorch) {
  const std::pair<at::ScalarType, const char*> all[] = {
      {at::kBool, "bool"},         {at::kByte, "u8"},
      {at::kChar, "i8"},           {at::kUInt16, "u16"},
      {at::kShort, "i16"},         {at::kUInt32, "u32"},
      {at::kInt, "i32"},           {at::kUInt64, "u64"},
      {at::kLong, "i64"},          {at::kFloat8_e4m3fn, "f8_e4m3"},
      {at::kHalf, "f16"},          {at::kFloat8_e5m2, "f8_e5m2"},
      {at::kBFloat16, "bf16"},     {at::kFloat, "f32"},
      {at::kDouble, "f64"},        {at::kComplexFloat, "c64"},
      {at::kComplexDouble, "c128"}};
  for (const auto& [scalar, name] : all) {
    EXPECT_STREQ(shoal::name(element_type(scalar)), name);
    EXPECT_EQ(scalar_type(element_type(scalar)), scalar);
  }
  EXPECT_EQ(thrown([] { element_type(at::kQInt8); })->kind(), ErrorKind::kUsage);
}

TEST(Work, ThatIsEmptyIsComplete) {
  Work work;
  EXPECT_TRUE(work.test());
  EXPECT_EQ(work.duration(), Duration::zero());
  EXPECT_EQ(work.error(), nullptr);
  EXPECT_NO_THROW(work.order());
  EXPECT_NO_THROW(work.wait(Deadline::in(Duration::zero())));
  EXPECT_NO_THROW(work.abort());
}

// Rank 1 gives its call up, which ends the group on both ranks; each keeps why.
TEST(Work, AnAbortEndsTheGroup) {
  // Rank 0 has looked at its call before rank 1 aborts: one that begins afterwards raises at once.
  std::promise<void> looked;
  run_on_threads(threads(2), [&](const Group& group) {
    const at::Tensor x = at::zeros({3});
    Work work = group.recv(x, 1 - group.rank(), 0, {.async = true});
    EXPECT_EQ(work.error(), nullptr);
    EXPECT_EQ(work.duration(), Duration::zero());
    if (group.rank() == 0) {
      looked.set_value();
    } else {
      ASSERT_EQ(looked.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      work.abort();
    }
    const auto error = thrown([&] { work.wait(Deadline::in(std::chrono::seconds(60))); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kAborted);
    EXPECT_NE(work.error(), nullptr);
  });
}

TEST(Connect, RanksAndPlacesThatMakeNoSenseAreRefused) {
  for (const auto& [rank, size] : {std::pair{0, 0}, {-1, 2}, {2, 2}}) {
    const auto error = thrown(
        [&, rank = rank, size = size] { connect({.name = "x", .rank = rank, .size = size}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kUsage);
  }
  EXPECT_EQ(thrown([] { run_on_threads({.size = 0}, [](const Group&) {}); })->kind(),
            ErrorKind::kUsage);
  // Ranks that meet at a file do not know which of their addresses leads to rank 0.
  const auto error = thrown([] {
    connect({.name = "x", .rank = 0, .size = 2, .arena = false, .rendezvous = "file:/nowhere/x"});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kConfig);
  EXPECT_THAT(error->hint(), ::testing::HasSubstr("network interface"));
}

TEST(SharedBuffer, TensorsLieWithinIt) {
  SharedBuffer buffer(256);
  EXPECT_EQ(buffer.bytes(), 256u);
  for (std::size_t i = 0; i < 256; ++i)
    ASSERT_EQ(static_cast<const std::uint8_t*>(buffer.data())[i], 0) << "zero at first";
  EXPECT_EQ(buffer.tensor(192, {16}, at::kFloat).data_ptr(),
            static_cast<std::uint8_t*>(buffer.data()) + 192);
  EXPECT_NO_THROW(buffer.tensor(0, {8, 8}, at::kFloat));
  EXPECT_NO_THROW(buffer.tensor(256, {0}, at::kFloat));
  const auto refused = [&](std::size_t offset, std::int64_t count) {
    const auto error = thrown([&] { buffer.tensor(offset, {count}, at::kFloat); });
    return error && error->kind() == ErrorKind::kUsage;
  };
  EXPECT_TRUE(refused(0, 65));
  EXPECT_TRUE(refused(192, 17));
  EXPECT_TRUE(refused(32, 1)) << "not a multiple of 64";
  EXPECT_TRUE(refused(320, 0));
  EXPECT_EQ(buffer.epoch(), 0u);
  buffer.publish();
  buffer.end_reading();
  EXPECT_EQ(buffer.epoch(), 1u);
}

TEST(SharedBuffer, ExistsOnceAndIsReadInPlace) {
  for (const bool arena : {true, false}) {
    run_on_threads(threads(3, arena), [](const Group& group) {
      const auto buffer = group.shared_buffer(3 * 64);
      ASSERT_NE(buffer, nullptr);
      const at::Tensor whole = buffer->tensor(0, {48}, at::kFloat);
      for (int round = 1; round <= 50; ++round) {
        buffer->tensor(static_cast<std::size_t>(group.rank()) * 64, {16}, at::kFloat)
            .fill_(static_cast<float>(100 * round + group.rank()));
        buffer->publish();
        for (int r = 0; r < 3; ++r)
          ASSERT_TRUE(whole.slice(0, 16 * r, 16 * r + 16).eq(100 * round + r).all().item<bool>());
        buffer->end_reading();
      }
      EXPECT_EQ(buffer->epoch(), 50u);
      EXPECT_TRUE(group.visible_to_peers(whole));
      EXPECT_THROW(buffer->tensor(64, {48}, at::kFloat), Error);
    });
  }
}

TEST(RunOnThreads, TheFirstCauseComesOut) {
  // Its rank may abort where it fails and take its time to leave: the others then come out first,
  // with its words as their own.
  for (const int delay_ms : {0, 200}) {
    const auto first = thrown([&] {
      run_on_threads(threads(3), [&](const Group& group) {
        if (group.rank() != 2) return group.barrier();
        const Error cause = Error(ErrorKind::kData, "read", "the shard is truncated").at(2, 3);
        if (delay_ms > 0) group.abort(cause);
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        throw cause;
      });
    });
    ASSERT_TRUE(first) << delay_ms;
    EXPECT_EQ(first->kind(), ErrorKind::kData);
    EXPECT_STREQ(first->what(), "[read] the shard is truncated (rank 2 of 3)") << delay_ms;
  }
}

TEST(RunOnThreads, WhatIsNoErrorOfShoalKeepsItsTypeAndStopsTheOthers) {
  EXPECT_THROW(run_on_threads(threads(2),
                              [](const Group& group) {
                                if (group.rank() == 0) return group.barrier();
                                throw std::out_of_range("no such token");
                              }),
               std::out_of_range);
}

TEST(FakeCommunicator, PeersDoWhatThisRankDoes) {
  const auto fake = std::make_shared<collective::FakeCommunicator>(1, 4);
  const Group group(fake);
  at::Tensor x = at::arange(4, at::kFloat);
  group.all_reduce(x);
  EXPECT_TRUE(x.equal(4 * at::arange(4, at::kFloat)));
  at::Tensor part = at::empty({2}, at::kFloat);
  group.reduce_scatter(part, at::arange(8, at::kFloat));
  EXPECT_TRUE(part.equal(4 * at::arange(2, 4, at::kFloat)));
  ASSERT_EQ(fake->calls().size(), 2u);
  EXPECT_EQ(fake->calls()[1].count, 2u);
}

}  // namespace
}  // namespace shoal::comm::group_test
