#include "tests/emulation/wan.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <span>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/error.h"

namespace shoal::emulation {
namespace {

/// What stands before a packet in fast mode: struct virtio_net_hdr of linux/virtio_net.h, which C++
/// cannot include.
struct OffloadHeader {
  std::uint8_t flags;
  std::uint8_t segmentation;  ///< 0: it is one packet
  std::uint16_t header_bytes;
  std::uint16_t segment_bytes;
  std::uint16_t checksum_start;
  std::uint16_t checksum_offset;
};
static_assert(sizeof(OffloadHeader) == 10);

constexpr int kMostSites = 64;
constexpr std::size_t kLargestPacket = 1500;
/// With the headers of the packets that it stands for.
constexpr std::size_t kLargestPiece = std::size_t{72} << 10;
/// The thread reads so many packets of a site before it looks for others that are due.
constexpr int kBatch = 64;
constexpr Duration kLongestWait = std::chrono::milliseconds(100);
constexpr std::size_t kLeastHeader = 20;  // of IPv4, and of TCP
constexpr std::size_t kUdpHeader = 8;

std::atomic<int> next_wan{0};

std::string address_of(int site) { return fmt::format("10.77.0.{}", site + 1); }

std::uint64_t number_at(std::span<const std::byte> data, std::size_t at, std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    number = number << 8 | std::to_integer<std::uint64_t>(data[at + i]);
  return number;
}

/// An IPv4 packet from one site to another.
struct Ip {
  int to = -1;  ///< -1: it is none
  std::uint64_t flow = 0;
  std::size_t headers = 0;  ///< of IP and TCP; of IP alone where it is not TCP
};

Ip parse(std::span<const std::byte> data) {
  Ip ip;
  if (data.size() < kLeastHeader || number_at(data, 0, 1) >> 4 != 4) return ip;
  constexpr std::uint64_t kNetwork = 10 << 16 | 77 << 8;
  if (number_at(data, 16, 3) != kNetwork) return ip;
  ip.to = static_cast<int>(number_at(data, 19, 1)) - 1;
  ip.headers = 4 * (number_at(data, 0, 1) & 15);
  const std::uint64_t protocol = number_at(data, 9, 1);
  ip.flow = protocol << 32;
  // Of a packet in fragments the first alone has the ports.
  const bool fragment = (number_at(data, 6, 2) & 0x3fff) != 0;
  const bool tcp = protocol == IPPROTO_TCP;
  const std::size_t least = ip.headers + (tcp ? kLeastHeader : kUdpHeader);
  if ((!tcp && protocol != IPPROTO_UDP) || fragment || data.size() < least) return ip;
  ip.flow |= number_at(data, ip.headers, 4);
  if (tcp) ip.headers += 4 * (number_at(data, ip.headers + 12, 1) >> 4);
  return ip;
}

/// Returns the number that the packets of a connection have in the other direction: the two ports
/// below its protocol change places.
std::uint64_t reversed(std::uint64_t flow) {
  const std::uint64_t ports = flow & 0xffffffff;
  return (flow ^ ports) | ports >> 16 | (ports & 0xffff) << 16;
}

/// Returns the packets into which a piece with these headers is cut before a link.
PacketCount size_of(std::size_t bytes, std::size_t headers, std::size_t segment) {
  if (segment == 0 || bytes <= headers) return {1, bytes};
  const std::size_t payload = bytes - headers;
  const std::size_t packets = (payload + segment - 1) / segment;
  return {packets, payload + packets * headers};
}

/// The thread has little to do, and all that is measured waits for it: it goes before whatever else
/// this machine does.
void take_precedence() {
  sched_param priority{};
  priority.sched_priority = 1;
  if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0) return;
  constexpr int kHighest = -20;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kHighest);
}

}  // namespace

std::string Wan::unavailable() {
  try {
    const Wan one(1);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Wan::Wan(int sites, Options options)
    : options_(options), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  SHOAL_USER_CHECK(sites >= 1 && sites <= kMostSites, "emulation", "{} sites, 1 to {} are possible",
                   sites, kMostSites);
  remove_sites_of_dead_processes();
  const int number = next_wan++;
  const bool offload = options.packets == Packets::kFast;
  for (int site = 0; site < sites; ++site) {
    sites_.push_back(std::make_unique<Site>(name_of_site(number, site), address_of(site), offload));
  }
  for (int i = 0; i < sites * sites; ++i)
    links_.emplace_back(options.seed * kMostSites * kMostSites + static_cast<std::uint64_t>(i));
  buffer_.resize(sizeof(OffloadHeader) + (std::size_t{64} << 10));
  thread_ = std::thread([this] { run(); });
}

Wan::~Wan() {
  over_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Wan::set_sysctl(const std::string& file, const std::string& value) {
  for (const auto& site : sites_) site->set_sysctl(file, value);
}

LinkModel& Wan::link(int from, int to) {
  return const_cast<LinkModel&>(std::as_const(*this).link(from, to));
}

const LinkModel& Wan::link(int from, int to) const {
  SHOAL_USER_CHECK(from >= 0 && from < sites() && to >= 0 && to < sites() && from != to,
                   "emulation", "no link from site {} to site {} of {}", from, to, sites());
  return links_[index(from) * sites_.size() + index(to)];
}

void Wan::check(const LinkSpec& spec) const {
  const bool fast = options_.packets == Packets::kFast;
  const std::size_t least = fast ? kLargestPiece : kLargestPacket;
  SHOAL_USER_CHECK(spec.queue_bytes >= least, "emulation",
                   "a queue of {} bytes holds no packet of {}", spec.queue_bytes, least);
  SHOAL_USER_CHECK(!fast || spec.loss == 0, "emulation",
                   "a loss of {} needs exact packets, these are fast", spec.loss);
}

void Wan::set(int from, int to, const LinkSpec& spec) {
  check(spec);
  const std::lock_guard lock(mutex_);
  link(from, to).set(spec);
}

void Wan::set_both(int a, int b, const LinkSpec& spec) {
  set(a, b, spec);
  set(b, a, spec);
}

void Wan::set_all(const LinkSpec& spec) {
  for (int a = 0; a < sites(); ++a)
    for (int b = 0; b < a; ++b) set_both(a, b, spec);
}

LinkSpec Wan::spec(int from, int to) const {
  const std::lock_guard lock(mutex_);
  return link(from, to).spec();
}

void Wan::cut(const std::set<int>& side) {
  const std::lock_guard lock(mutex_);
  for (const int here : side) {
    for (int there = 0; there < sites(); ++there) {
      if (side.contains(there)) continue;
      for (LinkModel* one : {&link(here, there), &link(there, here)}) {
        LinkSpec spec = one->spec();
        spec.open = false;
        one->set(spec);
      }
    }
  }
}

void Wan::heal() {
  const std::lock_guard lock(mutex_);
  for (LinkModel& one : links_) {
    LinkSpec spec = one.spec();
    spec.open = true;
    one.set(spec);
  }
}

void Wan::slow_down_one(int a, int b, double bits_per_second) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t flow = link(a, b).busiest_flow();
  const auto slow_down = [&](LinkModel& model, std::uint64_t number) {
    LinkSpec spec = model.spec();
    spec.slow_flow = number;
    spec.slow_flow_bits_per_second = bits_per_second;
    model.set(spec);
  };
  slow_down(link(a, b), flow);
  slow_down(link(b, a), reversed(flow));
}

Counters Wan::between(int from, int to) const {
  const std::lock_guard lock(mutex_);
  return link(from, to).counters();
}

bool Wan::settle(Deadline deadline) {
  for (;;) {
    std::optional<Clock::time_point> due;
    bool moved = false;
    {
      const std::lock_guard lock(mutex_);
      moved = move_packets();
      due = next_due();
    }
    // What was delivered just now may have been answered at once.
    if (!moved && !due) return true;
    if (deadline.passed()) return false;
    if (due) std::this_thread::sleep_until(std::min(*due, deadline.at()));
  }
}

Duration Wan::lateness() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lateness_, Duration::zero());
}

std::uint64_t Wan::dropped_by_devices() const {
  std::uint64_t dropped = 0;
  for (const auto& site : sites_) dropped += site->dropped();
  const std::lock_guard lock(mutex_);
  return dropped + not_written_;
}

void Wan::run() {
  take_precedence();
  std::vector<pollfd> ready;
  for (const auto& site : sites_) ready.push_back({site->device(), POLLIN, 0});
  ready.push_back({wake_.get(), POLLIN, 0});
  while (!over_) {
    Duration wait = kLongestWait;
    {
      const std::lock_guard lock(mutex_);
      if (const auto due = next_due())
        wait = std::clamp<Duration>(*due - Clock::now(), Duration::zero(), kLongestWait);
    }
    const timespec limit{0, static_cast<long>(wait.count())};
    ppoll(ready.data(), ready.size(), &limit, nullptr);
    const std::lock_guard lock(mutex_);
    move_packets();
  }
}

// Called with the lock held. Returns whether there was anything to do.
bool Wan::move_packets() {
  int moved = 0;
  for (int site = 0; site < sites(); ++site) moved += read_packets(site);
  moved += deliver(Clock::now());
  return moved > 0;
}

// Called with the lock held. Returns how many packets it read.
int Wan::read_packets(int from) {
  const bool fast = options_.packets == Packets::kFast;
  const std::size_t before = fast ? sizeof(OffloadHeader) : 0;
  int read_here = 0;
  while (read_here < kBatch) {
    const ssize_t n = read(sites_[index(from)]->device(), buffer_.data(), buffer_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < static_cast<ssize_t>(before)) break;
    ++read_here;
    const std::span<const std::byte> all(buffer_.data(), static_cast<std::size_t>(n));
    const std::span<const std::byte> packet = all.subspan(before);
    const Ip ip = parse(packet);
    // The kernel also sends what is for no site, IPv6 that looks for routers say.
    if (ip.to < 0 || ip.to >= sites() || ip.to == from) continue;
    std::size_t segment = 0;
    if (fast) {
      OffloadHeader header;
      std::memcpy(&header, all.data(), sizeof header);
      if (header.segmentation != 0) segment = header.segment_bytes;
    }
    link(from, ip.to)
        .offer({.data = {all.begin(), all.end()},
                .flow = ip.flow,
                .size = size_of(packet.size(), ip.headers, segment)},
               Clock::now());
  }
  return read_here;
}

// Called with the lock held. Returns how many packets it delivered.
int Wan::deliver(Clock::time_point now) {
  int delivered = 0;
  for (int from = 0; from < sites(); ++from) {
    for (int to = 0; to < sites(); ++to) {
      if (from == to) continue;
      LinkModel& model = link(from, to);
      while (const auto delivery = model.take(now)) {
        ++delivered;
        lateness_ = std::max<Duration>(lateness_, now - delivery->due);
        const auto& data = delivery->packet.data;
        if (write(sites_[index(to)]->device(), data.data(), data.size()) < 0) ++not_written_;
      }
    }
  }
  return delivered;
}

std::optional<Clock::time_point> Wan::next_due() const {
  std::optional<Clock::time_point> first;
  for (const LinkModel& model : links_) {
    const auto next = model.next();
    if (next && (!first || *next < *first)) first = next;
  }
  return first;
}

}  // namespace shoal::emulation
