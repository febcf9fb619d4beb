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
#include <cerrno>
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
/// Connections beyond the ranks' that may wait for their hello message.
constexpr std::size_t kMaxStrangers = 64;
using Token = std::array<std::byte, 32>;

/// A rank's first message after it has connected; its arena's descriptor comes along.
struct RankHello {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t shares = 0;
  std::array<char, 64> key{};
};

/// Values of Answer::rank that name no rank.
constexpr std::int32_t kControlSegment = -1;
constexpr std::int32_t kRefused = -2;

/// One message of the leader's answer. The control segment comes first, with its descriptor and
/// token; then one message for each rank, with its pidfd and its arena's descriptor.
struct Answer {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;  ///< described here; kControlSegment, or kRefused: the rendezvous failed
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

/// Another rank, as the leader sees it.
struct Member {
  Descriptor socket;
  Descriptor arena;
  Descriptor process;
  bool here = false;
  bool shares = false;
};

/// Rank 0: waits for all other ranks, then sends each of them the descriptors of all.
///
/// No rank is answered before all have come. A connection has until the rendezvous' deadline to
/// send its hello message, and delays no other meanwhile.
class Leader {
 public:
  Leader(const LocalRendezvousOptions& options, const std::string& path)
      : options_(options), path_(path), members_(static_cast<std::size_t>(options.size)) {
    // SOCK_SEQPACKET keeps the bounds of messages, and gives each message its own descriptors.
    listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    // A job of this name that was killed may have left its socket. No other user can have made it,
    // because the directory belongs to this user alone.
    unlink(path.c_str());
    const sockaddr_un address = address_of(path);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_.get(), 128) != 0)
      throw system_error(ErrorKind::kResource, kOperation, "cannot listen at " + path);
  }
  ~Leader() { unlink(path_.c_str()); }

  LocalRendezvousResult run(Deadline deadline) {
    for (int here = 1; here < options_.size;) here += wait_for_members(deadline);
    LocalRendezvousResult all;
    all.control = SharedSegment::create("shoal-control", options_.control_bytes);
    Answer control{.rank = kControlSegment};
    if (getrandom(control.token.data(), control.token.size(), 0) !=
        static_cast<ssize_t>(control.token.size()))
      throw system_error(ErrorKind::kResource, kOperation, "no random numbers");
    // The token is in the segment before any rank maps it.
    std::memcpy(all.control.data(), control.token.data(), control.token.size());
    send_to_all(control, all.control);
    for (int rank = 0; rank < options_.size; ++rank) {
      Member& member = members_[rank];
      all.shares.push_back(rank == 0 ? options_.arena != nullptr : member.shares);
      all.processes.push_back(std::move(member.process));
      all.arenas.push_back(member.shares ? SharedSegment::adopt(member.arena.release())
                                         : SharedSegment());
    }
    return all;
  }

 private:
  void send_to_all(const Answer& control, const SharedSegment& segment) {
    const Descriptor own_process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    // The descriptors are duplicated on their way. What this process holds may be closed
    // afterwards, and memory that a rank has mapped outlives its owner.
    for (int to = 1; to < options_.size; ++to) {
      send_to(to, control, {segment.fd()});
      for (int rank = 0; rank < options_.size; ++rank) {
        const bool self = rank == 0;
        const bool shares = self ? options_.arena != nullptr : members_[rank].shares;
        std::vector<int> descriptors{self ? own_process.get() : members_[rank].process.get()};
        if (shares) descriptors.push_back(self ? options_.arena->fd() : members_[rank].arena.get());
        send_to(to, {.rank = rank, .shares = shares}, descriptors);
      }
    }
  }

  /// Waits for a connection or a hello message. Returns how many members have come in.
  int wait_for_members(Deadline deadline) {
    std::vector<pollfd> wait;
    for (const Descriptor& caller : callers_)
      wait.push_back({.fd = caller.get(), .events = POLLIN, .revents = 0});
    wait.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
    if (poll(wait.data(), wait.size(), static_cast<int>(std::min<long>(left, 1 << 30))) == 0)
      throw missing_ranks();
    int came = 0;
    std::vector<Descriptor> silent;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      if (wait[i].revents == 0) {
        silent.push_back(std::move(callers_[i]));
      } else {
        came += read_hello(std::move(callers_[i]));
      }
    }
    callers_ = std::move(silent);
    if (wait.back().revents != 0) accept_caller();
    return came;
  }

  // The oldest silent connection makes room: a program of this user that connects again and again
  // cannot keep the ranks out.
  void accept_caller() {
    Descriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.get() < 0 || !same_user(caller.get())) return;
    if (callers_.size() >= members_.size() + kMaxStrangers) callers_.erase(callers_.begin());
    callers_.push_back(std::move(caller));
  }

  /// Returns 1 when the caller is a member, 0 when it was turned away. Throws Error(usage) when it
  /// knows the key and comes as a rank that is not expected: then two jobs have one name.
  int read_hello(Descriptor caller) {
    RankHello hello;
    std::vector<Descriptor> descriptors;
    if (!receive_with(caller.get(), &hello, sizeof hello, descriptors,
                      Deadline::in(Duration::zero())))
      return 0;
    std::array<char, 64> key{};
    std::memcpy(key.data(), options_.key.data(), std::min(options_.key.size(), key.size()));
    // A caller without the key gets no answer, not even that its key is wrong.
    if (hello.magic != kMagic || hello.key != key) return 0;
    const bool in_range = hello.rank > 0 && hello.rank < options_.size;
    const bool twice = hello.rank == 0 || (in_range && members_[hello.rank].here);
    if (hello.size != options_.size || !in_range || twice) {
      // The caller learns of it too: it must not wait for its deadline.
      const Answer refusal{.rank = kRefused};
      send_with(caller.get(), &refusal, sizeof refusal, {});
      throw Error(
          ErrorKind::kUsage, kOperation,
          fmt::format("a process came as rank {} of {} where {} are expected{}", hello.rank,
                      hello.size, options_.size, twice ? ", and that rank is here already" : ""))
          .at(0, options_.size);
    }
    Member& member = members_[hello.rank];
    member.here = true;
    member.shares = hello.shares != 0 && !descriptors.empty();
    if (member.shares) member.arena = std::move(descriptors.front());
    member.process = Descriptor(process_of(caller.get()));
    if (member.process.get() < 0) throw no_process_of(hello.rank);
    member.socket = std::move(caller);
    return 1;
  }

  /// For errno of process_of. Without the pidfd, sending it would fail and blame the receiver.
  Error no_process_of(int rank) const {
    Error error =
        errno == ESRCH
            ? Error(ErrorKind::kPeerLost, kOperation,
                    fmt::format("the process of rank {} ended before the others had come", rank))
                  .hint("look at its log")
            : system_error(ErrorKind::kResource, kOperation,
                           fmt::format("cannot watch the process of rank {}", rank));
    return error.at(0, options_.size).from(rank);
  }

  void send_to(int to, const Answer& answer, const std::vector<int>& descriptors) {
    if (!send_with(members_[to].socket.get(), &answer, sizeof answer, descriptors)) {
      throw system_error(ErrorKind::kPeerLost, kOperation,
                         "a rank ended while rank 0 sent it the descriptors of the others")
          .at(0, options_.size)
          .from(to);
    }
  }

  Error missing_ranks() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank)
      if (!members_[rank].here) ranks.push_back(rank);
    return Error(ErrorKind::kTimeout, kOperation,
                 fmt::format("these ranks did not come: {}", fmt::join(ranks, ", ")))
        .at(0, options_.size)
        .from(ranks.front())
        .hint(
            "look at their logs; all ranks of a job must start on this host within the same time");
  }

  const LocalRendezvousOptions& options_;
  std::string path_;
  Descriptor listener_;
  std::vector<Member> members_;
  std::vector<Descriptor> callers_;  ///< connections that have not sent their hello message yet
};

/// A rank other than 0.
LocalRendezvousResult join_leader(const LocalRendezvousOptions& options, const std::string& path,
                                  Deadline deadline) {
  const auto fail = [&](const std::string& what) {
    return Error(deadline.passed() ? ErrorKind::kTimeout : ErrorKind::kPeerLost, kOperation, what)
        .at(options.rank, options.size)
        .from(0);
  };
  const sockaddr_un address = address_of(path);
  Descriptor leader;
  // Rank 0 may start later than this rank; its socket then does not exist yet.
  for (;;) {
    leader = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connect(leader.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      break;
    if (deadline.passed())
      throw fail(fmt::format("rank 0 did not open {}", path)).hint("look at rank 0's log");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // Both sides check: the key must not reach a program of another user.
  if (!same_user(leader.get())) throw fail("another user listens at " + path);
  RankHello hello{.rank = options.rank, .size = options.size, .shares = options.arena != nullptr};
  std::memcpy(hello.key.data(), options.key.data(), std::min(options.key.size(), hello.key.size()));
  if (!send_with(leader.get(), &hello, sizeof hello,
                 options.arena ? std::vector{options.arena->fd()} : std::vector<int>{}))
    throw fail("rank 0 turned this rank away");

  const auto receive = [&](std::vector<Descriptor>& descriptors) {
    Answer answer;
    if (!receive_with(leader.get(), &answer, sizeof answer, descriptors, deadline) ||
        answer.magic != kMagic) {
      throw fail("rank 0 did not send the other ranks' descriptors; it may have given up")
          .hint("look at rank 0's log: its error comes first");
    }
    if (answer.rank == kRefused) {
      throw Error(ErrorKind::kUsage, kOperation, "rank 0 expects other ranks")
          .at(options.rank, options.size);
    }
    return answer;
  };
  LocalRendezvousResult all;
  std::vector<Descriptor> descriptors;
  const Answer control = receive(descriptors);
  if (control.rank != kControlSegment || descriptors.empty())
    throw fail("rank 0 sent no control segment");
  all.control = SharedSegment::adopt(descriptors.front().release());
  // The token came over the socket and lies in the segment: both ends see one memory.
  if (all.control.bytes() < options.control_bytes ||
      std::memcmp(all.control.data(), control.token.data(), control.token.size()) != 0) {
    throw fail(
        "the token in shared memory is not the one that was announced: rank 0 is on another host");
  }
  for (int rank = 0; rank < options.size; ++rank) {
    std::vector<Descriptor> own;
    const Answer answer = receive(own);
    const bool shares = answer.shares != 0;
    if (answer.rank != rank || own.empty() || (shares && own.size() < 2))
      throw fail("rank 0 sent the ranks' descriptors out of order");
    all.shares.push_back(shares);
    all.processes.push_back(rank == options.rank ? Descriptor() : std::move(own[0]));
    all.arenas.push_back(shares && rank != options.rank ? SharedSegment::adopt(own[1].release())
                                                        : SharedSegment());
  }
  return all;
}

}  // namespace

std::string rendezvous_directory(const std::string& runtime_directory) {
  const std::string path = fmt::format("{}/shoal-{}", runtime_directory, getuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw system_error(ErrorKind::kResource, kOperation, "cannot make " + path);
  // The path lies in a directory in which everybody may write, so another user may have made it
  // first, also as a link to a directory of this user: lstat does not follow it.
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != getuid() ||
      (status.st_mode & 077) != 0) {
    throw Error(ErrorKind::kResource, kOperation,
                fmt::format("{} is not a directory that only this user may enter", path))
        .hint("remove it");
  }
  return path;
}

LocalRendezvousResult local_rendezvous(const LocalRendezvousOptions& options, Deadline deadline,
                                       const std::string& runtime_directory) {
  SHOAL_USER_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                   kOperation, "rank {} of {}", options.rank, options.size);
  SHOAL_USER_CHECK(!options.name.empty() && options.name.find('/') == std::string::npos, kOperation,
                   "'{}' is not a name for a rendezvous", options.name);
  const std::string path =
      fmt::format("{}/{}", rendezvous_directory(runtime_directory), options.name);
  if (options.rank == 0) return Leader(options, path).run(deadline);
  return join_leader(options, path, deadline);
}

}  // namespace shoal::wire
