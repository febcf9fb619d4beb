#include "shoal/wire/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/address.h"
#include "tests/wire/soon.h"

namespace shoal::wire::acceptor_test {
namespace {

/// An acceptor that this thread runs, and the last caller that it let in.
struct Listening {
  Listening() {
    Descriptor listener = listen_on("127.0.0.1", {0, 0});
    endpoint = local_endpoint(listener.get());
    acceptor.emplace(loop, std::move(listener),
                     Acceptor::Options{.key = "key",
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

// The rest wait in the kernel's queue. Callers that are silent for 3 seconds are dropped there: the
// test is repeated where the machine took as long.
TEST(Acceptor, Keeps256CallersInTheirHandshakes) {
  for (bool in_time = false; !in_time;) {
    const Deadline end = Deadline::in(std::chrono::milliseconds(2500));
    Listening here;
    std::vector<Descriptor> callers;
    for (int i = 0; i < 270; ++i) callers.push_back(connect_to(here.endpoint, soon()));
    const auto run_until_greeted = [&](std::size_t caller) {
      while (!is_greeted(callers[caller]) && !end.passed()) {
        here.loop.run_once(Duration::zero());
        here.acceptor->drop_expired();
      }
    };
    run_until_greeted(255);
    const auto greeted = std::count_if(callers.begin(), callers.end(), is_greeted);
    // One of them ends, and another takes its place.
    callers.front() = Descriptor();
    run_until_greeted(256);
    const bool another = is_greeted(callers[257]);
    in_time = !end.passed();
    if (!in_time) continue;
    EXPECT_EQ(greeted, 256);
    EXPECT_FALSE(another);
  }
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
