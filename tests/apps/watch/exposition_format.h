#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace shoal::apps::testing {

/// A page in the text format of Prometheus, read by the rules of its specification
/// (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4) and by those of naming that
/// `promtool check metrics` has. Nothing is shared with the code that writes such pages.
class Exposition {
 public:
  explicit Exposition(const std::string& page) {
    if (page.empty() || page.back() != '\n') broken("the last line has no end");
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) read(line);
  }

  /// The first rule that the page breaks; empty: none.
  const std::string& error() const { return error_; }
  /// By name and labels as they stand in the page: "shoal_rank_step{rank=\"0\"}".
  const std::map<std::string, double>& samples() const { return samples_; }
  std::string type_of(const std::string& metric) const {
    const auto found = types_.find(metric);
    return found == types_.end() ? "" : found->second;
  }

 private:
  void broken(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

  void read(const std::string& line) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
    static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)");
    static const std::string label = R"re([a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*")re";
    static const std::regex sample("([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{" + label + "(?:," + label +
                                   ")*\\})? ([^ ]+)");
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      if (!helps_.insert(match[1]).second) broken("a second HELP: " + line);
      metric_ = match[1];
    } else if (std::regex_match(line, match, type)) {
      if (match[1] != metric_) broken("a TYPE that does not follow its HELP: " + line);
      if (!types_.emplace(match[1], match[2]).second) broken("a second TYPE: " + line);
      check_name(match[1], match[2]);
    } else if (std::regex_match(line, match, sample)) {
      if (match[1] != metric_ || !types_.count(metric_))
        broken("a sample that is not below its TYPE: " + line);
      const std::string labels = match[2];
      if (!samples_.emplace(metric_ + labels, value_of(match[3])).second)
        broken("a second sample: " + line);
    } else {
      broken("neither HELP, TYPE nor a sample: " + line);
    }
  }

  /// A number as strconv.ParseFloat reads it, of the forms that the format names.
  double value_of(const std::string& text) {
    if (text == "NaN") return std::nan("");
    if (text == "+Inf") return std::numeric_limits<double>::infinity();
    if (text == "-Inf") return -std::numeric_limits<double>::infinity();
    static const std::regex number(R"([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)");
    if (!std::regex_match(text, number)) broken("no number: " + text);
    return std::strtod(text.c_str(), nullptr);
  }

  /// What promtool complains of: names with the wrong ending, other units than base units, and the
  /// type in the name.
  void check_name(const std::string& name, const std::string& type) {
    const bool total = name.ends_with("_total");
    if (total != (type == "counter")) broken("_total is the ending of counters: " + name);
    static const std::regex wrong(
        ".*(_milliseconds|_ms|_minutes|_hours|_kilobytes|_megabytes|_mb|_percent|_gauge|_counter|"
        "_count|_sum|_bucket|:)$");
    if (std::regex_match(name, wrong)) broken("not a name for a " + type + ": " + name);
    static const std::regex lower("[a-z][a-z0-9_]*");
    if (!std::regex_match(name, lower)) broken("not in snake_case: " + name);
  }

  std::string error_;
  std::string metric_;  ///< of the last HELP
  std::set<std::string> helps_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> samples_;
};

}  // namespace shoal::apps::testing
