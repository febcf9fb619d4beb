#include "apps/shoal/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "apps/shoal/exit_code.h"
#include "apps/shoal/last_words.h"
#include "apps/shoal/own_program.h"
#include "apps/shoal/rank_progress.h"
#include "apps/shoal/run_directory.h"
#include "shoal/base/check.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

using namespace std::chrono_literals;

/// After a failure: when the other ranks are asked to end, and when they are killed.
constexpr auto kAsk = 1s, kKill = 3s;
constexpr auto kLookEvery = 50ms;

struct Child {
  int rank = 0;
  pid_t process = -1;
  int words_pipe = -1;  ///< our end
  bool ended = false;
  bool killed_by_us = false;
  int asked_with = 0;  ///< the signal by which we asked it to end
  int status = 0;      ///< as waitpid gives it
  std::int64_t ended_ns = 0;
  std::optional<LastWords> words;

  int code() const {
    return WIFSIGNALED(status) ? signal_exit_code(WTERMSIG(status)) : WEXITSTATUS(status);
  }
  /// Ended as a run does that was asked to stop, or by being asked before it listened.
  bool stopped() const {
    if (WIFSIGNALED(status)) return WTERMSIG(status) == asked_with;
    return code() == signal_exit_code(SIGTERM) || code() == signal_exit_code(SIGINT);
  }
  bool failed() const { return ended && !killed_by_us && status != 0 && !stopped(); }
};

/// A descriptor that ranks inherit, with `text` in it.
int memory_file(const std::string& text) {
  const int file = ::memfd_create("shoal-launch", 0);
  if (file < 0 || ::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw system_error(ErrorKind::kResource, "launcher", "cannot make shared memory");
  return file;
}

/// Blocks the signals that the launcher waits for, for its lifetime.
class SignalWatch {
 public:
  SignalWatch() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) ::sigaddset(&set_, signal);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~SignalWatch() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  /// The next signal, or 0 when none came in time.
  int next(std::chrono::milliseconds longest) const {
    const timespec time{0, std::chrono::nanoseconds(longest).count()};
    return std::max(0, ::sigtimedwait(&set_, nullptr, &time));
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{}, before_{};
};

class Launcher {
 public:
  explicit Launcher(const Launch& launch) : launch_(launch), progress_(launch.ranks) {
    make_log_folder(launch.run_directory);
    launch_file_ = memory_file(random_job_key() + "\n" + launch.job_text);
    children_.resize(launch.ranks);
  }
  ~Launcher() { ::close(launch_file_); }

  int run() {
    for (int rank = 0; rank < launch_.ranks; ++rank) start(rank);
    while (std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return !child.ended; })) {
      on_signal(signals_.next(kLookEvery));
      reap();
      if (failed_at_) stop_the_others();
    }
    return report();
  }

 private:
  void start(int rank);
  [[noreturn]] void become(int rank, int words_pipe, pid_t launcher) const;
  std::vector<std::string> command_line(int rank, int words_pipe) const;
  void on_signal(int signal);
  void reap();
  void stop_the_others();
  void signal_living(int signal);
  std::string describe(const Child& child);
  bool is_stopped(const Child& child) const;
  int report();

  const Launch& launch_;
  RankProgress progress_;
  SignalWatch signals_;
  int launch_file_ = -1;
  std::vector<Child> children_;
  int stop_signal_ = 0;  ///< that we were sent
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
  bool asked_ = false;
  std::string silent_;  ///< a rank that stood still when another failed waiting
};

void Launcher::start(int rank) {
  int ends[2];
  if (::pipe2(ends, O_NONBLOCK) != 0)
    throw system_error(ErrorKind::kResource, "launcher", "cannot make a pipe");
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0)
    throw system_error(ErrorKind::kResource, "launcher", fmt::format("cannot start rank {}", rank));
  if (process == 0) become(rank, ends[1], launcher);
  ::close(ends[1]);
  children_[rank].rank = rank, children_[rank].process = process,
  children_[rank].words_pipe = ends[0];
}

/// In the child, between fork and exec.
void Launcher::become(int rank, int words_pipe, pid_t launcher) const {
  follow(launcher);
  if (rank > 0) {
    const std::string path = fmt::format("{}/logs/rank-{}.log", launch_.run_directory, rank);
    const int log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (log >= 0) ::dup2(log, STDOUT_FILENO), ::dup2(log, STDERR_FILENO), ::close(log);
  }
  ::sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
  become_own_program(command_line(rank, words_pipe));
  LastWords last{
      1, false, monotonic_ns(),
      fmt::format("[launcher] cannot start the program again: {}", std::strerror(errno))};
  tell(words_pipe, last);
  ::_exit(1);
}

std::vector<std::string> Launcher::command_line(int rank, int words_pipe) const {
  std::vector<std::string> words = {"rank",
                                    "--rank",
                                    fmt::format("{}", rank),
                                    "--world",
                                    fmt::format("{}", launch_.ranks),
                                    "--run-dir",
                                    launch_.run_directory,
                                    "--job-file",
                                    launch_.job_file,
                                    "--threads",
                                    fmt::format("{}", launch_.threads),
                                    "--launch-fd",
                                    fmt::format("{}", launch_file_),
                                    "--words-fd",
                                    fmt::format("{}", words_pipe),
                                    "--progress-fd",
                                    fmt::format("{}", progress_.descriptor())};
  if (!launch_.cores.empty())
    words.insert(words.end(), {"--cores", fmt::format("{}", fmt::join(launch_.cores[rank], ","))});
  return words;
}

void Launcher::on_signal(int signal) {
  if (signal != SIGTERM && signal != SIGINT) return;
  if (stop_signal_ == 0) {
    stop_signal_ = signal;
    signal_living(signal);
    return;
  }
  for (Child& child : children_) child.killed_by_us |= !child.ended;
  signal_living(SIGKILL);
}

void Launcher::signal_living(int signal) {
  for (Child& child : children_) {
    if (child.ended) continue;
    if (signal != SIGKILL) child.asked_with = signal;
    // A child that has not made its group yet is reached by its own number.
    if (::kill(-child.process, signal) != 0) ::kill(child.process, signal);
  }
}

void Launcher::reap() {
  for (Child& child : children_) {
    siginfo_t ending{};
    if (child.ended || ::waitid(P_PID, child.process, &ending, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ending.si_pid == 0)
      continue;
    // What the rank has started and left behind ends with it; until waitpid no other process can
    // get its number.
    ::kill(-child.process, SIGKILL);
    ::waitpid(child.process, &child.status, 0);
    child.ended = true, child.ended_ns = monotonic_ns();
    child.words = heard(child.words_pipe);
    ::close(child.words_pipe);
    if (child.failed() && !failed_at_) {
      failed_at_ = std::chrono::steady_clock::now();
      for (const Child& other : children_) {
        if (!other.ended && is_stopped(other)) {
          silent_ = fmt::format("rank {} of {} stands still: a signal has stopped it", other.rank,
                                launch_.ranks);
        }
      }
    }
  }
}

void Launcher::stop_the_others() {
  const auto since = std::chrono::steady_clock::now() - *failed_at_;
  if (since >= kAsk && !asked_) {
    asked_ = true;
    signal_living(SIGTERM);
  }
  if (since < kKill) return;
  for (Child& child : children_) child.killed_by_us |= !child.ended;
  signal_living(SIGKILL);
}

bool Launcher::is_stopped(const Child& child) const {
  std::ifstream file(fmt::format("/proc/{}/stat", child.process));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  return name_end != std::string::npos && line.compare(name_end + 2, 1, "T") == 0;
}

std::string Launcher::describe(const Child& child) {
  const std::int64_t step = progress_.of(child.rank).load();
  const std::string when = step > 0 ? fmt::format("in step {}", step) : "before the first step";
  std::string what;
  if (WIFSIGNALED(child.status)) {
    what = fmt::format("was killed by signal {} ({})", WTERMSIG(child.status),
                       ::strsignal(WTERMSIG(child.status)));
  } else {
    what = child.words ? "failed"
                       : fmt::format("ended with code {} and left no error report", child.code());
  }
  std::string text = fmt::format("rank {} of {} {} {}", child.rank, launch_.ranks, what, when);
  if (child.words) text += ": " + child.words->text;
  return text;
}

int Launcher::report() {
  std::vector<const Child*> failures;
  for (const Child& child : children_)
    if (child.failed()) failures.push_back(&child);
  const auto order = [](const Child* child) {
    const bool about_a_peer = child->words && child->words->about_a_peer;
    return std::make_pair(about_a_peer, child->words ? child->words->time_ns : child->ended_ns);
  };
  std::sort(failures.begin(), failures.end(),
            [&](const Child* a, const Child* b) { return order(a) < order(b); });
  if (!silent_.empty()) fmt::print(stderr, "shoal: {}\n", silent_);
  for (const Child* child : failures) {
    const bool repeats = child != failures.front() && child->words && failures.front()->words &&
                         child->words->text == failures.front()->words->text;
    fmt::print(stderr, "shoal: {}\n",
               repeats ? fmt::format("rank {} of {} says the same", child->rank, launch_.ranks)
                       : describe(*child));
  }
  if (!failures.empty()) {
    fmt::print(stderr, "shoal: logs in {}/logs\n", launch_.run_directory);
    return failures.front()->code();
  }
  for (const Child& child : children_)
    if (child.ended && child.stopped()) return child.code();
  const bool cut_short = std::any_of(children_.begin(), children_.end(),
                                     [](const Child& child) { return child.killed_by_us; });
  return cut_short ? signal_exit_code(stop_signal_) : 0;
}

}  // namespace

int launch_ranks(const Launch& launch) {
  SHOAL_CHECK(launch.cores.empty() || launch.cores.size() == static_cast<std::size_t>(launch.ranks),
              "cores for {} ranks", launch.cores.size());
  return Launcher(launch).run();
}

std::string random_job_key() {
  unsigned char bits[16];
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits)
    throw system_error(ErrorKind::kResource, "launcher", "no random bits");
  return fmt::format("{:02x}", fmt::join(bits, ""));
}

}  // namespace shoal::apps
