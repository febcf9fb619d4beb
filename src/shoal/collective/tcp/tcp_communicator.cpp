#include "shoal/collective/tcp/tcp_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"
#include "shoal/collective/algorithm/direct.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/operation_check.h"

namespace shoal::collective {
namespace {

/// A report waits so long for the answers of the other ranks.
constexpr Duration kReportLimit = std::chrono::seconds(1);
/// Messages between two ranks travel on streams of their own: this bit and the tag.
constexpr std::uint64_t kMessages = std::uint64_t{1} << 63;

/// Over a long link the parts of a direct all-reduce travel in up to so many segments of at least
/// so many bytes. Two would keep it busy while the first one is summed; with more of them less is
/// left to be sent when the last one has come.
constexpr int kMostSegments = 8;
constexpr std::size_t kLeastSegmentBytes = 512 << 10;

std::vector<int> all_ranks(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> hosts_of(const std::vector<int>& hosts, const std::vector<int>& members) {
  std::vector<int> own(members.size(), 0);
  if (hosts.empty()) return own;
  for (std::size_t i = 0; i < members.size(); ++i)
    own[i] = hosts.at(static_cast<std::size_t>(members[i]));
  return own;
}

std::shared_ptr<const Route> route_of(const std::shared_ptr<const LinkMatrix>& links,
                                      const std::vector<int>& members) {
  if (!links) return nullptr;
  auto route = route_over(links->of(members));
  return route ? std::make_shared<const Route>(*std::move(route)) : nullptr;
}

}  // namespace

TcpCommunicator::TcpCommunicator(std::shared_ptr<wire::Transport> peers, Options options)
    : TcpCommunicator(peers, std::move(options), all_ranks(peers->size()), peers->rank(), 1) {}

TcpCommunicator::TcpCommunicator(std::shared_ptr<wire::Transport> peers, Options options,
                                 std::vector<int> ranks, int rank, std::uint64_t group)
    : peers_(std::move(peers)),
      options_(std::move(options)),
      members_{.peers = peers_,
               .ranks = std::move(ranks),
               .rank = rank,
               .most_held_bytes = options_.most_held_bytes},
      group_(group),
      choice_(hosts_of(options_.hosts, members_.ranks), options_.model, options_.algorithms,
              route_of(options_.links, members_.ranks)),
      place_(options_.progress, *this) {
  if (!options_.hosts.empty()) members_.hosts = choice_.hosts();
  const RingPlace place(size(), rank, choice_.order());
  members_.next = place.next();
  members_.previous = place.previous();
  if (options_.flight) {
    options_.flight->add(
        fmt::format("tcp-{:x}", group_), members_.ranks,
        [recorder = recorder_, rank = peers_->rank()] { return recorder->entries(rank); });
  }
  // Any thread may answer a question while this object is being destroyed: the callback shares the
  // recorder and touches nothing else.
  peers_->answer_for(group_, [recorder = recorder_] { return recorder->standing().pack(); });
}

std::unique_ptr<TcpCommunicator> TcpCommunicator::of_members(std::shared_ptr<wire::Transport> peers,
                                                             Options options,
                                                             std::vector<int> members,
                                                             std::uint64_t group) {
  const auto own = std::find(members.begin(), members.end(), peers->rank());
  SHOAL_USER_CHECK(own != members.end(), "group", "rank {} is not one of the group's {} members",
                   peers->rank(), members.size());
  SHOAL_USER_CHECK(group > 1, "group", "group number {}: a new group needs one above 1", group);
  const int rank = static_cast<int>(own - members.begin());
  return std::unique_ptr<TcpCommunicator>(
      new TcpCommunicator(std::move(peers), std::move(options), std::move(members), rank, group));
}

TcpCommunicator::~TcpCommunicator() { peers_->answer_for(group_, nullptr); }

bool TcpCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const {
  return !reduces(kind) || supports_fold(type, reduction);
}

void TcpCommunicator::validate(const Operation& operation) const {
  check_operation(operation, rank(), size(), "TCP");
  if (operation.coding.codec == Codec::kNone) return;
  const auto fixed = choice_.fixed(operation.kind);
  SHOAL_USER_CHECK(!fixed || *fixed == Algorithm::kDirect, name(operation.kind),
                   "values in {} travel by the direct algorithm only, and {} is set: in another "
                   "one partial sums would be encoded again at every step",
                   name(operation.coding.codec), name(*fixed));
}

Handle TcpCommunicator::start(const Operation& operation) {
  // The first steps queue their messages before one flush writes them all.
  const Handle handle = enqueue_all(operation, false);
  advance_operations();
  peers_->flush();
  return handle;
}

Handle TcpCommunicator::start_between_hosts(const Operation& operation) {
  SHOAL_CHECK(!members_.hosts.empty() && !reduces(operation.kind), "{} between hosts only",
              name(operation.kind));
  const Handle handle = enqueue_all(operation, true);
  advance_all();
  return handle;
}

Handle TcpCommunicator::enqueue_all(const Operation& operation, bool between_hosts) {
  peers_->check();
  validate(operation);
  try {
    check_own_part(operation, rank(), size());
  } catch (const Error& error) {
    peers_->abort(error);
    peers_->check();
  }
  const Handle handle = ++started_;
  // Coalesced buffers are operations of their own under one handle, which is complete when all are.
  Operation part = operation;
  part.more = {};
  enqueue(part, handle, between_hosts);
  for (const Buffer& buffer : operation.more) {
    part.buffer = buffer;
    enqueue(part, handle, between_hosts);
  }
  return handle;
}

wire::Stream TcpCommunicator::stream_of_messages(std::uint32_t tag) const {
  return {group_, kMessages | tag};
}

void TcpCommunicator::enqueue(const Operation& o, Handle handle, bool between_hosts) {
  const std::size_t bytes = o.kind == Kind::kBarrier ? 1 : o.buffer.count * size_of(o.type);
  const bool message = point_to_point(o.kind);
  if (o.coding.codec != Codec::kNone) return enqueue_coded(o, handle);
  const bool once = must_fold_once(o) || (options_.in_rank_order && reduces(o.kind));
  const Algorithm algorithm = message ? Algorithm::kDirect : choice_(o.kind, bytes, once);
  const wire::Stream stream =
      message ? stream_of_messages(o.tag) : wire::Stream{group_, ++sequence_};
  // A list: operations stay where they are, and receives look through those before them.
  TcpOperation& p = in_flight_.emplace_back(members_, in_flight_, handle, o, algorithm, stream,
                                            steps_for(o, algorithm, between_hosts));
  // Every wait and poll checks this time for all operations, not only for the awaited one.
  p.give_up = Clock::now() + (o.timeout == Duration::zero() ? options_.timeout : o.timeout);
  if (!message) recorder_->enter(sequence_, p.call());
}

// Encodes the values at once, so its sends can begin; the steps depend on the sizes of the codec
// and are made each time.
void TcpCommunicator::enqueue_coded(const Operation& o, Handle handle) {
  auto exchange = std::make_unique<CodedExchange>(o, rank(), size());
  auto steps = std::make_shared<const std::vector<Step>>(exchange->steps());
  TcpOperation& p =
      in_flight_.emplace_back(members_, in_flight_, handle, o, Algorithm::kDirect,
                              wire::Stream{group_, ++sequence_}, steps, std::move(exchange));
  p.give_up = Clock::now() + (o.timeout == Duration::zero() ? options_.timeout : o.timeout);
  recorder_->enter(sequence_, p.call());
}

int TcpCommunicator::find_message(std::uint32_t tag) const {
  const wire::Stream stream = stream_of_messages(tag);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() ||
        !peers_->has_arrived(members_.ranks[static_cast<std::size_t>(peer)], stream))
      continue;
    const bool wanted = std::any_of(
        in_flight_.begin(), in_flight_.end(),
        [&](const TcpOperation& p) { return p.stream() == stream && p.wants_message_from(peer); });
    if (!wanted) return peer;
  }
  return -1;
}

std::vector<Step> TcpCommunicator::make_steps(const Operation& o, Algorithm algorithm,
                                              bool between_hosts, int segments) const {
  if (point_to_point(o.kind)) {
    return {{o.kind == Kind::kSend ? Action::kSend : Action::kReceiveCopy,
             o.peer,
             {0, o.buffer.count}}};
  }
  // This rank's steps are made alone: per-rank counts are known only for itself, and a table of all
  // ranks may have a number of steps that grows with their square.
  const auto own = static_cast<std::size_t>(rank());
  std::vector<Step> steps =
      !o.send_counts.empty()
          ? exchange_steps(rank(), o.send_counts, o.receive_counts)
          : make_column(algorithm, o.kind, o.buffer.count, has_root(o.kind) ? o.peer : 0,
                        choice_.hosts(), rank(), segments, choice_.order());
  const auto& hosts = choice_.hosts();
  if (between_hosts) {
    std::erase_if(steps, [&](const Step& step) {
      return hosts[static_cast<std::size_t>(step.peer)] == hosts[own];
    });
  }
  return steps;
}

// All ranks of a group must cut alike, and of two both know whether they are far apart. On a short
// link segments cost more than the pause that they fill: 5 % of 64 MiB on loopback.
int TcpCommunicator::segments_of(const Operation& o) const {
  if (o.kind != Kind::kAllReduce || size() != 2) return 1;
  if (peers_->rails(members_.ranks[static_cast<std::size_t>(1 - rank())]) < 2) return 1;
  const std::size_t part_bytes = o.buffer.count * size_of(o.type) / 2;
  return static_cast<int>(
      std::clamp<std::size_t>(part_bytes / kLeastSegmentBytes, 1, kMostSegments));
}

std::shared_ptr<const std::vector<Step>> TcpCommunicator::steps_for(const Operation& o,
                                                                    Algorithm algorithm,
                                                                    bool between_hosts) {
  const int segments = segments_of(o);
  const auto make = [&] {
    return std::make_shared<const std::vector<Step>>(
        make_steps(o, algorithm, between_hosts, segments));
  };
  if (point_to_point(o.kind) || !o.send_counts.empty()) return make();
  // A program that calls ever other sizes would fill memory with tables.
  if (tables_.size() > 256) tables_.clear();
  auto& steps = tables_[{algorithm, o.kind, o.buffer.count, has_root(o.kind) ? o.peer : 0,
                         between_hosts, segments}];
  if (!steps) steps = make();
  return steps;
}

// Every operation gets a chance, not only the awaited one: peers may wait for a message of any.
void TcpCommunicator::advance_operations() {
  try {
    for (auto it = in_flight_.begin(); it != in_flight_.end();) {
      if (!it->advance()) {
        ++it;
        continue;
      }
      // The source is kept before the operation goes: take_source is called after completion.
      if (!point_to_point(it->kind())) recorder_->leave(it->stream().sequence);
      if (it->receives_from_any()) sources_[it->handle()] = it->source();
      it = in_flight_.erase(it);
    }
  } catch (const Error& error) {
    // The error may be a consequence of another rank's: the first cause is thrown.
    peers_->abort(error);
    peers_->check();
  }
}

void TcpCommunicator::advance_all() {
  advance_operations();
  peers_->flush();
}

bool TcpCommunicator::complete(Handle handle) const {
  return std::none_of(in_flight_.begin(), in_flight_.end(),
                      [&](const TcpOperation& p) { return p.handle() == handle; });
}

// `seen` is the count of events before the inbox was looked into. An event since then may be the
// awaited message, whose sender may have left after it: no rank is blamed before it was looked at.
void TcpCommunicator::check_times(Handle handle, Deadline deadline, std::uint64_t seen) {
  if (seen != peers_->events()) return;
  const auto now = Clock::now();
  for (const TcpOperation& p : in_flight_) {
    const int peer = p.awaited() < 0 ? -1 : members_.ranks[static_cast<std::size_t>(p.awaited())];
    const bool late = now >= p.give_up || (p.handle() == handle && deadline.passed());
    // What a rank has sent before it left may wait here until its place in memory is free.
    const bool left = peer >= 0 && peers_->gone(peer) && !peers_->has_arrived(peer, p.stream()) &&
                      seen == peers_->events();
    if (!late && !left) continue;
    int blamed = peer;
    const std::string what =
        left ? fmt::format("rank {} has left", peer)
             : fmt::format("{} did not complete in time; {}", p.text(), report(blamed));
    Error error = p.error(left ? ErrorKind::kPeerLost : ErrorKind::kTimeout, what);
    error.awaiting(peer < 0 ? "any rank" : fmt::format("rank {}", peer));
    if (blamed >= 0) error.from(blamed);
    peers_->abort(error);
    peers_->check();
  }
}

std::string TcpCommunicator::report() const {
  int blamed = -1;
  return report(blamed);
}

// A process that is stopped does not answer. The rank for which this one waits may answer, and wait
// for it too.
std::string TcpCommunicator::report(int& blamed) const {
  const auto waiting =
      std::find_if(in_flight_.begin(), in_flight_.end(),
                   [](const TcpOperation& p) { return !point_to_point(p.kind()); });
  const std::uint64_t sequence =
      waiting == in_flight_.end() ? sequence_ : waiting->stream().sequence;
  // The peers' transports answer, also while their callers compute or wait.
  const auto answers = peers_->ask(group_, kReportLimit);
  const auto is_silent = [&](int rank) {
    return rank >= 0 && rank != peers_->rank() && !answers[static_cast<std::size_t>(rank)];
  };
  const auto silent = std::find_if(members_.ranks.begin(), members_.ranks.end(), is_silent);
  if (!is_silent(blamed) && silent != members_.ranks.end()) blamed = *silent;
  std::string text;
  for (const int rank : members_.ranks) {
    if (rank == peers_->rank()) continue;
    const auto& answer = answers[static_cast<std::size_t>(rank)];
    const auto standing = answer ? Standing::unpack(*answer) : std::nullopt;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", rank,
                        standing ? standing->against(sequence) : "does not answer");
  }
  return text;
}

int TcpCommunicator::take_source(Handle handle) {
  const auto found = sources_.extract(handle);
  return found ? found.mapped() : -1;
}

// The order in every wait: count events, look for failures, advance, and only then wait for more
// events than were counted. An event in between ends the wait at once.
bool TcpCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  peers_->wait_for_event(peers_->events(), Duration::zero());
  const auto seen = peers_->events();
  peers_->check();
  advance_all();
  check_times(0, Deadline::never(), seen);
  if (complete(handle)) return true;
  place_.advance_others();
  return complete(handle);
}

void TcpCommunicator::look_for_failure() {
  peers_->wait_for_event(peers_->events(), Duration::zero());
  peers_->check();
}

void TcpCommunicator::wait(Handle handle, Deadline deadline) {
  SHOAL_CHECK(handle <= started_, "operation #{} was never started; #{} was the last", handle,
              started_);
  while (!complete(handle)) {
    const auto seen = peers_->events();
    peers_->check();
    advance_all();
    if (complete(handle)) return;
    check_times(handle, deadline, seen);
    place_.advance_others();
    const Duration longest = place_.longest_sleep(std::chrono::milliseconds(100));
    peers_->wait_for_event(seen, std::min<Duration>(deadline.left(), longest));
  }
}

bool TcpCommunicator::wait_briefly(Handle handle, Duration longest) {
  const Deadline end = Deadline::in(longest);
  while (!complete(handle)) {
    const auto seen = peers_->events();
    peers_->check();
    advance_all();
    if (complete(handle)) return true;
    check_times(0, Deadline::never(), seen);
    if (end.passed()) return false;
    place_.advance_others();
    peers_->wait_for_event(seen, place_.longest_sleep(end.left()));
  }
  return true;
}

void TcpCommunicator::poll(Duration budget) {
  const Deadline end = Deadline::in(budget);
  // Bytes are moved before the inbox is looked into, so a poll of zero makes progress too.
  do {
    peers_->wait_for_event(peers_->events(),
                           std::min<Duration>(end.left(), std::chrono::milliseconds(1)));
    const auto seen = peers_->events();
    peers_->check();
    advance_all();
    check_times(0, Deadline::never(), seen);
  } while (!in_flight_.empty() && !end.passed());
}

std::unique_ptr<Communicator> TcpCommunicator::split(int color, int key) {
  const std::int32_t own[2] = {color, key};
  std::vector<std::int32_t> all(2 * members_.ranks.size());
  run({.kind = Kind::kAllGather, .type = ElementType::kI32, .buffer = {own, all.data(), 2}},
      Deadline::in(options_.timeout));
  if (color < 0) return nullptr;
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r)
    if (all[2 * r] == color) chosen.push_back(r);
  // Equal keys keep the order of the ranks here, as in MPI_Comm_split.
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
  const int rank =
      static_cast<int>(std::find(chosen.begin(), chosen.end(), members_.rank) - chosen.begin());
  for (int& r : chosen) r = members_.ranks[r];
  // All members have made the same calls, so they compute the same number without another message.
  // 0 belongs to the transport and 1 to the world.
  const std::uint64_t group =
      splitmix64(splitmix64(group_ ^ splitmix64(sequence_)) ^ static_cast<std::uint64_t>(color)) |
      2;
  return std::unique_ptr<Communicator>(
      new TcpCommunicator(peers_, options_, std::move(chosen), rank, group));
}

std::uint64_t TcpCommunicator::bytes_between_hosts_of_all() const {
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < members_.hosts.size(); ++r) {
    if (members_.hosts[r] != members_.hosts[static_cast<std::size_t>(members_.rank)])
      bytes += peers_->bytes_sent(members_.ranks[r]);
  }
  return bytes;
}

void TcpCommunicator::abort(const Error& cause) { peers_->abort(cause); }

}  // namespace shoal::collective
