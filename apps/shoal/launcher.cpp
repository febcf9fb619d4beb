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
#include <optional>
#include <regex>

#include "apps/shoal/exit_code.h"
#include "apps/shoal/failure_report.h"
#include "apps/shoal/self_exec.h"
#include "apps/shoal/watch/process_state.h"
#include "shoal/base/check.h"
#include "shoal/base/hex.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/wire/descriptor.h"

namespace shoal::apps {
namespace {

using namespace std::chrono_literals;

/// After a failure the other ranks are asked to end, and killed when they do not.
constexpr auto kAskAfter = 1s;
constexpr auto kKillAfter = 3s;
/// The launcher looks at its ranks and at these limits at least so often.
constexpr auto kPollEvery = 50ms;

/// The part of an error that is the same on all ranks: without the place in brackets that names
/// the rank and its peer, and without the name of the rank from which this one heard it.
std::string common_part(const std::string& error) {
  static const std::regex kPlace(" \\(rank [0-9]+ of [0-9]+[^)]*\\)| rank [0-9]+ failed:");
  return std::regex_replace(error, kPlace, "");
}

struct Child {
  int rank = 0;
  pid_t process = -1;
  int report_pipe = -1;  ///< the launcher's end
  bool ended = false;
  bool killed_by_launcher = false;
  int asked_with = 0;  ///< the signal by which the launcher asked it to end
  int status = 0;      ///< of waitpid
  std::int64_t ended_ns = 0;
  std::optional<FailureReport> report;

  int code() const {
    return WIFSIGNALED(status) ? signal_exit_code(WTERMSIG(status)) : WEXITSTATUS(status);
  }
  /// True when it ended as a run does that was asked to stop, or by the signal itself because it
  /// came before the rank handled it.
  bool stopped() const {
    if (WIFSIGNALED(status)) return WTERMSIG(status) == asked_with;
    return is_stop_code(code());
  }
  // A rank that the launcher killed, or asked to stop, has not failed.
  bool failed() const { return ended && !killed_by_launcher && status != 0 && !stopped(); }
};

/// A file in memory with `text` in it, whose descriptor the ranks inherit: a command line would
/// show the job's key to every user.
wire::Descriptor memory_file(const std::string& text) {
  // Without MFD_CLOEXEC: the descriptor must survive exec.
  wire::Descriptor file(::memfd_create("shoal-launch", 0));
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw system_error(ErrorKind::kResource, "launcher", "cannot make shared memory");
  return file;
}

/// Blocks the signals that the launcher waits for, for its lifetime.
class SignalWatch {
 public:
  SignalWatch() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1}) ::sigaddset(&set_, signal);
    // Blocked signals wait for sigtimedwait: no handler, and none is lost between a look at the
    // ranks and the next wait.
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
  sigset_t set_{};
  sigset_t before_{};
};

class Launcher {
 public:
  explicit Launcher(const Launch& launch) : launch_(launch), board_(launch.board->board()) {
    launch_file_ = memory_file(random_job_key() + "\n" + launch.job_text);
    children_.resize(launch.ranks);
  }

  int run() {
    for (int rank = 0; rank < launch_.ranks; ++rank) start(rank);
    // It begins a thread, so all ranks must have been forked.
    launch_.watch->serve();
    while (std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return !child.ended; })) {
      // SIGCHLD ends the wait at once; the time limit is for what no signal tells, the clocks of a
      // failure.
      on_signal(signals_.next(kPollEvery));
      reap();
      if (failed_at_) stop_the_others();
    }
    return report();
  }

 private:
  void start(int rank);
  [[noreturn]] void become(int rank, int report_pipe, pid_t launcher) const;
  std::vector<std::string> command_line(int rank, int report_pipe) const;
  void on_signal(int signal);
  void reap();
  void stop_the_others();
  void signal_living(int signal);
  std::string describe(const Child& child);
  std::string where_it_would_go_on() const;
  int report();

  const Launch& launch_;
  train::RunBoard board_;
  SignalWatch signals_;
  wire::Descriptor launch_file_;
  std::vector<Child> children_;
  int stop_signal_ = 0;  ///< the first signal that asked the launcher to stop
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
  bool asked_ = false;
  std::string stopped_rank_;  ///< describes a rank that was stopped when another failed
};

void Launcher::start(int rank) {
  int ends[2];
  // Neither end blocks: the launcher looks into the pipe only after a rank has ended, and a rank
  // that reports must not hang on a launcher that is gone.
  if (::pipe2(ends, O_NONBLOCK) != 0)
    throw system_error(ErrorKind::kResource, "launcher", "cannot make a pipe");
  // Ranks inherit the end that is written to; the launcher's end is for no other rank.
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0)
    throw system_error(ErrorKind::kResource, "launcher", fmt::format("cannot start rank {}", rank));
  // The launcher has one thread, so the child may allocate and format between fork and exec.
  if (process == 0) become(rank, ends[1], launcher);
  // The launcher must not hold it open: later ranks would inherit it.
  ::close(ends[1]);
  children_[rank].rank = rank;
  children_[rank].process = process;
  children_[rank].report_pipe = ends[0];
  board_.ranks[static_cast<std::size_t>(rank)].process = process;
}

/// Runs in the child, between fork and exec.
void Launcher::become(int rank, int report_pipe, pid_t launcher) const {
  die_with_parent(launcher);
  if (rank > 0) {
    const std::string path = fmt::format("{}/logs/rank-{}.log", launch_.run_directory, rank);
    const int log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (log >= 0) {
      // The console is rank 0's: lines of several ranks would mix.
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::close(log);
    }
  }
  // The mask survives exec: a rank that blocked SIGTERM could not be asked to stop.
  ::sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
  exec_self(command_line(rank, report_pipe));
  const FailureReport report{
      1, false, monotonic_ns(),
      fmt::format("[launcher] cannot start the program again: {}", std::strerror(errno))};
  write_failure_report(report_pipe, report);
  ::_exit(1);
}

std::vector<std::string> Launcher::command_line(int rank, int report_pipe) const {
  // Everything but the job and its key, which are in the inherited file: a command line can be read
  // by all users.
  std::vector<std::string> arguments = {"rank",
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
                                        fmt::format("{}", launch_file_.get()),
                                        "--report-fd",
                                        fmt::format("{}", report_pipe),
                                        "--board-fd",
                                        fmt::format("{}", launch_.board->descriptor())};
  if (!launch_.cores.empty()) {
    arguments.insert(arguments.end(),
                     {"--cores", fmt::format("{}", fmt::join(launch_.cores[rank], ","))});
  }
  return arguments;
}

void Launcher::on_signal(int signal) {
  // A warning of a time limit: the signal that comes at the limit is not the user's second one.
  if (signal == SIGUSR1 && stop_signal_ == 0) signal_living(signal);
  if (signal != SIGTERM && signal != SIGINT) return;
  // The first signal is passed on: ranks finish their step and save. The second means now.
  if (stop_signal_ == 0) {
    stop_signal_ = signal;
    signal_living(signal);
    return;
  }
  for (Child& child : children_) child.killed_by_launcher |= !child.ended;
  signal_living(SIGKILL);
}

void Launcher::signal_living(int signal) {
  for (Child& child : children_) {
    if (child.ended) continue;
    if (signal != SIGKILL) child.asked_with = signal;
    // A child that has not made its process group yet is reached by its process number.
    if (::kill(-child.process, signal) != 0) ::kill(child.process, signal);
  }
}

void Launcher::reap() {
  for (Child& child : children_) {
    siginfo_t ending{};
    if (child.ended || ::waitid(P_PID, child.process, &ending, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ending.si_pid == 0)
      continue;
    // Processes that the rank has started and left behind are killed with its group. WNOWAIT above
    // has left it a zombie, so no other process can have its number before waitpid.
    ::kill(-child.process, SIGKILL);
    ::waitpid(child.process, &child.status, 0);
    child.ended = true;
    board_.ranks[static_cast<std::size_t>(child.rank)].ended = true;
    child.ended_ns = monotonic_ns();
    child.report = read_failure_report(child.report_pipe);
    ::close(child.report_pipe);
    // The first failure starts the clock. Ranks that stand still are noted now: soon the launcher
    // will kill them, and nobody could tell any more that they were stopped before.
    if (child.failed() && !failed_at_) {
      failed_at_ = std::chrono::steady_clock::now();
      for (const Child& other : children_) {
        if (!other.ended && state_of_process(other.process) == ProcessState::kStopped) {
          stopped_rank_ = fmt::format("rank {} of {} stands still: a signal has stopped it",
                                      other.rank, launch_.ranks);
        }
      }
    }
  }
}

void Launcher::stop_the_others() {
  // First the ranks may notice themselves what happened and report it; their reports name the
  // cause.
  const auto since = std::chrono::steady_clock::now() - *failed_at_;
  if (since >= kAskAfter && !asked_) {
    asked_ = true;
    signal_living(SIGTERM);
  }
  if (since < kKillAfter) return;
  for (Child& child : children_) child.killed_by_launcher |= !child.ended;
  signal_living(SIGKILL);
}

std::string Launcher::describe(const Child& child) {
  // The board lies in shared memory, so it can be read after the rank has died.
  const std::int64_t step = board_.ranks[static_cast<std::size_t>(child.rank)].step;
  const std::string when = step > 0 ? fmt::format("in step {}", step) : "before the first step";
  std::string what;
  if (WIFSIGNALED(child.status)) {
    what = fmt::format("was killed by signal {} ({})", WTERMSIG(child.status),
                       ::strsignal(WTERMSIG(child.status)));
  } else {
    what = child.report ? "failed"
                        : fmt::format("ended with code {} and left no error report", child.code());
  }
  std::string text = fmt::format("rank {} of {} {} {}", child.rank, launch_.ranks, what, when);
  if (child.report) text += ": " + child.report->text;
  return text;
}

/// Says from which step the job would go on without --fresh, and how many steps that loses; nothing
/// where there is nothing to lose yet.
std::string Launcher::where_it_would_go_on() const {
  std::int64_t furthest = 0;
  for (const train::RankLine& line : board_.ranks) furthest = std::max(furthest, line.step.load());
  const auto newest = checkpoint::format::newest_step(launch_.run_directory + "/checkpoints");
  const std::int64_t from = newest ? newest->step : 0;
  // The current step of the furthest rank is not complete.
  const std::int64_t lost = std::max<std::int64_t>(0, furthest - 1 - from);
  if (!newest && lost == 0) return "";
  const std::string which = newest ? fmt::format("the newest checkpoint is of step {}", from)
                                   : std::string("no checkpoint yet");
  return fmt::format("{}: the job, without --fresh, begins again from step {}{}", which, from,
                     lost > 0 ? fmt::format(", {} step{} back", lost, lost == 1 ? "" : "s") : "");
}

int Launcher::report() {
  std::vector<const Child*> failures;
  for (const Child& child : children_)
    if (child.failed()) failures.push_back(&child);
  const auto order = [](const Child* child) {
    // A rank that failed by itself comes before those that only miss a peer; among equals the
    // earlier comes first.
    const bool about_a_peer = child->report && child->report->about_a_peer;
    return std::make_pair(about_a_peer, child->report ? child->report->time_ns : child->ended_ns);
  };
  std::sort(failures.begin(), failures.end(),
            [&](const Child* a, const Child* b) { return order(a) < order(b); });
  if (!stopped_rank_.empty()) fmt::print(stderr, "shoal: {}\n", stopped_rank_);
  for (const Child* child : failures) {
    // All ranks often end with the same error, which is said once.
    const bool repeats =
        child != failures.front() && child->report && failures.front()->report &&
        common_part(child->report->text) == common_part(failures.front()->report->text);
    fmt::print(stderr, "shoal: {}\n",
               repeats
                   ? fmt::format("rank {} of {} reports the same error", child->rank, launch_.ranks)
                   : describe(*child));
  }
  if (!failures.empty()) {
    launch_.watch->cause(stopped_rank_.empty() ? describe(*failures.front()) : stopped_rank_);
    const std::string from = where_it_would_go_on();
    if (!from.empty()) fmt::print(stderr, "shoal: {}\n", from);
    fmt::print(stderr, "shoal: logs in {}/logs\n", launch_.run_directory);
    return failures.front()->code();
  }
  for (const Child& child : children_)
    if (child.ended && child.stopped()) return child.code();
  // No rank failed and none stopped in order: a second signal killed them.
  const bool cut_short = std::any_of(children_.begin(), children_.end(),
                                     [](const Child& child) { return child.killed_by_launcher; });
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
  return hex(std::as_bytes(std::span(bits)));
}

}  // namespace shoal::apps
