#include "apps/shoal/watch/request_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"

namespace shoal::apps::request_server_test {
namespace {

using namespace std::chrono_literals;

/// More bytes than the sockets of a connection hold; no more than a sanitizer looks through in an
/// instant.
constexpr std::size_t kLarge = 16 << 20;

/// Two listeners on loopback that answer a line with the same line, twice for the second one.
class EchoServer {
 public:
  EchoServer() : server_(listeners()) {}
  const wire::Endpoint& first() const { return first_; }
  const wire::Endpoint& second() const { return second_; }

 private:
  std::vector<Listener> listeners() {
    std::vector<Listener> all;
    for (const int times : {1, 2}) {
      wire::Descriptor socket = wire::listen_on("127.0.0.1", {0, 0});
      (times == 1 ? first_ : second_) = wire::local_endpoint(socket.get());
      all.push_back({std::move(socket), false,
                     [times](std::string_view received) -> std::optional<std::string> {
                       const auto end = received.find('\n');
                       if (end == std::string_view::npos) return std::nullopt;
                       const std::string line(received.substr(0, end + 1));
                       if (line == "throw\n") throw std::runtime_error("no answer");
                       if (line == "large\n") return std::string(kLarge, 'x');
                       return times == 1 ? line : line + line;
                     }});
    }
    return all;
  }
  wire::Endpoint first_, second_;
  RequestServer server_;
};

/// A client that blocks, for ten seconds at most.
class Client {
 public:
  explicit Client(const wire::Endpoint& to)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval longest{10, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = ::htons(to.port);
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
  }
  void send(const std::string& text) const {
    ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  void end_sending() const { ::shutdown(socket_.get(), SHUT_WR); }
  /// Everything up to the end, or to a reset.
  std::string rest() const {
    std::string text;
    char buffer[4096];
    for (;;) {
      const ssize_t length = ::recv(socket_.get(), buffer, sizeof buffer, 0);
      if (length <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(length));
    }
  }

 private:
  wire::Descriptor socket_;
};

std::string asked(const wire::Endpoint& to, const std::string& text) {
  const Client client(to);
  client.send(text);
  return client.rest();
}

TEST(RequestServer, AnswersOnceAndCloses) {
  const EchoServer server;
  EXPECT_EQ(asked(server.first(), "hello\n"), "hello\n");
  EXPECT_EQ(asked(server.second(), "hello\n"), "hello\nhello\n");
  EXPECT_EQ(asked(server.first(), "one\ntwo\n"), "one\n") << "what follows is not read";
  const Client halved(server.first());
  halved.send("half");
  halved.send("\n");
  halved.end_sending();
  EXPECT_EQ(halved.rest(), "half\n");
  // The end before the request is complete.
  const Client cut(server.first());
  cut.send("half");
  cut.end_sending();
  EXPECT_EQ(cut.rest(), "");
}

TEST(RequestServer, DropsWhoeverSendsTooMuchOrMakesItFail) {
  const EchoServer server;
  EXPECT_EQ(asked(server.first(), std::string(100000, 'x')), "");
  EXPECT_EQ(asked(server.first(), "throw\n"), "");
  EXPECT_EQ(asked(server.first(), "hello\n"), "hello\n");
}

TEST(RequestServer, SilentClientsHoldUpNobodyForLong) {
  const EchoServer server;
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 7; ++i) silent.push_back(std::make_unique<Client>(server.first()));
  // One that asks for more than a socket holds, and reads nothing.
  silent.push_back(std::make_unique<Client>(server.first()));
  silent.back()->send("large\n");
  // These eight fill one listener; the other has room of its own.
  EXPECT_EQ(asked(server.second(), "hello\n"), "hello\nhello\n");
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(asked(server.first(), "hello\n"), "hello\n") << "once their time is over";
  EXPECT_GE(Clock::now() - begin, 2s);
  EXPECT_LT(Clock::now() - begin, 9s);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(silent[static_cast<std::size_t>(i)]->rest(), "");
  EXPECT_LT(silent.back()->rest().size(), kLarge);
}

TEST(RequestServer, EndsWhileClientsWait) {
  std::optional<EchoServer> server(std::in_place);
  const Client silent(server->first());
  EXPECT_EQ(asked(server->first(), "hello\n"), "hello\n");
  const auto begin = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(silent.rest(), "");
}

}  // namespace
}  // namespace shoal::apps::request_server_test
