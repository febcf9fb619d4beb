#include "tests/comm/gloo.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

// The wheel has ProcessGroupGloo and its header, but not Gloo's headers. Of what is in them it
// takes little more than names.
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace transport
namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous
}  // namespace gloo
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tests/support/process_group_communicator.h"

namespace shoal::comm {
namespace {

// PyTorch 2.11 has one flight recorder a process, and it notes new groups in a map before it takes
// its lock (FlightRecorderDetail.hpp): with ranks as threads the map breaks now and then. It is off
// where its buffer has no room, which is read once, after main has begun.
[[maybe_unused]] const bool recorder_off = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

}  // namespace

c10::intrusive_ptr<c10d::Backend> gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options));
}

void run_over_gloo(int ranks, Duration timeout, const std::function<void(const Group&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(Group(process_group_communicator(gloo(store, rank, ranks), store, timeout)));
      } catch (const std::exception&) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace shoal::comm
