#include "shoal/collective/host_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/tick_clock.h"
#include "shoal/collective/contribution.h"
#include "shoal/collective/fold.h"
#include "shoal/collective/stream_copy.h"

namespace shoal::collective {
namespace {

/// Does a rank write its result over what others still read? It does not where the result takes the place of its own part, or of nothing.
bool overwrites(const Operation& operation, const Buffer& buffer, std::size_t bytes, std::size_t bytes_in, std::size_t bytes_out, int rank) {
  const auto *input = static_cast<const std::byte*>(buffer.input), *output = static_cast<const std::byte*>(buffer.output);
  const std::size_t before = static_cast<std::size_t>(rank) * bytes;
  switch (operation.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
      if (input == output + before) return false;
      break;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if (output == input + before) return false;
      break;
    default:
      return false;
  }
  return std::less<>()(input, output + bytes_out) && std::less<>()(output, input + bytes_in);
}

std::string describe(const Descriptor& d) {
  std::string text = fmt::format("{} of {} x {}", name(d.kind), d.count, name(d.type));
  if (reduces(d.kind)) text += fmt::format(" by {}", name(d.reduction));
  if (has_root(d.kind)) text += fmt::format(" with root {}", d.peer);
  if (d.buffers > 1) text += fmt::format(" in {} tensors", d.buffers);
  if (d.tag > 0) text += fmt::format(" with label {}", d.tag);
  return text;
}

/// What all ranks of a group have announced last. They go on meanwhile: an entry that has made room for another is left out.
std::vector<FlightEntry> remembered(const HostBlock& block, const std::vector<int>& names, const TickClock& clock) {
  std::vector<FlightEntry> entries;
  for (int r = 0; r < static_cast<int>(names.size()); ++r) {
    const std::uint64_t last = block.announced(r), finished = block.line(r).finished.load();
    // Not to `last` itself: what a rank says of itself may be any number.
    for (std::uint64_t i = 0, first = last > kSlots - 2 ? last - (kSlots - 2) + 1 : 1; i < kSlots - 2 && first + i <= last; ++i) {
      const std::uint64_t s = first + i;
      const Descriptor& d = block.descriptor(r, s);
      if (d.sequence.load(std::memory_order_acquire) != s) continue;
      // A rank that has finished its part and waits for the others has noted no time: none is told.
      const std::int64_t noted = d.finished.load(std::memory_order_relaxed);
      const std::int64_t ended = noted != 0 ? noted : s <= finished ? d.started : 0;
      FlightEntry entry{names[static_cast<std::size_t>(r)], s, describe(d), clock.time_at(d.started), {}};
      if (ended != 0) entry.ended = clock.time_at(ended);
      if (d.sequence.load(std::memory_order_acquire) == s) entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings)
    : HostCommunicator(
          world, settings, HostBlock(world->at(HostWorld::first_block(), HostBlock::bytes(world->size())), world->size()),
          [&] {
            std::vector<int> all(static_cast<std::size_t>(world->size()));
            for (int r = 0; r < world->size(); ++r) all[r] = r;
            return all;
          }(),
          world->rank()) {}

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings, HostBlock block, std::vector<int> members, int rank)
    : world_(std::move(world)),
      settings_(settings),
      block_(block),
      members_(std::move(members)),
      rank_(rank),
      patience_(wire::Patience::for_ranks(world_->size())),
      mailbox_(block_.mailbox(), static_cast<int>(members_.size()), rank_, world_->memory(), block_.lot()),
      sources_(members_.size()),
      targets_(members_.size()),
      offered_(members_.size()) {
  if (settings_.flight) keep_in(*settings_.flight);
}

std::unique_ptr<HostCommunicator> HostCommunicator::on_block(std::shared_ptr<HostWorld> world, const Settings& settings, std::size_t control_offset,
                                                             std::vector<int> members) {
  const int ranks = static_cast<int>(members.size());
  const auto own = std::find(members.begin(), members.end(), world->rank());
  SHOAL_USER_CHECK(own != members.end(), "group", "rank {} is not one of the group's {} members", world->rank(), ranks);
  const int rank = static_cast<int>(own - members.begin());
  const HostBlock block(world->at(control_offset, HostBlock::bytes(ranks)), ranks);
  return std::unique_ptr<HostCommunicator>(new HostCommunicator(std::move(world), settings, block, std::move(members), rank));
}

bool HostCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const { return !reduces(kind) || supports_fold(type, reduction); }

// By one rank's whole contribution, which is as large on every rank.
bool HostCommunicator::travels_inline(Kind kind, std::size_t bytes, int ranks) {
  return bytes * (for_each_rank(kind) ? static_cast<std::size_t>(ranks) : 1) <= kPayloadBytes;
}

void HostCommunicator::validate(const Operation& operation) const {
  const char* what = name(operation.kind);
  SHOAL_USER_CHECK(supports(operation.kind, operation.type, operation.reduction), what, "shared memory has no {} of {} by {}", what,
                   name(operation.type), name(operation.reduction));
  if (has_root(operation.kind))
    SHOAL_USER_CHECK(operation.peer >= 0 && operation.peer < size(), what, "root {} is not one of {} ranks", operation.peer, size());
  SHOAL_USER_CHECK(operation.memory == MemoryKind::kHost, what, "shared memory carries host memory only");
  SHOAL_USER_CHECK(!operation.shared_output, what, "one output a host is of groups that lie on several");
  const auto counts = static_cast<std::size_t>(size());
  SHOAL_USER_CHECK((operation.send_counts.empty() && operation.receive_counts.empty()) ||
                       (operation.kind == Kind::kAllToAll && operation.send_counts.size() == counts && operation.receive_counts.size() == counts),
                   what, "per-rank counts: {} to send, {} to receive, for {} ranks", operation.send_counts.size(), operation.receive_counts.size(),
                   counts);
  const bool in_place_exchange = operation.kind == Kind::kAllToAll && operation.buffer.count > 0 && operation.buffer.input == operation.buffer.output;
  SHOAL_USER_CHECK(!in_place_exchange, what, "input and output must be two buffers");
}

Handle HostCommunicator::start(const Operation& operation) {
  if (failure_) std::rethrow_exception(failure_);
  if (world_->ended()) refuse();
  validate(operation);
  if (point_to_point(operation.kind)) return start_message(operation);
  const bool together = operation.kind == Kind::kAllReduce;
  if (operation.more.empty()) return enqueue(operation);
  // Only all_reduce treats several buffers as one; a list holds so many.
  std::vector<Buffer> all{operation.buffer};
  all.insert(all.end(), operation.more.begin(), operation.more.end());
  const std::size_t step = together ? kListEntries : 1;
  Handle last = 0;
  for (std::size_t i = 0; i < all.size(); i += step) {
    Operation part = operation;
    part.buffer = all[i];
    part.more = std::span(all).subspan(i + 1, std::min(step, all.size() - i) - 1);
    last = enqueue(part);
  }
  return last;
}

// Nothing begins after an abort, even where all ranks are there to complete it.
void HostCommunicator::refuse() {
  try {
    world_->check();
  } catch (const Error&) {
    failure_ = std::current_exception();
    throw;
  }
}

Handle HostCommunicator::start_message(const Operation& operation) {
  SHOAL_USER_CHECK(operation.more.empty(), name(operation.kind), "a message is one buffer, not {}", operation.more.size() + 1);
  Operation message = operation;
  if (message.timeout == Duration::zero()) message.timeout = settings_.timeout;
  try {
    return kMessage + mailbox_.start(message);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage) throw;
    fail(error);
  }
}

Handle HostCommunicator::enqueue(const Operation& operation) {
  if (started_ - completed_ == kSlots) wait(completed_ + 1);
  Pending& p = pending(++started_);
  p.operation = operation;
  p.buffers.assign(1, operation.buffer);
  p.buffers.insert(p.buffers.end(), operation.more.begin(), operation.more.end());
  p.send_counts.assign(operation.send_counts.begin(), operation.send_counts.end());
  p.receive_counts.assign(operation.receive_counts.begin(), operation.receive_counts.end());
  p.operation.more = {}, p.operation.send_counts = {}, p.operation.receive_counts = {};
  if (p.operation.timeout == Duration::zero()) p.operation.timeout = settings_.timeout;
  p.small = p.send_counts.empty() && travels_inline(operation.kind, total_count(p.buffers) * size_of(operation.type), size());
  p.awaited = awaited(p);
  p.way = Way::kUndecided, p.chunk = 0, p.progress = Chunk::kNothing;
  try {
    advance();
  } catch (const Error& error) {
    fail(error);
  }
  return started_;
}

void HostCommunicator::advance() {
  if (!mailbox_.idle()) mailbox_.advance();
  while (published_ < started_ && may_publish(published_ + 1)) publish(++published_);
  while (executed_ < published_ && execute(executed_ + 1)) ++executed_;
  while (settled_ < executed_ && settle(settled_ + 1)) ++settled_;
  // Only the direct way has others touch this rank's buffers.
  while (completed_ < executed_ && (pending(completed_ + 1).way != Way::kDirect || (completed_ < settled_ && all_finished(completed_ + 1))))
    block_.descriptor(rank_, ++completed_).finished.store(TickClock::now(), std::memory_order_relaxed);
}

bool HostCommunicator::may_publish(std::uint64_t sequence) {
  const Pending& p = pending(sequence);
  const bool list = p.buffers.size() > 1 || !p.send_counts.empty();
  const std::uint64_t depth = list ? kLists : p.small ? kPayloads : kSlots;
  if (sequence <= freed_ + depth) return true;
  freed_ = ~std::uint64_t{0};
  for (int r = 0; r < size(); ++r) freed_ = std::min(freed_, block_.line(r).finished.load(std::memory_order_acquire));
  return sequence <= freed_ + depth;
}

void HostCommunicator::publish(std::uint64_t sequence) {
  const Pending& p = pending(sequence);
  const Operation& o = p.operation;
  Descriptor& d = block_.descriptor(rank_, sequence);
  const std::size_t element = size_of(o.type), parts = static_cast<std::size_t>(size());
  const auto bytes_in = [&](std::size_t count) { return count * element * (for_each_rank(o.kind) ? parts : 1); };
  const auto bytes_out = [&](std::size_t count) { return result_bytes(o.kind, count * element, size()); };
  d.kind = o.kind, d.type = o.type, d.reduction = o.reduction, d.visible = true;
  d.peer = o.peer, d.buffers = static_cast<std::uint32_t>(p.buffers.size()), d.tag = o.tag;
  d.count = total_count(p.buffers), d.scale = o.scale;
  d.input = {}, d.output = {}, d.started = TickClock::now();
  d.finished.store(0, std::memory_order_relaxed);
  const auto place = [&](const Buffer& buffer, Location& input, Location& output) {
    if (buffer.count == 0) return;
    const bool reads = o.kind != Kind::kScatter || o.peer == rank_, writes = (o.kind != Kind::kReduce && o.kind != Kind::kGather) || o.peer == rank_;
    if (reads) input = world_->memory().locate(buffer.input, bytes_in(buffer.count));
    if (writes) output = world_->memory().locate(buffer.output, bytes_out(buffer.count));
    d.visible = d.visible && (!reads || input.visible()) && (!writes || output.visible());
    if (reads && writes && overwrites(o, buffer, buffer.count * element, bytes_in(buffer.count), bytes_out(buffer.count), rank_)) d.visible = false;
  };
  if (!p.send_counts.empty()) {
    d.visible = false;  // parts of different sizes always go through staging
    d.buffers = 0;
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t r = 0; r < p.send_counts.size(); ++r) list[r] = {{}, {}, p.send_counts[r]};
  } else if (p.buffers.size() > 1) {
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t i = 0; i < p.buffers.size(); ++i) {
      list[i] = {{}, {}, p.buffers[i].count};
      place(p.buffers[i], list[i].input, list[i].output);
    }
  } else if (!p.small) {
    place(p.buffers.front(), d.input, d.output);
  }
  if (p.small) {
    const Call call{o, p.buffers, p.send_counts, p.receive_counts, rank_, size()};
    offer(call, 0, d.count, block_.payload(rank_, sequence, payload_bytes(d)));
  }
  d.sequence.exchange(sequence);
  wire::wake(block_.lot());
}

bool HostCommunicator::all_published(std::uint64_t sequence) const {
  for (int r = 0; r < size(); ++r)
    if (!published(r, sequence)) return false;
  return true;
}

bool HostCommunicator::all_finished(std::uint64_t sequence) const {
  for (int r = 0; r < size(); ++r)
    if (block_.line(r).finished.load(std::memory_order_acquire) < sequence) return false;
  return true;
}

// Of a small broadcast or scatter a rank needs the root's announcement only, of a small reduce or gather only the root needs any.
HostCommunicator::Awaited HostCommunicator::awaited(const Pending& p) const {
  const Kind kind = p.operation.kind;
  if (!p.small || !has_root(kind)) return Awaited::kAll;
  const bool root = p.operation.peer == rank_, gives = kind == Kind::kBroadcast || kind == Kind::kScatter;
  if (gives) return root ? Awaited::kNobody : Awaited::kRoot;
  return root ? Awaited::kAll : Awaited::kNobody;
}

bool HostCommunicator::execute(std::uint64_t sequence) {
  Pending& p = pending(sequence);
  if (p.way == Way::kUndecided) {
    switch (p.awaited) {
      case Awaited::kNobody:
        p.way = Way::kInline;
        break;
      case Awaited::kRoot:
        if (!published(p.operation.peer, sequence)) return false;
        compare(sequence, p.operation.peer);
        p.way = Way::kInline;
        break;
      case Awaited::kAll:
        if (!all_published(sequence)) {
          offer_early(sequence, p);
          return false;
        }
        for (int r = 0; r < size(); ++r) compare(sequence, r);
        p.way = choose(sequence, p);
    }
  }
  switch (p.way) {
    case Way::kInline:
      run_inline(sequence, p);
      break;
    case Way::kDirect:
      run_direct(sequence, p);
      break;
    default:
      if (!run_staged(sequence, p)) return false;
  }
  return true;
}

// What was carried out before all had announced it is compared with the rest when they have: their descriptors stay until this rank has finished.
bool HostCommunicator::settle(std::uint64_t sequence) {
  if (pending(sequence).awaited != Awaited::kAll) {
    if (!all_published(sequence)) return false;
    for (int r = 0; r < size(); ++r) compare(sequence, r);
  }
  block_.line(rank_).finished.exchange(sequence);
  wire::wake(block_.lot());
  return true;
}

// Every rank compares every other with itself, so that all see a disagreement, whoever is the odd one out.
void HostCommunicator::compare(std::uint64_t sequence, int r) const {
  const Descriptor &mine = descriptor(rank_, sequence), &theirs = descriptor(r, sequence);
  const bool same = theirs.sequence.load(std::memory_order_relaxed) == sequence && theirs.kind == mine.kind && theirs.type == mine.type &&
                    theirs.reduction == mine.reduction && theirs.peer == mine.peer && theirs.tag == mine.tag && theirs.scale == mine.scale &&
                    theirs.buffers == mine.buffers && (mine.buffers == 0 || theirs.count == mine.count);
  if (!same)
    throw error_at(ErrorKind::kMismatch, sequence,
                   fmt::format("ranks call different collectives: rank {} calls {}, rank {} calls {}", rank_, describe_call(rank_, sequence), r,
                               describe_call(r, sequence)))
        .from(r)
        .hint("every rank must make the same calls in the same order");
  if (mine.buffers > 1) {
    const ListEntry* own = block_.list(rank_, sequence);
    for (std::uint32_t i = 0; i < mine.buffers; ++i)
      if (const auto count = block_.list(r, sequence)[i].count; count != own[i].count)
        throw error_at(ErrorKind::kMismatch, sequence,
                       fmt::format("tensor {} of a coalesced call has {} elements on rank {}, {} on rank {}", i, own[i].count, rank_, count, r))
            .from(r);
  }
  const auto& counts = pending(sequence).receive_counts;
  if (counts.empty()) return;
  const std::uint64_t expected = counts[static_cast<std::size_t>(r)];
  if (const auto sent = block_.list(r, sequence)[rank_].count; sent != expected)
    throw error_at(ErrorKind::kMismatch, sequence, fmt::format("rank {} sends {} elements where rank {} expects {}", r, sent, rank_, expected))
        .from(r);
}

HostCommunicator::Way HostCommunicator::choose(std::uint64_t sequence, const Pending& p) const {
  if (p.small) return Way::kInline;
  for (int r = 0; r < size(); ++r)
    if (!descriptor(r, sequence).visible) return Way::kStaged;
  return Way::kDirect;
}

void HostCommunicator::run_inline(std::uint64_t sequence, Pending& p) {
  if (p.operation.kind == Kind::kBarrier) return;
  const Operation& o = p.operation;
  const std::size_t count = descriptor(rank_, sequence).count, bytes = payload_bytes(descriptor(rank_, sequence));
  if (count == 0) return;
  for (int r = 0; r < size(); ++r) offered_[r] = block_.payload(r, sequence, bytes);
  consume({o, p.buffers, p.send_counts, p.receive_counts, rank_, size()}, 0, count, offered_);
}

HostCommunicator::Cut HostCommunicator::cut(std::uint64_t sequence, const Pending& p) const {
  const Operation& o = p.operation;
  const std::size_t element = size_of(o.type), bytes = for_each_rank(o.kind) && !has_root(o.kind) ? kStagingBytes : kStagingBytes / 2;
  const std::size_t parts = for_each_rank(o.kind) ? static_cast<std::size_t>(std::max(size() - 1, 1)) : 1;  // none for itself
  std::size_t count = total_count(p.buffers);
  if (!p.send_counts.empty()) {  // the longest part that any rank sends to any
    count = 0;
    for (int r = 0; r < size(); ++r)
      for (int to = 0; to < size(); ++to) count = std::max<std::size_t>(count, block_.list(r, sequence)[to].count);
  }
  const bool past_caches = result_bytes(o.kind, count * element, size()) >= kPastCaches;
  return {{o, p.buffers, p.send_counts, p.receive_counts, rank_, size(), past_caches},
          count,
          std::max<std::size_t>(bytes / element / parts / 16 * 16, 1)};
}

// Writing a half again is safe: a peer offers chunk k - 1 only after it has consumed chunk k - 2, which lay there.
void HostCommunicator::offer_chunk(const Cut& cut, Pending& p) {
  const std::size_t begin = p.chunk * cut.step;
  offer(cut.call, begin, std::min(begin + cut.step, cut.count), block_.staging(rank_, offered_chunks_));
  block_.line(rank_).chunks.exchange(++offered_chunks_);
  wire::wake(block_.lot());
  p.progress = Chunk::kOffered;
}

// What only this rank can see is staged, whatever the others have: the first chunk need not wait for their announcements.
void HostCommunicator::offer_early(std::uint64_t sequence, Pending& p) {
  const Descriptor& d = descriptor(rank_, sequence);
  if (p.small || d.visible || total_count(p.buffers) == 0 || !p.send_counts.empty() || p.progress != Chunk::kNothing) return;
  offer_chunk(cut(sequence, p), p);
}

bool HostCommunicator::run_staged(std::uint64_t sequence, Pending& p) {
  const Cut all = cut(sequence, p);
  for (; p.chunk * all.step < all.count; ++p.chunk) {
    const std::size_t begin = p.chunk * all.step, end = std::min(begin + all.step, all.count);
    if (p.progress == Chunk::kNothing) offer_chunk(all, p);
    if (p.progress == Chunk::kOffered) {
      keep(all.call, begin, end);  // the others' time to offer theirs
      p.progress = Chunk::kKept;
    }
    for (int r = 0; r < size(); ++r) {
      const std::uint64_t chunks = block_.line(r).chunks.load(std::memory_order_acquire);
      if (chunks < offered_chunks_) return false;
      // For its next chunk a rank needs this one of ours, for the one after it one that we have not offered.
      if (chunks > offered_chunks_ + 1)
        throw error_at(ErrorKind::kData, sequence,
                       fmt::format("rank {} says that it has offered {} chunks, where it can have {} at most", r, chunks, offered_chunks_ + 1));
      offered_[r] = block_.staging(r, offered_chunks_ - 1);
    }
    take(all.call, begin, end, offered_);
    p.progress = Chunk::kNothing;
  }
  if (all.call.past_caches) stream_fence();
  return true;
}

bool HostCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance();
    if (!complete(handle)) {
      world_->check();
      check_present(handle);
    }
  } catch (const Error& error) {
    fail(error);
  }
  return complete(handle);
}

// `check` says whether to go on.
template <class Check>
void HostCommunicator::wait_until(Handle handle, Check&& check) {
  if (complete(handle)) return;
  if (failure_) std::rethrow_exception(failure_);
  SHOAL_CHECK(handle >= kMessage || handle <= started_, "operation #{} was never started; #{} was the last", handle, started_);
  bool go_on = true;
  try {
    wire::wait_for(
        block_.lot(), patience_,
        [&] {
          advance();
          return complete(handle) || !go_on;
        },
        [&] {
          world_->check();
          check_present(handle);
          go_on = check();
        });
  } catch (const Error& error) {
    fail(error);
  }
}

// A rank that left in good order and has not entered what this rank waits for never will. What it did before it left is there by now.
void HostCommunicator::check_present(Handle handle) {
  const Operation* message = handle >= kMessage ? mailbox_.find(handle - kMessage) : nullptr;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !world_->has_left(members_[r])) continue;
    const bool awaited = message ? message->peer == r : handle < kMessage && block_.line(r).finished.load() <= completed_;
    if (!awaited) continue;
    advance();
    if (complete(handle)) return;
    throw error_at(ErrorKind::kPeerLost, handle < kMessage ? completed_ + 1 : handle, fmt::format("rank {} has left the group; {}", r, report()))
        .from(r)
        .hint("it ended in good order, but earlier than this rank expects");
  }
}

void HostCommunicator::wait(Handle handle, Deadline deadline) {
  wait_until(handle, [&] {
    if (!deadline.passed()) return true;
    throw error_at(ErrorKind::kTimeout, handle, fmt::format("not complete before its deadline; {}", report()));
  });
}

void HostCommunicator::wait(Handle handle) {
  Clock::time_point first{};
  wait_until(handle, [&] {
    const auto now = Clock::now();
    if (first == Clock::time_point{}) first = now;
    const Duration timeout = timeout_of(handle);
    if (now - first >= timeout)
      throw error_at(ErrorKind::kTimeout, handle,
                     fmt::format("not complete after {:.1f} s; {}", std::chrono::duration<double>(timeout).count(), report()));
    return true;
  });
}

bool HostCommunicator::wait_briefly(Handle handle, Duration longest) {
  const auto until = Clock::now() + longest;
  wait_until(handle, [&] { return Clock::now() < until; });
  return complete(handle);
}

Duration HostCommunicator::timeout_of(Handle handle) const {
  if (handle < kMessage) return pending(handle).operation.timeout;
  const Operation* message = mailbox_.find(handle - kMessage);
  return message ? message->timeout : settings_.timeout;
}

void HostCommunicator::poll(Duration) {
  if (idle()) return;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance();
  } catch (const Error& error) {
    fail(error);
  }
}

std::unique_ptr<Communicator> HostCommunicator::split(int color, int key) {
  const std::size_t ranks = static_cast<std::size_t>(size());
  const auto gather = [&](std::array<std::int64_t, 2> mine) {
    std::vector<std::array<std::int64_t, 2>> all(ranks);
    Operation exchange{.kind = Kind::kAllGather, .type = ElementType::kI64, .buffer = {mine.data(), all.data(), 2}};
    wait(start(exchange));
    return all;
  };
  const auto wishes = gather({color, key});
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r)
    if (wishes[r][0] == color) chosen.push_back(r);
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) { return wishes[a][1] < wishes[b][1]; });
  const bool first = color >= 0 && chosen.front() == rank_;
  const auto bytes = HostBlock::bytes(static_cast<int>(chosen.size()));
  const auto places = gather({first ? static_cast<std::int64_t>(world_->take_control(bytes)) : 0, 0});
  if (color < 0) return nullptr;
  std::byte* base = world_->at(static_cast<std::size_t>(places[chosen.front()][0]), bytes);
  std::vector<int> members;
  for (const int r : chosen) members.push_back(members_[r]);
  const auto own = std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin();
  return std::unique_ptr<Communicator>(
      new HostCommunicator(world_, settings_, HostBlock(base, static_cast<int>(chosen.size())), std::move(members), static_cast<int>(own)));
}

void HostCommunicator::abort(const Error& cause) { world_->abort(cause); }

// The first cause wins: what this rank met may be a consequence of what another has recorded.
void HostCommunicator::fail(const Error& error) {
  world_->abort(error);
  try {
    world_->check();
    failure_ = std::make_exception_ptr(error);
  } catch (const Error&) {
    failure_ = std::current_exception();
  }
  std::rethrow_exception(failure_);
}

// A wait for one collective fails at the first that is not complete.
Error HostCommunicator::error_at(ErrorKind kind, Handle handle, std::string what) const {
  if (handle >= kMessage) {
    const Operation* message = mailbox_.find(handle - kMessage);
    return Error(kind, message ? name(message->kind) : "message", std::move(what)).at(world_->rank(), world_->size());
  }
  const std::uint64_t sequence = kind == ErrorKind::kTimeout ? completed_ + 1 : handle;
  return Error(kind, name(pending(sequence).operation.kind), std::move(what)).at(world_->rank(), world_->size()).in(sequence);
}

std::string HostCommunicator::describe_call(int rank, std::uint64_t sequence) const { return describe(descriptor(rank, sequence)); }

void HostCommunicator::keep_in(FlightBook& book) const {
  std::vector<int> names = members_;
  for (int& member : names)
    if (!settings_.world_ranks.empty()) member = settings_.world_ranks.at(static_cast<std::size_t>(member));
  const auto place = reinterpret_cast<const std::byte*>(&block_.lot()) - world_->control();
  const int first = settings_.world_ranks.empty() ? 0 : settings_.world_ranks.front();
  book.add(fmt::format("host-of-{}-{:x}", first, place), names,
           [world = world_, block = block_, names, clock = TickClock()] { return remembered(block, names, clock); });
}

std::string HostCommunicator::report() const {
  std::string text;
  for (int r = 0; r < size(); ++r) {
    const auto published = block_.announced(r), finished = block_.line(r).finished.load();
    if (published < started_)
      text += fmt::format("{}rank {} never entered #{} (its last was #{}{})", text.empty() ? "" : "; ", members_[r], published + 1, published,
                          published > 0 ? " " + describe_call(r, published) : "");
    else if (finished < started_)
      text += fmt::format("{}rank {} is inside #{} {}", text.empty() ? "" : "; ", members_[r], finished + 1, describe_call(r, finished + 1));
  }
  if (const std::string messages = mailbox_.report(); !messages.empty()) text += (text.empty() ? "" : "; ") + messages;
  return text.empty() ? "every rank has entered and left every operation" : text;
}

}  // namespace shoal::collective
