#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::data {

/// A regular expression over UTF-8 text, by Oniguruma: the engine, syntax and Unicode classes of
/// Hugging Face's tokenizers, so that a pattern from there means the same here. Copies share it;
/// any number of threads may use it.
class TextPattern {
 public:
  /// Throws Error(data) that begins with `origin` for a pattern that is no regular expression.
  TextPattern(const std::string& pattern, const std::string& origin);

  /// Cuts `text`, which is valid UTF-8, at the borders of the matches and appends the pieces in
  /// order: the matches and what lies between them, which joined are the text. Throws Error(data)
  /// for a text on which the pattern takes too long.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace shoal::data
