#pragma once

#include <cstdint>
#include <string>

#include "shoal/wire/descriptor.h"

namespace shoal::emulation {

/// A network namespace with a loopback and one TUN device, through which all packets to other sites
/// leave. `ip netns` knows it by its name while the object lives; processes in it go on without the
/// name.
class Site {
 public:
  /// With `offload` the device hands out what TCP sends in pieces of up to 64 KiB, each behind a
  /// virtio_net_hdr, and takes such pieces; else packets of up to 1500 bytes. Throws
  /// Error(resource) where this process may not make one.
  Site(std::string name, std::string address, bool offload);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  int device() const { return device_.get(); }
  /// Moves the calling thread here: the sockets that it opens from now on, and the threads that it
  /// starts, are here too.
  void enter() const;
  /// Returns the packets that the device dropped because the emulator did not read them in time.
  std::uint64_t dropped() const;
  /// Sets a file below /proc/sys, as this namespace has it: "net/ipv4/tcp_wmem".
  void set_sysctl(const std::string& file, const std::string& value) const;

 private:
  void make(bool offload);

  const std::string name_;
  const std::string address_;
  wire::Descriptor namespace_;
  wire::Descriptor device_;
  bool named_ = false;
};

/// Returns a name for a site that tells which process made it, and when that process started: a
/// number that another process gets later does not keep what is left of this one.
std::string name_of_site(int wan, int site);
/// Removes the names of all sites whose process has ended without doing so.
void remove_sites_of_dead_processes();

}  // namespace shoal::emulation
