#include "shoal/wire/address.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "shoal/base/error.h"
#include "tests/error_of.h"
#include "tests/wire/soon.h"

namespace shoal::wire::address_test {
namespace {

using testing::HasSubstr;

int option(const Descriptor& socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(getsockopt(socket.get(), level, name, &value, &size), 0);
  return value;
}

TEST(Endpoint, NamesUpToTheLengthThatDnsAllows) {
  const std::string longest(255, 'a');
  EXPECT_EQ(parse_endpoint(longest + ":65535"), (Endpoint{longest, 65535}));
  EXPECT_EQ(error_of([&] { parse_endpoint(longest + "a:1"); }).kind(), ErrorKind::kConfig);
  EXPECT_EQ(parse_endpoint("[fd00::1]:1").host, "fd00::1");
  for (const char* wrong :
       {"host:65536", "host:1 ", "[a:1", "[abc:1", "abc]:1", "[]:1", "a[b:1", "[[::1]]:1"})
    EXPECT_EQ(error_of([&] { parse_endpoint(wrong); }).kind(), ErrorKind::kConfig) << wrong;
}

TEST(PortRange, IsOnePortOrTwoWithADash) {
  const auto range = [](const char* text) {
    const PortRange ports = parse_port_range(text);
    return std::pair<int, int>(ports.first, ports.last);
  };
  EXPECT_EQ(range("7000"), std::pair(7000, 7000));
  EXPECT_EQ(range("0"), std::pair(0, 0));
  EXPECT_EQ(range("7000-7100"), std::pair(7000, 7100));
  EXPECT_EQ(range("65535-65535"), std::pair(65535, 65535));
  EXPECT_EQ(error_of([] { parse_port_range("7001-7000"); }).kind(), ErrorKind::kConfig);
}

TEST(InterfaceAddress, ThatDoesNotExistIsAMistakeOfTheJobFile) {
  EXPECT_EQ(error_of([] { interface_address("no-such-interface"); }).kind(), ErrorKind::kConfig);
  EXPECT_EQ(error_of([] { interface_address(""); }).kind(), ErrorKind::kConfig);
}

TEST(AddressTowards, IsThatOfTheInterfaceWhichLeadsThere) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_towards("no..host"), "");
}

// What the sockets of a job have to be: without delay for small messages, never blocking, and
// closed in programs that the job starts.
TEST(Sockets, HaveTheirOptions) {
  const Descriptor listener = listen_on("127.0.0.1", {0, 0});
  const Descriptor caller = connect_to({"127.0.0.1", local_endpoint(listener.get()).port}, soon());
  EXPECT_EQ(option(caller, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(listener, SOL_SOCKET, SO_REUSEADDR), 1);
  for (const Descriptor* socket : {&listener, &caller}) {
    EXPECT_NE(fcntl(socket->get(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(socket->get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(remote_endpoint(caller.get()), local_endpoint(listener.get()));
}

TEST(ListenOn, TakesTheFirstPortThatIsFree) {
  const auto port_of = [](const Descriptor& socket) { return local_endpoint(socket.get()).port; };
  // The port above a free one may be taken by another program: another pair is tried then.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const Descriptor first = listen_on("127.0.0.1", {0, 0});
    const std::uint16_t port = port_of(first);
    if (port == 65535) continue;
    const auto above = static_cast<std::uint16_t>(port + 1);
    try {
      const Descriptor second = listen_on("127.0.0.1", {port, above});
      EXPECT_EQ(port_of(second), above);
      const Error error = error_of([&] { listen_on("127.0.0.1", {port, above}); });
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
      EXPECT_THAT(error.what(), HasSubstr("Address already in use"));
      return;
    } catch (const Error&) {
    }
  }
  FAIL() << "no two ports in a row are free";
}

TEST(ListenOn, AHostWithoutAnAddressIsAMistakeOfTheJobFile) {
  EXPECT_EQ(error_of([] { listen_on("no..host", {0, 0}); }).kind(), ErrorKind::kConfig);
}

TEST(ConnectTo, GivesUpAtTheDeadlineAndSaysWhere) {
  const auto briefly = [] { return Deadline::in(std::chrono::milliseconds(20)); };
  const Error nobody = error_of([&] { connect_to({"127.0.0.1", 1}, briefly()); });
  EXPECT_EQ(nobody.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(nobody.what(), HasSubstr("nothing answers at 127.0.0.1:1"));
  const Error nowhere = error_of([&] { connect_to({"no..host", 1}, briefly()); });
  EXPECT_EQ(nowhere.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(nowhere.what(), HasSubstr("cannot resolve 'no..host'"));
}

}  // namespace
}  // namespace shoal::wire::address_test
