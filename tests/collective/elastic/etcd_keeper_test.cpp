// What becomes of a question where no etcd answers it: each ends with an error within its deadline
// that names the address and says what was asked.
#include "shoal/collective/elastic/etcd_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/collective/elastic/keeper_thread.h"
#include "shoal/wire/address.h"
#include "shoal/wire/http_client.h"
#include "tests/error_text.h"

namespace shoal::collective::elastic::etcd_keeper_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Accepts connections one after the other, and hands each to `serve`, which writes what it likes.
class Server {
 public:
  explicit Server(std::function<void(int socket, const std::atomic<bool>& stop)> serve)
      : listener_(wire::listen_on("127.0.0.1", {0, 0})),
        address_("http://" + wire::local_endpoint(listener_.get()).text()),
        thread_([this, serve = std::move(serve)] { run(serve); }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void run(const std::function<void(int, const std::atomic<bool>&)>& serve) {
    while (!stop_) {
      pollfd waiting{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const int socket = ::accept(listener_.get(), nullptr, nullptr);
      if (socket < 0) continue;
      serve(socket, stop_);
      ::close(socket);
    }
  }

  wire::Descriptor listener_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

bool write_all(int socket, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto written = ::send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (written <= 0) return false;
    at += static_cast<std::size_t>(written);
  }
  return true;
}

void read_request(int socket) {
  std::string buffer(1 << 16, '\0');
  pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&readable, 1, 1000) > 0) (void)!::read(socket, buffer.data(), buffer.size());
}

Server answering(const std::string& status, const std::string& body) {
  return Server([=](int socket, const std::atomic<bool>&) {
    read_request(socket);
    write_all(socket, "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
                          "\r\nConnection: close\r\n\r\n" + body);
  });
}

/// Waits until the test is over, as a server that is stopped does.
void be_silent(int, const std::atomic<bool>& stop) {
  while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// Of a server that answers, however busy this machine is.
EtcdKeeper::Options at(const std::string& address) {
  return {.addresses = {address}, .request_timeout = std::chrono::seconds(60)};
}
EtcdKeeper::Options at_silent(const std::string& address) {
  return {.addresses = {address}, .request_timeout = std::chrono::milliseconds(500)};
}

std::string why_none(const EtcdKeeper::Options& options) {
  return error_text([&] { EtcdKeeper keeper(options); });
}

class NoEtcd : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(wire::HttpClient::is_available()) << "install libcurl4-openssl-dev";
  }
};

TEST_F(NoEtcd, AddressesThatAreNoneAreRefused) {
  for (const char* wrong : {"127.0.0.1:2379", "http://127.0.0.1", "ftp://127.0.0.1:2379",
                            "http://127.0.0.1:2379/v3", "http://user@127.0.0.1:2379", ""}) {
    EXPECT_THAT(why_none(at(wrong)), HasSubstr("http://HOST:PORT")) << wrong;
  }
}

TEST_F(NoEtcd, WhereNobodyListensTheErrorSaysWhereAndWhatWasAsked) {
  std::string address;
  {
    const wire::Descriptor listener = wire::listen_on("127.0.0.1", {0, 0});
    address = "http://" + wire::local_endpoint(listener.get()).text();
  }
  EXPECT_THAT(why_none(at(address)),
              AllOf(HasSubstr(address), HasSubstr("which cluster it is"), HasSubstr("Hint: ")));
}

TEST_F(NoEtcd, AnswersThatAreNotEtcdsAreShown) {
  for (const char* body : {"<html>It works</html>", "{}", "[1, 2]", "{\"header\": 3}",
                           "{\"header\": {\"cluster_id\": 3}}", "", "\x01\x02\xff"}) {
    Server server = answering("200 OK", body);
    EXPECT_THAT(why_none(at(server.address())), HasSubstr("not with what was asked for")) << body;
  }
  Server other = answering("404 Not Found", "Not Found");
  EXPECT_THAT(why_none(at(other.address())),
              HasSubstr("status 404, and not with what was asked for: Not Fou"));
  Server noise([](int socket, const std::atomic<bool>&) {
    read_request(socket);
    write_all(socket, "\x16\x03\x01 this is no HTTP\r\n\r\n");
  });
  EXPECT_THAT(why_none(at(noise.address())), HasSubstr(noise.address()));
}

TEST_F(NoEtcd, SilenceEndsAtTheDeadline) {
  Server server(be_silent);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(why_none(at_silent(server.address())),
              AllOf(HasSubstr(server.address()), HasSubstr("timed out")));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
}

// A byte now and then is no answer either.
TEST_F(NoEtcd, AnAnswerThatDripsEndsAtTheDeadline) {
  Server server([](int socket, const std::atomic<bool>& stop) {
    read_request(socket);
    write_all(socket, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    while (!stop && write_all(socket, "x"))
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_THAT(why_none(at_silent(server.address())), HasSubstr("timed out"));
}

TEST_F(NoEtcd, AnAnswerOf100MegabytesIsRefusedAfterFour) {
  for (const char* length : {"Content-Length: 100000000\r\n", ""}) {
    std::atomic<std::size_t> sent = 0;
    {
      Server server([&](int socket, const std::atomic<bool>& stop) {
        read_request(socket);
        write_all(socket, std::string("HTTP/1.1 200 OK\r\n") + length + "\r\n");
        const std::string part(1 << 16, 'x');
        while (!stop && sent < 100'000'000 && write_all(socket, part)) sent += part.size();
      });
      EXPECT_THAT(why_none(at(server.address())),
                  HasSubstr("answers with more than 4194304 bytes"));
    }
    EXPECT_LT(sent, 50'000'000u);
  }
}

// An entry that no group has written, with whatever value.
TEST_F(NoEtcd, AValueThatIsNoDecisionIsNamed) {
  for (const char* value : {"", "AAAA", "no base64!", "Aw=="}) {
    Server server =
        answering("200 OK", std::string("{\"header\": {\"cluster_id\": \"7\"}, \"responses\": [{"
                                        "\"response_range\": {\"kvs\": [{\"value\": \"") +
                                value + "\"}]}}]}");
    EtcdKeeper keeper(at(server.address()));
    EXPECT_EQ(keeper.name(), "etcd cluster 7, keys shoal/");
    const std::string why = error_text([&] {
      keeper.answer({.slot = {1, 2, 3}, .before = {1, 2, 2}, .keep_from = {1, 0, 0}, .wish = {}});
    });
    EXPECT_THAT(why, AllOf(HasSubstr("what is no decision of a group"),
                           HasSubstr("shoal/0000000000000001/0000000000000002/0000000000000003")))
        << value;
  }
}

TEST_F(NoEtcd, AnAddressThatAnswersIsFoundAmongOthers) {
  Server silent(be_silent);
  Server garbage = answering("500 Internal Server Error", "no");
  Server good = answering("200 OK", "{\"header\": {\"cluster_id\": \"7\"}, \"succeeded\": true}");
  EtcdKeeper::Options options = at(silent.address());
  options.request_timeout = std::chrono::seconds(2);
  options.addresses = {silent.address(), garbage.address(), good.address()};
  EtcdKeeper keeper(options);
  EXPECT_EQ(keeper.name(), "etcd cluster 7, keys shoal/");
}

// Two clusters would decide two things.
TEST_F(NoEtcd, AnotherClusterIsNotAsked) {
  std::atomic<int> requests = 0;
  Server first([&](int socket, const std::atomic<bool>&) {
    read_request(socket);
    if (requests++ == 0) {
      write_all(socket,
                "HTTP/1.1 200 OK\r\nContent-Length: 33\r\nConnection: close\r\n\r\n"
                "{\"header\": {\"cluster_id\": \"777\"}}");
    }
  });
  Server other = answering("200 OK", "{\"header\": {\"cluster_id\": \"8\"}, \"succeeded\": true}");
  EtcdKeeper::Options options = at(first.address());
  options.addresses.push_back(other.address());
  EtcdKeeper keeper(options);
  const std::string why = error_text([&] {
    keeper.answer({.slot = {1, 2, 3}, .before = {1, 2, 2}, .keep_from = {1, 0, 0}, .wish = {}});
  });
  EXPECT_THAT(why,
              HasSubstr(other.address() + " is of another etcd: cluster 8, and this group's is "
                                          "777"));
}

// A group that ends does not wait for a server that is silent.
TEST_F(NoEtcd, AThreadThatWaitsForAnAnswerEndsAtOnce) {
  std::atomic<bool> asked = false;
  std::atomic<int> requests = 0;
  Server server([&](int socket, const std::atomic<bool>& stop) {
    read_request(socket);
    if (requests++ == 0) {
      write_all(socket,
                "HTTP/1.1 200 OK\r\nContent-Length: 33\r\nConnection: close\r\n\r\n"
                "{\"header\": {\"cluster_id\": \"777\"}}");
      return;
    }
    asked = true;
    be_silent(socket, stop);
  });
  EtcdKeeper::Options options = at(server.address());
  options.request_timeout = std::chrono::hours(1);
  KeeperThread thread(std::make_unique<EtcdKeeper>(options), [](const membership::Event&) {});
  thread.ask({});
  while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace shoal::collective::elastic::etcd_keeper_test
