// What a link does to packets, under a clock that the test sets: every time is known in advance.
#include "tests/emulation/link_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "shoal/base/duration.h"
#include "tests/error_of.h"

namespace shoal::emulation::link_model_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr std::size_t kBytes = 1000;
constexpr double kMillisecondAPacket = 8e6;  // bits a second
const Clock::time_point kStart{std::chrono::hours(1)};

Packet packet(std::uint64_t flow = 0, std::size_t bytes = kBytes) {
  return {.data = {}, .flow = flow, .size = {1, bytes}};
}

/// Returns when packets arrive, in microseconds after the start, in order of arrival.
std::vector<std::int64_t> arrivals(LinkModel& link,
                                   Clock::time_point until = kStart + std::chrono::hours(1)) {
  std::vector<std::int64_t> times;
  while (const auto delivery = link.take(until))
    times.push_back(std::chrono::round<microseconds>(delivery->due - kStart).count());
  return times;
}

TEST(LinkModel, APacketTakesTheTimeOfItsBitsAndTheDelay) {
  LinkModel link(1);
  link.set({.delay = milliseconds(10), .bits_per_second = kMillisecondAPacket});
  for (int i = 0; i < 3; ++i) link.offer(packet(), kStart);
  link.offer(packet(0, kBytes / 2), kStart + milliseconds(20));
  EXPECT_EQ(link.next(), kStart + milliseconds(11));
  EXPECT_THAT(arrivals(link, kStart + milliseconds(12)), ElementsAre(11000, 12000));
  EXPECT_THAT(arrivals(link), ElementsAre(13000, 30500));
  EXPECT_EQ(link.next(), std::nullopt);
}

TEST(LinkModel, WhatDoesNotFitTheQueueIsDropped) {
  LinkModel link(1);
  link.set({.bits_per_second = kMillisecondAPacket, .queue_bytes = 10 * kBytes});
  for (int i = 0; i < 15; ++i) link.offer(packet(), kStart);
  EXPECT_EQ(link.counters().overflowed, (PacketCount{5, 5 * kBytes}));
  // Three have left by now, and half of the fourth.
  for (int i = 0; i < 5; ++i) link.offer(packet(), kStart + microseconds(3500));
  EXPECT_EQ(link.counters().overflowed.packets, 7u);
  EXPECT_EQ(arrivals(link).back(), 13000);
  EXPECT_EQ(link.counters().delivered, (PacketCount{13, 13 * kBytes}));
}

TEST(LinkModel, OneConnectionMayBeSlowerThanTheOthers) {
  LinkModel link(1);
  EXPECT_EQ(link.busiest_flow(), 0u);
  link.set({.queue_bytes = 4 * kBytes});
  for (int i = 0; i < 3; ++i) link.offer(packet(7), kStart);
  link.offer(packet(8), kStart);
  EXPECT_EQ(link.busiest_flow(), 7u);
  arrivals(link);
  link.set({.queue_bytes = 4 * kBytes,
            .slow_flow = 7,
            .slow_flow_bits_per_second = kMillisecondAPacket});
  EXPECT_EQ(link.busiest_flow(), 0u) << "since it was set";
  for (int i = 0; i < 5; ++i) link.offer(packet(7), kStart);
  link.offer(packet(8), kStart);
  EXPECT_EQ(link.counters().overflowed.packets, 1u);
  EXPECT_THAT(arrivals(link), ElementsAre(0, 1000, 2000, 3000, 4000));
}

TEST(LinkModel, AConnectionWaitsForItselfAlone) {
  LinkModel link(1);
  link.set({.bits_per_second = 10 * kMillisecondAPacket,
            .flow_bits_per_second = kMillisecondAPacket,
            .queue_bytes = 4 * kBytes});
  for (int i = 0; i < 5; ++i) link.offer(packet(1), kStart);
  link.offer(packet(2), kStart);
  // Both connections have sent their first packet after a millisecond; one of them waits for the
  // other on the link, for a tenth of it.
  EXPECT_THAT(arrivals(link), ElementsAre(1100, 1200, 2100, 3100, 4100));
  EXPECT_EQ(link.counters().overflowed.packets, 1u);
}

TEST(LinkModel, TheLinkLimitsManyConnections) {
  LinkModel link(1);
  link.set(
      {.bits_per_second = 2 * kMillisecondAPacket, .flow_bits_per_second = kMillisecondAPacket});
  for (int i = 0; i < 100; ++i)
    for (const std::uint64_t flow : {1, 2, 3, 4}) link.offer(packet(flow), kStart);
  // The first packets come to the link after one millisecond; it takes half of one for each.
  EXPECT_EQ(arrivals(link).back(), 1000 + 400 * 500);
}

TEST(LinkModel, LossesAreBinomial) {
  LinkModel link(1);
  constexpr double kLoss = 0.02;
  constexpr int kPackets = 100000;
  link.set({.loss = kLoss});
  for (int i = 0; i < kPackets; ++i) link.offer(packet(), kStart);
  const double deviation = std::sqrt(kPackets * kLoss * (1 - kLoss));
  EXPECT_NEAR(static_cast<double>(link.counters().lost.packets), kPackets * kLoss, 5 * deviation);
  EXPECT_EQ(arrivals(link).size(), kPackets - link.counters().lost.packets);
}

TEST(LinkModel, JitterIsUniformAndReordersOnlyWhereItMay) {
  constexpr int kPackets = 10000;
  for (const bool reorder : {false, true}) {
    LinkModel link(1);
    link.set({.delay = milliseconds(5), .jitter = milliseconds(20), .reorder = reorder});
    // Far enough from each other that no packet meets another, unless they may reorder.
    const Duration spacing = reorder ? Duration(milliseconds(1)) : Duration(milliseconds(30));
    double sum = 0;
    int overtaken = 0;
    for (int i = 0; i < kPackets; ++i) {
      Packet one = packet();
      one.flow = static_cast<std::uint64_t>(i);
      link.offer(std::move(one), kStart + i * spacing);
    }
    std::uint64_t last = 0;
    while (const auto delivery = link.take(kStart + std::chrono::hours(1))) {
      const std::uint64_t number = delivery->packet.flow;
      const Duration taken = delivery->due - (kStart + static_cast<int>(number) * spacing);
      EXPECT_GE(taken, milliseconds(5));
      EXPECT_LE(taken, milliseconds(25));
      sum += to_seconds(taken);
      overtaken += number < last ? 1 : 0;
      last = number;
    }
    // The deviation of a uniform distribution is its width over the square root of 12.
    EXPECT_NEAR(sum / kPackets, 0.015, 5 * 0.02 / std::sqrt(12.0 * kPackets));
    EXPECT_EQ(overtaken > 0, reorder);
  }
}

TEST(LinkModel, PacketsThatMayNotOvertakeWaitForEachOther) {
  LinkModel link(1);
  link.set({.jitter = milliseconds(20)});
  for (int i = 0; i < 1000; ++i) link.offer(packet(static_cast<std::uint64_t>(i)), kStart);
  std::uint64_t next = 0;
  while (const auto delivery = link.take(kStart + milliseconds(20)))
    EXPECT_EQ(delivery->packet.flow, next++);
  EXPECT_EQ(next, 1000u);
}

TEST(LinkModel, ACutLosesWhatIsOnItsWay) {
  LinkModel link(1);
  LinkSpec spec{.delay = milliseconds(10), .bits_per_second = kMillisecondAPacket};
  link.set(spec);
  for (int i = 0; i < 4; ++i) link.offer(packet(), kStart);
  EXPECT_THAT(arrivals(link, kStart + milliseconds(11)), ElementsAre(11000));
  spec.open = false;
  link.set(spec);
  EXPECT_EQ(link.next(), std::nullopt);
  link.offer(packet(), kStart + milliseconds(12));
  EXPECT_EQ(link.counters().cut, (PacketCount{4, 4 * kBytes}));
  spec.open = true;
  link.set(spec);
  // The queue is as empty as the link.
  link.offer(packet(), kStart + milliseconds(20));
  EXPECT_THAT(arrivals(link), ElementsAre(31000));
  EXPECT_EQ(link.counters().offered, (PacketCount{6, 6 * kBytes}));
}

TEST(LinkModel, RefusesWhatMakesNoSense) {
  for (const LinkSpec& spec :
       {LinkSpec{.delay = milliseconds(-1)}, LinkSpec{.jitter = milliseconds(-1)},
        LinkSpec{.bits_per_second = -1}, LinkSpec{.flow_bits_per_second = -1},
        LinkSpec{.loss = -0.1}, LinkSpec{.loss = 1.1}}) {
    LinkModel link(1);
    EXPECT_EQ(error_of([&] { link.set(spec); }).kind(), ErrorKind::kUsage);
  }
}

}  // namespace
}  // namespace shoal::emulation::link_model_test
