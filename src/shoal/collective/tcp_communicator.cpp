#include "shoal/collective/tcp_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/collective/direct.h"
#include "shoal/collective/fold.h"

namespace shoal::collective {
namespace {

constexpr std::uint64_t kMessages = std::uint64_t{1} << 63;       // streams of send and receive: this bit and the tag
constexpr std::uint64_t kAnnouncements = std::uint64_t{1} << 62;  // streams on which a rank says what it calls: this bit and the sequence
constexpr std::size_t kCallBytes = 32;                            // in front of every message; a multiple of what any element is aligned to

bool reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter; }
bool point_to_point(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }
bool has_root(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kScatter; }

/// Partial sums would round more than once, or not know when to divide.
bool must_fold_once(const Operation& o) {
  const bool narrow = is_floating(o.type) && size_of(o.type) < 4;
  return reduces(o.kind) && (narrow || o.reduction == Reduction::kAverage || o.reduction == Reduction::kPremulSum);
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::vector<int> all_ranks(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> hosts_of(const std::vector<int>& hosts, const std::vector<int>& members) {
  std::vector<int> own(members.size(), 0);
  if (hosts.empty()) return own;
  for (std::size_t i = 0; i < members.size(); ++i) own[i] = hosts.at(static_cast<std::size_t>(members[i]));
  return own;
}

}  // namespace

TcpCommunicator::TcpCommunicator(std::shared_ptr<wire::Peers> peers, Settings settings)
    : TcpCommunicator(peers, std::move(settings), all_ranks(peers->size()), peers->rank(), 1) {}

TcpCommunicator::TcpCommunicator(std::shared_ptr<wire::Peers> peers, Settings settings, std::vector<int> members, int rank, std::uint64_t group)
    : peers_(std::move(peers)),
      settings_(std::move(settings)),
      members_(std::move(members)),
      rank_(rank),
      group_(group),
      choice_(hosts_of(settings_.hosts, members_), settings_.model, settings_.algorithms) {
  static_assert(sizeof(Call) <= kCallBytes);
}

bool TcpCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const { return !reduces(kind) || supports_fold(type, reduction); }

void TcpCommunicator::validate(const Operation& o) const {
  const char* what = name(o.kind);
  SHOAL_USER_CHECK(supports(o.kind, o.type, o.reduction), what, "there is no {} of {} by {}", what, name(o.type), name(o.reduction));
  SHOAL_USER_CHECK(o.memory == MemoryKind::kHost, what, "TCP carries host memory only");
  if (has_root(o.kind)) SHOAL_USER_CHECK(o.peer >= 0 && o.peer < size(), what, "root {} is not one of {} ranks", o.peer, size());
  if (point_to_point(o.kind))
    SHOAL_USER_CHECK(o.peer < size() && o.peer != rank_ && (o.peer >= 0 || o.kind == Kind::kReceive), what, "rank {} and peer {} of {} ranks", rank_,
                     o.peer, size());
  const std::size_t ranks = members_.size();
  SHOAL_USER_CHECK((o.send_counts.empty() && o.receive_counts.empty()) ||
                       (o.kind == Kind::kAllToAll && o.send_counts.size() == ranks && o.receive_counts.size() == ranks),
                   what, "per-rank counts: {} to send, {} to receive, for {} ranks", o.send_counts.size(), o.receive_counts.size(), ranks);
  if (!o.send_counts.empty())
    SHOAL_USER_CHECK(o.send_counts[rank_] == o.receive_counts[rank_], what, "rank {} sends itself {} elements and expects {}", rank_,
                     o.send_counts[rank_], o.receive_counts[rank_]);
  SHOAL_USER_CHECK(o.kind != Kind::kAllToAll || !o.buffer.input || o.buffer.input != o.buffer.output, what, "input and output must be two buffers");
}

Handle TcpCommunicator::start(const Operation& operation) {
  peers_->check();
  validate(operation);
  const Handle handle = ++started_;
  Operation part = operation;
  part.more = {};
  enqueue(part, handle);
  for (const Buffer& buffer : operation.more) {
    part.buffer = buffer;
    enqueue(part, handle);
  }
  advance_all();
  return handle;
}

void TcpCommunicator::enqueue(const Operation& o, Handle handle) {
  Pending& p = in_flight_.emplace_back();
  p.handle = handle;
  p.operation = o;
  const std::size_t bytes = o.kind == Kind::kBarrier ? 1 : o.buffer.count * size_of(o.type);
  const bool table = !point_to_point(o.kind);
  const Algorithm algorithm = table ? choice_(o.kind, bytes, must_fold_once(o)) : Algorithm::kDirect;
  const bool own_sizes = !o.send_counts.empty();
  p.call = {.kind = static_cast<std::uint8_t>(table ? o.kind : Kind::kSend),
            .type = static_cast<std::uint8_t>(o.type),
            .reduction = static_cast<std::uint8_t>(reduces(o.kind) ? o.reduction : Reduction::kSum),
            .algorithm = static_cast<std::uint8_t>(algorithm),
            .peer = has_root(o.kind) ? o.peer : -1,
            .count = own_sizes ? ~std::uint64_t{0} : o.buffer.count,
            .scale = o.reduction == Reduction::kPremulSum ? o.scale : 1};
  p.give_up = Clock::now() + (o.timeout == Duration::zero() ? settings_.timeout : o.timeout);
  if (!table) {
    p.stream = {group_, kMessages | o.tag};
    const Range all{0, o.buffer.count};
    p.work = {{0, all.end, static_cast<std::byte*>(o.kind == Kind::kSend ? const_cast<void*>(o.buffer.input) : o.buffer.output)}};
    if (o.kind == Kind::kSend) p.steps = {{Action::kSend, o.peer, all}};
    return;
  }
  p.stream = {group_, ++sequence_};
  p.steps = steps_for(o, algorithm);
  lay_out(p);
  p.operation.send_counts = {}, p.operation.receive_counts = {};
  if (size() == 1) return;
  p.announced = false;
  wire::Bytes announcement(kCallBytes);
  std::memcpy(announcement.data(), &p.call, sizeof p.call);
  peers_->send(members_[(rank_ + 1) % size()], {group_, kAnnouncements | p.stream.sequence}, o.priority, std::move(announcement));
}

std::vector<Step> TcpCommunicator::steps_for(const Operation& o, Algorithm algorithm) {
  if (!o.send_counts.empty()) return exchange_steps(rank_, o.send_counts, o.receive_counts);
  const int root = has_root(o.kind) ? o.peer : 0;
  const auto [entry, fresh] = tables_.try_emplace({algorithm, o.kind, o.buffer.count, root});
  if (!fresh) return entry->second;
  std::vector<Step> steps = make_table(algorithm, o.kind, o.buffer.count, root, choice_.hosts())[static_cast<std::size_t>(rank_)];
  entry->second = steps;
  if (tables_.size() > 256) tables_.clear();
  return steps;
}

// Fills the work vector as step.h says. Where only a part of it exists on this rank, the rest has no memory, and no step touches it.
void TcpCommunicator::lay_out(Pending& p) {
  const Operation& o = p.operation;
  const std::size_t element = size_of(o.type), n = o.buffer.count, all = n * members_.size(), own = n * static_cast<std::size_t>(rank_);
  auto* in = static_cast<std::byte*>(const_cast<void*>(o.buffer.input));
  auto* out = static_cast<std::byte*>(o.buffer.output);
  const bool root = o.peer == rank_;
  const auto in_scratch = [&](std::size_t count) {
    p.scratch.resize(count * element);
    copy_bytes(p.scratch.data(), in, p.scratch.size());
    p.work = {{0, count, p.scratch.data()}};
  };
  switch (o.kind) {
    case Kind::kBarrier:
      p.scratch.resize(16);
      p.work = {{0, 1, p.scratch.data()}};
      return;
    case Kind::kReduce:
      if (!root) return in_scratch(n);
      [[fallthrough]];
    case Kind::kAllReduce:
      copy_bytes(out, in, n * element);
      p.work = {{0, n, out}};
      return;
    case Kind::kBroadcast:
      if (root) copy_bytes(out, in, n * element);
      p.work = {{0, n, out}};
      return;
    case Kind::kReduceScatter:
      return in_scratch(all);
    case Kind::kGather:
      if (!root) {
        p.work = {{own, own + n, in}};
        return;
      }
      [[fallthrough]];
    case Kind::kAllGather:
      copy_bytes(out + own * element, in, n * element);
      p.work = {{0, all, out}};
      return;
    case Kind::kScatter:
      if (root) copy_bytes(out, in + own * element, n * element);
      p.work = {root ? Segment{0, all, in} : Segment{own, own + n, out}};
      return;
    default:
      break;
  }
  // all_to_all
  const std::vector<std::size_t> equal(members_.size(), n);
  const std::span<const std::size_t> send = o.send_counts.empty() ? equal : o.send_counts, receive = o.send_counts.empty() ? equal : o.receive_counts;
  const auto sum = [](std::span<const std::size_t> counts, std::size_t until) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(until), std::size_t{0});
  };
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t sent = sum(send, send.size()), received = sum(receive, receive.size());
  copy_bytes(out + sum(receive, me) * element, in + sum(send, me) * element, send[me] * element);
  p.work = {{0, sent, in}, {sent, sent + received, out}};
}

std::byte* TcpCommunicator::at(const Pending& p, Range range) const {
  for (const Segment& s : p.work)
    if (s.begin <= range.begin && range.end <= s.end) return s.data + (range.begin - s.begin) * size_of(p.operation.type);
  throw error_in(p, ErrorKind::kInternal, fmt::format("a step touches [{}, {}), which has no memory here", range.begin, range.end));
}

bool TcpCommunicator::advance(Pending& p) {
  if (p.operation.kind == Kind::kReceive) return receive_message(p);
  if (!p.announced) {
    const int previous = (rank_ + size() - 1) % size();
    if (const auto message = peers_->take(members_[previous], {group_, kAnnouncements | p.stream.sequence})) {
      compare(p, *message, previous);
      p.announced = true;
    }
  }
  const std::size_t element = size_of(p.operation.type);
  for (; p.at < p.steps.size(); ++p.at) {
    const Step& step = p.steps[p.at];
    if (step.range.size() == 0) continue;
    if (step.action == Action::kSend) {
      wire::Bytes message(kCallBytes + step.range.size() * element);
      std::memcpy(message.data(), &p.call, sizeof p.call);
      copy_bytes(message.data() + kCallBytes, at(p, step.range), step.range.size() * element);
      peers_->send(members_[step.peer], p.stream, p.operation.priority, std::move(message));
    } else if (step.action == Action::kFold) {
      fold_held(p, step);
    } else if (!receive(p, step)) {
      return false;
    }
  }
  if (!p.announced) return false;
  if (p.operation.kind == Kind::kReduceScatter) {
    const std::size_t n = p.operation.buffer.count;
    copy_bytes(p.operation.buffer.output, p.scratch.data() + static_cast<std::size_t>(rank_) * n * element, n * element);
  }
  return true;
}

bool TcpCommunicator::receive(Pending& p, const Step& step) {
  auto message = peers_->take(members_[step.peer], p.stream);
  if (!message) return false;
  compare(p, *message, step.peer);
  const std::size_t bytes = step.range.size() * size_of(p.operation.type);
  if (message->size() != kCallBytes + bytes)
    throw error_in(p, ErrorKind::kMismatch,
                   fmt::format("rank {} sends {} bytes where rank {} expects {}", step.peer, message->size() - kCallBytes, rank_, bytes))
        .from(step.peer);
  std::byte* mine = at(p, step.range);
  if (step.action == Action::kHold) {
    p.held[step.peer] = std::move(*message);
  } else if (step.action == Action::kReceiveCopy) {
    copy_bytes(mine, message->data() + kCallBytes, bytes);
  } else {
    const void* sources[2] = {mine, message->data() + kCallBytes};
    if (step.peer < rank_) std::swap(sources[0], sources[1]);
    void* target = mine;
    const Operation& o = p.operation;
    if (o.kind == Kind::kBarrier) return true;
    fold(o.type, o.reduction, sources, 2, &target, 1, step.range.size(), o.scale);
  }
  return true;
}

void TcpCommunicator::fold_held(Pending& p, const Step& step) {
  std::vector<const void*> sources;
  void* mine = at(p, step.range);
  bool placed = false;
  for (const auto& [peer, message] : p.held) {
    if (peer > rank_ && !std::exchange(placed, true)) sources.push_back(mine);
    sources.push_back(message.data() + kCallBytes);
  }
  if (!placed) sources.push_back(mine);
  if (p.operation.kind != Kind::kBarrier)
    fold(p.operation.type, p.operation.reduction, sources.data(), static_cast<int>(sources.size()), &mine, 1, step.range.size(), p.operation.scale);
  p.held.clear();
}

bool TcpCommunicator::receive_message(Pending& p) {
  const Operation& o = p.operation;
  for (int peer = o.peer < 0 ? 0 : o.peer; peer < (o.peer < 0 ? size() : o.peer + 1); ++peer)
    if (peer != rank_)
      if (const auto message = peers_->take(members_[peer], p.stream)) {
        compare(p, *message, peer);
        const std::size_t bytes = o.buffer.count * size_of(o.type);
        if (bytes == 0) return true;
        if (message->size() != kCallBytes + bytes) throw error_in(p, ErrorKind::kMismatch, "a message has another size than it says").from(peer);
        copy_bytes(o.buffer.output, message->data() + kCallBytes, bytes);
        return true;
      }
  return o.buffer.count == 0;  // nothing is sent for nothing
}

void TcpCommunicator::compare(const Pending& p, const wire::Bytes& message, int from) const {
  if (message.size() < kCallBytes) throw error_in(p, ErrorKind::kMismatch, "a message too short to name its call").from(from);
  Call theirs;
  std::memcpy(&theirs, message.data(), sizeof theirs);
  if (theirs == p.call) return;
  throw error_in(p, ErrorKind::kMismatch,
                 fmt::format("ranks call different operations: rank {} calls {}, rank {} calls {}", rank_, describe(p.call), from, describe(theirs)))
      .from(from)
      .hint("every rank must make the same calls in the same order");
}

std::string TcpCommunicator::describe(const Call& call) const {
  if (call.type > static_cast<std::uint8_t>(ElementType::kC128)) return "what is no call";  // bytes from outside may be anything
  std::string text = name(static_cast<Kind>(call.kind));
  if (reduces(static_cast<Kind>(call.kind))) text += fmt::format(" by {}", name(static_cast<Reduction>(call.reduction)));
  text += call.count == ~std::uint64_t{0} ? fmt::format(" of {} with per-rank counts", name(static_cast<ElementType>(call.type)))
                                          : fmt::format(" of {} x {}", call.count, name(static_cast<ElementType>(call.type)));
  if (call.peer >= 0) text += fmt::format(" with root {}", call.peer);
  return text + fmt::format(" ({})", name(static_cast<Algorithm>(call.algorithm)));
}

Error TcpCommunicator::error_in(const Pending& p, ErrorKind kind, std::string what) const {
  return Error(kind, name(p.operation.kind), std::move(what)).at(rank_, size()).in(p.handle);
}

void TcpCommunicator::advance_all() {
  try {
    for (auto it = in_flight_.begin(); it != in_flight_.end();) it = advance(*it) ? in_flight_.erase(it) : std::next(it);
  } catch (const Error& error) {
    peers_->abort(error);
    peers_->check();  // the first cause, which may be another
  }
}

bool TcpCommunicator::complete(Handle handle) const {
  return std::none_of(in_flight_.begin(), in_flight_.end(), [&](const Pending& p) { return p.handle == handle; });
}

int TcpCommunicator::awaited(const Pending& p) const {
  if (p.at < p.steps.size()) return p.steps[p.at].peer;
  return p.operation.kind == Kind::kReceive ? p.operation.peer : (rank_ + size() - 1) % size();
}

// `seen`: the events before the inbox was looked into. What has happened since may be what is awaited; its sender may have left after it.
void TcpCommunicator::check_times(Handle handle, Deadline deadline, std::uint64_t seen) {
  if (seen != peers_->events()) return;
  for (const Pending& p : in_flight_) {
    const int peer = awaited(p);
    const bool late = Clock::now() >= p.give_up || (p.handle == handle && deadline.passed());
    const bool left = peer >= 0 && peers_->gone(members_[peer]) && seen == peers_->events();
    if (!late && !left) continue;
    Error error = error_in(p, left ? ErrorKind::kPeerLost : ErrorKind::kTimeout,
                           left ? fmt::format("rank {} has left", peer) : fmt::format("{} did not complete in time", describe(p.call)))
                      .awaiting(peer < 0 ? "any rank" : fmt::format("rank {}", peer));
    peers_->abort(peer < 0 ? error : error.from(peer));
    peers_->check();
  }
}

bool TcpCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  const auto seen = peers_->events();
  peers_->check();
  advance_all();
  check_times(0, Deadline::never(), seen);
  return complete(handle);
}

void TcpCommunicator::wait(Handle handle, Deadline deadline) {
  SHOAL_CHECK(handle <= started_, "operation #{} was never started; #{} was the last", handle, started_);
  while (!complete(handle)) {
    const auto seen = peers_->events();
    peers_->check();
    advance_all();
    if (complete(handle)) return;
    check_times(handle, deadline, seen);
    peers_->wait_for_event(seen, std::min<Duration>(deadline.left(), std::chrono::milliseconds(100)));
  }
}

void TcpCommunicator::poll(Duration budget) {
  const Deadline end = Deadline::in(budget);
  do {
    const auto seen = peers_->events();
    peers_->check();
    advance_all();
    check_times(0, Deadline::never(), seen);
    if (in_flight_.empty()) return;
    peers_->wait_for_event(seen, std::min<Duration>(end.left(), std::chrono::milliseconds(1)));
  } while (!end.passed());
}

std::unique_ptr<Communicator> TcpCommunicator::split(int color, int key) {
  const std::int32_t own[2] = {color, key};
  std::vector<std::int32_t> all(2 * members_.size());
  run({.kind = Kind::kAllGather, .type = ElementType::kI32, .buffer = {own, all.data(), 2}}, Deadline::in(settings_.timeout));
  if (color < 0) return nullptr;
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r)
    if (all[2 * r] == color) chosen.push_back(r);
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
  const int rank = static_cast<int>(std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin());
  for (int& r : chosen) r = members_[r];
  const std::uint64_t group = mix(mix(group_ ^ mix(sequence_)) ^ static_cast<std::uint64_t>(color)) | 2;  // neither 0 nor 1
  return std::unique_ptr<Communicator>(new TcpCommunicator(peers_, settings_, std::move(chosen), rank, group));
}

void TcpCommunicator::abort(const Error& cause) { peers_->abort(cause); }

}  // namespace shoal::collective
