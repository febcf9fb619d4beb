#include "tests/emulation/site.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "shoal/base/system_error.h"

namespace shoal::emulation {
namespace {

/// Where `ip netns` keeps the names: files over which the namespaces are mounted.
constexpr const char* kNames = "/run/netns";
constexpr std::string_view kPrefix = "shoal-wan-";
constexpr const char* kDevice = "wan0";
/// Packets that the device holds until the emulator reads them: more than TCP sends in a burst.
constexpr int kDeviceQueue = 10000;

Error failed(const std::string& what) {
  return system_error(ErrorKind::kResource, "emulation", what);
}

std::string path_of(const std::string& name) { return fmt::format("{}/{}", kNames, name); }

/// Holds the lock under which `ip netns` changes the names, so that both can run side by side.
class NamesLock {
 public:
  NamesLock() {
    mkdir(kNames, 0755);
    directory_ = wire::Descriptor(open(kNames, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory_.get() < 0) throw failed(fmt::format("cannot open {}", kNames));
    while (flock(directory_.get(), LOCK_EX) != 0)
      if (errno != EINTR) throw failed(fmt::format("cannot lock {}", kNames));
  }

 private:
  wire::Descriptor directory_;  // closing it ends the lock
};

/// As `ip netns` does: the directory is a mount of its own, which other mount namespaces see.
void share_names() {
  if (mount("", kNames, "none", MS_SHARED | MS_REC, nullptr) == 0) return;
  if (errno != EINVAL || mount(kNames, kNames, "none", MS_BIND | MS_REC, nullptr) != 0 ||
      mount("", kNames, "none", MS_SHARED | MS_REC, nullptr) != 0)
    throw failed(fmt::format("cannot share the directory {}", kNames));
}

void remove_name(const std::string& name) {
  umount2(path_of(name).c_str(), MNT_DETACH);
  unlink(path_of(name).c_str());
}

/// Returns when a process started, in ticks since the machine did; nothing where there is none.
std::optional<std::uint64_t> start_of(long process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field is the program's name in parentheses and may hold anything; the start is the
  // 22nd.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::stoull(field);
}

/// Tells whether the process that made the site lives; also true where the name is none of ours.
bool maker_lives(std::string_view name) {
  if (!name.starts_with(kPrefix)) return true;
  name.remove_prefix(kPrefix.size());
  long process = 0;
  std::uint64_t start = 0;
  const char* const end = name.data() + name.size();
  const auto first = std::from_chars(name.data(), end, process);
  if (first.ec != std::errc() || first.ptr == end) return true;
  const auto second = std::from_chars(first.ptr + 1, end, start);
  if (second.ec != std::errc()) return true;
  return start_of(process) == start;
}

/// Sets what the network devices of the calling thread's namespace are.
class Devices {
 public:
  Devices() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (socket_.get() < 0) throw failed("no socket");
  }

  void set_address(const std::string& device, const std::string& address, const char* mask) {
    ifreq request = of(device);
    set(request, SIOCSIFADDR, address.c_str(), "address");
    set(request, SIOCSIFNETMASK, mask, "netmask");
  }
  void set_queue(const std::string& device, int packets) {
    ifreq request = of(device);
    request.ifr_qlen = packets;
    call(SIOCSIFTXQLEN, request, "queue");
  }
  void bring_up(const std::string& device) {
    ifreq request = of(device);
    call(SIOCGIFFLAGS, request, "flags");
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    call(SIOCSIFFLAGS, request, "flags");
  }

 private:
  static ifreq of(const std::string& device) {
    ifreq request{};
    device.copy(request.ifr_name, IFNAMSIZ - 1);
    return request;
  }
  void set(ifreq& request, unsigned long what, const char* address, const char* name) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    inet_pton(AF_INET, address, &in.sin_addr);
    std::memcpy(&request.ifr_addr, &in, sizeof in);
    call(what, request, name);
  }
  void call(unsigned long what, ifreq& request, const char* name) {
    if (ioctl(socket_.get(), what, &request) != 0)
      throw failed(fmt::format("cannot set the {} of {}", name, request.ifr_name));
  }

  const wire::Descriptor socket_;
};

/// Opens the TUN device of the calling thread's namespace.
wire::Descriptor make_device(bool offload) {
  wire::Descriptor device(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (device.get() < 0) throw failed("cannot open /dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, kDevice, IFNAMSIZ - 1);
  request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | (offload ? IFF_VNET_HDR : 0));
  if (ioctl(device.get(), TUNSETIFF, &request) != 0) throw failed("cannot make a TUN device");
  if (offload && ioctl(device.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0)
    throw failed("the TUN device segments nothing");
  return device;
}

}  // namespace

Site::Site(std::string name, std::string address, bool offload)
    : name_(std::move(name)), address_(std::move(address)) {
  // A thread of its own is moved into the new namespace; the caller's stays where it is.
  std::async(std::launch::async, [&] { make(offload); }).get();
}

void Site::make(bool offload) {
  if (unshare(CLONE_NEWNET) != 0) throw failed("this process may not make a network namespace");
  namespace_ = wire::Descriptor(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (namespace_.get() < 0) throw failed("cannot open a network namespace");
  device_ = make_device(offload);
  Devices devices;
  devices.set_address(kDevice, address_, "255.255.255.0");
  devices.set_queue(kDevice, kDeviceQueue);
  for (const char* device : {"lo", kDevice}) devices.bring_up(device);

  const NamesLock lock;
  share_names();
  const std::string path = path_of(name_);
  const wire::Descriptor file(open(path.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (file.get() < 0) throw failed(fmt::format("cannot make {}", path));
  if (mount("/proc/thread-self/ns/net", path.c_str(), "none", MS_BIND, nullptr) != 0) {
    const Error error = failed(fmt::format("cannot mount {}", path));
    unlink(path.c_str());
    throw error;
  }
  named_ = true;
}

Site::~Site() {
  if (!named_) return;
  try {
    const NamesLock lock;
    remove_name(name_);
  } catch (const Error&) {
    // Without the directory there is no name.
  }
}

void Site::enter() const {
  if (setns(namespace_.get(), CLONE_NEWNET) != 0) throw failed("cannot enter a network namespace");
}

std::uint64_t Site::dropped() const {
  return std::async(std::launch::async,
                    [&] {
                      enter();
                      std::ifstream file("/proc/thread-self/net/dev");
                      for (std::string line; std::getline(file, line);) {
                        std::istringstream words(line);
                        std::string word;
                        words >> word;
                        if (word != fmt::format("{}:", kDevice)) continue;
                        // Eight numbers of what was received; then bytes, packets, errors and drops
                        // of what was sent.
                        std::uint64_t number = 0;
                        for (int i = 0; i < 12; ++i) words >> number;
                        return number;
                      }
                      throw Error(ErrorKind::kInternal, "emulation", "a site has no device");
                    })
      .get();
}

void Site::set_sysctl(const std::string& file, const std::string& value) const {
  std::async(std::launch::async, [&] {
    enter();
    // These files show the namespace of the thread that opens them.
    std::ofstream out("/proc/sys/" + file);
    out << value << std::flush;
    if (!out) throw failed(fmt::format("cannot set {}", file));
  }).get();
}

std::string name_of_site(int wan, int site) {
  const long process = getpid();
  return fmt::format("{}{}-{}-{}-{}", kPrefix, process, start_of(process).value_or(0), wan, site);
}

void remove_sites_of_dead_processes() {
  const NamesLock lock;
  for (const auto& entry : std::filesystem::directory_iterator(kNames)) {
    const std::string name = entry.path().filename();
    if (!maker_lives(name)) remove_name(name);
  }
}

}  // namespace shoal::emulation
