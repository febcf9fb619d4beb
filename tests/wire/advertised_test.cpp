// Ranks behind an address translator.
#include "shoal/wire/advertised.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
#include "tests/wire/meddling_relay.h"
#include "tests/wire/soon.h"

namespace shoal::wire::advertised_test {
namespace {

using testing::HasSubstr;

TEST(Advertised, IsAHostAtTheSamePortOrAtThatOfTheRange) {
  const Endpoint own{"10.0.0.5", 7003};
  const PortRange ports{7000, 7100};
  EXPECT_EQ(advertised_at("203.0.113.7", own, ports), (Endpoint{"203.0.113.7", 7003}));
  EXPECT_EQ(advertised_at("203.0.113.7", own, {}), (Endpoint{"203.0.113.7", 7003}));
  EXPECT_EQ(advertised_at("node3.example", own, ports), (Endpoint{"node3.example", 7003}));
  EXPECT_EQ(advertised_at("fd00::7", own, ports), (Endpoint{"fd00::7", 7003}));
  EXPECT_EQ(advertised_at("203.0.113.7:9000", own, ports), (Endpoint{"203.0.113.7", 9003}));
  EXPECT_EQ(advertised_at("[fd00::7]:9000", own, ports), (Endpoint{"fd00::7", 9003}));
  EXPECT_EQ(advertised_at("203.0.113.7:6000", {"10.0.0.5", 7100}, ports).port, 6100);
}

TEST(Advertised, WhatLeadsNowhereIsAMistakeOfTheJobFile) {
  const Endpoint own{"10.0.0.5", 7003};
  const auto refusal = [&](const char* text, PortRange ports) {
    return error_of([&] { advertised_at(text, own, ports); });
  };
  for (const char* text : {"", ":9000", "a:b", "203.0.113.7:", "203.0.113.7:65534"})
    EXPECT_EQ(refusal(text, {7000, 7100}).kind(), ErrorKind::kConfig) << text;
  EXPECT_THAT(refusal("203.0.113.7:9000", {}).what(), HasSubstr("name a range of ports"));
}

TEST(Advertised, OfOnePortSaysThatOfTheOthers) {
  const PortRange ports{7000, 7100};
  EXPECT_EQ(advertised_like({"203.0.113.7", 9003}, {"10.0.0.5", 7003}, ports), "203.0.113.7:9000");
  EXPECT_EQ(advertised_like({"fd00::7", 7003}, {"fd00::1", 7003}, ports), "[fd00::7]:7000");
  EXPECT_EQ(advertised_like({"fd00::7", 7003}, {"fd00::1", 7003}, {}), "fd00::7");
  const Endpoint other{"10.0.0.5", 7009};
  EXPECT_EQ(advertised_at(advertised_like({"203.0.113.7", 9003}, {"10.0.0.5", 7003}, ports), other,
                          ports),
            (Endpoint{"203.0.113.7", 9009}));
  EXPECT_THROW(advertised_like({"203.0.113.7", 2}, {"10.0.0.5", 7003}, ports), Error);
}

TEST(Advertised, AddressesAreReadAsTheyAreWritten) {
  const std::vector<Endpoint> addresses{{"203.0.113.7", 9000}, {"fd00::7", 7003}};
  EXPECT_EQ(text_of(addresses), "203.0.113.7:9000 [fd00::7]:7003");
  EXPECT_EQ(parse_addresses(text_of(addresses)), addresses);
  EXPECT_EQ(parse_addresses("10.0.0.5:7000"), (std::vector<Endpoint>{{"10.0.0.5", 7000}}));
  for (const char* text : {"", " ", "10.0.0.5:7000 ", " 10.0.0.5:7000", "10.0.0.5:7000  a:1", "x"})
    EXPECT_EQ(error_of([&] { parse_addresses(text); }).kind(), ErrorKind::kConfig) << text;
}

/// Two ranks, of which the lower one listens as `options` say, exchange a message of a megabyte.
void exchange_between(const TcpTransport::Options& options) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  const auto join = [&](int rank) {
    StoreClient client(store.endpoint(), "key", soon());
    TcpTransport::Options own = options;
    if (rank == 1) own.advertise = "", own.ports = {};
    return std::make_unique<TcpTransport>(own, client, rank, 2, soon());
  };
  auto rank_1 = std::async(std::launch::async, join, 1);
  const auto rank_0 = join(0);
  const auto other = rank_1.get();
  other->send(0, {1, 1}, 0, Bytes(1 << 20, std::byte{7}));
  other->flush();
  std::size_t arrived = 0;
  for (const Deadline end = soon(); arrived < 1 << 20 && !end.passed();) {
    const auto seen = rank_0->events();
    if (const auto chunk = rank_0->take(1, {1, 1})) {
      arrived += chunk->bytes();
    } else {
      rank_0->wait_for_event(seen, std::chrono::milliseconds(5));
    }
  }
  EXPECT_EQ(arrived, std::size_t{1} << 20);
}

// The relay plays the translator. All three connections come through it.
TEST(Advertised, OthersComeThroughTheTranslator) {
  const std::uint16_t port =
      local_endpoint(Descriptor(listen_on("127.0.0.1", {0, 0})).get()).port;  // free now
  std::atomic<std::uint64_t> carried{0};
  std::atomic<int> connections{0};
  const MeddlingRelay translator(
      {"127.0.0.1", port},
      [&](int connection, bool from_caller, std::uint64_t, std::span<std::byte> bytes) {
        if (from_caller) carried += bytes.size();
        connections = std::max(connections.load(), connection + 1);
        return true;
      });
  exchange_between(
      {.key = "key", .ports = {port, port}, .advertise = translator.endpoint().text(), .rails = 3});
  EXPECT_GT(carried, 1u << 20);
  EXPECT_EQ(connections, 3);
}

// They do so where the translator lets nobody in from its own side, and where its name means
// nothing there.
TEST(Advertised, ThoseOnItsOwnSideComeDirectly) {
  exchange_between({.key = "key", .advertise = "127.0.0.77", .rails = 2});
}

TEST(Advertised, WhoIsReachedNowhereIsNamedWithAllItsAddresses) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient client(store.endpoint(), "key", soon());
  client.set("peers/world/0", "127.0.0.77:1 127.0.0.78:1", soon());
  const Error error = error_of(
      [&] { TcpTransport({.key = "key"}, client, 1, 2, Deadline::in(std::chrono::seconds(1))); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 does not answer at 127.0.0.77:1 127.0.0.78:1"));
}

}  // namespace
}  // namespace shoal::wire::advertised_test
