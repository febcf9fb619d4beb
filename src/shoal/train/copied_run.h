#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::train {

/// Finds the longest run of tokens that a short sample shares with a long text, in one pass over
/// the text: the suffix automaton of the sample (Blumer et al., 1985) is fed the text token by
/// token.
class CopiedRun {
 public:
  explicit CopiedRun(std::span<const std::uint32_t> sample);

  /// Reads the next tokens of the text; a run may have begun in the tokens before.
  void feed(std::span<const std::uint32_t> text);

  std::int64_t length() const { return longest_; }  ///< length of the longest run so far
  std::int64_t end() const { return end_; }         ///< its end in the sample

 private:
  struct State {
    std::int64_t length = 0, link = -1, end = 0;
    std::vector<std::pair<std::uint32_t, std::int64_t>> next{};

    std::int64_t* find(std::uint32_t token);
  };

  void extend(std::uint32_t token);

  std::vector<State> states_;
  std::int64_t last_ = 0;
  std::int64_t at_ = 0, matched_ = 0, longest_ = 0, end_ = 0;
};

}  // namespace shoal::train
