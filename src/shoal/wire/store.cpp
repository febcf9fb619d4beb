#include "shoal/wire/store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/number.h"
#include "shoal/wire/acceptor.h"
#include "shoal/wire/key_runs.h"
#include "shoal/wire/peer_hello.h"
#include "shoal/wire/tls_channel.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kMaxKey = 4096;
constexpr std::size_t kMaxValue = 16 << 20;
/// A request names no more keys.
constexpr std::size_t kMostKeys = 1 << 16;
enum Request { kSet, kGet, kWait, kAdd, kGetAll, kWaitAll };
enum Status { kThere, kMissing, kNotANumber, kTooMuch };
/// How long a rank whose time is over still waits for the names of those who have not come.
constexpr Duration kNamesOfMissing = std::chrono::seconds(1);

// A request is a message on stream {number of the request, kind of request}: length of the key,
// key, value. The answer is one on {the same number, status}: value. In those for many keys at a
// time the value is a list of runs of keys, and that of the answer a list of values.
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

// A list is the length of each text and the text; what is not there has the length kNone.
constexpr std::uint32_t kNone = ~std::uint32_t{0};

void append(std::string& list, const std::optional<std::string>& text) {
  const std::uint32_t length = text ? static_cast<std::uint32_t>(text->size()) : kNone;
  list.append(reinterpret_cast<const char*>(&length), sizeof length);
  if (text) list += *text;
}

std::vector<std::optional<std::string>> texts_of(const std::string& list) {
  std::vector<std::optional<std::string>> texts;
  for (std::size_t at = 0; at < list.size();) {
    std::uint32_t length = 0;
    if (list.size() - at < sizeof length)
      throw Error(ErrorKind::kData, "store", "a malformed list");
    std::memcpy(&length, list.data() + at, sizeof length);
    at += sizeof length;
    if (texts.size() == kMostKeys) throw Error(ErrorKind::kData, "store", "a malformed list");
    if (length == kNone) {
      texts.push_back(std::nullopt);
      continue;
    }
    if (length > list.size() - at) throw Error(ErrorKind::kData, "store", "a malformed list");
    texts.push_back(list.substr(at, length));
    at += length;
  }
  return texts;
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
    answer_complete();
  }
  void wake() { loop_.wake(); }

 private:
  /// A request that waits until all its keys are there. All ranks ask for those of all ranks, so it
  /// keeps runs, and waits for one key at a time: the first that is missing.
  struct Many {
    int fd;
    std::uint64_t request;
    std::vector<KeyRun> runs;
    std::size_t run = 0;  ///< the keys before this place are there
    std::size_t place = 0;
  };
  struct Waiter {
    int fd;
    std::uint64_t request;
    std::shared_ptr<Many> many;  ///< null: it waits for this key alone
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
    std::erase_if(complete_, [&](const auto& many) { return many->fd == fd; });
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
          waiters_[key].push_back({fd, stream.group, nullptr});
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
      case kGetAll:
        return answer_all({fd, stream.group, runs_in(value)});
      case kWaitAll:
        return wait_for_rest(std::make_shared<Many>(Many{fd, stream.group, runs_in(value)}));
      default:
        throw Error(ErrorKind::kData, "store", "an unknown request");
    }
  }

  static std::vector<KeyRun> runs_in(const std::string& list) {
    auto runs = decode_runs(list, kMaxKey, kMostKeys);
    if (!runs) throw Error(ErrorKind::kData, "store", "a malformed list of keys");
    return *std::move(runs);
  }
  void wait_for_rest(const std::shared_ptr<Many>& many) {
    for (; many->run < many->runs.size(); ++many->run, many->place = 0) {
      const KeyRun& run = many->runs[many->run];
      for (; many->place < run.keys(); ++many->place) {
        const std::string key = run.key(many->place);
        if (!values_.contains(key)) {
          waiters_[key].push_back({many->fd, many->request, many});
          return;
        }
      }
    }
    complete_.push_back(many);
  }
  void answer_all(const Many& many) {
    std::string list;
    for (const KeyRun& run : many.runs) {
      for (std::size_t place = 0; place < run.keys(); ++place) {
        const auto entry = values_.find(run.key(place));
        // Found out before it is made: the same large value may be asked for many times.
        const std::size_t size = entry == values_.end() ? 0 : entry->second.size();
        if (list.size() + sizeof(std::uint32_t) + size > kMaxValue)
          return answer(many.fd, many.request, kTooMuch, "");
        append(list, entry == values_.end() ? std::nullopt : std::optional(entry->second));
      }
    }
    answer(many.fd, many.request, kThere, list);
  }
  // All ranks wait for the same keys, so the last one completes the requests of all. Each answer is
  // written before the next one is made: together they would be as large as the square of the
  // ranks.
  void answer_complete() {
    while (!complete_.empty()) {
      const auto many = std::move(complete_.front());
      complete_.pop_front();
      try {
        answer_all(*many);
        flush(many->fd);
      } catch (const Error&) {
        drop_link(many->fd);
      }
    }
  }

  void put(const std::string& key, const std::string& value) {
    values_[key] = value;
    const auto waiting = waiters_.extract(key);
    if (waiting.empty()) return;
    for (const Waiter& waiter : waiting.mapped()) {
      if (waiter.many) {
        wait_for_rest(waiter.many);
        continue;
      }
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
  std::deque<std::shared_ptr<Many>> complete_;  ///< all keys are there, and no answer is written
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
  if (keys.empty()) return {};
  const std::string list = encode(runs_of(keys));
  SHOAL_USER_CHECK(list.size() <= kMaxValue, "store", "keys of {} bytes", list.size());
  const auto ask = [&](Request what, Deadline end, const std::function<void()>& may_go_on) {
    const std::uint64_t number = ++requests_;
    link_.send({number, static_cast<std::uint64_t>(what)}, 0, pack("", list));
    std::optional<Reply> reply;
    while (!reply && !end.passed()) {
      may_go_on();
      exchange(keys.front(), end, [&](Stream stream, const Bytes& bytes) {
        if (stream.group == number) reply = Reply{stream.sequence, text_of(bytes, 0, bytes.size())};
      });
    }
    return reply;
  };
  auto reply = ask(kWaitAll, deadline, check);
  // Some have not come in time: those that have are asked for, so that the others can be named.
  if (!reply) reply = ask(kGetAll, Deadline::in(kNamesOfMissing), [] {});
  if (reply && reply->status == kTooMuch) return KeyValues::wait_all(keys, deadline, check);
  std::vector<std::optional<std::string>> values;
  if (reply) values = texts_of(reply->value);
  if (reply && values.size() != keys.size())
    throw Error(ErrorKind::kData, "store", "an answer to another question");
  values.resize(keys.size());
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
