#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"
#include "tests/emulation/link_model.h"
#include "tests/emulation/site.h"

namespace shoal::emulation {

/// Sites that long links join, on one machine. Each site is a network namespace: what runs there
/// uses the kernel's real TCP. A thread carries each packet from site to site as the LinkSpec of
/// that direction says; at first all links are open and take no time.
///
///   Wan wan(2);
///   wan.set_all({.delay = milliseconds(50), .bits_per_second = 100e6});
///   ASSERT_EQ(why_void(wan, 0, 1), "");  // raw_sockets.h: is it such a link?
///   std::thread rank([&] { wan.enter(1); ... });
///   wan.cut({0});
///
/// It needs the right to make network namespaces and TUN devices; see `unavailable`. All addresses
/// and devices lie in the sites' namespaces: nothing is visible outside but their names. The
/// destructor removes everything. What a process leaves that was killed, the next Wan removes.
///
/// Threads: any thread may call any function, except that a forked child uses `enter`, `at`,
/// `address` and `name` alone and ends with `_exit`.
class Wan {
 public:
  enum class Packets : std::uint8_t {
    /// Each packet of up to 1500 bytes by itself.
    kExact,
    /// TCP's packets in pieces of up to 64 KiB, which cost a tenth of the time. A full queue drops
    /// whole pieces, and there is no loss: a piece is not what a link loses.
    kFast,
  };
  struct Options {
    Packets packets = Packets::kExact;
    std::uint64_t seed = 1;  ///< of losses and jitter
  };

  /// Returns why this process can make no sites; empty where it can.
  static std::string unavailable();

  /// Throws Error(resource) where `unavailable` says why, Error(usage) for fewer than 1 or more
  /// than 64 sites.
  explicit Wan(int sites) : Wan(sites, Options()) {}
  Wan(int sites, Options options);
  ~Wan();
  Wan(const Wan&) = delete;
  Wan& operator=(const Wan&) = delete;

  Packets packets() const { return options_.packets; }
  int sites() const { return static_cast<int>(sites_.size()); }
  /// Returns the address of a site: "10.77.0.1" of site 0.
  std::string address(int site) const { return sites_.at(index(site))->address(); }
  /// Returns the name by which `ip netns exec` and `ip -n` know a site.
  std::string name(int site) const { return sites_.at(index(site))->name(); }
  /// Moves the calling thread to a site: the sockets that it opens from now on, and the threads and
  /// processes that it starts, are there.
  void enter(int site) const { sites_.at(index(site))->enter(); }
  /// Runs `body` on a thread at a site and returns what it returns.
  template <class Body>
  auto at(int site, Body body) const {
    return std::async(std::launch::async,
                      [&] {
                        enter(site);
                        return body();
                      })
        .get();
  }
  /// Sets a file below /proc/sys/ for all sites: "net/ipv4/tcp_wmem". Connections that exist keep
  /// what they have.
  void set_sysctl(const std::string& file, const std::string& value);

  /// Changes one direction. Throws Error(usage) for values that make no sense, and where the queue
  /// would hold no whole packet.
  void set(int from, int to, const LinkSpec& spec);
  /// Changes both directions between two sites.
  void set_both(int a, int b, const LinkSpec& spec);
  /// Changes every link.
  void set_all(const LinkSpec& spec);
  LinkSpec spec(int from, int to) const;
  /// Cuts all links between these sites and the others, in both directions. A one-way cut is `set`
  /// with `open = false`.
  void cut(const std::set<int>& side);
  /// Opens every link, with the rest of its spec as it was.
  void heal();

  /// Limits the rate of one connection between two sites in both directions: of the one that has
  /// sent most from a to b since the link was set. Lasts until the link is set again.
  void slow_down_one(int a, int b, double bits_per_second);

  Counters between(int from, int to) const;
  /// Waits until no packet is on its way, so that sockets have all that was sent and not lost.
  /// Returns false where `deadline` passes before.
  bool settle(Deadline deadline);
  /// Returns the longest time by which a packet was delivered after it was due, since this was last
  /// asked: the machine was busy with something else.
  Duration lateness();
  /// Returns the packets that devices dropped because this object did not read or write them in
  /// time. Where there are any, the links had another loss than their specs say.
  std::uint64_t dropped_by_devices() const;

 private:
  static std::size_t index(int site) { return static_cast<std::size_t>(site); }
  LinkModel& link(int from, int to);
  const LinkModel& link(int from, int to) const;
  void check(const LinkSpec& spec) const;
  void run();
  bool move_packets();
  int read_packets(int from);
  int deliver(Clock::time_point now);
  std::optional<Clock::time_point> next_due() const;

  const Options options_;
  std::vector<std::unique_ptr<Site>> sites_;
  mutable std::mutex mutex_;      ///< guards what follows, but for `over_` and `wake_`
  std::vector<LinkModel> links_;  ///< [from][to]
  std::vector<std::byte> buffer_;
  Duration lateness_{};
  std::uint64_t not_written_ = 0;
  std::atomic<bool> over_{false};
  wire::Descriptor wake_;  ///< an eventfd that ends the thread's wait
  std::thread thread_;
};

}  // namespace shoal::emulation
