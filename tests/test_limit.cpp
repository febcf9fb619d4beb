#include "tests/test_limit.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace shoal {
namespace {

/// Seconds that a test may take unless SHOAL_TEST_SECONDS says others; 0: any time.
constexpr int kMostSeconds = 600;
/// So long may it take to write the stacks: a thread may hold what the writing needs.
constexpr unsigned kMostSecondsOfWriting = 20;

/// The name of the test that runs, where a signal's handler can read it.
std::array<char, 256> running{};
std::atomic<int> stacks_written{0};

void say(std::string_view text) {
  // Nobody is left to be told that it could not be written.
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
}

void write_own_stack(int) {
  std::array<void*, 64> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  ++stacks_written;
}

/// Has a thread write its stack, and waits a second for another one: one that blocks signals writes
/// nothing.
void write_stack_of(pid_t thread) {
  std::array<char, 64> title{};
  std::snprintf(title.data(), title.size(), "thread %d:\n", thread);
  say(title.data());
  if (thread == gettid()) return write_own_stack(0);
  const int before = stacks_written;
  if (tgkill(getpid(), thread, SIGUSR2) != 0) return;
  constexpr timespec kMoment{0, 10'000'000};
  for (int i = 0; i < 100 && stacks_written == before; ++i) nanosleep(&kMoment, nullptr);
}

/// Without opendir(), which allocates: a signal may have come in the middle of that.
void write_stacks() {
  const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(dirent64) std::array<char, 4096> entries{};
  for (ssize_t bytes = 0; (bytes = getdents64(folder, entries.data(), entries.size())) > 0;) {
    for (ssize_t at = 0; at < bytes;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries.data() + at);
      if (const pid_t thread = std::atoi(entry->d_name)) write_stack_of(thread);
      at += entry->d_reclen;
    }
  }
}

void end_this_program(int) {
  signal(SIGALRM, SIG_DFL);
  // While its handler runs it is blocked, and this may be the only thread.
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  alarm(kMostSecondsOfWriting);
  say("\nstuck: ");
  say(running.data());
  say(" has run for longer than a test may (SHOAL_TEST_SECONDS, 600 unless set)\n");
  signal(SIGUSR2, write_own_stack);
  write_stacks();
  _exit(1);
}

class Limit : public testing::EmptyTestEventListener {
 public:
  explicit Limit(int seconds) : seconds_(static_cast<unsigned>(seconds)) {}

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    std::snprintf(running.data(), running.size(), "%s.%s", test.test_suite_name(), test.name());
    alarm(seconds_);
  }
  void OnTestEnd(const testing::TestInfo& /*test*/) override { alarm(0); }

  const unsigned seconds_;
};

}  // namespace

void end_stuck_tests() {
  const char* const given = std::getenv("SHOAL_TEST_SECONDS");
  const int seconds = given ? std::max(0, std::atoi(given)) : kMostSeconds;
  // The first call loads what later ones need, which a signal's handler may not.
  void* frame = nullptr;
  backtrace(&frame, 1);
  signal(SIGALRM, end_this_program);
  testing::UnitTest::GetInstance()->listeners().Append(new Limit(seconds));
}

}  // namespace shoal
