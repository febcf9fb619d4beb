// The store over connections that run TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/acceptor.h"
#include "shoal/wire/peer_hello.h"
#include "shoal/wire/rendezvous.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tls_channel.h"
#include "tests/error_of.h"
#include "tests/wire/meddling_relay.h"
#include "tests/wire/soon.h"

namespace shoal::wire::tls_store_test {
namespace {

using testing::HasSubstr;

constexpr const char* kSecret = "a value that stands out wherever it is to be seen";

/// What somebody on the way hears while a client sets a value and reads it.
std::string overheard(TlsMode mode) {
  const StoreServer server("127.0.0.1", {0, 0}, "key");
  std::mutex mutex;
  std::string heard;
  const MeddlingRelay relay(
      server.endpoint(), [&](int, bool, std::uint64_t, std::span<std::byte> bytes) {
        const std::lock_guard lock(mutex);
        heard.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return true;
      });
  StoreClient client(relay.endpoint(), "key", soon(), mode);
  client.set("key", kSecret, soon());
  EXPECT_EQ(client.wait("key", soon()), kSecret);
  const std::lock_guard lock(mutex);
  return heard;
}

TEST(TlsStore, WhoListensOnTheWayHearsNothing) {
  EXPECT_THAT(overheard(TlsMode::kOff), HasSubstr(kSecret));
  EXPECT_THAT(overheard(TlsMode::kOn), testing::Not(HasSubstr(kSecret)));
}

// Values are larger than a record, and than what sockets hold. Of the clients some run TLS.
TEST(TlsStore, ClientsWithAndWithoutItShareValues) {
  const StoreServer server("127.0.0.1", {0, 0}, "key");
  constexpr int kClients = 6;
  const auto value_of = [](int i) {
    return std::string(3'000'000 + static_cast<std::size_t>(i), static_cast<char>('a' + i));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      StoreClient client(server.endpoint(), "key", soon(),
                         i % 3 == 0 ? TlsMode::kOff : TlsMode::kOn);
      client.set(std::to_string(i), value_of(i), soon());
      EXPECT_EQ(client.wait(std::to_string((i + 1) % kClients), soon()),
                value_of((i + 1) % kClients));
      client.add("sum", i, soon());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(StoreClient(server.endpoint(), "key", soon(), TlsMode::kOn).get("sum", soon()), "15");
}

TEST(TlsStore, TheEndOfTheStoreIsTold) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", PortRange{}, "key");
  StoreClient client(server->endpoint(), "key", soon(), TlsMode::kOn);
  auto waits = std::async(std::launch::async,
                          [&] { return error_of([&] { client.wait("nothing", soon()); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  server.reset();
  const Error error = waits.get();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 closed the store"));
}

// Somebody who relays the handshake under the job's key shows a certificate of its own.
TEST(TlsStore, AStoreWithAnotherCertificateIsRefused) {
  const TlsContext genuine;
  const auto attacker = std::make_shared<TlsContext>();
  EventLoop loop;
  Descriptor listener = listen_on("127.0.0.1", {0, 0});
  const Endpoint there = local_endpoint(listener.get());
  Acceptor acceptor(
      loop, std::move(listener),
      {.key = "key",
       .hello = PeerHello{.id = genuine.id()}.encode(),
       .make_channel = [&](Descriptor socket, const Hello& hello) -> std::unique_ptr<Channel> {
         return std::make_unique<TlsChannel>(
             std::move(socket), attacker, TlsChannel::Role::kListener, PeerHello::decode(hello).id);
       },
       .admit = [](std::unique_ptr<Channel>, const Hello&) { ADD_FAILURE(); }});
  auto client = std::async(std::launch::async, [&] {
    return error_of([&] { const StoreClient c(there, "key", soon(), TlsMode::kOn); });
  });
  while (client.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    loop.run_once(std::chrono::milliseconds(5));
  const Error error = client.get();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_THAT(error.what(), HasSubstr("its certificate is not of the process"));
}

TEST(TlsStore, RanksMeetOverIt) {
  const std::string place =
      "file:" + testing::TempDir() + "tls_store_test-" + std::to_string(getpid());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Rendezvous meeting(place, "key", rank, "127.0.0.1", soon(), TlsMode::kOn);
      meeting.store().set(std::to_string(rank), "here", soon());
      for (int other = 0; other < 3; ++other)
        EXPECT_EQ(meeting.store().wait(std::to_string(other), soon()), "here");
      // Rank 0 holds the store until all have read it.
      if (meeting.store().add("done", 1, soon()) == 3) meeting.store().set("over", "", soon());
      if (rank == 0) meeting.store().wait("over", soon());
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace shoal::wire::tls_store_test
