#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/nearest.h"
#include "shoal/base/number.h"
#include "shoal/data/file.h"
#include "shoal/data/table.h"

namespace shoal::data {
namespace {

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> fields_of(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  // A separator at the end of a line begins one more, empty field.
  for (bool more = true; more;) {
    const auto end = line.find(separator);
    auto field = trim(line.substr(0, end));
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"')
      field = trim(field.substr(1, field.size() - 2));
    fields.push_back(field);
    more = end != std::string_view::npos;
    line.remove_prefix(more ? end + 1 : line.size());
  }
  return fields;
}

std::optional<double> number(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  // parse_number knows no locale: "1,5" is never a number and "1.5" always is.
  return parse_number<double>(text);
}

/// Reads line by line and knows where it is.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& origin, const CsvOptions& options)
      : rest_(text), origin_(origin), options_(options) {}

  TableDataset read() {
    // Excel begins UTF-8 files with a byte order mark.
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
    bool first = true;
    for (std::string_view line; next_line(line);) {
      const auto fields = fields_of(line, options_.separator);
      if (first) {
        width_ = fields.size();
        // The first line settles the width, the names and the target column for all others.
        const bool header = is_header(fields);
        if (width_ < 2) reject_one_column(line);
        find_target(header ? fields : std::vector<std::string_view>());
        first = false;
        if (header) continue;
      }
      add_row(fields);
    }
    if (table_.rows == 0) throw Error(ErrorKind::kData, "csv", origin_ + " holds no rows");
    table_.columns = width_ - 1;
    return std::move(table_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint = "") const {
    throw Error(ErrorKind::kData, "csv", fmt::format("{}:{}: {}", origin_, line_, what)).hint(hint);
  }

  bool next_line(std::string_view& line) {
    while (!rest_.empty()) {
      const auto end = rest_.find('\n');
      line = rest_.substr(0, end);
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
      ++line_;
      if (!trim(line).empty()) return true;
    }
    return false;
  }

  bool is_header(const std::vector<std::string_view>& fields) const {
    if (options_.header != Header::kDetect) return options_.header == Header::kPresent;
    return !std::all_of(fields.begin(), fields.end(),
                        [](std::string_view field) { return number(field).has_value(); });
  }

  [[noreturn]] void reject_one_column(std::string_view line) const {
    std::string hint;
    for (const char other : {';', '\t', ',', '|'}) {
      if (!hint.empty() || other == options_.separator || line.find(other) == line.npos) continue;
      const std::string shown = other == '\t' ? "a tab" : fmt::format("'{}'", other);
      hint = fmt::format("the separator looks like {}: write the file with '{}'", shown,
                         options_.separator);
    }
    fail(fmt::format("one column; a feature and a target are needed (separator '{}')",
                     options_.separator),
         hint);
  }

  [[noreturn]] void reject_target(const std::string& name) const {
    if (header_.empty()) fail(fmt::format("there is no header line, and so no column '{}'", name));
    constexpr std::size_t kShown = 30;
    const std::size_t shown = std::min(header_.size(), kShown);
    const std::string near = nearest(name, header_);
    fail(fmt::format(
             "the header line has no column '{}'; it has {}{}", name,
             fmt::join(header_.begin(), header_.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
             header_.size() > shown ? fmt::format(" and {} more", header_.size() - shown) : ""),
         near.empty() ? "" : fmt::format("did you mean '{}'?", near));
  }

  void find_target(const std::vector<std::string_view>& header) {
    header_.assign(header.begin(), header.end());
    const auto width = static_cast<std::int64_t>(width_);
    // A name in the header, an index from the left, or a negative one from the right.
    std::int64_t index =
        options_.target_index < 0 ? width + options_.target_index : options_.target_index;
    if (options_.target_name) {
      index = std::find(header.begin(), header.end(), *options_.target_name) - header.begin();
      if (index == static_cast<std::int64_t>(header.size())) reject_target(*options_.target_name);
    }
    if (index < 0 || index >= width)
      fail(fmt::format("no column {} in a row of {}", options_.target_index, width_));
    target_ = static_cast<std::size_t>(index);
    for (std::size_t k = 0; k < header.size(); ++k)
      if (k != target_) table_.names.emplace_back(header[k]);
  }

  void add_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != width_)
      fail(fmt::format("{} fields where the first line has {}", fields.size(), width_));
    for (std::size_t k = 0; k < fields.size(); ++k) {
      const auto value = number(fields[k]);
      // Features are stored as float, which would turn a larger number into infinity.
      if (!value || !std::isfinite(*value) || std::fabs(*value) > 3.4e38) {
        fail(fmt::format("field {}{} is no finite number: '{}'", k + 1,
                         header_.empty() ? "" : fmt::format(" ({})", header_[k]), fields[k]));
      }
      (k == target_ ? table_.targets : table_.features).push_back(static_cast<float>(*value));
      if (k == target_ && options_.classes) add_class(*value);
    }
    ++table_.rows;
  }

  void add_class(double value) {
    if (value < 0 || value > 1e6 || value != std::floor(value)) {
      fail(fmt::format("the target {} is no class: an integer from 0 to 1000000 is", value),
           "a number that is to be predicted is a regression: data.task = \"regression\"");
    }
    table_.classes.push_back(static_cast<std::int64_t>(value));
    table_.class_count = std::max(table_.class_count, table_.classes.back() + 1);
  }

  std::string_view rest_;
  const std::string& origin_;
  const CsvOptions& options_;
  std::size_t line_ = 0, width_ = 0, target_ = 0;
  std::vector<std::string> header_;  ///< names of all columns; empty without a header line
  TableDataset table_;
};

}  // namespace

TableDataset parse_csv(std::string_view text, const std::string& origin,
                       const CsvOptions& options) {
  return CsvReader(text, origin, options).read();
}

TableDataset read_csv(const std::string& path, const CsvOptions& options) {
  return parse_csv(read_file(path), path, options);
}

TableDataset read_digits(const std::string& path) {
  CsvOptions options;
  options.header = Header::kAbsent;
  options.classes = true;
  TableDataset table = read_csv(path, options);
  if (table.columns != 64 || table.class_count > 10) {
    throw Error(ErrorKind::kData, "data",
                fmt::format("{} is not the set of digits: {} columns, {} classes", path,
                            table.columns, table.class_count));
  }
  // 0 to 16 in the file, 0 to 1 for training.
  for (float& pixel : table.features) pixel /= 16;
  return table;
}

}  // namespace shoal::data
