#include "tests/collective/host_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace shoal::collective {

void on_threads(int ranks, const std::function<void(HostCommunicator&, int)>& body) {
  const auto control = std::make_shared<wire::SharedSegment>(
      wire::SharedSegment::create("control", HostWorld::control_bytes()));
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HostCommunicator communicator(std::make_shared<HostWorld>(rank, ranks, control),
                                      {.timeout = std::chrono::seconds(60)});
        body(communicator, rank);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

std::vector<int> on_processes(int ranks,
                              const std::function<int(HostCommunicator&, wire::Arena&, int)>& body,
                              const std::function<void(const std::vector<int>& pids)>& meanwhile,
                              HostCommunicator::Options options) {
  static std::atomic<int> meetings{0};
  const std::string name = "test-" + std::to_string(getpid()) + "-" + std::to_string(++meetings);
  std::vector<int> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 99;
      try {
        wire::Arena arena(
            {.virtual_bytes = std::size_t{1} << 33, .limit_bytes = std::size_t{1} << 31});
        wire::LocalRendezvousOptions meeting{.name = name,
                                             .key = "k",
                                             .rank = rank,
                                             .size = ranks,
                                             .control_bytes = HostWorld::control_bytes(),
                                             .arena = &arena.segment()};
        auto world = std::make_shared<HostWorld>(
            rank, local_rendezvous(meeting, Deadline::in(std::chrono::seconds(60))),
            &arena.segment());
        HostCommunicator communicator(world, options);
        code = body(communicator, arena, rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  if (meanwhile) meanwhile(children);
  std::vector<int> codes;
  for (const int child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

}  // namespace shoal::collective
