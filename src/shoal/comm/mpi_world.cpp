#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/mpi_compat.h"

namespace shoal::comm {
namespace {

/// The rank that failed waits so long for its message to leave.
constexpr Duration kPublishWithin = std::chrono::seconds(1);

}  // namespace

/// An error as a message. All have one size, so that the receive is posted before there is one.
struct MpiWorld::Message {
  std::uint32_t bytes = 0;
  std::byte text[2044];
};

void check_mpi(int code, const char* call, int rank, int size) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  int kind = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  ErrorKind ours = ErrorKind::kPeerLost;
  if (kind == MPI_ERR_TRUNCATE || kind == MPI_ERR_COUNT) ours = ErrorKind::kMismatch;
  if (kind == MPI_ERR_NO_MEM) ours = ErrorKind::kResource;
  throw Error(ours, call, text).at(rank, size);
}

MpiWorld::MpiWorld() {
  int initialized = 0;
  int finalized = 0;
  int level = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) {
    throw Error(ErrorKind::kConfig, "MPI_Init_thread",
                "MPI has been finalised in this process, and cannot begin again");
  }
  if (initialized) {
    MPI_Query_thread(&level);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread",
              -1, 0);
  }
  owns_ = !initialized;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorKind::kConfig, "MPI_Init_thread",
                fmt::format("MPI offers thread level {}, MPI_THREAD_SERIALIZED ({}) is needed",
                            level, static_cast<int>(MPI_THREAD_SERIALIZED)))
        .at(rank_, size_)
        .hint(initialized ? "initialise MPI with MPI_Init_thread and that level"
                          : "use an MPI that is built with threads");
  }
  // Reports of failures have a communicator of their own, in which no message of the job can match
  // them.
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup", rank_, size_);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(control_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type", rank_, size_);
  MPI_Comm_size(host, &ranks_on_host_);
  MPI_Comm_free(&host);
  int found = 0;
  void* value = nullptr;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  if (found) largest_tag_ = *static_cast<int*>(value);
  // The receive is posted for the whole life of the job: a rank that fails can send its report to
  // ranks that are in no call of Shoal.
  incoming_ = std::make_unique<Message>();
  check_mpi(MPI_Irecv(incoming_.get(), sizeof(Message), MPI_BYTE, MPI_ANY_SOURCE, 0, control_,
                      &listening_),
            "MPI_Irecv", rank_, size_);
}

MpiWorld::~MpiWorld() {
  const std::lock_guard lock(mutex_);
  int finalized = 0;
  MPI_Finalized(&finalized);
  // After a failure some rank may never come to the collective calls below.
  if (finalized || aborted_ || cause_) {
    incoming_.release();  // MPI may still write there
    return;
  }
  MPI_Cancel(&listening_);
  MPI_Wait(&listening_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&control_);
  if (owns_) MPI_Finalize();
}

void MpiWorld::publish_failure(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  auto* message = new Message;  // MPI may read it until the process ends
  wire::Bytes bytes = wire::encode(cause);
  if (bytes.size() > sizeof message->text) {
    bytes = wire::encode(Error(cause.kind(), cause.operation(), cause.message().substr(0, 1000))
                             .at(cause.rank(), cause.size()));
  }
  message->bytes = static_cast<std::uint32_t>(std::min(bytes.size(), sizeof message->text));
  std::memcpy(message->text, bytes.data(), message->bytes);
  std::vector<MPI_Request> sent;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    MPI_Isend(message, sizeof(Message), MPI_BYTE, r, 0, control_,
              &sent.emplace_back(MPI_REQUEST_NULL));
  }
  // MPI moves messages only inside its calls, and this process may end next. A rank that takes no
  // message must not hold it up for long.
  int done = 0;
  for (const Deadline end = Deadline::in(kPublishWithin); !done && !end.passed();
       std::this_thread::yield()) {
    const int code =
        MPI_Testall(static_cast<int>(sent.size()), sent.data(), &done, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) return;
  }
}

std::optional<Error> MpiWorld::poll_failure() {
  const std::lock_guard lock(mutex_);
  if (cause_) return cause_;
  int arrived = 0;
  if (MPI_Test(&listening_, &arrived, MPI_STATUS_IGNORE) != MPI_SUCCESS || !arrived)
    return std::nullopt;
  cause_ = wire::decode_error(
      std::span(incoming_->text, std::min<std::size_t>(incoming_->bytes, sizeof incoming_->text)));
  return cause_;
}

}  // namespace shoal::comm
