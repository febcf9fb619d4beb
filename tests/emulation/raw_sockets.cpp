#include "tests/emulation/raw_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <span>
#include <thread>

#include "shoal/base/duration.h"
#include "shoal/base/system_error.h"

namespace shoal::emulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kFullPacket = 1500;
constexpr int kReceiveBuffer = 128 << 20;

wire::Descriptor open_socket(int type, int protocol) {
  wire::Descriptor socket(::socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol));
  if (socket.get() < 0) throw system_error(ErrorKind::kResource, "raw sockets", "no socket");
  return socket;
}

/// Has the kernel stamp what comes, and keep all of it until it is read.
void stamp_arrivals(int socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBuffer, sizeof kReceiveBuffer);
}

sockaddr_in address_at(const Wan& wan, int site, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, wan.address(site).c_str(), &address.sin_addr);
  return address;
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void bind_to(int socket, const sockaddr_in& address) {
  if (bind(socket, generic(address), sizeof address) != 0)
    throw system_error(ErrorKind::kResource, "raw sockets", "cannot bind");
}

std::uint16_t port_of(int socket) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size);
  return ntohs(own.sin_port);
}

Duration since_1970(const timespec& time) {
  return seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// The clock of the kernel's stamps.
Duration now_since_1970() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return since_1970(now);
}

struct Datagram {
  std::size_t bytes;
  Duration at;
};

/// Receives a datagram and its stamp; nothing where none has come.
std::optional<Datagram> receive(int socket, std::span<std::byte> to) {
  iovec part{to.data(), to.size()};
  alignas(cmsghdr) std::array<std::byte, 256> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(socket, &message, 0);
  if (n < 0) return std::nullopt;
  Datagram datagram{static_cast<std::size_t>(n), {}};
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{};
    std::memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
    datagram.at = since_1970(stamp);
  }
  return datagram;
}

/// What each packet of a UdpPath begins with.
struct Stamp {
  std::uint64_t number;
  std::int64_t sent_ns;
};
static_assert(sizeof(Stamp) == UdpPath::kLeastBytes - UdpPath::kHeaderBytes);

/// The sum of 16-bit words that IP's protocols protect their messages with (RFC 1071).
std::uint16_t internet_checksum(const void* data, std::size_t bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < bytes; i += 2) {
    std::uint16_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(data) + i, sizeof word);
    sum += word;
  }
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

/// Returns a socket that connects to `to`.
wire::Descriptor connecting_socket(const sockaddr_in& to) {
  wire::Descriptor socket = open_socket(SOCK_STREAM, 0);
  if (connect(socket.get(), generic(to), sizeof to) != 0 && errno != EINPROGRESS)
    throw system_error(ErrorKind::kPeerLost, "raw sockets", "cannot connect");
  return socket;
}

/// Connects to `to` and sends whatever the connections take until `over`.
void send_all_the_time(const sockaddr_in& to, int connections, const std::atomic<bool>& over) {
  const std::vector<std::byte> data(std::size_t{256} << 10);
  std::vector<wire::Descriptor> sockets;
  std::vector<pollfd> ready;
  for (int i = 0; i < connections; ++i) {
    sockets.push_back(connecting_socket(to));
    ready.push_back({sockets.back().get(), POLLOUT, 0});
  }
  while (!over) {
    poll(ready.data(), ready.size(), 20);
    for (const pollfd& one : ready)
      if (one.revents & POLLOUT) send(one.fd, data.data(), data.size(), MSG_NOSIGNAL);
  }
}

struct Received {
  std::atomic<int> connections{0};
  std::atomic<std::uint64_t> bytes{0};
};

/// Accepts connections and reads what comes on them until `over`.
void receive_all_the_time(int listener, Received& received, const std::atomic<bool>& over) {
  std::vector<wire::Descriptor> sockets;
  std::vector<pollfd> ready{{listener, POLLIN, 0}};
  std::vector<std::byte> unused(std::size_t{1} << 20);
  while (!over) {
    poll(ready.data(), ready.size(), 20);
    for (std::size_t i = 1; i < ready.size(); ++i) {
      if (ready[i].revents == 0) continue;
      // With MSG_TRUNC the kernel drops the bytes instead of copying them.
      const ssize_t n = recv(ready[i].fd, unused.data(), unused.size(), MSG_TRUNC);
      if (n > 0) received.bytes += static_cast<std::uint64_t>(n);
    }
    const int socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) continue;
    sockets.emplace_back(socket);
    ready.push_back({socket, POLLIN, 0});
    ++received.connections;
  }
}

/// Makes connections from site a to a listener at site b. Returns both ends of all.
struct Pairs {
  std::vector<wire::Descriptor> at_a;
  std::vector<wire::Descriptor> at_b;
};
Pairs connect_sites(const Wan& wan, int a, int b, int connections) {
  const wire::Descriptor listener = wan.at(b, [] { return open_socket(SOCK_STREAM, 0); });
  bind_to(listener.get(), address_at(wan, b, 0));
  listen(listener.get(), SOMAXCONN);
  const sockaddr_in there = address_at(wan, b, port_of(listener.get()));
  Pairs pairs;
  wan.at(a, [&] {
    for (int i = 0; i < connections; ++i) pairs.at_a.push_back(connecting_socket(there));
  });
  const Deadline end = Deadline::in(seconds(30));
  while (pairs.at_b.size() < pairs.at_a.size() && !end.passed()) {
    pollfd ready{listener.get(), POLLIN, 0};
    poll(&ready, 1, 100);
    const int socket = accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) pairs.at_b.emplace_back(socket);
  }
  return pairs;
}

/// Sends whatever these sockets take, and reads what comes, until `over`. Sets `taken` to the
/// seconds in which the bytes between the first `warm_up` and `bytes` more have come.
void use_both_ways(const std::vector<wire::Descriptor>& sockets, std::uint64_t warm_up,
                   std::uint64_t bytes, std::atomic<double>& taken, const std::atomic<bool>& over) {
  const std::vector<std::byte> data(std::size_t{256} << 10);
  std::vector<std::byte> unused(std::size_t{1} << 20);
  std::vector<pollfd> ready;
  for (const auto& socket : sockets) ready.push_back({socket.get(), POLLIN | POLLOUT, 0});
  std::uint64_t received = 0;
  std::optional<Clock::time_point> begin;
  while (!over) {
    poll(ready.data(), ready.size(), 20);
    for (const pollfd& one : ready) {
      if (one.revents & POLLOUT) send(one.fd, data.data(), data.size(), MSG_NOSIGNAL);
      if ((one.revents & POLLIN) == 0) continue;
      // With MSG_TRUNC the kernel drops the bytes instead of copying them.
      const ssize_t n = recv(one.fd, unused.data(), unused.size(), MSG_TRUNC);
      if (n > 0) received += static_cast<std::uint64_t>(n);
    }
    if (!begin && received >= warm_up) begin = Clock::now();
    if (taken == 0 && received >= warm_up + bytes) taken = to_seconds(Clock::now() - *begin);
  }
}

/// Returns the rate at which a burst of UDP packets comes through a link that has none in its
/// queue. Gives the link a queue that holds the burst.
double udp_bits_per_second(Wan& wan, int from, int to, const LinkSpec& spec) {
  UdpPath path(wan, from, to);
  // As many as a quarter of a second carries, but no more than devices hold.
  constexpr double kSeconds = 0.25;
  constexpr double kMostPackets = 8000;
  const double packets = spec.bits_per_second / 8 * kSeconds / kFullPacket;
  const int sent = static_cast<int>(std::clamp(packets, 2.0, kMostPackets));
  LinkSpec roomy = spec;
  roomy.queue_bytes = static_cast<std::size_t>(sent) * kFullPacket;
  wan.set(from, to, roomy);
  for (int i = 0; i < sent; ++i) path.send(kFullPacket);
  wan.settle(Deadline::in(seconds(10)));
  const auto arrivals = path.take();
  if (arrivals.size() < 2) return 0;
  const double taken = to_seconds(arrivals.back().at - arrivals.front().at);
  return static_cast<double>(arrivals.size() - 1) * kFullPacket * 8 / taken;
}

/// Returns the best of three rates that a raw socket gets: a sender that was held up says nothing
/// about the link. The delays of both directions, which take no processor, are left out meanwhile.
double raw_bits_per_second(Wan& wan, int from, int to, double enough) {
  const LinkSpec spec = wan.spec(from, to);
  const LinkSpec back = wan.spec(to, from);
  wan.set(to, from, {});
  LinkSpec near;
  near.bits_per_second = spec.bits_per_second;
  near.queue_bytes = spec.queue_bytes;
  double best = 0;
  constexpr int kAttempts = 3;
  for (int i = 0; i < kAttempts && best < enough; ++i) {
    wan.set(from, to, near);
    const double rate =
        wan.packets() == Wan::Packets::kFast
            ? tcp_bits_per_second(wan, from, to, 1, milliseconds(100), milliseconds(250))
            : udp_bits_per_second(wan, from, to, near);
    wan.settle(Deadline::in(seconds(10)));
    best = std::max(best, rate);
  }
  wan.set(from, to, spec);
  wan.set(to, from, back);
  return best;
}

}  // namespace

UdpPath::UdpPath(const Wan& wan, int from, int to) {
  receiver_ = wan.at(to, [&] { return open_socket(SOCK_DGRAM, 0); });
  stamp_arrivals(receiver_.get());
  bind_to(receiver_.get(), address_at(wan, to, 0));
  sender_ = wan.at(from, [&] { return open_socket(SOCK_DGRAM, 0); });
  const sockaddr_in there = address_at(wan, to, port_of(receiver_.get()));
  if (connect(sender_.get(), generic(there), sizeof there) != 0)
    throw system_error(ErrorKind::kResource, "raw sockets", "cannot connect");
}

void UdpPath::send(std::size_t bytes) {
  std::vector<std::byte> data(std::max(bytes, kLeastBytes) - kHeaderBytes);
  const Stamp stamp{sent_++, now_since_1970().count()};
  std::memcpy(data.data(), &stamp, sizeof stamp);
  while (::send(sender_.get(), data.data(), data.size(), MSG_NOSIGNAL) < 0) {
    if (errno != EAGAIN && errno != EINTR)
      throw system_error(ErrorKind::kPeerLost, "raw sockets", "cannot send");
  }
}

std::vector<UdpPath::Arrival> UdpPath::take() {
  std::vector<Arrival> arrivals;
  std::vector<std::byte> data(kFullPacket);
  while (const auto datagram = receive(receiver_.get(), data)) {
    Stamp stamp{};
    std::memcpy(&stamp, data.data(), sizeof stamp);
    arrivals.push_back({stamp.number, datagram->bytes + kHeaderBytes,
                        datagram->at - Duration(stamp.sent_ns), datagram->at});
  }
  return arrivals;
}

std::vector<Duration> ping(Wan& wan, int from, int to, int count) {
  struct Echo {
    icmphdr header{};
    std::int64_t sent_ns = 0;
  };
  const wire::Descriptor socket = wan.at(from, [] { return open_socket(SOCK_RAW, IPPROTO_ICMP); });
  stamp_arrivals(socket.get());
  const sockaddr_in there = address_at(wan, to, 0);
  for (int i = 0; i < count; ++i) {
    Echo echo;
    echo.header.type = ICMP_ECHO;
    echo.header.un.echo.sequence = htons(static_cast<std::uint16_t>(i));
    echo.sent_ns = now_since_1970().count();
    echo.header.checksum = internet_checksum(&echo, sizeof echo);
    sendto(socket.get(), &echo, sizeof echo, 0, generic(there), sizeof there);
    std::this_thread::sleep_for(milliseconds(1));
  }
  wan.settle(Deadline::in(seconds(10)));
  std::vector<Duration> round_trips;
  std::vector<std::byte> data(kFullPacket);
  while (const auto datagram = receive(socket.get(), data)) {
    const std::size_t ip_header = 4 * (std::to_integer<std::size_t>(data[0]) & 15);
    Echo echo;
    if (datagram->bytes < ip_header + sizeof echo) continue;
    std::memcpy(&echo, data.data() + ip_header, sizeof echo);
    if (echo.header.type == ICMP_ECHOREPLY)
      round_trips.push_back(datagram->at - Duration(echo.sent_ns));
  }
  return round_trips;
}

double tcp_bits_per_second(const Wan& wan, int from, int to, int connections, Duration warm_up,
                           Duration measured) {
  const wire::Descriptor listener = wan.at(to, [] { return open_socket(SOCK_STREAM, 0); });
  bind_to(listener.get(), address_at(wan, to, 0));
  listen(listener.get(), SOMAXCONN);
  const sockaddr_in there = address_at(wan, to, port_of(listener.get()));
  std::atomic<bool> over{false};
  Received received;
  std::thread receiver([&] { receive_all_the_time(listener.get(), received, over); });
  std::thread sender([&] {
    wan.enter(from);
    send_all_the_time(there, connections, over);
  });
  const Deadline end = Deadline::in(seconds(30));
  while (received.connections < connections && !end.passed())
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(warm_up);
  const auto first = Clock::now();
  const std::uint64_t before = received.bytes;
  std::this_thread::sleep_for(measured);
  const std::uint64_t after = received.bytes;
  const double taken = to_seconds(Clock::now() - first);
  over = true;
  sender.join();
  receiver.join();
  return static_cast<double>(after - before) * 8 / taken;
}

double tcp_bits_per_second_each_way(const Wan& wan, int a, int b, int connections,
                                    std::uint64_t warm_up, std::uint64_t bytes) {
  const Pairs pairs = connect_sites(wan, a, b, connections);
  std::atomic<bool> over{false};
  std::atomic<double> to_a{0};
  std::atomic<double> to_b{0};
  std::thread first([&] { use_both_ways(pairs.at_a, warm_up, bytes, to_a, over); });
  std::thread second([&] { use_both_ways(pairs.at_b, warm_up, bytes, to_b, over); });
  const Deadline end = Deadline::in(std::chrono::minutes(5));
  while ((to_a == 0 || to_b == 0) && !end.passed()) std::this_thread::sleep_for(milliseconds(1));
  over = true;
  first.join();
  second.join();
  const double slower = std::max(to_a, to_b);
  return to_a == 0 || to_b == 0 ? 0 : static_cast<double>(bytes) * 8 / slower;
}

Duration median(std::vector<Duration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string why_void(Wan& wan, int from, int to) {
  const LinkSpec spec = wan.spec(from, to);
  const std::uint64_t dropped_before = wan.dropped_by_devices();
  constexpr int kProbes = 15;
  constexpr double kShare = 0.9;
  UdpPath path(wan, from, to);
  for (int i = 0; i < kProbes; ++i) {
    path.send(UdpPath::kLeastBytes);
    std::this_thread::sleep_for(milliseconds(1));
  }
  wan.settle(Deadline::in(seconds(10)));
  std::vector<Duration> delays;
  for (const auto& arrival : path.take()) delays.push_back(arrival.delay);
  if (delays.empty()) return fmt::format("void: nothing comes from site {} to {}", from, to);
  const Duration measured = median(delays);
  const double longest = to_seconds(spec.delay + spec.jitter) / kShare + 1e-3;
  if (to_seconds(measured) > longest || measured < spec.delay) {
    return fmt::format("void: from site {} to {} packets take {:.2f} ms, the spec says {:.2f}",
                       from, to, to_seconds(measured) * 1e3, to_seconds(spec.delay) * 1e3);
  }
  if (const double enough = kShare * spec.bits_per_second; enough > 0) {
    const double rate = raw_bits_per_second(wan, from, to, enough);
    if (rate < enough) {
      return fmt::format("void: from site {} to {} a raw socket gets {:.2f} Mbit/s of {:.2f}", from,
                         to, rate * 1e-6, spec.bits_per_second * 1e-6);
    }
  }
  if (const std::uint64_t dropped = wan.dropped_by_devices() - dropped_before; dropped > 0)
    return fmt::format("void: devices have dropped {} packets", dropped);
  return "";
}

std::string when_quiet(const std::function<std::string()>& measure) {
  constexpr int kAttempts = 5;
  std::string problem = measure();
  for (int i = 1; i < kAttempts && !problem.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    problem = measure();
  }
  return problem;
}

}  // namespace shoal::emulation
