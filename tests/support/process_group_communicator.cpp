#include "tests/support/process_group_communicator.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "shoal/base/check.h"
#include "shoal/comm/group.h"
#include "shoal/comm/library_communicator.h"
#include "shoal/wire/error_bytes.h"

namespace shoal::comm {
namespace {

using c10d::ReduceOp;
using collective::Communicator;
using Pending = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr auto kCause = "shoal/cause";
/// The store is asked for a peer's failure at most this often.
constexpr Duration kPollStoreEvery = std::chrono::milliseconds(100);

std::chrono::milliseconds milliseconds(Duration duration) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::ceil<std::chrono::milliseconds>(duration));
}

/// Runs `body`, and makes one of our errors of what a backend throws.
template <class Body>
auto translating(const char* operation, const std::string& backend, int rank, int size,
                 Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const c10::Error*>(&error);
    std::string text = known ? known->what_without_backtrace() : error.what();
    text = text.substr(0, text.find('\n'));
    const auto contains = [&](const char* part) { return text.find(part) != std::string::npos; };
    ErrorKind kind = ErrorKind::kPeerLost;
    if (contains("does not support") || contains("not implement") ||
        contains("is missing implementation") || contains("Invalid scalar type"))
      kind = ErrorKind::kUsage;
    if (contains("imed out") || contains("imeout")) kind = ErrorKind::kTimeout;
    throw Error(kind, operation, fmt::format("{}: {}", backend, text)).at(rank, size);
  }
}

ReduceOp operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceOp::SUM;
    case Reduction::kProduct:
      return ReduceOp::PRODUCT;
    case Reduction::kMin:
      return ReduceOp::MIN;
    case Reduction::kMax:
      return ReduceOp::MAX;
    case Reduction::kBitAnd:
      return ReduceOp::BAND;
    case Reduction::kBitOr:
      return ReduceOp::BOR;
    case Reduction::kBitXor:
      return ReduceOp::BXOR;
    default:
      SHOAL_CHECK(false, "{} is no carrier's reduction", name(reduction));
  }
}

/// A tensor over memory that outlives the request.
at::Tensor tensor_of(const void* data, std::size_t count, ElementType type, std::size_t first = 0) {
  return at::from_blob(static_cast<std::byte*>(const_cast<void*>(data)) + first * size_of(type),
                       {static_cast<std::int64_t>(count)},
                       at::TensorOptions().dtype(scalar_type(type)));
}

/// A collective of the backend, which its own threads carry out. `scratch`: what it needs beside
/// the caller's memory.
class CollectiveTransfer final : public Transfer {
 public:
  CollectiveTransfer(Pending work, at::Tensor scratch)
      : work_(std::move(work)), scratch_(std::move(scratch)) {}

  bool done() override {
    if (!work_) return true;
    if (!work_->isCompleted()) return false;
    work_->wait();  // throws what it ended with
    return true;
  }
  // c10d's wait with a limit is no way to look: to many backends its end is the end of the group.
  bool wait_briefly(Duration longest) override {
    const Deadline end = Deadline::in(longest);
    for (int turn = 0; !done(); ++turn) {
      if (end.passed()) return false;
      if (turn < 100) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }

 private:
  Pending work_;
  at::Tensor scratch_;
};

/// A message. Gloo says that it has arrived only to somebody who waits for it, so that somebody is
/// a thread.
class MessageTransfer final : public Transfer {
 public:
  MessageTransfer(Pending work, Duration timeout)
      : work_(std::move(work)), waiter_([this, timeout] {
          std::exception_ptr error;
          try {
            work_->wait(milliseconds(timeout));
          } catch (...) {
            error = std::current_exception();
          }
          const std::lock_guard lock(mutex_);
          error_ = error;
          done_ = true;
          changed_.notify_all();
        }) {}
  ~MessageTransfer() override {
    bool done = false;
    {
      const std::lock_guard lock(mutex_);
      done = done_;
    }
    try {
      if (!done) work_->abort();
    } catch (const std::exception&) {  // the backend cannot: its wait ends by itself
    }
    waiter_.join();
  }

  bool done() override { return wait_briefly(Duration::zero()); }
  bool wait_briefly(Duration longest) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
    return done_;
  }

 private:
  Pending work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;         ///< guarded by mutex_
  std::exception_ptr error_;  ///< guarded by mutex_
  std::thread waiter_;        ///< the last to begin
};

/// Any transfer, with the backend's errors as ours.
class Translated final : public Transfer {
 public:
  Translated(std::unique_ptr<Transfer> transfer, collective::Kind kind, std::string backend,
             int rank, int size)
      : transfer_(std::move(transfer)),
        kind_(kind),
        backend_(std::move(backend)),
        rank_(rank),
        size_(size) {}
  bool done() override {
    return translating(name(kind_), backend_, rank_, size_, [&] { return transfer_->done(); });
  }
  bool wait_briefly(Duration longest) override {
    return translating(name(kind_), backend_, rank_, size_,
                       [&] { return transfer_->wait_briefly(longest); });
  }

 private:
  std::unique_ptr<Transfer> transfer_;
  collective::Kind kind_;
  std::string backend_;
  int rank_, size_;
};

class ProcessGroupCommunicator final : public LibraryCommunicator {
 public:
  /// `path` names the group in the store. Of a group of one there is no backend.
  ProcessGroupCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                           c10::intrusive_ptr<c10d::Store> store, Duration timeout,
                           std::string path, std::vector<std::uint64_t> world_ranks, int rank)
      // PyTorch 2.11's Gloo has waited without end in a reduce-scatter of two bytes by two ranks,
      // and other backends have none.
      : LibraryCommunicator("c10d", rank, static_cast<int>(world_ranks.size()), timeout,
                            {.integers = Integers::kBasic, .reduce_scatter = false}),
        backend_(std::move(backend)),
        store_(std::move(store)),
        path_(std::move(path)),
        world_ranks_(std::move(world_ranks)),
        name_(backend_ ? backend_->getBackendName() : "") {}

 protected:
  std::unique_ptr<Transfer> post(const Request& request) override;
  std::unique_ptr<Communicator> part(int color, int key, const std::vector<int>& members) override;
  void publish_failure(const Error& cause) override;
  std::optional<Error> poll_failure(bool at_once) override;

 private:
  Pending begin(const Request& request, at::Tensor& scratch);

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string path_;
  std::vector<std::uint64_t> world_ranks_;
  std::string name_;
  int splits_ = 0;
  Clock::time_point looked_{};
};

std::unique_ptr<Transfer> ProcessGroupCommunicator::post(const Request& request) {
  at::Tensor scratch;
  Pending work = translating(name(request.kind), name_, rank(), size(),
                             [&] { return begin(request, scratch); });
  std::unique_ptr<Transfer> transfer;
  if (collective::point_to_point(request.kind)) {
    transfer = std::make_unique<MessageTransfer>(std::move(work), request.timeout);
  } else {
    transfer = std::make_unique<CollectiveTransfer>(std::move(work), std::move(scratch));
  }
  return std::make_unique<Translated>(std::move(transfer), request.kind, name_, rank(), size());
}

/// Null for what has nothing to do.
Pending ProcessGroupCommunicator::begin(const Request& r, at::Tensor& scratch) {
  const auto timeout = milliseconds(r.timeout);
  const auto ranks = static_cast<std::size_t>(size());
  const bool message = collective::point_to_point(r.kind);
  const bool root = r.peer == rank();
  if (r.count == 0 && r.send_counts.empty() && !message && r.kind != Kind::kBarrier) return {};
  SHOAL_USER_CHECK(!message || r.tag <= std::numeric_limits<int>::max(), name(r.kind),
                   "tag {}: c10d has tags up to 2^31 - 1", r.tag);
  const int tag = static_cast<int>(r.tag);
  const auto whole = [&](const void* data, std::size_t parts = 1) {
    return tensor_of(data, r.count * parts, r.type);
  };
  const auto in_parts = [&](const void* data) {
    Tensors parts;
    for (std::size_t i = 0; i < ranks; ++i)
      parts.push_back(tensor_of(data, r.count, r.type, i * r.count));
    return parts;
  };
  switch (r.kind) {
    case Kind::kAllReduce: {
      Tensors tensors{whole(r.output)};
      if (r.input != r.output) tensors[0].copy_(whole(r.input));
      c10d::AllreduceOptions options;
      options.reduceOp = operation_of(r.reduction);
      options.timeout = timeout;
      return backend_->allreduce(tensors, options);
    }
    case Kind::kReduce: {
      // Backends use the tensors of the other ranks as they like.
      if (!root) scratch = whole(r.input).clone();
      Tensors tensors{root ? whole(r.output) : scratch};
      if (root && r.input != r.output) tensors[0].copy_(whole(r.input));
      c10d::ReduceOptions options;
      options.reduceOp = operation_of(r.reduction);
      options.rootRank = r.peer;
      options.timeout = timeout;
      return backend_->reduce(tensors, options);
    }
    case Kind::kBroadcast: {
      Tensors tensors{whole(r.output)};
      c10d::BroadcastOptions options;
      options.rootRank = r.peer;
      options.timeout = timeout;
      return backend_->broadcast(tensors, options);
    }
    case Kind::kAllGather: {
      at::Tensor output = whole(r.output, ranks);
      at::Tensor input = whole(r.input);
      c10d::AllgatherOptions options;
      options.timeout = timeout;
      return backend_->_allgather_base(output, input, options);
    }
    case Kind::kGather: {
      Tensors inputs{whole(r.input)};
      std::vector<Tensors> outputs;
      if (root) outputs.push_back(in_parts(r.output));
      c10d::GatherOptions options;
      options.rootRank = r.peer;
      options.timeout = timeout;
      return backend_->gather(outputs, inputs, options);
    }
    case Kind::kScatter: {
      Tensors outputs{whole(r.output)};
      std::vector<Tensors> inputs;
      if (root) inputs.push_back(in_parts(r.input));
      c10d::ScatterOptions options;
      options.rootRank = r.peer;
      options.timeout = timeout;
      return backend_->scatter(outputs, inputs, options);
    }
    case Kind::kAllToAll: {
      std::vector<std::int64_t> sent(r.send_counts.begin(), r.send_counts.end());
      std::vector<std::int64_t> received(r.receive_counts.begin(), r.receive_counts.end());
      const bool equal = sent.empty();
      const auto total = [](const std::vector<std::int64_t>& counts) {
        return static_cast<std::size_t>(
            std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
      };
      at::Tensor output = tensor_of(r.output, equal ? r.count * ranks : total(received), r.type);
      at::Tensor input = tensor_of(r.input, equal ? r.count * ranks : total(sent), r.type);
      c10d::AllToAllOptions options;
      options.timeout = timeout;
      return backend_->alltoall_base(output, input, received, sent, options);
    }
    case Kind::kSend: {
      Tensors tensors{whole(r.input)};
      return backend_->send(tensors, r.peer, tag);
    }
    case Kind::kReceive: {
      Tensors tensors{whole(r.output)};
      return r.peer < 0 ? backend_->recvAnysource(tensors, tag)
                        : backend_->recv(tensors, r.peer, tag);
    }
    case Kind::kBarrier: {
      c10d::BarrierOptions options;
      options.timeout = timeout;
      return backend_->barrier(options);
    }
    case Kind::kReduceScatter:
      break;
  }
  SHOAL_CHECK(false, "{} is carried by all_to_all", name(r.kind));
}

std::unique_ptr<Communicator> ProcessGroupCommunicator::part(int color, int,
                                                             const std::vector<int>& members) {
  const int number = splits_++;
  if (color < 0) return nullptr;
  const int rank_there =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  std::vector<std::uint64_t> world_ranks;
  for (const int member : members)
    world_ranks.push_back(world_ranks_[static_cast<std::size_t>(member)]);
  const std::string path = fmt::format("{}/{}.{}", path_, number, color);
  c10::intrusive_ptr<c10d::Backend> backend;
  if (members.size() > 1) {
    SHOAL_USER_CHECK(store_ && backend_->supportsSplitting(), "split", "{} {}", name_,
                     store_ ? "cannot split"
                            : "was handed in without a store, in which the ranks of a part meet");
    backend = translating("split", name_, rank(), size(), [&] {
      // The options of all parts may be one object, in which Gloo looks up what it takes to be the
      // ranks of this group.
      const auto options = backend_->getBackendOptions();
      options->global_ranks_in_group = world_ranks_;
      return backend_->split(c10::make_intrusive<c10d::PrefixStore>(path, store_), members,
                             options);
    });
  }
  return std::make_unique<ProcessGroupCommunicator>(std::move(backend), store_, timeout(), path,
                                                    std::move(world_ranks), rank_there);
}

void ProcessGroupCommunicator::publish_failure(const Error& cause) {
  try {
    const wire::Bytes bytes = wire::encode(cause);
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const std::vector<std::uint8_t> nothing;
    const std::vector<std::uint8_t> encoded(first, first + bytes.size());
    if (store_) store_->compareSet(kCause, nothing, encoded);
  } catch (const std::exception&) {  // the store is gone: the others have deadlines
  }
  try {
    if (backend_) backend_->abort();
  } catch (const std::exception&) {  // it cannot
  }
}

std::optional<Error> ProcessGroupCommunicator::poll_failure(bool at_once) {
  const auto now = Clock::now();
  if (!store_ || (!at_once && now - looked_ < kPollStoreEvery)) return std::nullopt;
  looked_ = now;
  try {
    if (!store_->check({kCause})) return std::nullopt;
    const auto bytes = store_->get(kCause);
    return wire::decode_error(std::as_bytes(std::span(bytes)));
  } catch (const std::exception&) {  // with whoever keeps it the backend will miss a peer too
    return std::nullopt;
  }
}

}  // namespace

std::shared_ptr<Communicator> process_group_communicator(c10::intrusive_ptr<c10d::Backend> backend,
                                                         c10::intrusive_ptr<c10d::Store> store,
                                                         Duration timeout) {
  SHOAL_USER_CHECK(backend, "process_group_communicator", "no backend");
  std::vector<std::uint64_t> world_ranks(static_cast<std::size_t>(backend->getSize()));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  const int rank = backend->getRank();
  return std::make_shared<ProcessGroupCommunicator>(std::move(backend), std::move(store), timeout,
                                                    "shoal/split", std::move(world_ranks), rank);
}

std::shared_ptr<Communicator> process_group_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, Duration timeout) {
  SHOAL_USER_CHECK(group, "process_group_communicator", "no process group");
  return translating("process_group_communicator", group->getBackendName(), group->getRank(),
                     group->getSize(), [&] {
                       return process_group_communicator(group->getBackend(c10::DeviceType::CPU),
                                                         group->getStore(), timeout);
                     });
}

}  // namespace shoal::comm
