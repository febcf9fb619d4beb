// Callers of a rank over TLS whose handshakes something on the way cuts or changes.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "shoal/wire/tcp_transport.h"
#include "tests/sanitized.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"
#include "tests/wire/tls_ranks.h"

namespace shoal::wire::tls_callers_test {
namespace {

using std::chrono::milliseconds;
using namespace tls_ranks;

/// Passes on what a caller says, up to a byte: there it cuts the connection, or changes the byte
/// and what follows is as it was.
class Meddler {
 public:
  Meddler(const Endpoint& to, std::size_t at, bool cuts)
      : socket_(connect_to(to, soon())), at_(at), cuts_(cuts) {}
  /// Returns false once the connection is cut.
  bool pass(Bytes bytes) {
    if (at_ >= said_ && at_ - said_ < bytes.size()) {
      reached_ = true;
      if (cuts_) bytes.resize(at_ - said_);
      if (!cuts_) bytes[at_ - said_] ^= std::byte{4};
    }
    said_ += bytes.size();
    send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (cuts_ && reached_) socket_ = Descriptor();
    return socket_.get() >= 0;
  }
  /// Returns what the listener has said; nothing where it has closed the connection, and where it
  /// waits for more than there is: the length of a record was changed.
  Bytes hear() {
    Bytes bytes(4096);
    pollfd wait{socket_.get(), POLLIN, 0};
    if (poll(&wait, 1, reached_ ? 50 : 10000) != 1) return {};
    const ssize_t n = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
  }
  bool reached() const { return reached_; }

 private:
  Descriptor socket_;
  const std::size_t at_;
  const bool cuts_;
  std::size_t said_ = 0;
  bool reached_ = false;
};

/// Calls as rank 1, which knows the key, with both handshakes. Returns false where all was said
/// before that byte.
bool call_through_meddler(const Endpoint& to, const std::shared_ptr<const TlsContext>& tls,
                          std::size_t at, bool cuts) {
  Meddler meddler(to, at, cuts);
  PeerHello hello{.rank = 1, .size = 2, .connection = 77};
  hello.tls = TlsMode::kOn;
  hello.encrypted = 1;
  hello.id = tls->id();
  CallerHandshake first("key", hello.encode());
  const auto feed = [&] {
    const Bytes heard = meddler.hear();
    if (heard.size() != first.wanted()) return false;
    first.feed(heard);
    return true;
  };
  if (!feed() || !meddler.pass(first.answer()) || !feed()) return meddler.reached();
  auto [own, far] = socket_pair();
  TlsChannel channel(std::move(own), tls, TlsChannel::Role::kCaller,
                     PeerHello::decode(first.hello()).id);
  try {
    for (;;) {
      const bool done = channel.handshake() == Channel::Handshake::kDone;
      Bytes said(4096);
      const ssize_t n = recv(far.get(), said.data(), said.size(), MSG_DONTWAIT);
      said.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
      if (!said.empty() && !meddler.pass(said)) return true;
      if (done) break;
      const Bytes heard = meddler.hear();
      if (heard.empty()) return meddler.reached();
      send(far.get(), heard.data(), heard.size(), MSG_NOSIGNAL);
    }
  } catch (const Error&) {  // the listener has refused what it heard
  }
  return meddler.reached();
}

// As the tests of TlsChannel, but the listener is a rank of a job, which goes on.
constexpr std::size_t kEachByte = kSanitized ? 41 : 1;

TEST(TlsTransport, CallersThatAreCutOrChangedInTheirHandshakesLeaveNothingAndTheJobGoesOn) {
  Ranks ranks(2, [](int) { return with_tls(); });
  expect_none(ranks.errors);
  const Endpoint rank_0 = ranks.address_of_rank_0();
  const auto tls = std::make_shared<const TlsContext>();
  EXPECT_TRUE(call_through_meddler(rank_0, tls, 0, true));
  std::uint64_t group = 1;
  for (const bool cuts : {true, false}) {
    const std::size_t before = open_descriptors();
    std::size_t at = 0;
    while (call_through_meddler(rank_0, tls, at, cuts)) {
      if (at % 97 == 0) expect_none(exchange(ranks, group++, {3000}));
      at += kEachByte;
    }
    EXPECT_GT(at, 500u) << "of both handshakes";
    expect_none(exchange(ranks, group++));
    // Whoever was not refused at once is after the time that a handshake may take.
    for (const Deadline end = soon(); open_descriptors() > before && !end.passed();)
      std::this_thread::sleep_for(milliseconds(10));
    EXPECT_LE(open_descriptors(), before);
  }
  EXPECT_EQ(ranks.all[0]->rails(1), 1);
  EXPECT_EQ(ranks.all[0]->first_rails_replaced(), 0u);
}

}  // namespace
}  // namespace shoal::wire::tls_callers_test
