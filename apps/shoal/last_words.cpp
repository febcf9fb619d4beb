#include "apps/shoal/last_words.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "apps/shoal/exit_code.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// A pipe of at least 4 KiB takes it in one piece (POSIX: PIPE_BUF).
constexpr std::size_t kLongest = 4000;

}  // namespace

std::int64_t monotonic_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

LastWords words_of(const std::exception& error) {
  const Ending ending = ending_of(error);
  LastWords words{ending.code, false, monotonic_ns(), ending.text};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    const ErrorKind kind = known->kind();
    // A rank that was told of another's failure throws what that one threw, and names it.
    words.about_a_peer = known->peer() >= 0 || kind == ErrorKind::kPeerLost ||
                         kind == ErrorKind::kAborted || kind == ErrorKind::kTimeout;
  }
  return words;
}

void tell(int pipe, const LastWords& words) {
  std::string message =
      fmt::format("{} {:d} {}\n{}", words.code, words.about_a_peer, words.time_ns, words.text);
  message.resize(std::min(message.size(), kLongest));
  [[maybe_unused]] const auto written = ::write(pipe, message.data(), message.size());
}

std::optional<LastWords> heard(int pipe) {
  char buffer[kLongest];
  const auto length = ::read(pipe, buffer, sizeof buffer);
  if (length <= 0) return std::nullopt;
  std::istringstream message(std::string(buffer, length));
  LastWords words;
  if (!(message >> words.code >> words.about_a_peer >> words.time_ns)) return std::nullopt;
  message.ignore(1);
  std::getline(message, words.text, '\0');
  return words;
}

}  // namespace shoal::apps
