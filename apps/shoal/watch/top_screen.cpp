#include "apps/shoal/watch/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/shoal/watch/status_text.h"

namespace shoal::apps {
namespace {

/// Filled from below in eighths.
constexpr std::array<const char*, 9> kColumns = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr int kCurveRows = 6;

/// The first `columns` characters of a UTF-8 text, none of which is wider than a column.
std::string cut(const std::string& text, int columns) {
  std::string shown;
  int count = 0;
  for (const char c : text) {
    // Bytes 10xxxxxx go on with a character.
    if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U && ++count > columns) break;
    // An error message may bring line ends and escapes along.
    const bool is_control = static_cast<unsigned char>(c) < 32 || c == 127;
    shown += is_control ? ' ' : c;
  }
  return shown;
}

/// Means of the numbers that fall into each column; a column for each where there are fewer.
std::vector<double> means_by_column(const std::vector<double>& values, int columns) {
  const std::size_t count = std::min(values.size(), static_cast<std::size_t>(columns));
  std::vector<double> means;
  for (std::size_t column = 0; column < count; ++column) {
    const std::size_t begin = column * values.size() / count;
    const std::size_t end = (column + 1) * values.size() / count;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  return means;
}

std::vector<double> finite_losses(const RunSummary& run) {
  std::vector<double> losses;
  for (const train::StepMetrics& step : run.recent)
    if (std::isfinite(step.loss)) losses.push_back(step.loss);
  return losses;
}

void add_curve(std::vector<std::string>& lines, const RunSummary& run, int columns) {
  const std::vector<double> losses = finite_losses(run);
  if (losses.size() < 2) return;
  const auto [lowest, highest] = std::minmax_element(losses.begin(), losses.end());
  lines.push_back(fmt::format("loss of steps {} to {}, from {:.4f} to {:.4f}:",
                              run.recent.front().step, run.recent.back().step, *lowest, *highest));
  for (std::string& line : curve(losses, columns, kCurveRows)) lines.push_back(std::move(line));
}

std::string rank_bar(const RankStatus& rank, const RunSummary& run, int columns) {
  const auto total = static_cast<double>(run.total_steps());
  // The current step is not complete.
  const auto done = static_cast<double>(std::max<std::int64_t>(0, rank.step - 1));
  return bar(total > 0 ? done / total : 0, columns);
}

}  // namespace

std::vector<std::string> curve(const std::vector<double>& values, int columns, int rows) {
  if (values.empty() || columns <= 0 || rows <= 0) return {};
  const std::vector<double> means = means_by_column(values, columns);
  const auto [lowest, highest] = std::minmax_element(means.begin(), means.end());
  const double range = *highest - *lowest;
  std::vector<std::string> lines(static_cast<std::size_t>(rows));
  for (const double mean : means) {
    // At least an eighth, so that the lowest is seen; the middle where all are equal.
    const double height = range > 0 ? (mean - *lowest) / range : 0.5;
    const long eighths = std::max(1L, std::lround(height * 8 * rows));
    for (int row = 0; row < rows; ++row) {
      const long below = 8L * (rows - 1 - row);
      lines[static_cast<std::size_t>(row)] +=
          kColumns[static_cast<std::size_t>(std::clamp(eighths - below, 0L, 8L))];
    }
  }
  return lines;
}

std::string bar(double part, int columns) {
  const int filled = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * columns));
  std::string text;
  for (int column = 0; column < columns; ++column) text += column < filled ? "█" : "·";
  return text;
}

std::vector<std::string> top_screen(const RunSummary& run, int columns, int rows) {
  std::vector<std::string> lines = headline(run);
  add_curve(lines, run, columns);
  std::vector<std::string> ranks;
  if (run.job) {
    std::vector<std::string> figures;
    std::size_t longest = 0;
    for (const RankStatus& rank : run.job->ranks) {
      figures.push_back(rank_line(rank, run.job->ranks.size()));
      longest = std::max(longest, figures.back().size());
    }
    // The bar is the part of the line that can be short: figures that are cut off mislead.
    const int room_for_bar = columns - static_cast<int>(longest) - 2;
    const int bar_columns = std::clamp(std::min(columns / 8, room_for_bar), 4, 30);
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const RankStatus& rank = run.job->ranks[i];
      if (rank.process != 0) ranks.push_back(rank_bar(rank, run, bar_columns) + "  " + figures[i]);
    }
  }
  const std::size_t room = static_cast<std::size_t>(std::max(1, rows));
  if (lines.size() + ranks.size() > room && !ranks.empty()) {
    const std::size_t shown = room > lines.size() + 1 ? room - lines.size() - 1 : 0;
    const std::size_t left_out = ranks.size() - shown;
    ranks.resize(shown);
    ranks.push_back(fmt::format("... and {} more rank{}", left_out, left_out == 1 ? "" : "s"));
  }
  for (std::string& rank : ranks) lines.push_back(std::move(rank));
  if (lines.size() > room) lines.resize(room);
  for (std::string& line : lines) line = cut(line, std::max(1, columns));
  return lines;
}

}  // namespace shoal::apps
