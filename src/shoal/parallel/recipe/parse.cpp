#include "shoal/parallel/recipe/parse.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/nearest.h"
#include "shoal/plan/degrees.h"

namespace shoal::parallel {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Rule rule() {
    Rule rule;
    rule.module = word("a pattern of module paths, such as blocks.*.mlp.up");
    take(':');
    do {
      item(rule);
    } while (taken(','));
    skip_blanks();
    if (at_ < text_.size()) fail(at_, "a comma or the end");
    return rule;
  }

 private:
  static bool in_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '*' ||
           c == '-';
  }

  [[noreturn]] void fail(std::size_t at, const std::string& expected,
                         const std::vector<std::string>& words = {}) const {
    std::size_t end = at;
    while (end < text_.size() && in_word(text_[end])) ++end;
    // What is no word is shown as its one character.
    const std::string found = text_.substr(at, std::max<std::size_t>(1, end - at));
    Error error(ErrorKind::kConfig, "recipe",
                fmt::format("\"{}\", column {}: {}, where {} should stand", text_, at + 1,
                            found.empty() ? "the end" : fmt::format("'{}'", found), expected));
    const std::string near = nearest(found, words);
    throw near.empty() ? error.hint(
                             "a rule reads \"blocks.*.mlp.up: weight shard(0), bias "
                             "shard(0), output shard(-1)\"")
                       : error.hint(fmt::format("did you mean {}?", near));
  }

  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool taken(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void take(char c) {
    if (!taken(c)) fail(at_, fmt::format("'{}'", c));
  }

  std::string word(const std::string& expected, const std::vector<std::string>& words = {}) {
    skip_blanks();
    begin_ = at_;
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    if (at_ == begin_) fail(begin_, expected, words);
    return text_.substr(begin_, at_ - begin_);
  }

  /// One of `words`.
  std::string one_of(const std::string& expected, const std::vector<std::string>& words) {
    const std::string found = word(expected, words);
    for (const std::string& known : words)
      if (found == known) return found;
    fail(begin_, expected, words);
  }

  int dimension() {
    take('(');
    skip_blanks();
    const std::size_t begin = at_;
    int dim = 0;
    const char* const end = text_.data() + text_.size();
    const auto [rest, status] = std::from_chars(text_.data() + at_, end, dim);
    if (status != std::errc()) fail(begin, "a dimension");
    at_ = static_cast<std::size_t>(rest - text_.data());
    take(')');
    return dim;
  }

  void item(Rule& rule) {
    const std::string what =
        one_of("weight, bias, input or output", {"weight", "bias", "input", "output"});
    const std::size_t begin = begin_;
    if (what == "input" || what == "output") {
      std::optional<Boundary>& place = what == "input" ? rule.input : rule.output;
      if (place) fail(begin, fmt::format("each item once along tp, and {} came before,", what));
      place = boundary();
    } else {
      const bool fresh = rule.parameters.emplace(what, parameter()).second;
      if (!fresh) fail(begin, fmt::format("each item once along tp, and {} came before,", what));
    }
    axis();
  }

  Boundary boundary() {
    const std::string found = one_of("stream, replicate, shard(-1) or partial",
                                     {"stream", "replicate", "shard", "partial"});
    if (found == "stream") return Boundary::kStream;
    if (found == "replicate") return Boundary::kReplicate;
    if (found == "partial") return Boundary::kPartial;
    const std::size_t begin = begin_;
    if (dimension() == -1) return Boundary::kFeatures;
    // Which dimension of the rows is divided depends on the batch: its name is "stream".
    fail(begin, "shard(-1), features, or stream, rows,");
  }

  Placement parameter() {
    const std::string found = one_of("replicate or shard(DIM)", {"replicate", "shard"});
    return found == "shard" ? Placement::shard(dimension()) : Placement::replicate();
  }

  /// "along tp", or nothing.
  void axis() {
    skip_blanks();
    if (at_ == text_.size() || !in_word(text_[at_])) return;
    one_of("along, a comma or the end", {"along"});
    std::vector<std::string> axes;
    for (const plan::Axis axis : plan::kAllAxes) axes.emplace_back(plan::name(axis));
    const std::string found = one_of("the axis tp", axes);
    if (found != "tp") fail(begin_, "tp, the axis that recipes divide modules along,");
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  ///< of the last word
};

}  // namespace

Rule parse_rule(const std::string& text) { return Parser(text).rule(); }

Recipe parse_recipe(const std::vector<std::string>& texts) {
  Recipe recipe;
  for (const std::string& text : texts) recipe.push_back(parse_rule(text));
  return recipe;
}

}  // namespace shoal::parallel
