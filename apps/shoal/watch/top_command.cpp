#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/shoal/watch/commands.h"
#include "apps/shoal/watch/run_summary.h"
#include "apps/shoal/watch/top_screen.h"

namespace shoal::apps {
namespace {

/// The losses of about a thousand steps.
constexpr std::size_t kCurveBytes = 256 << 10;
constexpr int kRefreshMs = 1000;
constexpr char kCtrlC = 3;

/// A signal handler can reach only process-wide variables.
volatile std::sig_atomic_t was_asked_to_end = 0;

/// Gives the terminal to a program that draws on all of it and reads single keys, and gives it back
/// as it was.
class FullScreen {
 public:
  FullScreen() {
    struct sigaction action = {};
    action.sa_handler = [](int) { was_asked_to_end = 1; };
    // Without SA_RESTART: a signal ends the wait for a key.
    for (const int signal : {SIGTERM, SIGHUP, SIGINT}) ::sigaction(signal, &action, nullptr);
    if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
      termios keys = before_;
      // Keys come at once and are not shown; Ctrl-C is a key like q.
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
      has_keys_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
    }
    // The other screen, without a cursor.
    fmt::print("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() {
    fmt::print("\x1b[?25h\x1b[?1049l");
    std::fflush(stdout);
    if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  /// Waits for the next refresh; false when the user wants to end.
  bool goes_on() const {
    // Where keys come from no terminal, only a signal ends this.
    pollfd key{has_keys_ ? STDIN_FILENO : -1, POLLIN, 0};
    const int ready = ::poll(&key, 1, kRefreshMs);
    if (was_asked_to_end) return false;
    if (ready <= 0) return true;
    char pressed = 0;
    // No key although it is ready: the terminal is gone.
    if (::read(STDIN_FILENO, &pressed, 1) != 1) return false;
    return pressed != 'q' && pressed != kCtrlC;
  }

 private:
  termios before_{};
  bool has_keys_ = false;
};

void draw(const RunSummary& run) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  // From the top left; each line clears what stood behind it, and the last what stood below.
  std::string text = "\x1b[H";
  // The last line of the terminal says how to end, and a column is left free, as some terminals
  // wrap as soon as it is written.
  for (const std::string& line : top_screen(run, size.ws_col - 1, size.ws_row - 1))
    text += line + "\x1b[K\r\n";
  fmt::print("{}\x1b[Jq ends this, not the run", text);
  std::fflush(stdout);
}

RunSummary look_with_losses(const std::string& directory) {
  return look_at_run(directory, Deadline::in(kAnswerWithin), "status", kCurveBytes);
}

void watch_run(const std::string& directory) {
  // An error of the first look is one of the command line, and is said on the usual screen.
  RunSummary run = look_with_losses(directory);
  const FullScreen screen;
  for (draw(run); screen.goes_on(); draw(run)) run = look_with_losses(directory);
}

}  // namespace

void add_top_command(CLI::App& program) {
  auto directory = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand(
      "top", "Show how far a run is, again each second, until q; once where it is no terminal");
  add_directory_option(*command, *directory);
  command->callback([directory] {
    const std::string chosen = chosen_directory(*directory);
    if (::isatty(STDOUT_FILENO) == 1) {
      watch_run(chosen);
      return;
    }
    for (const std::string& line : top_screen(look_with_losses(chosen), 80, 1000))
      fmt::print("{}\n", line);
  });
}

}  // namespace shoal::apps
