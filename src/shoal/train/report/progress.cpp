#include "shoal/train/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/base/figures.h"

namespace shoal::train {

namespace {

/// Lists the categories that take at least a twentieth of the memory, the largest first:
/// "activations 55 %, parameters 30 %".
std::string parts_of(const StepMetrics& m) {
  std::vector<std::pair<double, const char*>> parts;
  for (std::size_t c = 0; c < m.memory.size(); ++c) {
    if (m.memory[c] >= 0.05 * *m.memory_bytes)
      parts.emplace_back(m.memory[c], name(static_cast<MemoryCategory>(c)));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, name] : parts) {
    text +=
        fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * bytes / *m.memory_bytes);
  }
  return text;
}

}  // namespace

std::string fitted(std::vector<ProgressWord> words, int width) {
  const auto joined = [&] {
    std::string line;
    for (const ProgressWord& word : words) line += (line.empty() ? "" : "  ") + word.text;
    return line;
  };
  std::string line = joined();
  for (; width > 0 && line.size() > static_cast<std::size_t>(width) && words.size() > 1;
       line = joined()) {
    // The least important word goes first.
    words.erase(std::min_element(words.begin(), words.end(), [](const auto& a, const auto& b) {
      return a.last_to_go < b.last_to_go;
    }));
  }
  return width > 0 ? line.substr(0, static_cast<std::size_t>(width)) : line;
}

Progress::Progress(std::FILE* out, bool terminal, std::int64_t interval, std::int64_t first_step,
                   std::int64_t total_steps, std::string counted)
    : out_(out),
      terminal_(terminal),
      interval_(interval),
      first_(first_step),
      total_(total_steps),
      counted_(std::move(counted)) {}

void Progress::step(const StepMetrics& metrics) {
  const bool last = metrics.step == total_;
  if (terminal_) {
    // A terminal is updated ten times a second at most.
    if (!last && Clock::now() - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = Clock::now();
    shown_ = fitted(words(metrics), width());
    // To the first column, clear the line, write it anew.
    fmt::print(out_, "\r\x1b[K{}", shown_);
  } else if (last || metrics.step % interval_ == 0 || metrics.step == first_ + 1) {
    fmt::print(out_, "{}\n", fitted(words(metrics), 0));
  }
  std::fflush(out_);
}

void Progress::print(const std::string& text) {
  if (terminal_ && !shown_.empty()) {
    fmt::print(out_, "\r\x1b[K{}\n{}", text, fitted({{shown_, 0}}, width()));
  } else {
    fmt::print(out_, "{}\n", text);
  }
  std::fflush(out_);
}

void Progress::finish() {
  if (terminal_ && !shown_.empty()) fmt::print(out_, "\n");
  shown_.clear();
  std::fflush(out_);
}

std::vector<ProgressWord> Progress::words(const StepMetrics& m) const {
  const Duration spent = Clock::now() - began_;
  const auto done = static_cast<double>(m.step - first_);
  const auto left = static_cast<double>(total_ - m.step);
  // From the steps of this start: those before it may have run elsewhere.
  const auto eta = std::chrono::duration_cast<Duration>(spent * (done > 0 ? left / done : 0));
  std::string scale = fmt::format("grad norm {:.3g}", m.grad_norm);
  if (m.loss_scale) scale += fmt::format("  loss scale {:g}", *m.loss_scale);
  if (m.skipped) scale = fmt::format("overflow at loss scale {:g}: skipped", *m.loss_scale);
  std::vector<ProgressWord> words{{fmt::format("step {}/{}", m.step, total_), 5},
                                  {fmt::format("loss {:.4f}", m.loss), 4},
                                  {fmt::format("lr {:.3g}", m.lr), 1},
                                  {fmt::format("{} {}/s", format_si(m.tokens_per_s), counted_), 2},
                                  {scale, 0}};
  if (m.memory_bytes) {
    words.push_back({"mem " + format_si(*m.memory_bytes, "B"), 1});
    if (const std::string parts = parts_of(m); !parts.empty())
      words.push_back({"(" + parts + ")", -1});
  }
  words.push_back({m.step == total_ ? "took " + format_duration(to_seconds(spent))
                                    : "ETA " + format_duration(to_seconds(eta)),
                   3});
  return words;
}

int Progress::width() const {
  winsize size{};
  // Some terminals wrap as soon as the last column is written.
  return ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 0;
}

}  // namespace shoal::train
