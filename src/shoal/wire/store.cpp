#include "shoal/wire/store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/number.h"
#include "shoal/wire/acceptor.h"
#include "shoal/wire/peer_hello.h"
#include "shoal/wire/tls_channel.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kMaxKey = 4096;
constexpr std::size_t kMaxValue = 16 << 20;
enum Request { kSet, kGet, kWait, kAdd };
enum Status { kThere, kMissing, kNotANumber };

// A request is a message on stream {number of the request, kind of request}: length of the key,
// key, value. The answer is one on {the same number, status}: value.
Bytes pack(const std::string& key, const std::string& value) {
  Bytes bytes(4 + key.size() + value.size());
  const auto length = static_cast<std::uint32_t>(key.size());
  std::memcpy(bytes.data(), &length, 4);
  std::memcpy(bytes.data() + 4, key.data(), key.size());
  std::memcpy(bytes.data() + 4 + key.size(), value.data(), value.size());
  return bytes;
}

std::string text_of(const Bytes& bytes, std::size_t from, std::size_t to) {
  return {reinterpret_cast<const char*>(bytes.data()) + from, to - from};
}

Hello hello_of(TlsMode mode, const std::shared_ptr<const TlsContext>& tls) {
  PeerHello hello;
  hello.tls = mode;
  if (tls) hello.id = tls->id();
  return hello.encode();
}

}  // namespace

/// The store's state and connections; all of it belongs to the server's thread.
class StoreServer::Service {
 public:
  Service(Descriptor listener, const std::string& key, TlsMode mode)
      : mode_(mode),
        acceptor_(loop_, std::move(listener),
                  {.key = key,
                   .hello = hello_of(mode_, tls_),
                   .make_channel =
                       [this](Descriptor socket, const Hello& hello) {
                         return channel_of_caller(std::move(socket), hello);
                       },
                   .admit = [this](std::unique_ptr<Channel> channel,
                                   const Hello&) { add_link(std::move(channel)); }}) {}
  // Its clients learn that the store ends, and has not been cut off.
  ~Service() {
    for (auto& [fd, link] : links_) link.finish_sending();
  }
  void run_once() {
    loop_.run_once(std::chrono::milliseconds(500));
    acceptor_.drop_expired();
  }
  void wake() { loop_.wake(); }

 private:
  struct Waiter {
    int fd;
    std::uint64_t request;
  };

  std::unique_ptr<Channel> channel_of_caller(Descriptor socket, const Hello& bytes) {
    const PeerHello hello = PeerHello::decode(bytes);
    const bool plain = hello.encrypted == 0 && !wants_tls(mode_, socket.get());
    if (!plain && (hello.encrypted != 1 || !tls_)) return nullptr;
    return channel_over(std::move(socket), plain ? nullptr : tls_, TlsChannel::Role::kListener,
                        hello.id);
  }
  void add_link(std::unique_ptr<Channel> channel) {
    const int fd = channel->fd();
    links_.emplace(fd, Link(std::move(channel), kMaxKey + kMaxValue + 4));
    listen_to(fd, EPOLLIN);
  }
  void listen_to(int fd, std::uint32_t events) {
    loop_.watch(fd, events, [this, fd](std::uint32_t) { serve(fd); });
  }
  void drop_link(int fd) {
    loop_.remove(fd);
    links_.erase(fd);
    // After this every waiter has a link, which `put` relies on.
    for (auto& [key, waiters] : waiters_)
      std::erase_if(waiters, [&](const Waiter& w) { return w.fd == fd; });
  }

  void serve(int fd) {
    try {
      if (!links_.at(fd).receive([&](Stream stream, Bytes bytes) { request(fd, stream, bytes); }))
        return drop_link(fd);
      flush(fd);
    } catch (const Error&) {
      // A caller that breaks the protocol or the connection is dropped; the others stay.
      drop_link(fd);
    }
  }
  // EPOLLOUT is watched only while the kernel's buffer is full, because a socket with room is
  // always ready.
  void flush(int fd) { listen_to(fd, links_.at(fd).flush() ? EPOLLIN : EPOLLIN | EPOLLOUT); }

  void request(int fd, Stream stream, const Bytes& bytes) {
    // The length comes from a caller that knows the key, but may be broken: it is checked against
    // the message.
    std::uint32_t length = 0;
    if (bytes.size() >= 4) std::memcpy(&length, bytes.data(), 4);
    if (bytes.size() < 4 || length > kMaxKey || length > bytes.size() - 4)
      throw Error(ErrorKind::kData, "store", "a malformed request");
    const std::string key = text_of(bytes, 4, 4 + length);
    const std::string value = text_of(bytes, 4 + length, bytes.size());
    const auto entry = values_.find(key);
    switch (stream.sequence) {
      case kSet:
        put(key, value);
        return answer(fd, stream.group, kThere, "");
      case kGet:
        return entry == values_.end() ? answer(fd, stream.group, kMissing, "")
                                      : answer(fd, stream.group, kThere, entry->second);
      case kWait:
        if (entry == values_.end()) {
          // The answer comes when another rank sets the key; no thread waits for it meanwhile.
          waiters_[key].push_back({fd, stream.group});
        } else {
          answer(fd, stream.group, kThere, entry->second);
        }
        return;
      case kAdd: {
        const auto before = entry == values_.end() ? 0 : parse_number<std::int64_t>(entry->second);
        const auto amount = parse_number<std::int64_t>(value);
        if (!before || !amount) {
          return answer(fd, stream.group, kNotANumber,
                        entry == values_.end() ? value : entry->second);
        }
        // Unsigned numbers wrap around where signed ones would be undefined.
        const std::string sum = std::to_string(static_cast<std::int64_t>(
            static_cast<std::uint64_t>(*before) + static_cast<std::uint64_t>(*amount)));
        put(key, sum);
        return answer(fd, stream.group, kThere, sum);
      }
      default:
        throw Error(ErrorKind::kData, "store", "an unknown request");
    }
  }

  void put(const std::string& key, const std::string& value) {
    values_[key] = value;
    const auto waiting = waiters_.extract(key);
    if (waiting.empty()) return;
    for (const Waiter& waiter : waiting.mapped()) {
      answer(waiter.fd, waiter.request, kThere, value);
      // Written by its own callback: `receive` may be reading that very link further up the stack.
      listen_to(waiter.fd, EPOLLIN | EPOLLOUT);
    }
  }
  void answer(int fd, std::uint64_t request, Status status, const std::string& value) {
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    links_.at(fd).send({request, static_cast<std::uint64_t>(status)}, 0,
                       Bytes(data, data + value.size()));
  }

  // The acceptor is last, so it is destroyed first, while the loop that it uses exists.
  const TlsMode mode_;
  // Ranks with another mode than this one's get to know it when they connect to each other, so the
  // store itself serves who comes with TLS. Where this system offers none it serves the others.
  const std::shared_ptr<const TlsContext> tls_ = context_for(TlsMode::kAuto);
  EventLoop loop_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiters_;
  std::map<int, Link> links_;
  Acceptor acceptor_;
};

StoreServer::StoreServer(const std::string& host, PortRange ports, const std::string& key,
                         TlsMode tls) {
  Descriptor listener = listen_on(host, ports);
  endpoint_ = local_endpoint(listener.get());
  service_ = std::make_unique<Service>(std::move(listener), key, tls);
  thread_ = std::thread([this] {
    while (!stop_) {
      try {
        service_->run_once();
      } catch (const std::exception&) {
        // Memory or descriptors are used up: those that are served already go on.
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  });
}

// The service is destroyed after its thread has ended.
StoreServer::~StoreServer() {
  stop_ = true;
  service_->wake();
  thread_.join();
}

namespace {
std::unique_ptr<Channel> proven(Descriptor socket, const std::string& key, Deadline deadline,
                                TlsMode mode) {
  const bool encrypted = wants_tls(mode, socket.get());
  std::shared_ptr<const TlsContext> tls;
  if (encrypted) tls = std::make_shared<TlsContext>();
  PeerHello hello;
  hello.tls = mode;
  hello.encrypted = encrypted ? 1 : 0;
  if (tls) hello.id = tls->id();
  const PeerHello answer =
      PeerHello::decode(handshake_as_caller(socket.get(), key, hello.encode(), deadline));
  if (!encrypted && wants_tls(answer.tls, socket.get())) {
    throw Error(
        ErrorKind::kUsage, "store",
        fmt::format("rank 0 has tls {}, this rank has tls {}", name(answer.tls), name(mode)))
        .from(0)
        .hint("give all ranks the same parallelism.tls");
  }
  auto channel = channel_over(std::move(socket), tls, TlsChannel::Role::kCaller, answer.id);
  complete_handshake(*channel, deadline);
  return channel;
}
}  // namespace

StoreClient::StoreClient(const Endpoint& server, const std::string& key, Deadline deadline,
                         TlsMode tls)
    : StoreClient(connect_to(server, deadline), key, deadline, tls) {}

StoreClient::StoreClient(Descriptor socket, const std::string& key, Deadline deadline, TlsMode tls)
    : link_(proven(std::move(socket), key, deadline, tls), kMaxValue) {}

StoreClient::Reply StoreClient::request(int what, const std::string& key, const std::string& value,
                                        Deadline deadline) {
  SHOAL_USER_CHECK(key.size() <= kMaxKey && value.size() <= kMaxValue, "store",
                   "a key of {} bytes and a value of {}", key.size(), value.size());
  // The number ties an answer to its request: answers to requests that timed out carry others.
  const std::uint64_t number = ++requests_;
  link_.send({number, static_cast<std::uint64_t>(what)}, 0, pack(key, value));
  std::optional<Reply> reply;
  while (!reply) {
    exchange(key, deadline, [&](Stream stream, const Bytes& bytes) {
      if (stream.group == number) reply = Reply{stream.sequence, text_of(bytes, 0, bytes.size())};
    });
    if (!reply && deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "store", fmt::format("no answer for key '{}'", key))
          .hint("did every rank start?");
    }
  }
  return *reply;
}

// Sends what is queued and receives what has come, or waits for it up to a quarter of a second.
void StoreClient::exchange(const std::string& key, Deadline deadline,
                           const std::function<void(Stream, const Bytes&)>& take) {
  const bool sent = link_.flush();
  bool taken = false;
  // What a server sent before it closed is still read.
  const bool open = link_.receive([&](Stream stream, Bytes bytes) {
    taken = true;
    take(stream, bytes);
  });
  if (taken) return;
  if (!open) {
    throw Error(ErrorKind::kPeerLost, "store", "rank 0 closed the store")
        .awaiting(fmt::format("key '{}'", key));
  }
  pollfd ready{link_.fd(), static_cast<short>(sent ? POLLIN : POLLIN | POLLOUT), 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
  poll(&ready, 1, static_cast<int>(std::min<long long>(ms + 1, 250)));
}

std::vector<std::optional<std::string>> StoreClient::wait_all(const std::vector<std::string>& keys,
                                                              Deadline deadline,
                                                              const std::function<void()>& check) {
  const std::uint64_t first = requests_ + 1;
  for (const std::string& key : keys)
    link_.send({++requests_, static_cast<std::uint64_t>(kWait)}, 0, pack(key, ""));
  std::vector<std::optional<std::string>> values(keys.size());
  for (std::size_t missing = keys.size(); missing > 0 && !deadline.passed();) {
    check();
    const auto absent = std::find(values.begin(), values.end(), std::nullopt) - values.begin();
    exchange(keys[static_cast<std::size_t>(absent)], deadline,
             [&](Stream stream, const Bytes& bytes) {
               const std::uint64_t index = stream.group - first;
               if (index >= values.size() || values[index]) return;
               values[index] = text_of(bytes, 0, bytes.size());
               --missing;
             });
  }
  return values;
}

void StoreClient::set(const std::string& key, const std::string& value, Deadline deadline) {
  request(kSet, key, value, deadline);
}

std::optional<std::string> StoreClient::get(const std::string& key, Deadline deadline) {
  Reply reply = request(kGet, key, "", deadline);
  return reply.status == kThere ? std::optional(std::move(reply.value)) : std::nullopt;
}

std::string StoreClient::wait(const std::string& key, Deadline deadline) {
  return request(kWait, key, "", deadline).value;
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  const Reply reply = request(kAdd, key, std::to_string(amount), deadline);
  const auto sum = reply.status == kThere ? parse_number<std::int64_t>(reply.value) : std::nullopt;
  SHOAL_USER_CHECK(sum, "store", "key '{}' holds no number: '{}'", key, reply.value.substr(0, 100));
  return *sum;
}

}  // namespace shoal::wire
