#include "shoal/wire/local_rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/system_error.h"
#include "shoal/wire/descriptor_passing.h"

namespace shoal::wire {
namespace {

constexpr std::uint32_t kMagic = 0x53484f31;  // "SHO1"
constexpr const char* kOperation = "rendezvous";
constexpr std::size_t kMostStrangers = 64;
using Token = std::array<std::byte, 32>;

struct Hello {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t shares = 0;
  std::array<char, 64> key{};
};

/// One message of rank 0's answer: the control segment first, then one for each rank.
struct Introduction {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;  ///< whom it is about; -1: the control segment; -2: the meeting failed
  std::int32_t shares = 0;
  Token token{};
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  SHOAL_USER_CHECK(path.size() < sizeof address.sun_path, kOperation,
                   "the path of the socket is too long ({} bytes): {}", path.size(), path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

bool same_user(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == getuid();
}

int process_of(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
  return static_cast<int>(syscall(SYS_pidfd_open, who.pid, 0));
}

struct Guest {
  Descriptor socket, arena, process;
  bool here = false, shares = false;
};

/// Rank 0: waits for everybody, then introduces all to all.
class Host {
 public:
  Host(const Meeting& meeting, const std::string& path)
      : meeting_(meeting), path_(path), guests_(static_cast<std::size_t>(meeting.size)) {
    listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    unlink(path.c_str());  // of a job of this name that was killed; the directory is ours alone
    const sockaddr_un address = address_of(path);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_.get(), 128) != 0)
      throw system_error(ErrorKind::kResource, kOperation, "cannot listen at " + path);
  }
  ~Host() { unlink(path_.c_str()); }

  Acquaintance run(Deadline deadline) {
    for (int here = 1; here < meeting_.size;) here += attend(deadline);
    Acquaintance all;
    all.control = SharedSegment::create("shoal-control", meeting_.control_bytes);
    Introduction control{.rank = -1};
    if (getrandom(control.token.data(), control.token.size(), 0) !=
        static_cast<ssize_t>(control.token.size()))
      throw system_error(ErrorKind::kResource, kOperation, "no random numbers");
    std::memcpy(all.control.data(), control.token.data(), control.token.size());
    const Descriptor own_process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    for (int to = 1; to < meeting_.size; ++to) {
      tell(to, control, {all.control.fd()});
      for (int about = 0; about < meeting_.size; ++about) {
        const bool self = about == 0;
        const bool shares = self ? meeting_.arena != nullptr : guests_[about].shares;
        std::vector<int> descriptors{self ? own_process.get() : guests_[about].process.get()};
        if (shares) descriptors.push_back(self ? meeting_.arena->fd() : guests_[about].arena.get());
        tell(to, {.rank = about, .shares = shares}, descriptors);
      }
    }
    for (int rank = 0; rank < meeting_.size; ++rank) {
      Guest& guest = guests_[rank];
      all.shares.push_back(rank == 0 ? meeting_.arena != nullptr : guest.shares);
      all.processes.push_back(std::move(guest.process));
      all.arenas.push_back(guest.shares ? SharedSegment::adopt(guest.arena.release())
                                        : SharedSegment());
    }
    return all;
  }

 private:
  /// Waits until somebody knocks or says who he is. Returns how many members came in. A caller has
  /// all the time there is, and holds up nobody.
  int attend(Deadline deadline) {
    std::vector<pollfd> wait;
    for (const Descriptor& caller : callers_)
      wait.push_back({.fd = caller.get(), .events = POLLIN, .revents = 0});
    wait.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
    if (poll(wait.data(), wait.size(), static_cast<int>(std::min<long>(left, 1 << 30))) == 0)
      throw missing();
    int came = 0;
    std::vector<Descriptor> silent;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      if (wait[i].revents == 0) {
        silent.push_back(std::move(callers_[i]));
      } else {
        came += admit(std::move(callers_[i]));
      }
    }
    callers_ = std::move(silent);
    if (wait.back().revents != 0) greet();
    return came;
  }

  void greet() {
    Descriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.get() < 0 || !same_user(caller.get())) return;
    if (callers_.size() >= guests_.size() + kMostStrangers) callers_.erase(callers_.begin());
    callers_.push_back(std::move(caller));
  }

  /// Hears who a caller is: 1 when it is a member.
  int admit(Descriptor caller) {
    Hello hello;
    std::vector<Descriptor> descriptors;
    if (!receive_with(caller.get(), &hello, sizeof hello, descriptors,
                      Deadline::in(Duration::zero())))
      return 0;
    std::array<char, 64> key{};
    std::memcpy(key.data(), meeting_.key.data(), std::min(meeting_.key.size(), key.size()));
    if (hello.magic != kMagic || hello.key != key) return 0;
    const bool fits = hello.size == meeting_.size && hello.rank > 0 && hello.rank < meeting_.size &&
                      !guests_[hello.rank].here;
    if (!fits) {
      const Introduction refusal{.rank = -2};
      send_with(caller.get(), &refusal, sizeof refusal, {});
      throw Error(ErrorKind::kUsage, kOperation,
                  fmt::format("a process came as rank {} of {} where {} are expected{}", hello.rank,
                              hello.size, meeting_.size,
                              hello.rank == 0 || (hello.rank > 0 && hello.rank < meeting_.size &&
                                                  guests_[hello.rank].here)
                                  ? ", and that rank is here already"
                                  : ""))
          .at(0, meeting_.size);
    }
    Guest& guest = guests_[hello.rank];
    guest.here = true, guest.shares = hello.shares != 0 && !descriptors.empty();
    if (guest.shares) guest.arena = std::move(descriptors.front());
    guest.process = Descriptor(process_of(caller.get()));
    guest.socket = std::move(caller);
    return 1;
  }

  void tell(int to, const Introduction& introduction, const std::vector<int>& descriptors) {
    if (!send_with(guests_[to].socket.get(), &introduction, sizeof introduction, descriptors)) {
      throw system_error(ErrorKind::kPeerLost, kOperation,
                         "a rank went away while the ranks were introduced")
          .at(0, meeting_.size)
          .from(to);
    }
  }

  Error missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < meeting_.size; ++rank)
      if (!guests_[rank].here) ranks.push_back(rank);
    return Error(ErrorKind::kTimeout, kOperation,
                 fmt::format("these ranks did not come: {}", fmt::join(ranks, ", ")))
        .at(0, meeting_.size)
        .from(ranks.front())
        .hint(
            "look at their logs; all ranks of a job must start on this host within the same time");
  }

  const Meeting& meeting_;
  std::string path_;
  Descriptor listener_;
  std::vector<Guest> guests_;
  std::vector<Descriptor> callers_;  ///< who have said nothing yet
};

Acquaintance visit(const Meeting& meeting, const std::string& path, Deadline deadline) {
  const auto fail = [&](const std::string& what) {
    return Error(deadline.passed() ? ErrorKind::kTimeout : ErrorKind::kPeerLost, kOperation, what)
        .at(meeting.rank, meeting.size)
        .from(0);
  };
  const sockaddr_un address = address_of(path);
  Descriptor host;
  for (;;) {
    host = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connect(host.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      break;
    if (deadline.passed())
      throw fail(fmt::format("rank 0 did not open {}", path)).hint("look at rank 0's log");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!same_user(host.get())) throw fail("another user listens at " + path);
  Hello hello{.rank = meeting.rank, .size = meeting.size, .shares = meeting.arena != nullptr};
  std::memcpy(hello.key.data(), meeting.key.data(), std::min(meeting.key.size(), hello.key.size()));
  if (!send_with(host.get(), &hello, sizeof hello,
                 meeting.arena ? std::vector{meeting.arena->fd()} : std::vector<int>{}))
    throw fail("rank 0 turned this rank away");

  const auto listen_to = [&](std::vector<Descriptor>& descriptors) {
    Introduction introduction;
    if (!receive_with(host.get(), &introduction, sizeof introduction, descriptors, deadline) ||
        introduction.magic != kMagic) {
      throw fail("rank 0 did not introduce the other ranks; it may have given up")
          .hint("look at rank 0's log: its error comes first");
    }
    if (introduction.rank == -2) {
      throw Error(ErrorKind::kUsage, kOperation, "rank 0 expects other ranks")
          .at(meeting.rank, meeting.size);
    }
    return introduction;
  };
  Acquaintance all;
  std::vector<Descriptor> descriptors;
  const Introduction control = listen_to(descriptors);
  if (control.rank != -1 || descriptors.empty()) throw fail("rank 0 sent no control segment");
  all.control = SharedSegment::adopt(descriptors.front().release());
  if (all.control.bytes() < meeting.control_bytes ||
      std::memcmp(all.control.data(), control.token.data(), control.token.size()) != 0) {
    throw fail(
        "the token in shared memory is not the one that was announced: rank 0 is on another host");
  }
  for (int rank = 0; rank < meeting.size; ++rank) {
    std::vector<Descriptor> own;
    const Introduction about = listen_to(own);
    if (about.rank != rank || own.empty() || (about.shares != 0 && own.size() < 2))
      throw fail("rank 0 introduced the ranks out of order");
    all.shares.push_back(about.shares != 0);
    all.processes.push_back(rank == meeting.rank ? Descriptor() : std::move(own[0]));
    all.arenas.push_back(about.shares != 0 && rank != meeting.rank
                             ? SharedSegment::adopt(own[1].release())
                             : SharedSegment());
  }
  return all;
}

}  // namespace

std::string meeting_directory(const std::string& runtime_directory) {
  const std::string path = fmt::format("{}/shoal-{}", runtime_directory, getuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw system_error(ErrorKind::kResource, kOperation, "cannot make " + path);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != getuid() ||
      (status.st_mode & 077) != 0) {
    throw Error(ErrorKind::kResource, kOperation,
                fmt::format("{} is not a directory that only this user may enter", path))
        .hint("remove it");
  }
  return path;
}

Acquaintance meet(const Meeting& meeting, Deadline deadline, const std::string& runtime_directory) {
  SHOAL_USER_CHECK(meeting.size >= 1 && meeting.rank >= 0 && meeting.rank < meeting.size,
                   kOperation, "rank {} of {}", meeting.rank, meeting.size);
  SHOAL_USER_CHECK(!meeting.name.empty() && meeting.name.find('/') == std::string::npos, kOperation,
                   "the name of a meeting: '{}'", meeting.name);
  const std::string path = fmt::format("{}/{}", meeting_directory(runtime_directory), meeting.name);
  if (meeting.rank == 0) return Host(meeting, path).run(deadline);
  return visit(meeting, path, deadline);
}

}  // namespace shoal::wire
