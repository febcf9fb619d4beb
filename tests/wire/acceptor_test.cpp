#include "shoal/wire/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/address.h"
#include "shoal/wire/descriptor_limit.h"
#include "shoal/wire/outgoing_call.h"
#include "tests/wire/soon.h"

namespace shoal::wire::acceptor_test {
namespace {

/// An acceptor that this thread runs, and the last caller that it let in.
struct Listening {
  using MakeChannel = std::function<std::unique_ptr<Channel>(Descriptor, const Hello&)>;
  explicit Listening(MakeChannel make_channel = {}) {
    Descriptor listener = listen_on("127.0.0.1", {0, 0});
    endpoint = local_endpoint(listener.get());
    acceptor.emplace(loop, std::move(listener),
                     Acceptor::Options{.key = "key",
                                       .make_channel = std::move(make_channel),
                                       .admit = [this](std::unique_ptr<Channel> c, const Hello& h) {
                                         admitted = std::move(c);
                                         hello = h;
                                       }});
  }
  void run_until_admitted() {
    for (const Deadline end = soon(); !admitted && !end.passed();) {
      loop.run_once(std::chrono::milliseconds(10));
      acceptor->drop_expired();
    }
  }

  EventLoop loop;
  Endpoint endpoint;
  std::optional<Acceptor> acceptor;
  std::unique_ptr<Channel> admitted;
  Hello hello{};
};

TEST(Acceptor, PassesOnMembersWithTheirHelloMessage) {
  Listening here;
  Hello hello;
  hello.fill(std::byte{6});
  auto caller = std::async(std::launch::async, [&] {
    Descriptor socket = connect_to(here.endpoint, soon());
    handshake_as_caller(socket.get(), "key", hello, soon());
    return socket;
  });
  here.run_until_admitted();
  const Descriptor member = caller.get();
  ASSERT_TRUE(here.admitted);
  EXPECT_EQ(here.hello, hello);
  EXPECT_EQ(remote_endpoint(here.admitted->fd()), local_endpoint(member.get()));
  int no_delay = 0;
  socklen_t size = sizeof no_delay;
  getsockopt(here.admitted->fd(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
  EXPECT_EQ(no_delay, 1);
  EXPECT_NE(fcntl(here.admitted->fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(here.admitted->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

// What a member sends behind its proof belongs to whoever gets the socket.
TEST(Acceptor, ReadsNothingBeyondTheHandshake) {
  Listening here;
  auto caller = std::async(std::launch::async, [&] {
    Descriptor socket = connect_to(here.endpoint, soon());
    handshake_as_caller(socket.get(), "key", {}, soon());
    EXPECT_EQ(send(socket.get(), "hello", 5, MSG_NOSIGNAL), 5);
    return socket;
  });
  here.run_until_admitted();
  const Descriptor member = caller.get();
  here.loop.run_once(Duration::zero());
  char text[8] = {};
  EXPECT_EQ(recv(here.admitted->fd(), text, sizeof text, MSG_DONTWAIT), 5);
  EXPECT_STREQ(text, "hello");
}

/// True when the acceptor's first bytes are there.
bool is_greeted(const Descriptor& caller) {
  char byte = 0;
  return recv(caller.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

/// True when the acceptor has closed the connection.
bool is_closed(const Descriptor& caller) {
  char bytes[64];
  while (recv(caller.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
  return recv(caller.get(), bytes, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

/// Connects from an address of loopback.
Descriptor connect_from(const char* address, const Endpoint& to) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  inet_pton(AF_INET, address, &own.sin_addr);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(to.port);
  inet_pton(AF_INET, to.host.c_str(), &there.sin_addr);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
  return socket;
}

constexpr std::size_t kPlaces = 256;

TEST(Acceptor, TheOldestOfTooManyCallersLosesItsPlace) {
  Listening here;
  std::vector<Descriptor> callers;
  for (std::size_t i = 0; i < kPlaces + 14; ++i)
    callers.push_back(connect_to(here.endpoint, soon()));
  for (const Deadline end = soon(); !is_greeted(callers.back()) && !end.passed();)
    here.loop.run_once(Duration::zero());
  for (std::size_t i = 0; i < callers.size(); ++i) EXPECT_EQ(is_closed(callers[i]), i < 14) << i;
  EXPECT_EQ(here.acceptor->refusals().count(), 14u);
  EXPECT_EQ(here.acceptor->refusals().text(),
            "14 callers did not prove to know the job's key and were refused here, the last from "
            "127.0.0.1");
}

// Strangers at one address do not take the place of a caller from another one, however slow it is.
TEST(Acceptor, AnAddressKeepsItsPlacesAgainstOneThatHasMore) {
  Listening here;
  const Descriptor member = connect_from("127.0.0.2", here.endpoint);
  std::vector<Descriptor> strangers;
  for (std::size_t i = 0; i < 2 * kPlaces; ++i)
    strangers.push_back(connect_to(here.endpoint, soon()));
  for (const Deadline end = soon(); !is_greeted(strangers.back()) && !end.passed();)
    here.loop.run_once(Duration::zero());
  EXPECT_EQ(here.acceptor->refusals().count(), kPlaces + 1);
  auto proof =
      std::async(std::launch::async, [&] { handshake_as_caller(member.get(), "key", {}, soon()); });
  here.run_until_admitted();
  EXPECT_NO_THROW(proof.get());
  EXPECT_TRUE(here.admitted);
}

// Who has hundreds of addresses cannot push out a caller at once, whatever its address.
TEST(Acceptor, OfAddressesThatHoldAsManyTheOldestCallerGoes) {
  Listening here;
  std::vector<Descriptor> strangers;
  const auto add_strangers = [&](int net, int n) {
    for (int i = 1; i <= n; ++i)
      strangers.push_back(connect_from(fmt::format("127.{}.0.{}", net, i).c_str(), here.endpoint));
  };
  add_strangers(1, 100);
  const Descriptor member = connect_from("127.0.0.2", here.endpoint);
  add_strangers(2, 200);
  for (const Deadline end = soon(); !is_greeted(strangers.back()) && !end.passed();)
    here.loop.run_once(Duration::zero());
  EXPECT_FALSE(is_closed(member));
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(is_closed(strangers[i]), i < 45) << i;
}

// An acceptor that served 256 of them each 3 seconds took half a minute.
TEST(Acceptor, ThousandsOfSilentCallersHoldUpNobody) {
  const std::size_t strangers_here =
      std::min<std::uint64_t>(2500, allow_descriptors_for(4000) - 512);
  Listening here;
  std::atomic<bool> came{false};
  auto member = std::async(std::launch::async, [&] {
    std::vector<Descriptor> strangers;
    for (std::size_t i = 0; i < strangers_here; ++i)
      strangers.push_back(connect_to(here.endpoint, soon()));
    const auto begin = Clock::now();
    Descriptor socket = connect_to(here.endpoint, soon());
    handshake_as_caller(socket.get(), "key", {}, soon());
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
    came = true;
    return socket;
  });
  for (const Deadline end = soon(); !came && !end.passed();) {
    here.loop.run_once(std::chrono::milliseconds(10));
    here.acceptor->drop_expired();
  }
  EXPECT_NO_THROW(member.get());
  EXPECT_TRUE(here.admitted);
  EXPECT_GE(here.acceptor->refusals().count(), strangers_here - kPlaces);
}

/// Calls as many times at once as asked, and again where a call fails. Returns how often that was.
int call_until_admitted(const Endpoint& to, std::size_t members) {
  std::vector<std::unique_ptr<OutgoingCall>> calls(members);
  std::vector<std::unique_ptr<Channel>> channels(members);
  int again = 0;
  std::size_t admitted = 0;
  for (const Deadline end = soon(); admitted < members && !end.passed();) {
    std::vector<pollfd> ready;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < members; ++i) {
      if (channels[i]) continue;
      if (!calls[i]) {
        calls[i] = std::make_unique<OutgoingCall>(
            to,
            OutgoingCall::Options{.key = "key",
                                  .hello = [](int) { return Hello{}; },
                                  .make_channel =
                                      [](Descriptor socket, const Hello&) {
                                        return std::make_unique<PlainChannel>(std::move(socket));
                                      }});
      }
      ready.push_back({calls[i]->fd(), static_cast<short>(calls[i]->events()), 0});
      of.push_back(i);
    }
    poll(ready.data(), ready.size(), 100);
    for (std::size_t k = 0; k < of.size(); ++k) {
      if (ready[k].revents == 0) continue;
      auto& call = calls[of[k]];
      try {
        if (!call->advance()) continue;
        channels[of[k]] = call->take_channel();
        ++admitted;
      } catch (const Error&) {
        call.reset();
        ++again;
      }
    }
  }
  EXPECT_EQ(admitted, members);
  return again;
}

// They have one address, and more call at once than there are places. Each that is pushed out has
// made room for another one, so none calls more often than there are rounds.
TEST(Acceptor, AllRailsOfTheRanksOfAHostMayComeTogether) {
  constexpr std::size_t kMembers = 64 * 8;
  Listening here;
  std::atomic<bool> over{false};
  auto members = std::async(std::launch::async, [&] {
    const int again = call_until_admitted(here.endpoint, kMembers);
    over = true;
    return again;
  });
  for (const Deadline end = soon(); !over && !end.passed();) {
    here.loop.run_once(std::chrono::milliseconds(10));
    here.acceptor->drop_expired();
  }
  EXPECT_LE(members.get(), static_cast<int>(kMembers));
}

TEST(Acceptor, AStrangerWithoutTheKeyIsCounted) {
  Listening here;
  const Descriptor gone = connect_to(here.endpoint, soon());
  const Descriptor stranger = connect_to(here.endpoint, soon());
  EXPECT_EQ(send(stranger.get(), "GET / HTTP/1.1", 14, MSG_NOSIGNAL), 14);
  shutdown(gone.get(), SHUT_RDWR);
  for (const Deadline end = soon(); !is_closed(stranger) && !end.passed();)
    here.loop.run_once(std::chrono::milliseconds(10));
  EXPECT_EQ(here.acceptor->refusals().count(), 1u) << "one that goes by itself is none";
}

TEST(Acceptor, ClosesTheConnectionsOfStrangers) {
  Listening here;
  auto stranger = std::async(std::launch::async, [&] {
    const Descriptor socket = connect_to(here.endpoint, soon());
    try {
      handshake_as_caller(socket.get(), "another key", {}, soon());
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  });
  while (stranger.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    here.loop.run_once(std::chrono::milliseconds(1));
  EXPECT_EQ(stranger.get(), ErrorKind::kPeerLost);
  EXPECT_FALSE(here.admitted);
}

// Such as one that has closed its connection, whose address nobody can tell any more.
TEST(Acceptor, ACallerWithWhomNoChannelIsMadeIsDroppedAlone) {
  int calls = 0;
  Listening here([&calls](Descriptor socket, const Hello&) -> std::unique_ptr<Channel> {
    if (++calls == 1) throw Error(ErrorKind::kPeerLost, "test", "it has gone");
    return std::make_unique<PlainChannel>(std::move(socket));
  });
  const auto call = [&here] {
    Descriptor socket = connect_to(here.endpoint, soon());
    handshake_as_caller(socket.get(), "key", {}, soon());
    return socket;
  };
  auto callers = std::async(std::launch::async, [&call] {
    const Descriptor first = call();
    pollfd end{first.get(), POLLIN, 0};
    char byte = 0;
    EXPECT_EQ(poll(&end, 1, 10000), 1);
    EXPECT_EQ(recv(first.get(), &byte, 1, 0), 0);
    return call();
  });
  here.run_until_admitted();
  callers.get();
  EXPECT_TRUE(here.admitted);
  EXPECT_EQ(calls, 2);
}

/// Forbids this process to open further descriptors while it lives.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const Descriptor next(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit none{static_cast<rlim_t>(next.get()), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

// A caller that waits keeps the listener ready: a loop that watched it would never rest.
TEST(Acceptor, WithoutDescriptorsItRestsAndServesTheCallerLater) {
  Listening here;
  Descriptor socket = connect_to(here.endpoint, soon());
  {
    const NoMoreDescriptors none;
    here.loop.run_once(std::chrono::milliseconds(20));
    int rested = 0;
    for (int i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      here.loop.run_once(std::chrono::milliseconds(20));
      rested += Clock::now() - begin >= std::chrono::milliseconds(15);
    }
    EXPECT_EQ(rested, 3);
  }
  auto caller =
      std::async(std::launch::async, [&] { handshake_as_caller(socket.get(), "key", {}, soon()); });
  here.run_until_admitted();
  caller.get();
  EXPECT_TRUE(here.admitted);
}

}  // namespace
}  // namespace shoal::wire::acceptor_test
