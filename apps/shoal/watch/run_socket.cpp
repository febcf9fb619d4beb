#include "apps/shoal/watch/run_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

constexpr const char* kName = "control";
constexpr int kQueue = 16;
/// No answer is longer: a status has some 150 bytes a rank.
constexpr std::size_t kLongestAnswer = 4 << 20;

/// A socket's path has 107 bytes at most. Through the descriptor of its directory, the name is
/// short whatever the directory's path is.
class SocketPlace {
 public:
  explicit SocketPlace(const std::string& directory)
      : directory_(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    address_.sun_family = AF_UNIX;
    const std::string path = fmt::format("/proc/self/fd/{}/{}", directory_.get(), kName);
    std::memcpy(address_.sun_path, path.c_str(), path.size() + 1);
  }
  bool exists() const { return directory_.get() >= 0; }
  int directory() const { return directory_.get(); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t kSize = sizeof(sockaddr_un);

 private:
  wire::Descriptor directory_;
  sockaddr_un address_{};
};

Error no_answer(const std::string& directory) {
  return Error(ErrorKind::kTimeout, "watch",
               fmt::format("the process that runs {} does not answer", directory));
}

/// Waits until `socket` is ready for `events`. Throws Error(timeout).
void await(int socket, short events, Deadline deadline, const std::string& directory) {
  pollfd ready{socket, events, 0};
  const auto ms = deadline.left() / std::chrono::milliseconds(1);
  if (::poll(&ready, 1, static_cast<int>(ms) + 1) == 0 || deadline.passed())
    throw no_answer(directory);
}

/// Another user who may write into the directory could listen there in the job's place.
void check_owner(int socket, const std::string& directory) {
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (known && (peer.uid == ::geteuid() || peer.uid == 0 || ::geteuid() == 0)) return;
  throw Error(ErrorKind::kUsage, "watch",
              fmt::format("the process that answers in {} belongs to another user", directory));
}

wire::Descriptor connected(const SocketPlace& place, const std::string& directory,
                           Deadline deadline) {
  for (;;) {
    wire::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) throw system_error(ErrorKind::kResource, "watch", "cannot make a socket");
    if (::connect(socket.get(), place.address(), SocketPlace::kSize) == 0) return socket;
    if (errno == ENOENT || errno == ECONNREFUSED) return wire::Descriptor();
    if (errno != EAGAIN) {
      throw system_error(ErrorKind::kUsage, "watch",
                         fmt::format("cannot connect to {}/{}", directory, kName));
    }
    // The queue is full: the process serves others, or stands still.
    if (deadline.passed()) throw no_answer(directory);
    ::poll(nullptr, 0, 20);
  }
}

}  // namespace

wire::Descriptor listen_in(const std::string& run_directory) {
  const SocketPlace place(run_directory);
  const auto failed = [&](const char* what) {
    return system_error(ErrorKind::kOutput, "watch",
                        fmt::format("{} {}/{}", what, run_directory, kName));
  };
  wire::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!place.exists() || socket.get() < 0) throw failed("cannot make");
  if (::unlinkat(place.directory(), kName, 0) != 0 && errno != ENOENT)
    throw failed("cannot replace");
  // Linux gives the file the mode of the socket, so there is no moment in which others may connect.
  if (::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), place.address(), SocketPlace::kSize) != 0 ||
      ::listen(socket.get(), kQueue) != 0)
    throw failed("cannot listen as");
  return socket;
}

void remove_socket(const std::string& run_directory) {
  const SocketPlace place(run_directory);
  if (place.exists()) ::unlinkat(place.directory(), kName, 0);
}

std::optional<std::string> ask_run(const std::string& run_directory, const std::string& request,
                                   Deadline deadline) {
  const SocketPlace place(run_directory);
  if (!place.exists()) return std::nullopt;
  const wire::Descriptor socket = connected(place, run_directory, deadline);
  if (socket.get() < 0) return std::nullopt;
  check_owner(socket.get(), run_directory);
  const std::string line = request + "\n";
  // A request is far smaller than the buffer of a new socket, which takes it at once.
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(line.size()))
    return std::nullopt;
  std::string answer;
  while (answer.empty() || answer.back() != '\n') {
    await(socket.get(), POLLIN, deadline, run_directory);
    char buffer[4096];
    const ssize_t length = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    // It ended in the middle of an answer, as a run does that is over.
    if (length <= 0 || answer.size() > kLongestAnswer) return std::nullopt;
    answer.append(buffer, static_cast<std::size_t>(length));
  }
  answer.pop_back();
  return answer;
}

}  // namespace shoal::apps
