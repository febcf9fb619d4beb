// Links between processes that come and go: each is a PeerLinks with a loop of its own, and one
// thread runs all loops in turn.
#include "shoal/wire/peer_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/identity.h"
#include "tests/wire/soon.h"

namespace shoal::wire::peer_links_test {
namespace {

using testing::ElementsAre;

Bytes bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct NodeOptions {
  std::string key = "the key";
  std::string cluster = "c";
  TlsMode tls = TlsMode::kAuto;
  std::optional<PeerId> claims;  ///< another id than that of its certificate
};

class Node {
 public:
  explicit Node(const NodeOptions& options = {}) : Node(options, listen_on("127.0.0.1", {})) {}
  Node(const NodeOptions& options, Descriptor listener)
      : endpoint(local_endpoint(listener.get())),
        id(options.claims.value_or(identity_.id())),
        links(loop, std::move(listener),
              {.key = options.key,
               .cluster = options.cluster,
               .self = id,
               .tls = options.tls,
               .context = std::make_shared<const TlsContext>(identity_),
               .received = [this](const PeerId& from, std::uint64_t kind, Bytes bytes) {
                 received.push_back(text_of(bytes));
                 sender = from;
                 last_kind = kind;
                 if (on_message) on_message(from, text_of(bytes));
               }}) {}
  void turn() {
    loop.run_once(Duration::zero());
    links.tick(Clock::now());
  }
  void send(const Node& to, const std::string& text) { links.send(to.id, 1, bytes_of(text)); }

 private:
  Identity identity_;

 public:
  EventLoop loop;
  Endpoint endpoint;
  PeerId id;
  std::vector<std::string> received;
  PeerId sender;
  std::uint64_t last_kind = 0;
  std::function<void(const PeerId&, const std::string&)> on_message;
  PeerLinks links;
};

bool run_until(const std::vector<Node*>& nodes, const std::function<bool()>& done) {
  for (const Deadline end = soon(); !end.passed();) {
    if (done()) return true;
    for (Node* node : nodes) node->turn();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

/// What a node says to those that connect, as anybody with the key learns it.
Hello hello_of(Node& node) {
  OutgoingCall call(node.endpoint, {.key = "the key",
                                    .hello = [](int) { return Hello{}; },
                                    .make_channel =
                                        [](Descriptor socket, const Hello&) {
                                          return std::make_unique<PlainChannel>(std::move(socket));
                                        }});
  EXPECT_TRUE(run_until({&node}, [&] { return call.advance(); }));
  return call.answer();
}

TEST(PeerLinks, CarryMessagesToAKnownAddressAndBackToTheCaller) {
  Node a;
  Node b;
  b.on_message = [&](const PeerId& from, const std::string&) {
    b.links.send(from, 7, bytes_of("back"));  // b knows no address of a
  };
  a.links.know(b.id, {b.endpoint});
  a.send(b, "there");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !a.received.empty(); }));
  EXPECT_THAT(b.received, ElementsAre("there"));
  EXPECT_THAT(a.received, ElementsAre("back"));
  EXPECT_EQ(b.sender, a.id);
  EXPECT_EQ(a.last_kind, 7u);
  EXPECT_FALSE(a.links.is_encrypted(b.id));
}

TEST(PeerLinks, FindWhoListensAtAnAddress) {
  Node a;
  Node b;
  // Nobody listens at the first one.
  const Endpoint nobody = local_endpoint(listen_on("127.0.0.1", {}).get());
  a.links.find({nobody, b.endpoint});
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.links.is_connected(b.id); }));
  EXPECT_THAT(a.links.take_arrivals(), ElementsAre(b.id));
  a.send(b, "found");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !b.received.empty(); }));
}

/// A port whose queue of callers is full: the kernel drops whoever calls, as a host that is gone
/// does.
struct DeafPort {
  DeafPort() : listener(listen_on("127.0.0.1", {})), endpoint(local_endpoint(listener.get())) {
    ::listen(listener.get(), 0);
    for (int i = 0; i < 3; ++i) callers.push_back(begin_connect(endpoint));
  }
  Descriptor listener;
  Endpoint endpoint;
  std::vector<Descriptor> callers;
};

// It is asked to find somebody again and again, as by whoever waits for that.
TEST(PeerLinks, FindWhoComesBehindAContactThatNeverAnswers) {
  const DeafPort deaf;
  Node a;
  Node b;
  EXPECT_TRUE(run_until({&a, &b}, [&] {
    a.links.find({deaf.endpoint, b.endpoint});
    return a.links.is_connected(b.id);
  }));
}

TEST(PeerLinks, FindNobodyInThemselves) {
  Node a;
  a.links.find({a.endpoint});
  ASSERT_TRUE(run_until({&a}, [&] { return a.links.counts().calls_failed > 1; }));
  EXPECT_TRUE(a.links.take_arrivals().empty());
}

TEST(PeerLinks, ReplaceAConnectionThatIsLost) {
  Node a;
  Node b;
  a.links.know(b.id, {b.endpoint});
  a.send(b, "1");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.received.size() == 1; }));
  b.links.disconnect(a.id);
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !a.links.is_connected(b.id); }));
  EXPECT_EQ(a.links.counts().lost, 1u);
  a.send(b, "2");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.received.size() == 2; }));
  EXPECT_THAT(b.received, ElementsAre("1", "2"));
}

TEST(PeerLinks, WorkWhereBothSidesCallAtOnce) {
  Node a;
  Node b;
  a.links.know(b.id, {b.endpoint});
  b.links.know(a.id, {a.endpoint});
  for (int i = 0; i < 20; ++i) {
    a.send(b, std::to_string(i));
    b.send(a, std::to_string(i));
  }
  ASSERT_TRUE(
      run_until({&a, &b}, [&] { return a.received.size() == 20 && b.received.size() == 20; }));
}

TEST(PeerLinks, KeepTheNewestMessagesForAPeerThatIsNotThereYet) {
  Node a;
  Descriptor taken = listen_on("127.0.0.1", {});
  const Endpoint later = local_endpoint(taken.get());
  Node b;
  taken = Descriptor();  // nobody listens there now
  a.links.know(b.id, {later});
  for (int i = 0; i < 1000; ++i) a.send(b, std::to_string(i));
  EXPECT_EQ(a.links.counts().dropped, 1000 - PeerLinks::kMostQueued);
  ASSERT_TRUE(run_until({&a}, [&] { return a.links.counts().calls_failed > 2; }));
  // The address was wrong; with the right one they arrive.
  a.links.know(b.id, {b.endpoint});
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.received.size() == PeerLinks::kMostQueued; }));
  EXPECT_EQ(b.received.front(), std::to_string(1000 - PeerLinks::kMostQueued));
  EXPECT_EQ(b.received.back(), "999");
}

TEST(PeerLinks, TellWhomTheHostsAtAllAddressesDoNotKnow) {
  Node a;
  auto b = std::make_unique<Node>();
  a.links.know(b->id, {b->endpoint});
  a.send(*b, "there");
  ASSERT_TRUE(run_until({&a, b.get()}, [&] { return !b->received.empty(); }));
  EXPECT_TRUE(a.links.take_absent().empty());
  const PeerId gone = b->id;
  b = nullptr;
  ASSERT_TRUE(run_until({&a}, [&] { return !a.links.is_connected(gone); }));
  // Nobody has asked.
  EXPECT_TRUE(a.links.take_absent().empty());
  a.links.send(gone, 1, bytes_of("still there?"));
  std::set<PeerId> absent;
  ASSERT_TRUE(run_until({&a}, [&] { return !(absent = a.links.take_absent()).empty(); }));
  EXPECT_EQ(absent, std::set{gone});
}

// One that is stopped, or behind a firewall, is not absent; nor is one with another address.
TEST(PeerLinks, DoNotCallAbsentWhoMayBeThere) {
  Node a;
  const DeafPort deaf;
  Descriptor taken = listen_on("127.0.0.1", {});
  const Endpoint closed = local_endpoint(taken.get());
  taken = Descriptor();
  const PeerId stopped = Identity().id();
  const PeerId hidden = Identity().id();
  Node connected;
  a.links.know(stopped, {deaf.endpoint});
  a.links.know(hidden, {closed, deaf.endpoint});
  a.links.know(connected.id, {closed});
  connected.links.know(a.id, {a.endpoint});
  connected.send(a, "here");
  ASSERT_TRUE(run_until({&a, &connected}, [&] { return !a.received.empty(); }));
  a.send(connected, "yes");
  a.links.send(stopped, 1, bytes_of("there?"));
  a.links.send(hidden, 1, bytes_of("there?"));
  ASSERT_TRUE(run_until({&a, &connected}, [&] { return a.links.counts().calls_failed > 0; }));
  for (const Deadline end = Deadline::in(std::chrono::milliseconds(300)); !end.passed();) {
    a.turn();
    EXPECT_TRUE(a.links.take_absent().empty());
  }
}

TEST(PeerLinks, DropWhatNobodyCanBeSent) {
  Node a;
  Node b;
  a.send(b, "no address");
  EXPECT_EQ(a.links.counts().dropped, 1u);
  a.links.know(b.id, {b.endpoint});
  a.links.send(b.id, 1, Bytes(PeerLinks::kMostMessageBytes + 1));
  EXPECT_EQ(a.links.counts().dropped, 2u);
  a.links.keep_only({});
  a.send(b, "forgotten");
  EXPECT_EQ(a.links.counts().dropped, 3u);
}

TEST(PeerLinks, HoldLittleForAPeerThatReadsNothing) {
  Node a;
  Node b;
  a.links.know(b.id, {b.endpoint});
  a.send(b, "first");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.received.size() == 1; }));
  for (int i = 0; i < 60; ++i) {
    a.links.send(b.id, 1, Bytes(1 << 20));
    a.turn();
  }
  EXPECT_GT(a.links.counts().dropped, 0u);
  EXPECT_FALSE(a.links.idle());
  a.send(b, "last");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.received.back() == "last"; }));
  EXPECT_LT(b.received.size(), 61u);
  EXPECT_TRUE(a.links.idle());
}

TEST(PeerLinks, AreNotOpenToStrangers) {
  Node a;
  Node b;
  Node wrong_key({.key = "another key"});
  Node other_cluster({.cluster = "d"});
  Node other_tls({.tls = TlsMode::kOff});
  for (Node* stranger : {&wrong_key, &other_cluster, &other_tls}) {
    stranger->links.know(a.id, {a.endpoint});
    stranger->send(a, "let me in");
    ASSERT_TRUE(
        run_until({&a, stranger}, [&] { return stranger->links.counts().calls_failed > 1; }));
    EXPECT_FALSE(a.links.is_connected(stranger->id));
  }
  const Descriptor noise = connect_to(a.endpoint, soon());
  const Bytes rubbish(1000, std::byte{0x55});
  ::send(noise.get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
  b.links.know(a.id, {a.endpoint});
  b.send(a, "still open");
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !a.received.empty(); }));
  EXPECT_THAT(a.received, ElementsAre("still open"));
  EXPECT_GE(a.links.counts().refused, 1u);
}

TEST(PeerLinks, DisconnectWhoSendsWhatMakesNoSense) {
  Node a;
  Node b;
  Node c;
  a.on_message = [](const PeerId&, const std::string& text) {
    if (text == "nonsense") throw Error(ErrorKind::kData, "test", "nonsense");
  };
  for (Node* node : {&b, &c}) node->links.know(a.id, {a.endpoint});
  b.send(a, "sense");
  c.send(a, "sense");
  ASSERT_TRUE(run_until({&a, &b, &c}, [&] { return a.received.size() == 2; }));
  b.send(a, "nonsense");
  ASSERT_TRUE(run_until({&a, &b, &c}, [&] { return !b.links.is_connected(a.id); }));
  EXPECT_EQ(a.links.counts().refused, 1u);
  EXPECT_TRUE(a.links.is_connected(c.id));
}

TEST(PeerLinks, EndAConnectionThatAnnouncesAnOversizedMessage) {
  Node a;
  Node b;
  // This one knows the key and keeps to the protocol as far as the first chunk.
  const PeerId stranger = Identity().id();
  OutgoingCall call(a.endpoint, {.key = "the key",
                                 .hello =
                                     [&](int) {
                                       // The words of `b`, with another id.
                                       Hello words = hello_of(b);
                                       std::memcpy(words.data() + 16, stranger.bytes.data(), 16);
                                       return words;
                                     },
                                 .make_channel =
                                     [](Descriptor socket, const Hello&) {
                                       return std::make_unique<PlainChannel>(std::move(socket));
                                     }});
  bool connected = false;
  ASSERT_TRUE(run_until({&a}, [&] {
    connected = connected || call.advance();
    return connected && a.links.is_connected(stranger);
  }));
  Link link(call.take_channel());
  link.send({1, 0}, 0, Bytes(PeerLinks::kMostMessageBytes + 1));
  ASSERT_TRUE(run_until({&a}, [&] {
    try {
      link.flush();
    } catch (const Error&) {
    }
    return !a.links.is_connected(stranger);
  }));
  EXPECT_EQ(a.links.counts().refused, 1u);
  EXPECT_TRUE(a.received.empty());
}

TEST(PeerLinks, ProveTheirIdsWithTls) {
  Node a({.tls = TlsMode::kOn});
  Node b({.tls = TlsMode::kOn});
  Node impostor({.tls = TlsMode::kOn, .claims = b.id});
  impostor.links.know(a.id, {a.endpoint});
  impostor.send(a, "I am b");
  ASSERT_TRUE(run_until({&a, &impostor}, [&] {
    return impostor.links.counts().lost > 0 || impostor.links.counts().calls_failed > 0;
  }));
  EXPECT_TRUE(a.received.empty());
  EXPECT_FALSE(a.links.is_connected(b.id));
  // Nor is somebody believed who listens where b should.
  a.links.know(b.id, {impostor.endpoint});
  a.send(b, "for b alone");
  ASSERT_TRUE(run_until({&a, &impostor}, [&] { return a.links.counts().calls_failed > 1; }));
  EXPECT_TRUE(impostor.received.empty());
  a.links.know(b.id, {b.endpoint});
  ASSERT_TRUE(run_until({&a, &b}, [&] { return !b.received.empty(); }));
  EXPECT_THAT(b.received, ElementsAre("for b alone"));
  EXPECT_TRUE(a.links.is_encrypted(b.id));
}

TEST(PeerLinks, DoNotTakeAnotherProcessAtTheAddressForThePeer) {
  Node a;
  Node b;
  Node c;
  a.links.know(b.id, {c.endpoint});
  a.send(b, "for b");
  ASSERT_TRUE(run_until({&a, &c}, [&] { return a.links.counts().calls_failed > 1; }));
  EXPECT_TRUE(c.received.empty());
}

}  // namespace
}  // namespace shoal::wire::peer_links_test
