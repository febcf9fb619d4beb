#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/bytes_at.h"
#include "shoal/base/check.h"
#include "shoal/comm/library_communicator.h"
#include "shoal/comm/mpi_compat.h"

namespace shoal::comm {
namespace {

using collective::Kind;
using collective::Reduction;

MPI_Datatype datatype(ElementType type) {
  switch (type) {
    case ElementType::kU8:
      return MPI_UINT8_T;
    case ElementType::kI8:
      return MPI_INT8_T;
    case ElementType::kU16:
      return MPI_UINT16_T;
    case ElementType::kI16:
      return MPI_INT16_T;
    case ElementType::kU32:
      return MPI_UINT32_T;
    case ElementType::kI32:
      return MPI_INT32_T;
    case ElementType::kU64:
      return MPI_UINT64_T;
    case ElementType::kI64:
      return MPI_INT64_T;
    case ElementType::kF32:
      return MPI_FLOAT;
    case ElementType::kF64:
      return MPI_DOUBLE;
    default:
      SHOAL_CHECK(false, "{} is no carrier's type", name(type));
  }
}

MPI_Op operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return MPI_SUM;
    case Reduction::kProduct:
      return MPI_PROD;
    case Reduction::kMin:
      return MPI_MIN;
    case Reduction::kMax:
      return MPI_MAX;
    case Reduction::kBitAnd:
      return MPI_BAND;
    case Reduction::kBitOr:
      return MPI_BOR;
    case Reduction::kBitXor:
      return MPI_BXOR;
    default:
      SHOAL_CHECK(false, "{} is no carrier's reduction", name(reduction));
  }
}

/// Expresses any number of bytes as an MPI count and type. A number too large for an int is one
/// element of a derived type of blocks. MPI keeps a freed type alive until the calls that use it
/// are complete, so the destructor may free it.
class Bytes {
 public:
  Bytes(std::size_t bytes, std::size_t largest) : count_(static_cast<int>(bytes)) {
    if (bytes <= largest) return;
    const std::size_t block = std::min<std::size_t>(largest, 1 << 30);
    MPI_Datatype one;
    MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &one);
    int lengths[2] = {static_cast<int>(bytes / block), static_cast<int>(bytes % block)};
    MPI_Aint places[2] = {0, static_cast<MPI_Aint>(bytes - bytes % block)};
    MPI_Datatype types[2] = {one, MPI_BYTE};
    MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&one);
    count_ = 1;
  }
  ~Bytes() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

/// The requests of MPI that carry out one Request.
class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(std::shared_ptr<MpiWorld> world, const Request& request, int rank, int size)
      : world_(std::move(world)),
        kind_(request.kind),
        rank_(rank),
        size_(size),
        expected_(request.count) {}

  /// A new request, for the next call of MPI.
  MPI_Request* next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  bool done() override {
    const std::lock_guard lock(world_->mutex());
    MPI_Status status{};
    int done = 0;
    if (kind_ != Kind::kReceive) {
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                            MPI_STATUSES_IGNORE),
                name(kind_), rank_, size_);
      return done;
    }
    check_mpi(MPI_Test(requests_.data(), &done, &status), name(kind_), rank_, size_);
    // The request is gone after the first success, and its status with it.
    if (!done || std::exchange(measured_, true)) return done;
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != expected_) {
      throw Error(ErrorKind::kMismatch, "recv",
                  fmt::format("{} bytes are expected, {} have come", expected_, bytes))
          .at(rank_, size_)
          .from(status.MPI_SOURCE);
    }
    return true;
  }

  bool wait_briefly(Duration longest) override {
    const Deadline end = Deadline::in(longest);
    // MPI makes progress only inside its calls, so this loop must not sleep at first. Ranks may be
    // more than cores: the longer the wait, the more of the processor is left to the others.
    for (int turn = 0; !done(); ++turn) {
      if (turn % 16 == 15 && end.passed()) return false;
      if (turn > 2000) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (turn > 100) std::this_thread::yield();
    }
    return true;
  }

 private:
  std::shared_ptr<MpiWorld> world_;
  Kind kind_;
  int rank_;
  int size_;
  std::size_t expected_;
  bool measured_ = false;
  std::vector<MPI_Request> requests_;
};

class MpiCommunicator final : public LibraryCommunicator {
 public:
  /// The caller holds the world's mutex: the constructor calls MPI.
  MpiCommunicator(std::shared_ptr<MpiWorld> world, MPI_Comm comm, int rank, int size,
                  Duration timeout, std::size_t largest)
      : LibraryCommunicator("MPI", rank, size, timeout,
                            {.integers = Integers::kAll, .reduce_scatter = true}),
        world_(std::move(world)),
        comm_(comm),
        largest_(largest) {
    // By default MPI ends the process at an error, and with it the report of the cause.
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiCommunicator() override {
    const std::lock_guard lock(world_->mutex());
    int finalized = 0;
    MPI_Finalized(&finalized);
    // Freeing is collective. After an abort other ranks may never come.
    if (!finalized && !world_->aborted()) MPI_Comm_free(&comm_);
  }

 protected:
  std::unique_ptr<Transfer> post(const Request& request) override;
  std::unique_ptr<collective::Communicator> part(int color, int key,
                                                 const std::vector<int>& members) override;
  void publish_failure(const Error& cause) override { world_->publish_failure(cause); }
  std::optional<Error> poll_failure(bool) override { return world_->poll_failure(); }

 private:
  void ok(int code, const char* call) const { check_mpi(code, call, rank(), size()); }
  void reduce(const Request& r, MpiTransfer& transfer) const;
  void move(const Request& r, MpiTransfer& transfer) const;
  void exchange(const Request& r, MpiTransfer& transfer) const;
  int tag(std::uint32_t tag) const;

  std::shared_ptr<MpiWorld> world_;
  MPI_Comm comm_;
  std::size_t largest_;
};

/// A reduction of more elements than a call counts is several calls: elements are independent.
void MpiCommunicator::reduce(const Request& r, MpiTransfer& transfer) const {
  const MPI_Datatype type = datatype(r.type);
  const MPI_Op op = operation_of(r.reduction);
  const std::size_t size_of_one = size_of(r.type);
  const auto ranks = static_cast<std::size_t>(size());
  if (r.kind == Kind::kReduceScatter && r.count * ranks <= largest_) {
    return ok(MPI_Ireduce_scatter_block(r.input, r.output, static_cast<int>(r.count), type, op,
                                        comm_, transfer.next()),
              "MPI_Ireduce_scatter_block");
  }
  // MPI matches the calls on a communicator by their order, and every rank makes these in the same
  // order, whether it is the root or not. MPI forbids equal buffers, hence MPI_IN_PLACE.
  const auto to_root = [&](int root, std::size_t first, std::size_t begin, int count) {
    const void* from = bytes_at(r.input, (first + begin) * size_of_one);
    void* to = rank() == root ? bytes_at(r.output, begin * size_of_one) : nullptr;
    ok(MPI_Ireduce(from == to ? MPI_IN_PLACE : from, to, count, type, op, root, comm_,
                   transfer.next()),
       "MPI_Ireduce");
  };
  for (std::size_t begin = 0; begin < r.count; begin += largest_) {
    const int count = static_cast<int>(std::min(largest_, r.count - begin));
    if (r.kind == Kind::kReduceScatter) {
      for (std::size_t part = 0; part < ranks; ++part)
        to_root(static_cast<int>(part), part * r.count, begin, count);
    } else if (r.kind == Kind::kReduce) {
      to_root(r.peer, 0, begin, count);
    } else {
      const void* from =
          r.input == r.output ? MPI_IN_PLACE : bytes_at(r.input, begin * size_of_one);
      ok(MPI_Iallreduce(from, bytes_at(r.output, begin * size_of_one), count, type, op, comm_,
                        transfer.next()),
         "MPI_Iallreduce");
    }
  }
}

int MpiCommunicator::tag(std::uint32_t tag) const {
  // The largest tag is reserved for exchange().
  SHOAL_USER_CHECK(tag < static_cast<std::uint32_t>(world_->largest_tag()), "send or recv",
                   "tag {}: this MPI has tags up to {}", tag, world_->largest_tag() - 1);
  return static_cast<int>(tag);
}

/// An all_to_all with per-rank sizes goes pair by pair: MPI_Alltoallv's displacements are int too,
/// so that large exchanges would overflow them.
void MpiCommunicator::exchange(const Request& r, MpiTransfer& transfer) const {
  // No call blocks, so the order of the pairs cannot deadlock. MPI keeps two messages of one pair
  // and tag in order, so consecutive exchanges do not mix.
  std::size_t from = 0;
  std::size_t to = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t sent = r.send_counts[peer];
    const std::size_t received = r.receive_counts[peer];
    if (peer == rank() && sent > 0)
      std::memmove(bytes_at(r.output, to), bytes_at(r.input, from), sent);
    if (peer != rank() && received > 0) {
      const Bytes block(received, largest_);
      ok(MPI_Irecv(bytes_at(r.output, to), block.count(), block.type(), peer, world_->largest_tag(),
                   comm_, transfer.next()),
         "MPI_Irecv");
    }
    if (peer != rank() && sent > 0) {
      const Bytes block(sent, largest_);
      ok(MPI_Isend(bytes_at(r.input, from), block.count(), block.type(), peer,
                   world_->largest_tag(), comm_, transfer.next()),
         "MPI_Isend");
    }
    from += sent;
    to += received;
  }
}

void MpiCommunicator::move(const Request& r, MpiTransfer& transfer) const {
  const Bytes block(r.count, largest_);
  const int n = block.count();
  const MPI_Datatype type = block.type();
  const std::size_t mine = static_cast<std::size_t>(rank()) * r.count;
  const bool root = r.peer == rank();
  MPI_Request* const request = transfer.next();
  switch (r.kind) {
    case Kind::kBroadcast:
      return ok(MPI_Ibcast(r.output, n, type, r.peer, comm_, request), "MPI_Ibcast");
    case Kind::kAllGather: {
      const bool in_place = r.input == bytes_at(r.output, mine);
      return ok(MPI_Iallgather(in_place ? MPI_IN_PLACE : r.input, n, type, r.output, n, type, comm_,
                               request),
                "MPI_Iallgather");
    }
    case Kind::kGather: {
      const bool in_place = root && r.input == bytes_at(r.output, mine);
      return ok(MPI_Igather(in_place ? MPI_IN_PLACE : r.input, n, type, root ? r.output : nullptr,
                            n, type, r.peer, comm_, request),
                "MPI_Igather");
    }
    case Kind::kScatter: {
      const bool in_place = root && r.output == bytes_at(r.input, mine);
      return ok(MPI_Iscatter(root ? r.input : nullptr, n, type, in_place ? MPI_IN_PLACE : r.output,
                             n, type, r.peer, comm_, request),
                "MPI_Iscatter");
    }
    case Kind::kAllToAll:
      return ok(MPI_Ialltoall(r.input, n, type, r.output, n, type, comm_, request),
                "MPI_Ialltoall");
    case Kind::kSend:
      return ok(MPI_Isend(r.input, n, type, r.peer, tag(r.tag), comm_, request), "MPI_Isend");
    case Kind::kReceive:
      return ok(MPI_Irecv(r.output, n, type, r.peer < 0 ? MPI_ANY_SOURCE : r.peer, tag(r.tag),
                          comm_, request),
                "MPI_Irecv");
    default:
      return ok(MPI_Ibarrier(comm_, request), "MPI_Ibarrier");
  }
}

std::unique_ptr<Transfer> MpiCommunicator::post(const Request& request) {
  const std::lock_guard lock(world_->mutex());
  auto transfer = std::make_unique<MpiTransfer>(world_, request, rank(), size());
  // Data movement without elements is no call of MPI, on all ranks alike. Barriers and messages are
  // calls although they carry nothing.
  const bool empty = request.count == 0 && request.kind != Kind::kBarrier &&
                     !collective::point_to_point(request.kind);
  if (!request.send_counts.empty()) {
    exchange(request, *transfer);
  } else if (collective::reduces(request.kind)) {
    reduce(request, *transfer);
  } else if (!empty) {
    move(request, *transfer);
  }
  return transfer;
}

std::unique_ptr<collective::Communicator> MpiCommunicator::part(int color, int key,
                                                                const std::vector<int>& members) {
  const std::lock_guard lock(world_->mutex());
  // This blocks without a deadline. The exchange of colors before it has shown that every rank
  // comes.
  MPI_Comm comm = MPI_COMM_NULL;
  ok(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &comm), "MPI_Comm_split");
  if (comm == MPI_COMM_NULL) return nullptr;
  const int rank_there =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  return std::make_unique<MpiCommunicator>(world_, comm, rank_there,
                                           static_cast<int>(members.size()), timeout(), largest_);
}

}  // namespace

std::unique_ptr<collective::Communicator> mpi_communicator(const std::shared_ptr<MpiWorld>& world,
                                                           Duration timeout, std::size_t largest) {
  const std::lock_guard lock(world->mutex());
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup", world->rank(), world->size());
  return std::make_unique<MpiCommunicator>(world, comm, world->rank(), world->size(), timeout,
                                           largest);
}

}  // namespace shoal::comm
