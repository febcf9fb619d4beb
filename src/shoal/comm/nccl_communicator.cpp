#include "shoal/comm/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "shoal/base/bytes_at.h"
#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/operation_check.h"

namespace shoal::comm {
namespace {

using collective::Buffer;
using collective::Handle;
using collective::Kind;
using collective::Operation;
using collective::Reduction;

/// Tells handles of device operations from those of the other communicator, whose messages have the
/// highest bit set.
constexpr Handle kOnDevice = Handle{1} << 62;
bool is_on_device(Handle handle) { return handle >> 62 == 1; }

/// ncclDataType_t; -1: NCCL does not know the type.
int type_number(ElementType type) {
  switch (type) {
    case ElementType::kI8:
      return 0;
    case ElementType::kU8:
      return 1;
    case ElementType::kI32:
      return 2;
    case ElementType::kU32:
      return 3;
    case ElementType::kI64:
      return 4;
    case ElementType::kU64:
      return 5;
    case ElementType::kF16:
      return 6;
    case ElementType::kF32:
      return 7;
    case ElementType::kF64:
      return 8;
    case ElementType::kBF16:
      return 9;
    default:
      return -1;
  }
}

/// ncclRedOp_t; -1: NCCL has no such reduction.
int reduction_number(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return 0;
    case Reduction::kProduct:
      return 1;
    case Reduction::kMax:
      return 2;
    case Reduction::kMin:
      return 3;
    case Reduction::kAverage:
      return 4;
    default:
      return -1;
  }
}

bool is_good(int result) {
  return result == NcclLibrary::kSuccess || result == NcclLibrary::kInProgress;
}

/// Elements that are not reduced travel in NCCL's own type, or as their bytes.
struct Carried {
  int type;
  std::size_t each;  ///< of these, for an element
};
Carried carried(ElementType type) {
  const int number = type_number(type);
  if (number >= 0) return {number, 1};
  return {type_number(ElementType::kU8), size_of(type)};
}

/// A pre-multiplied sum takes its factor in the type of the elements.
union Scalar {
  double f64;
  float f32;
  std::uint16_t f16;
};
Scalar scalar_of(ElementType type, double value) {
  Scalar scalar{.f64 = value};
  if (type == ElementType::kF64) return scalar;
  scalar.f32 = static_cast<float>(value);
  if (type == ElementType::kF32) return scalar;
  const float single = scalar.f32;
  collective::narrow(type, &single, &scalar.f16, 1);
  return scalar;
}

/// Sleeps a little longer each time: short operations are seen at once, long ones cost no core.
class Patience {
 public:
  void rest() {
    if (++looks_ < kQuickLooks) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(looks_ / 4, 500)));
  }
  /// Is it time to ask for failures, which costs more than a look?
  bool asks() const { return looks_ % 64 == 0; }
  bool sleeps() const { return looks_ >= kQuickLooks; }

 private:
  static constexpr int kQuickLooks = 200;
  int looks_ = 0;
};

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> nccl,
                                   std::shared_ptr<collective::Communicator> host,
                                   std::unique_ptr<DeviceQueue> queue, Duration timeout)
    : nccl_(std::move(nccl)), host_(std::move(host)), queue_(std::move(queue)), timeout_(timeout) {
  // Here and not in the first operation: that may be one which returns at once, before a peer that
  // this rank is about to send something has come to it (see NcclLibrary::load, too).
  meet(Clock::now() + timeout);
}

NcclCommunicator::~NcclCommunicator() { drop(); }

void NcclCommunicator::drop() {
  // It frees what this rank has without asking the others, who may be gone; kernels under way end.
  if (communicator_) nccl_->abort(std::exchange(communicator_, nullptr));
}

bool NcclCommunicator::carries_device_memory(Kind kind, ElementType type,
                                             Reduction reduction) const {
  if (collective::point_to_point(kind) || kind == Kind::kBarrier) return false;
  if (!collective::reduces(kind)) return true;
  if (type_number(type) < 0) return false;
  const bool floating = is_floating(type);
  if (reduction == Reduction::kPremulSum) return floating;
  return reduction_number(reduction) >= 0 && (floating || reduction != Reduction::kAverage);
}

Handle NcclCommunicator::start(const Operation& operation) {
  if (operation.memory == collective::MemoryKind::kHost) return host_->start(operation);
  look_for_failure();
  Operation checked = operation;
  checked.memory = collective::MemoryKind::kHost;
  collective::check_operation(checked, rank(), size(), "NCCL");
  SHOAL_USER_CHECK(carries_device_memory(operation.kind, operation.type, operation.reduction),
                   name(operation.kind), "NCCL has no {} of {} by {}", name(operation.kind),
                   name(operation.type), name(operation.reduction));
  SHOAL_USER_CHECK(operation.coding.codec == collective::Codec::kNone, name(operation.kind),
                   "NCCL carries values as they are, not in {}",
                   collective::name(operation.coding.codec));
  collective::check_own_part(operation, rank(), size());
  const Duration timeout = operation.timeout == Duration::zero() ? timeout_ : operation.timeout;
  const auto give_up = Clock::now() + timeout;
  queue_->follow_current();
  call(operation);
  settle(operation.kind, give_up);
  // Nobody may ever wait for an operation that has ended.
  while (!in_flight_.empty() && in_flight_.begin()->second.end->passed())
    in_flight_.erase(in_flight_.begin());
  ++started_;
  in_flight_.emplace(started_, InFlight{operation.kind, queue_->mark(), give_up});
  return kOnDevice | started_;
}

void NcclCommunicator::meet(Clock::time_point give_up) {
  NcclLibrary::UniqueId id{};
  if (rank() == 0) check(nccl_->unique_id(&id), Kind::kBroadcast);
  host_->run({.kind = Kind::kBroadcast,
              .type = ElementType::kU8,
              .buffer = {&id, &id, sizeof id},
              .peer = 0},
             Deadline::in(give_up - Clock::now()));
  NcclLibrary::Config config;
  check(nccl_->init(&communicator_, size(), id, rank(), &config), Kind::kBarrier);
  settle(Kind::kBarrier, give_up);
}

void NcclCommunicator::call(const Operation& o) {
  std::vector<Buffer> buffers{o.buffer};
  buffers.insert(buffers.end(), o.more.begin(), o.more.end());
  int reduction = reduction_number(o.reduction);
  if (collective::reduces(o.kind) && o.reduction == Reduction::kPremulSum) {
    Scalar scalar = scalar_of(o.type, o.scale);
    check(nccl_->scaled_sum(&reduction, &scalar, type_number(o.type), NcclLibrary::kHostImmediate,
                            communicator_),
          o.kind);
  }
  // One launch for all. What was begun is ended whatever happens in it: NCCL counts groups by
  // thread, and would put off all that this thread calls later.
  check(nccl_->group_start(), o.kind);
  int result = NcclLibrary::kSuccess;
  for (const Buffer& buffer : buffers)
    if (is_good(result)) result = call_one(o, buffer, reduction);
  const int ended = nccl_->group_end();
  check(is_good(result) ? ended : result, o.kind);
  if (collective::reduces(o.kind) && o.reduction == Reduction::kPremulSum)
    check(nccl_->drop_operation(reduction, communicator_), o.kind);
}

int NcclCommunicator::call_one(const Operation& o, const Buffer& b, int reduction) {
  void* const stream = queue_->native();
  const Carried moved = carried(o.type);
  const int type = type_number(o.type);
  switch (o.kind) {
    case Kind::kAllReduce:
      return nccl_->all_reduce(b.input, b.output, b.count, type, reduction, communicator_, stream);
    case Kind::kReduce:
      return nccl_->reduce(b.input, b.output, b.count, type, reduction, o.peer, communicator_,
                           stream);
    case Kind::kReduceScatter:
      return nccl_->reduce_scatter(b.input, b.output, b.count, type, reduction, communicator_,
                                   stream);
    case Kind::kBroadcast:
      return nccl_->broadcast(b.input, b.output, b.count * moved.each, moved.type, o.peer,
                              communicator_, stream);
    case Kind::kAllGather:
      return nccl_->all_gather(b.input, b.output, b.count * moved.each, moved.type, communicator_,
                               stream);
    default:
      return exchange(o, b);
  }
}

/// Gathers, scatters and all-to-alls are messages; NCCL carries those of a group together.
int NcclCommunicator::exchange(const Operation& o, const Buffer& b) {
  void* const stream = queue_->native();
  const Carried moved = carried(o.type);
  const std::size_t element = size_of(o.type);
  const bool sends = o.kind != Kind::kScatter || o.peer == rank();
  const bool receives = o.kind != Kind::kGather || o.peer == rank();
  std::size_t sent = 0;
  std::size_t received = 0;
  int result = NcclLibrary::kSuccess;
  for (int r = 0; r < size() && is_good(result); ++r) {
    const auto place = static_cast<std::size_t>(r);
    const std::size_t out = o.send_counts.empty() ? b.count : o.send_counts[place];
    const std::size_t in = o.receive_counts.empty() ? b.count : o.receive_counts[place];
    if (sends && (o.kind != Kind::kGather || r == o.peer) && out > 0) {
      const std::size_t from = o.kind == Kind::kGather ? 0 : sent;
      result = nccl_->send(bytes_at(b.input, from * element), out * moved.each, moved.type, r,
                           communicator_, stream);
    }
    if (is_good(result) && receives && (o.kind != Kind::kScatter || r == o.peer) && in > 0) {
      const std::size_t to = o.kind == Kind::kScatter ? 0 : received;
      result = nccl_->receive(bytes_at(b.output, to * element), in * moved.each, moved.type, r,
                              communicator_, stream);
    }
    sent += out;
    received += in;
  }
  return result;
}

void NcclCommunicator::check(int result, Kind kind) {
  if (is_good(result)) return;
  const char* const last = nccl_->last_error(communicator_);
  fail(kind,
       fmt::format("NCCL: {}{}{}", nccl_->error_string(result), last && *last ? ": " : "",
                   last ? last : ""),
       ErrorKind::kPeerLost);
}

template <class Done>
void NcclCommunicator::await(Kind kind, Clock::time_point give_up, Deadline deadline, Done&& done) {
  Patience patience;
  while (!done()) {
    if (patience.asks()) {
      check_wait(kind, give_up, deadline);
    } else if (patience.sleeps()) {
      advance_host();
    }
    patience.rest();
  }
}

void NcclCommunicator::settle(Kind kind, Clock::time_point give_up) {
  await(kind, give_up, Deadline::never(), [&] {
    int state = NcclLibrary::kSuccess;
    check(nccl_->async_error(communicator_, &state), kind);
    check(state, kind);
    return state == NcclLibrary::kSuccess;
  });
}

// A message of another group goes by the host: a peer may wait for it before it comes to the
// operation that this rank waits for.
void NcclCommunicator::advance_host() {
  try {
    host_->poll(Duration::zero());
    host_->advance_others();
  } catch (const Error&) {
    drop();
    throw;
  }
}

void NcclCommunicator::check_wait(Kind kind, Clock::time_point give_up, Deadline deadline) {
  try {
    // The other communicator knows a better cause than NCCL: that for which another rank stopped.
    host_->look_for_failure();
  } catch (const Error&) {
    drop();
    throw;
  }
  advance_host();
  int state = NcclLibrary::kSuccess;
  if (communicator_) check(nccl_->async_error(communicator_, &state), kind);
  check(state, kind);
  if (!deadline.passed() && Clock::now() < give_up) return;
  fail(kind, "did not complete in time over NCCL", ErrorKind::kTimeout);
}

void NcclCommunicator::fail(Kind kind, const std::string& what, ErrorKind type) {
  Error error(type, name(kind), what);
  error.at(rank(), size()).in(started_ + 1).awaiting("any rank");
  // The others first: ending NCCL may take long where a peer is gone.
  abort(error);
  drop();
  // The other communicator knows the first cause.
  host_->look_for_failure();
  throw error;
}

bool NcclCommunicator::complete(Handle handle) const {
  if (!is_on_device(handle)) return host_->complete(handle);
  const auto found = in_flight_.find(handle & ~kOnDevice);
  return found == in_flight_.end() || found->second.end->passed();
}

bool NcclCommunicator::test(Handle handle) {
  if (!is_on_device(handle)) return host_->test(handle);
  const auto found = in_flight_.find(handle & ~kOnDevice);
  if (found == in_flight_.end()) return true;
  if (!found->second.end->passed()) {
    check_wait(found->second.kind, found->second.give_up, Deadline::never());
    return false;
  }
  in_flight_.erase(found);
  return true;
}

void NcclCommunicator::wait(Handle handle) {
  if (!is_on_device(handle)) return host_->wait(handle);
  wait(handle, Deadline::never());
}

void NcclCommunicator::wait(Handle handle, Deadline deadline) {
  if (!is_on_device(handle)) return host_->wait(handle, deadline);
  const auto found = in_flight_.find(handle & ~kOnDevice);
  if (found == in_flight_.end()) return;
  await(found->second.kind, found->second.give_up, deadline,
        [&] { return found->second.end->passed(); });
  in_flight_.erase(found);
}

bool NcclCommunicator::idle() const {
  return host_->idle() && std::all_of(in_flight_.begin(), in_flight_.end(),
                                      [](const auto& entry) { return entry.second.end->passed(); });
}

std::unique_ptr<collective::Communicator> NcclCommunicator::split(int color, int key) {
  std::unique_ptr<collective::Communicator> part = host_->split(color, key);
  if (!part || part->size() == 1) return part;
  return std::make_unique<NcclCommunicator>(nccl_, std::move(part), queue_->another(), timeout_);
}

Group with_nccl(const Group& group, at::Device device, Duration timeout) {
  if (group.size() == 1) return group;
  return group.over([&](std::shared_ptr<collective::Communicator> host) {
    return std::make_shared<NcclCommunicator>(NcclLibrary::load(), std::move(host),
                                              device_queue(device), timeout);
  });
}

}  // namespace shoal::comm
