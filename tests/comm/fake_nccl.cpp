// The functions of NCCL that Shoal calls, between threads of one process and on host memory, so
// that what is asked of NCCL can be tested where there is no GPU. As in a non-blocking communicator
// of NCCL, calls return at once and are carried out by a thread of each rank, in order.
#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/collective/fold/fold.h"

namespace {

using shoal::ElementType;
using shoal::collective::Reduction;

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr int kFirstOwnOperation = 5;

enum class Call { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kReceive };

struct Request {
  Call call;
  const void* input;
  void* output;
  std::size_t count;
  int type;
  int operation;
  int peer;  ///< or root
  FakeStream* stream = nullptr;
  double scale = 1;
};

ElementType element(int type) {
  constexpr ElementType kTypes[]{ElementType::kI8,  ElementType::kU8,  ElementType::kI32,
                                 ElementType::kU32, ElementType::kI64, ElementType::kU64,
                                 ElementType::kF16, ElementType::kF32, ElementType::kF64,
                                 ElementType::kBF16};
  return kTypes[type];
}

Reduction reduction(int operation) {
  constexpr Reduction kReductions[]{Reduction::kSum, Reduction::kProduct, Reduction::kMax,
                                    Reduction::kMin, Reduction::kAverage};
  return operation < kFirstOwnOperation ? kReductions[operation] : Reduction::kPremulSum;
}

struct Message {
  const void* data;
  std::size_t bytes;
  bool taken = false;
};

/// What the ranks of a communicator have in common.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  /// The requests of a collective, by its number among those of the communicator; null: a rank has
  /// not come, or is gone.
  std::map<std::uint64_t, std::vector<const Request*>> collectives;
  std::map<std::uint64_t, int> left;  ///< ranks that have seen the result
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
std::atomic<int> error_of_all = kSuccess;

/// Carries out a collective whose requests are all there, as the rank that came last.
void carry_out(const std::vector<const Request*>& requests) {
  const Request& any = *requests.front();
  const ElementType type = element(any.type);
  const std::size_t bytes = any.count * size_of(type);
  const int ranks = static_cast<int>(requests.size());
  std::vector<std::vector<std::byte>> results(requests.size());
  const auto add_up = [&](std::size_t offset) {
    std::vector<const void*> sources;
    for (const Request* request : requests)
      sources.push_back(static_cast<const std::byte*>(request->input) + offset);
    std::vector<std::byte> sum(bytes);
    void* target = sum.data();
    shoal::collective::fold(type, reduction(any.operation), sources.data(), ranks, &target, 1,
                            any.count, any.scale);
    return sum;
  };
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    switch (any.call) {
      case Call::kAllReduce:
        results[rank] = add_up(0);
        break;
      case Call::kReduce:
        if (static_cast<int>(rank) == any.peer) results[rank] = add_up(0);
        break;
      case Call::kReduceScatter:
        results[rank] = add_up(rank * bytes);
        break;
      case Call::kBroadcast: {
        const auto* from =
            static_cast<const std::byte*>(requests[static_cast<std::size_t>(any.peer)]->input);
        results[rank].assign(from, from + bytes);
        break;
      }
      default:
        for (const Request* request : requests) {
          const auto* from = static_cast<const std::byte*>(request->input);
          results[rank].insert(results[rank].end(), from, from + bytes);
        }
    }
  }
  // Written when all is read: outputs may be inputs.
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    if (results[rank].empty()) continue;
    std::memcpy(requests[rank]->output, results[rank].data(), results[rank].size());
  }
}

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<World> all, int own) : world(std::move(all)), rank(own) {
    worker = std::thread([this] { work(); });
  }
  ~ncclComm() {
    {
      const std::lock_guard lock(world->mutex);
      aborted = true;
    }
    world->changed.notify_all();
    worker.join();
  }

  void give(std::vector<Request> requests) {
    const std::lock_guard lock(world->mutex);
    if (!requests.empty()) ++requests.front().stream->given;
    jobs.push_back(std::move(requests));
    world->changed.notify_all();
  }
  bool meets() const {
    const std::lock_guard lock(world->mutex);
    return world->joined < world->size;
  }

  void work() {
    std::unique_lock lock(world->mutex);
    while (true) {
      world->changed.wait(lock, [&] { return aborted || !jobs.empty(); });
      if (aborted) return;
      if (!run(lock, jobs.front())) return;
      if (!jobs.front().empty()) ++jobs.front().front().stream->done;
      jobs.pop_front();
    }
  }

  /// Returns false when the rank is gone meanwhile.
  bool run(std::unique_lock<std::mutex>& lock, const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<Message>> sent;
    const auto until = [&](const std::function<bool()>& done) {
      world->changed.wait(lock, [&] { return aborted || done(); });
      return !aborted;
    };
    if (requests.empty()) {  // the first job: all ranks meet
      ++world->joined;
      world->changed.notify_all();
      return until([&] { return world->joined == world->size; });
    }
    for (const Request& r : requests) {
      if (r.call != Call::kSend) continue;
      const std::size_t bytes = r.count * size_of(element(r.type));
      sent.push_back(std::make_shared<Message>(Message{r.input, bytes}));
      world->messages[{rank, r.peer}].push_back(sent.back());
    }
    world->changed.notify_all();
    for (const Request& r : requests) {
      if (r.call == Call::kSend) continue;
      if (r.call == Call::kReceive ? !receive(r, until) : !meet(r, until)) return false;
    }
    return until([&] {
      return std::all_of(sent.begin(), sent.end(), [](const auto& m) { return m->taken; });
    });
  }

  template <class Until>
  bool receive(const Request& r, const Until& until) {
    auto& queue = world->messages[{r.peer, rank}];
    if (!until([&] { return !queue.empty(); })) return false;
    const auto message = queue.front();
    queue.pop_front();
    const std::size_t bytes = r.count * size_of(element(r.type));
    std::memcpy(r.output, message->data, std::min(message->bytes, bytes));
    message->taken = true;
    world->changed.notify_all();
    return true;
  }

  template <class Until>
  bool meet(const Request& r, const Until& until) {
    const std::uint64_t number = ++collectives;
    auto& requests = world->collectives[number];
    requests.resize(static_cast<std::size_t>(world->size));
    requests[static_cast<std::size_t>(rank)] = &r;
    if (std::count(requests.begin(), requests.end(), nullptr) == 0) {
      carry_out(requests);
      world->left[number] = world->size;
      world->changed.notify_all();
    }
    if (!until([&] { return world->left.contains(number); })) {
      // Nobody may read the memory of a rank that is gone.
      world->collectives[number][static_cast<std::size_t>(rank)] = nullptr;
      return false;
    }
    if (--world->left[number] == 0) {
      world->left.erase(number);
      world->collectives.erase(number);
    }
    return true;
  }

  std::shared_ptr<World> world;
  int rank;
  std::uint64_t collectives = 0;
  std::deque<std::vector<Request>> jobs;
  std::map<int, double> scales;
  bool aborted = false;
  std::thread worker;
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm*, Request>> grouped;

int add(ncclComm* comm, Request request) {
  if (!comm) return kInvalidArgument;
  if (request.operation >= kFirstOwnOperation) request.scale = comm->scales.at(request.operation);
  if (group_depth == 0) {
    comm->give({request});
  } else {
    grouped.emplace_back(comm, request);
  }
  return kSuccess;
}

}  // namespace

extern "C" {

/// Not of NCCL: what every communicator reports from now on.
void fakeNcclFail(int error) { error_of_all = error; }

struct FakeUniqueId {
  char bytes[128];
};

const char* ncclGetErrorString(int) { return "an error of the fake"; }
const char* ncclGetLastError(ncclComm*) { return ""; }
int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}
int ncclGetUniqueId(FakeUniqueId* id) {
  static std::atomic<int> last = 0;
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::string name = "world " + std::to_string(++last);
  std::copy(name.begin(), name.end(), id->bytes);
  return kSuccess;
}
int ncclCommInitRankConfig(ncclComm** comm, int size, FakeUniqueId id, int rank, void* config) {
  int blocking = 1;
  std::memcpy(&blocking, static_cast<char*>(config) + 16, sizeof blocking);
  if (blocking != 0 || rank < 0 || rank >= size) return kInvalidArgument;
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(worlds_mutex);
    auto& known = worlds[id.bytes];
    if (!known) known = std::make_shared<World>();
    known->size = size;
    world = known;
  }
  *comm = new ncclComm(std::move(world), rank);
  (*comm)->give({});
  return kInProgress;
}
int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  if (!comm) return kInvalidArgument;
  *error = error_of_all != kSuccess ? error_of_all.load() : comm->meets() ? kInProgress : kSuccess;
  return kSuccess;
}
int ncclCommAbort(ncclComm* comm) {
  delete comm;
  return kSuccess;
}
int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}
int ncclGroupEnd() {
  if (group_depth == 0) return kInvalidUsage;
  if (--group_depth > 0) return kSuccess;
  std::map<ncclComm*, std::vector<Request>> jobs;
  for (auto& [comm, request] : std::exchange(grouped, {})) jobs[comm].push_back(request);
  for (auto& [comm, requests] : jobs) comm->give(std::move(requests));
  return kSuccess;
}
int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int operation,
                  ncclComm* comm, FakeStream* stream) {
  return add(comm, {Call::kAllReduce, in, out, count, type, operation, 0, stream});
}
int ncclReduce(const void* in, void* out, std::size_t count, int type, int operation, int root,
               ncclComm* comm, FakeStream* stream) {
  return add(comm, {Call::kReduce, in, out, count, type, operation, root, stream});
}
int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, ncclComm* comm,
                  FakeStream* stream) {
  return add(comm, {Call::kBroadcast, in, out, count, type, 0, root, stream});
}
int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int operation,
                      ncclComm* comm, FakeStream* stream) {
  return add(comm, {Call::kReduceScatter, in, out, count, type, operation, 0, stream});
}
int ncclAllGather(const void* in, void* out, std::size_t count, int type, ncclComm* comm,
                  FakeStream* stream) {
  return add(comm, {Call::kAllGather, in, out, count, type, 0, 0, stream});
}
int ncclSend(const void* in, std::size_t count, int type, int peer, ncclComm* comm,
             FakeStream* stream) {
  return add(comm, {Call::kSend, in, nullptr, count, type, 0, peer, stream});
}
int ncclRecv(void* out, std::size_t count, int type, int peer, ncclComm* comm, FakeStream* stream) {
  return add(comm, {Call::kReceive, nullptr, out, count, type, 0, peer, stream});
}
int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int, ncclComm* comm) {
  double value = 0;
  if (type == 8) {
    std::memcpy(&value, scalar, sizeof value);
  } else {
    float single = 0;
    if (type == 7) {
      std::memcpy(&single, scalar, sizeof single);
    } else {
      shoal::collective::widen(element(type), scalar, &single, 1);
    }
    value = single;
  }
  *operation = kFirstOwnOperation + static_cast<int>(comm->scales.size());
  comm->scales[*operation] = value;
  return kSuccess;
}
int ncclRedOpDestroy(int, ncclComm*) { return kSuccess; }
}
