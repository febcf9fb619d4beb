// How a rank connects to the others when a job starts.
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/for_each_index.h"
#include "shoal/wire/advertised.h"
#include "shoal/wire/descriptor_limit.h"
#include "shoal/wire/rail_account.h"
#include "shoal/wire/round_trip.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

/// Connections that a rank makes at a time, each on a thread: each takes three round trips, with
/// TLS four.
constexpr int kMostConnecting = 64;
/// An address that drops packets is called again after so long, and meanwhile the caller looks so
/// often whether the job has failed, or its view is over.
constexpr Duration kConnectLimit = std::chrono::seconds(2);
constexpr int kAskPauseMs = 50;
/// A rank that answers, but does not complete its handshake, is called again after so long. In
/// between the caller looks whether the job has failed.
constexpr Duration kHandshakeLimit = std::chrono::seconds(10);
/// Calls of one rank that may end with a closed connection before its first one is there.
constexpr int kMostClosedCalls = 6;

void check_descriptor(const Descriptor& descriptor) {
  if (descriptor.get() < 0) throw no_descriptors("connect", "cannot watch connections", errno);
}

/// Returns a connected socket, or an empty descriptor where nobody answers at this numeric address.
/// One that drops packets is given up after kConnectLimit, and in between `may_go_on` is asked.
Descriptor connect_while(const Endpoint& address, Deadline deadline,
                         const std::function<void()>& may_go_on) {
  const Deadline end = Deadline::in(std::min<Duration>(deadline.left(), kConnectLimit));
  Descriptor socket;
  const auto succeeds = [](const std::function<void()>& part) {
    try {
      part();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeerLost) throw;
      return false;
    }
    return true;
  };
  if (!succeeds([&] { socket = begin_connect(address); })) return Descriptor();
  pollfd ready{socket.get(), POLLOUT, 0};
  while (poll(&ready, 1, kAskPauseMs) != 1) {
    may_go_on();
    if (end.passed()) return Descriptor();
  }
  if (!succeeds([&] { check_connected(socket.get(), address); })) return Descriptor();
  return socket;
}

/// Returns true where a connection of that rail is to come: its first, or the next one.
bool awaits(const Link& link, const PeerHello& hello) {
  const RailAccount& account = link.account(hello.rail);
  if (link.has_rail(hello.rail) || account.state() == RailAccount::State::kClosing) return false;
  return hello.attempt == static_cast<std::uint8_t>(account.awaited());
}

}  // namespace

TcpTransport::TcpTransport(const Options& options, KeyValues& store, int rank, int size,
                           Deadline deadline)
    : options_(options),
      rank_(rank),
      size_(size),
      tls_(context_for(options.tls)),
      pool_(std::make_shared<ChunkPool>(Assembler::kChunkBytes)),
      peers_(static_cast<std::size_t>(size)),
      next_heartbeat_(Clock::now()),
      awake_(2 * options.heartbeat, Clock::now()),
      ready_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  SHOAL_USER_CHECK(size >= 1 && rank >= 0 && rank < size, "connect", "rank {} of {}", rank, size);
  check_descriptor(ready_);
  check_descriptor(wake_);
  SHOAL_USER_CHECK(options.rails >= 0 && options.rails <= kMostRails, "connect",
                   "{} connections between two ranks: at most {}", options.rails, kMostRails);
  spins_ = options.spins;
  const int most = options.rails > 0 ? options.rails : kMostRails;
  const auto limit = allow_descriptors_for(static_cast<std::uint64_t>(size) * most);
  most_rails_ = rails_within(limit, size - 1);
  const auto others = static_cast<std::uint64_t>(std::max(size - 1, 1));
  for (Peer& peer : peers_)
    peer.inbox = Inbox(std::max(options.inbox_bytes / others, kLeastInboxBytes));
  epoll_event event{.events = EPOLLIN, .data = {.u32 = kWake}};
  epoll_ctl(ready_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  const std::string host = options.host.empty() ? store.address() : options.host;
  Descriptor listener = listen_on(host, options.ports);
  const Endpoint own = local_endpoint(listener.get());
  listens_at_ = own.text();
  std::vector<Endpoint> addresses;
  if (!options.advertise.empty())
    addresses.push_back(advertised_at(options.advertise, own, options.ports));
  // To others "every address of this host" is one of theirs.
  const bool everywhere = own.host == "0.0.0.0" || own.host == "::";
  if (!everywhere || addresses.empty()) addresses.push_back(own);
  acceptor_ = std::make_unique<Acceptor>(
      loop_, std::move(listener),
      Acceptor::Options{.key = options.key,
                        .hello = own_hello().encode(),
                        .make_channel =
                            [this](Descriptor socket, const Hello& hello) {
                              return channel_of_caller(std::move(socket), hello);
                            },
                        .admit = [this](std::unique_ptr<Channel> channel,
                                        const Hello& hello) { admit(std::move(channel), hello); }});
  // From here on the thread admits higher ranks, while this one connects to the lower ones: no
  // order in which ranks start can deadlock.
  thread_ = std::thread([this] { run(); });
  try {
    // Each pair has one connection: the higher rank connects, the lower one accepts. An address is
    // published only after its owner listens, so a connection attempt finds a socket.
    store.set(key_of_address(rank), text_of(addresses), deadline);
    // Rank 0 comes first: from it this rank hears of any failure while it waits for the others.
    connect_to_ranks(store, 0, std::min(rank, 1), deadline);
    connect_to_ranks(store, 1, rank, deadline);
    await_all(deadline);
  } catch (const std::exception& error) {
    // The ranks that came learn why; the destructor does not run, so the thread ends here.
    const auto* known = dynamic_cast<const Error*>(&error);
    abort(known ? *known : Error(ErrorKind::kResource, "connect", error.what()));
    stop();
    throw;
  }
}

std::string TcpTransport::key_of_address(int rank) const {
  return fmt::format("peers/{}/{}", options_.name, rank);
}

void TcpTransport::check_and_ask() const {
  check();
  if (options_.may_go_on) options_.may_go_on();
}

// A rank that cannot be reached may be held up by strangers.
std::string TcpTransport::refused_callers() const {
  const std::string text = acceptor_->refusals().text();
  return text.empty() ? "" : "; " + text;
}

Error TcpTransport::did_not_come(const std::string& ranks) const {
  const std::string what = "these ranks did not come:" + ranks + refused_callers();
  if (const int error = acceptor_->refused(); error != 0)
    return no_descriptors("connect", what, error).at(rank_, size_);
  return Error(ErrorKind::kTimeout, "connect", what).at(rank_, size_).hint("look at their logs");
}

// Waits for the addresses of ranks [first, last) and connects to them.
void TcpTransport::connect_to_ranks(KeyValues& store, int first, int last, Deadline deadline) {
  if (first >= last) return;
  std::vector<std::string> keys;
  for (int r = first; r < last; ++r) keys.push_back(key_of_address(r));
  // A rank that is connected may report that another has failed.
  const auto addresses = store.wait_all(keys, deadline, [this] { check_and_ask(); });
  const auto address_of = [&](int r) { return addresses[static_cast<std::size_t>(r - first)]; };
  std::string missing;
  for (int r = first; r < last; ++r)
    if (!address_of(r)) missing += fmt::format(" {}", r);
  if (!missing.empty()) throw did_not_come(missing);

  // The first that fails has the others give up: some of them may wait for the same peer.
  const auto or_abort = [this](const std::function<void()>& connect) {
    try {
      connect();
    } catch (const Error& error) {
      abort(error);
      throw;
    }
  };
  // The listener learns with rail 0 how many there will be, and takes the others as they come.
  const auto ranks = static_cast<std::size_t>(last - first);
  std::vector<std::vector<Endpoint>> endpoints;
  for (int r = first; r < last; ++r) endpoints.push_back(parse_addresses(*address_of(r)));
  std::vector<PeerHello> hellos(ranks);
  for_each_index(ranks, kMostConnecting, [&](std::size_t i) {
    const int rank = first + static_cast<int>(i);
    or_abort([&] { hellos[i] = connect_first_rail(rank, endpoints[i], deadline); });
  });
  std::vector<std::pair<std::size_t, PeerHello>> others;
  for (std::uint8_t rail = 1; rail < kMostRails; ++rail) {
    for (std::size_t i = 0; i < ranks; ++i) {
      hellos[i].rail = rail;
      if (rail < hellos[i].rails) others.emplace_back(i, hellos[i]);
    }
  }
  for_each_index(others.size(), kMostConnecting, [&](std::size_t i) {
    auto& other = others[i];
    const int rank = first + static_cast<int>(other.first);
    or_abort([&] { connect_rail(rank, other.second, deadline); });
  });
}

PeerHello TcpTransport::own_hello() const {
  return {.rank = rank_, .size = size_, .tls = options_.tls, .id = tls_ ? tls_->id() : PeerId{}};
}

PeerHello TcpTransport::connect_first_rail(int r, const std::vector<Endpoint>& addresses,
                                           Deadline deadline) {
  PeerHello hello = own_hello();
  hello.rails = static_cast<std::uint16_t>(options_.rails);
  hello.connection = std::random_device()();
  auto channel = call(r, addresses, hello, deadline);
  const std::lock_guard lock(mutex_);
  add_peer(hello, r, std::move(channel));
  tell_listener(r);
  return hello;
}

// It goes where rail 0 has found the peer.
void TcpTransport::connect_rail(int r, PeerHello& hello, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const std::vector<Endpoint> found{peers_[r].address.value()};
  lock.unlock();
  auto channel = call(r, found, hello, deadline);
  lock.lock();
  if (channel && is_awaited(r, hello)) add_rail(r, hello.rail, std::move(channel));
}

// The peer may have ended meanwhile: `check` or `await_all` says so. Or it has had this connection
// and lost it, and the thread makes the next one.
bool TcpTransport::is_awaited(int r, const PeerHello& hello) const {
  return peers_[r].link && awaits(*peers_[r].link, hello);
}

// Connects and completes the handshakes, at one of the addresses, which are tried in turn. Returns
// null for a rail that is not awaited any more.
//
// A rank that closes the connection during its handshake had too many callers, or something on the
// way has closed it: both pass. A rank that has admitted rail 0 knows the key, so the other rails
// are tried until the deadline. Rail 0 is tried a few times only, for the key may differ.
std::unique_ptr<Channel> TcpTransport::call(int r, const std::vector<Endpoint>& addresses,
                                            PeerHello& hello, Deadline deadline) {
  std::string why;
  int closed = 0;
  const int most_closed = kMostClosedCalls * static_cast<int>(addresses.size());
  const auto may_go_on = [this] { check_and_ask(); };
  const auto is_over = [&] {
    if (hello.rail == 0) return false;
    const std::lock_guard lock(mutex_);
    return !is_awaited(r, hello);
  };
  for (std::size_t calls = 0;; ++calls) {
    may_go_on();
    if (is_over()) return nullptr;
    const Endpoint& address = addresses[calls % addresses.size()];
    try {
      if (auto channel = try_call(r, address, hello, deadline, may_go_on)) return channel;
    } catch (const Error& error) {
      const bool lost = error.kind() == ErrorKind::kPeerLost;
      if (lost && hello.rail == 0) ++closed;
      const bool passes = lost && closed < most_closed;
      if (passes) why = error.message();
      if (!passes && error.kind() != ErrorKind::kTimeout) {
        // Where this rank knows already that the other one is lost, that is the cause.
        check();
        throw Error(error.kind(), "connect",
                    fmt::format("rank {} at {}: {}", r, address.text(), error.message()))
            .at(rank_, size_)
            .from(r)
            .hint(error.hint());
      }
    }
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "connect",
                  fmt::format("rank {} does not answer at {}{}", r, text_of(addresses),
                              why.empty() ? "" : ": " + why))
          .at(rank_, size_)
          .from(r)
          .hint("is it still there, and may this host connect to that address?");
    }
    // A rank with too many callers is given time.
    std::this_thread::sleep_for(
        std::chrono::milliseconds(10 << std::min(closed, kMostClosedCalls)));
  }
}

// Returns null for a call without TLS. Where this system offers no TLS, a new context throws the
// reason.
std::shared_ptr<const TlsContext> TcpTransport::context_of_call(int socket) const {
  if (!wants_tls(options_.tls, socket)) return nullptr;
  return tls_ ? tls_ : std::make_shared<const TlsContext>();
}

// Returns null where nobody answers. Where the number of rails is open, the round trip that the
// kernel has measured decides it.
std::unique_ptr<Channel> TcpTransport::try_call(int r, const Endpoint& address, PeerHello& hello,
                                                Deadline deadline,
                                                const std::function<void()>& may_go_on) {
  Descriptor socket = connect_while(address, deadline, may_go_on);
  if (socket.get() < 0) return nullptr;
  const Deadline end = Deadline::in(std::min<Duration>(deadline.left(), kHandshakeLimit));
  const bool open = hello.rails == 0;
  PeerHello said = hello;
  if (open)
    said.rails = static_cast<std::uint16_t>(rails_for(round_trip_of(socket.get()), most_rails_));
  const auto tls = context_of_call(socket.get());
  said.encrypted = tls ? 1 : 0;
  const PeerHello answer = PeerHello::decode(
      handshake_as_caller(socket.get(), options_.key, said.encode(), end, may_go_on));
  check_answer(r, hello, answer);
  auto channel = channel_over(std::move(socket), tls, TlsChannel::Role::kCaller, answer.id);
  complete_handshake(*channel, end, may_go_on);
  // One that has been reset meanwhile is made again.
  const Endpoint found = remote_endpoint(channel->fd());
  hello = said;
  if (hello.rail == 0) {
    const std::lock_guard lock(mutex_);
    peers_[r].id = answer.id;
    peers_[r].address = found;
  }
  return channel;
}

// The answer is proved by the job's key, so it comes from a rank of this job: the one that is
// meant, unless its address was given to another one. Where another process answers than before,
// the one that had the address has ended: that counts as if nobody listened there.
void TcpTransport::check_answer(int r, const PeerHello& hello, const PeerHello& answer) const {
  if (answer.rank != r || answer.size != size_) {
    throw Error(ErrorKind::kPeerLost, "connect",
                fmt::format("rank {} of {} answers there", answer.rank, answer.size));
  }
  if (answer.tls != options_.tls) throw other_tls(r, answer.tls);
  const std::lock_guard lock(mutex_);
  if (hello.rail == 0 && !peers_[r].link) return;
  if (answer.id == peers_[r].id) return;
  throw ConnectionRefused(
      Error(ErrorKind::kPeerLost, "connect", "another process answers there than before"));
}

Error TcpTransport::other_tls(int r, TlsMode theirs) const {
  return Error(ErrorKind::kUsage, "connect",
               fmt::format("rank {} has tls {}, this rank has tls {}", r, name(theirs),
                           name(options_.tls)))
      .at(rank_, size_)
      .from(r)
      .hint("give all ranks the same parallelism.tls (SHOAL_TLS under PyTorch)");
}

void TcpTransport::await_all(Deadline deadline) {
  for (;;) {
    const auto seen = events();
    std::string missing;
    {
      const std::lock_guard lock(mutex_);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_ && !(peers_[r].link && peers_[r].link->ready()) && !peers_[r].gone)
          missing += fmt::format(" {}", r);
      }
    }
    if (missing.empty()) return;
    // A rank that did come may report why the missing ones did not.
    check_and_ask();
    if (deadline.passed()) throw did_not_come(missing);
    wait_for_event(seen,
                   std::min<Duration>(deadline.left() + std::chrono::milliseconds(1), kMaxWait));
  }
}

}  // namespace shoal::wire
