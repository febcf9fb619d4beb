#include "shoal/comm/library_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/operation_check.h"
#include "shoal/collective/shared_memory/contribution.h"
#include "shoal/collective/tcp/tcp_call.h"

namespace shoal::comm {
namespace {

using collective::Buffer;
using collective::Handle;
using collective::Kind;
using collective::Operation;

/// A wait looks this often whether another rank has failed.
constexpr Duration kPollSlice = std::chrono::milliseconds(20);

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

/// One transfer, its staging memory, and the function that turns what arrived into the result. The
/// library uses the memory until the transfer is complete, so a Step lives in `in_flight_` until
/// then.
struct Step {
  std::unique_ptr<std::byte[]> contribution;
  std::unique_ptr<std::byte[]> result;
  std::function<void()> finish;
  std::unique_ptr<Transfer> transfer;
  bool complete = false;

  std::byte* stage(std::unique_ptr<std::byte[]>& memory, std::size_t bytes) {
    memory = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1));
    return memory.get();
  }
  Request of_reduction(const Operation& o, std::vector<Buffer> pieces, Integers integers, int rank,
                       int ranks);
  Request of_exchange(const Operation& o, const Buffer& buffer, int ranks);
  Request of_bytes(const Operation& o, const Buffer& buffer, int rank);
};

/// Puts a reduction of `pieces`, as if they were one behind the other, in the carrier's terms.
Request Step::of_reduction(const Operation& o, std::vector<Buffer> pieces, Integers integers,
                           int rank, int ranks) {
  const Carrier carrier = carrier_of(o.type, o.reduction, integers);
  const bool scattered = o.kind == Kind::kReduceScatter;
  const bool has_result = o.kind != Kind::kReduce || o.peer == rank;
  const std::size_t count = collective::total_count(pieces);
  const std::size_t each = count * carrier.parts * size_of(carrier.type);
  const std::size_t given = scattered ? static_cast<std::size_t>(ranks) : 1;
  const std::size_t size = size_of(o.type);
  const bool several = pieces.size() > 1;
  Request request{.kind = o.kind,
                  .type = carrier.type,
                  .reduction = carrier.reduction,
                  .count = count * carrier.parts,
                  .peer = o.peer};

  request.input = pieces.front().input;
  if (carrier.packs || several) {
    std::byte* to = stage(contribution, each * given);
    request.input = to;
    for (const Buffer& piece : pieces) {
      pack(carrier, o.type, o.reduction, o.scale, piece.input, to, piece.count * given);
      to += piece.count * given * carrier.parts * size_of(carrier.type);
    }
  }
  if (!has_result) return request;

  void* const direct = pieces.front().output;
  const bool same_size = carrier.parts * size_of(carrier.type) == size;
  // A library may write its result while it still reads the contributions.
  const bool in_the_way =
      scattered && overlap(direct, count * size, request.input, count * given * size);
  if (several || !same_size || in_the_way) {
    request.output = contribution && !scattered ? contribution.get() : stage(result, each);
  } else {
    request.output = direct;
  }
  // `finish` runs at completion: it has copies of the pieces, whose memory the caller keeps until
  // then.
  if (carrier.unpacks || request.output != direct) {
    finish = [=, type = o.type, reduction = o.reduction, from = request.output] {
      auto* next = static_cast<const std::byte*>(from);
      for (const Buffer& piece : pieces) {
        unpack(carrier, type, reduction, ranks, next, piece.output, piece.count);
        next += piece.count * carrier.parts * size_of(carrier.type);
      }
    };
  }
  return request;
}

/// Replaces the library's reduce-scatter: each rank receives all contributions to its part and
/// folds them in the order of ranks.
Request Step::of_exchange(const Operation& o, const Buffer& buffer, int ranks) {
  const std::size_t bytes = buffer.count * size_of(o.type);
  std::byte* const parts = stage(result, bytes * static_cast<std::size_t>(ranks));
  finish = [=, type = o.type, reduction = o.reduction, scale = o.scale] {
    std::vector<const void*> sources;
    for (int r = 0; r < ranks; ++r) sources.push_back(parts + static_cast<std::size_t>(r) * bytes);
    collective::fold(type, reduction, sources.data(), ranks, &buffer.output, 1, buffer.count,
                     scale);
  };
  return {.kind = Kind::kAllToAll, .input = buffer.input, .output = parts, .count = bytes};
}

Request Step::of_bytes(const Operation& o, const Buffer& buffer, int rank) {
  const std::size_t size = size_of(o.type);
  const std::size_t bytes = buffer.count * size;
  Request request{.kind = o.kind,
                  .input = buffer.input,
                  .output = buffer.output,
                  .count = bytes,
                  .peer = o.peer,
                  .tag = o.tag};
  if (o.kind == Kind::kBroadcast && o.peer == rank && buffer.output != buffer.input && bytes > 0)
    std::memmove(request.output, buffer.input, bytes);
  for (const std::size_t count : o.send_counts) request.send_counts.push_back(count * size);
  for (const std::size_t count : o.receive_counts) request.receive_counts.push_back(count * size);
  return request;
}

}  // namespace

struct LibraryCommunicator::InFlight {
  Handle handle;
  Kind kind;
  std::string text;
  Clock::time_point give_up;
  std::vector<Step> steps;
};

LibraryCommunicator::LibraryCommunicator(const char* library, int rank, int size, Duration timeout,
                                         Abilities abilities)
    : library_(library), rank_(rank), size_(size), timeout_(timeout), abilities_(abilities) {}

bool LibraryCommunicator::supports(Kind kind, ElementType type,
                                   collective::Reduction reduction) const {
  return !collective::reduces(kind) || collective::supports_fold(type, reduction);
}

Handle LibraryCommunicator::start(const Operation& o) {
  check();
  collective::check_operation(o, rank_, size_, library_);
  SHOAL_USER_CHECK(supports(o.kind, o.type, o.reduction), name(o.kind), "{} has no {} of {} by {}",
                   library_, name(o.kind), name(o.type), name(o.reduction));
  SHOAL_USER_CHECK(o.coding.codec == collective::Codec::kNone, name(o.kind),
                   "{} carries values as they are, not in {}", library_,
                   collective::name(o.coding.codec));
  const Duration timeout = o.timeout == Duration::zero() ? timeout_ : o.timeout;
  const bool reduces = collective::reduces(o.kind);
  auto operation = std::make_shared<InFlight>();
  operation->handle = ++started_;
  operation->kind = o.kind;
  operation->give_up = Clock::now() + timeout;
  operation->text = o.kind == Kind::kBarrier
                        ? std::string("barrier")
                        : fmt::format("{} of {} x {}", name(o.kind), o.buffer.count, name(o.type));
  std::vector<Buffer> buffers{o.buffer};
  buffers.insert(buffers.end(), o.more.begin(), o.more.end());
  // Several buffers of an all-reduce or reduce travel as one. Otherwise each is a transfer of its
  // own; all ranks post them in the same order, by which libraries match the calls of a group.
  const bool together = reduces && o.kind != Kind::kReduceScatter;
  operation->steps.resize(together ? 1 : buffers.size());
  // Kept before the first transfer is posted: if a later one fails, the library still uses the
  // memory of the earlier ones.
  in_flight_.push_back(operation);
  try {
    collective::check_own_part(o, rank_, size_);
    for (std::size_t i = 0; i < operation->steps.size(); ++i) {
      Step& step = operation->steps[i];
      Request request;
      if (together) {
        request = step.of_reduction(o, buffers, abilities_.integers, rank_, size_);
      } else if (!reduces) {
        request = step.of_bytes(o, buffers[i], rank_);
      } else if (abilities_.reduce_scatter) {
        request = step.of_reduction(o, {buffers[i]}, abilities_.integers, rank_, size_);
      } else {
        request = step.of_exchange(o, buffers[i], size_);
      }
      request.timeout = timeout;
      step.transfer = post(request);
    }
    if (advance(*operation)) in_flight_.remove(operation);
  } catch (const Error& error) {
    // A usage error before the first transfer changes nothing on any rank: the group stays usable.
    // After any other error ranks may wait for each other, so the group ends.
    const bool begun = error.kind() != ErrorKind::kUsage || operation->steps.front().transfer;
    if (begun) fail(error);
    in_flight_.remove(operation);
    throw;
  }
  return operation->handle;
}

bool LibraryCommunicator::advance(InFlight& operation) {
  for (Step& step : operation.steps) {
    if (step.complete) continue;
    if (!step.transfer->done()) return false;
    if (step.finish) step.finish();
    step.complete = true;
  }
  return true;
}

bool LibraryCommunicator::complete(Handle handle) const {
  return std::none_of(in_flight_.begin(), in_flight_.end(),
                      [&](const auto& operation) { return operation->handle == handle; });
}

void LibraryCommunicator::check() {
  if (!failed_) {
    const auto cause = poll_failure(false);
    const std::lock_guard lock(mutex_);
    if (cause && !cause_) {
      cause_ = cause;
      failed_ = true;
    }
  }
  // The cause is set before the flag and does not change afterwards.
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw Error(*cause_);
}

void LibraryCommunicator::check_time(const InFlight& operation, Deadline deadline) {
  if (!deadline.passed() && Clock::now() < operation.give_up) return;
  fail(Error(ErrorKind::kTimeout, name(operation.kind),
             fmt::format("{} did not complete in time over {}", operation.text, library_))
           .at(rank_, size_)
           .in(operation.handle)
           .awaiting("any rank"));
}

void LibraryCommunicator::abort(const Error& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_ = cause;
    failed_ = true;
  }
  // Outside the lock, because sending may take a second and other threads must be able to read the
  // cause meanwhile. Only the call that has set the cause comes here.
  publish_failure(cause);
}

void LibraryCommunicator::fail(const Error& error) {
  // The library's error is often the consequence of a peer that stopped. The peer's own error is
  // the better cause, so look for it first.
  if (const auto cause = failed_ ? std::nullopt : poll_failure(true)) {
    const std::lock_guard lock(mutex_);
    if (!cause_) {
      cause_ = cause;
      failed_ = true;
    }
  }
  abort(error);
  const std::lock_guard lock(mutex_);
  throw Error(*cause_);
}

bool LibraryCommunicator::test(Handle handle) {
  check();
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    const auto operation = *it;
    try {
      if (advance(*operation)) {
        it = in_flight_.erase(it);
        continue;
      }
    } catch (const Error& error) {
      fail(error);
    }
    check_time(*operation, Deadline::never());
    ++it;
  }
  return complete(handle);
}

void LibraryCommunicator::wait(Handle handle, Deadline deadline) {
  SHOAL_CHECK(handle <= started_, "operation #{} was never started; #{} was the last", handle,
              started_);
  const auto it = std::find_if(in_flight_.begin(), in_flight_.end(),
                               [&](const auto& operation) { return operation->handle == handle; });
  if (it == in_flight_.end()) return;
  // After a failure no transfer is asked again: MPI, for one, forgets a request that has failed and
  // would then call it complete.
  if (failed_) check();
  const auto operation = *it;
  while (true) {
    try {
      if (advance(*operation)) break;
      const auto step = std::find_if(operation->steps.begin(), operation->steps.end(),
                                     [](const Step& s) { return !s.complete; });
      const auto left = std::max<Duration>(
          std::min<Duration>(deadline.left(), operation->give_up - Clock::now()), Duration::zero());
      // The wait is cut into slices, between which a failure of another rank is noticed.
      if (step->transfer->wait_briefly(std::min(kPollSlice, left))) continue;
    } catch (const Error& error) {
      fail(error);
    }
    check();
    check_time(*operation, deadline);
  }
  in_flight_.remove(operation);
}

void LibraryCommunicator::poll(Duration budget) {
  const Deadline end = Deadline::in(budget);
  do {
    test(0);
    if (!in_flight_.empty() && !end.passed()) {
      try {
        in_flight_.front()->steps.back().transfer->wait_briefly(
            std::min<Duration>(end.left(), kPollSlice));
      } catch (const Error& error) {
        fail(error);
      }
    }
  } while (!in_flight_.empty() && !end.passed());
}

// The library's own split may wait without a deadline. The exchange of colors has one, and when it
// is complete every rank has come.
std::unique_ptr<collective::Communicator> LibraryCommunicator::split(int color, int key) {
  const std::int32_t own[2] = {color, key};
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(size_));
  run({.kind = Kind::kAllGather, .type = ElementType::kI32, .buffer = {own, all.data(), 2}},
      Deadline::in(timeout_));
  std::vector<int> members;
  for (int r = 0; r < size_; ++r)
    if (color >= 0 && all[2 * r] == color) members.push_back(r);
  // Equal keys keep the order of the ranks here, as in MPI_Comm_split.
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
  return part(color, key, members);
}

}  // namespace shoal::comm
