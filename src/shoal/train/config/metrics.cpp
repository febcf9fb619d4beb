#include "shoal/train/config/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"

namespace shoal::train {
namespace {

constexpr const char* kMetrics = "metrics";

void put(std::string& out, const char* key, double value) {
  if (!std::isfinite(value))
    throw Error(ErrorKind::kNonFinite, "metrics", fmt::format("{} is {}", key, value));
  // 17 digits bring back the same double: two runs can be compared bit by bit by their metrics.
  out += fmt::format("{}\"{}\": {:.17g}", out.size() > 1 ? ", " : "", key, value);
}
void put(std::string& out, const char* key, std::int64_t value) {
  out += fmt::format("{}\"{}\": {}", out.size() > 1 ? ", " : "", key, value);
}
void put(std::string& out, const char* key, const std::optional<double>& value) {
  if (value) put(out, key, *value);
}

void put(std::string& out, const Evaluation& e) {
  put(out, "eval_loss", e.loss);
  put(out, "eval_labels", e.labels);
  put(out, "eval_bits_per_byte", e.bits_per_byte);
  put(out, "eval_accuracy", e.accuracy);
  put(out, "eval_mse", e.mean_squared_error);
  put(out, "eval_mae", e.mean_absolute_error);
}

std::optional<double> number(const nlohmann::json& object, const char* key) {
  if (!object.contains(key)) return std::nullopt;
  return object.at(key).get<double>();
}

std::optional<std::int64_t> whole_number(const nlohmann::json& object, const char* key) {
  if (!object.contains(key)) return std::nullopt;
  return object.at(key).get<std::int64_t>();
}

std::string memory_key(std::size_t category) {
  return fmt::format("memory_{}_bytes", name(static_cast<MemoryCategory>(category)));
}

}  // namespace

bool is_finite(const Evaluation& e) {
  const auto finite = [](const std::optional<double>& value) {
    return std::isfinite(value.value_or(0));
  };
  return std::isfinite(e.loss) && finite(e.bits_per_byte) && finite(e.accuracy) &&
         finite(e.mean_squared_error) && finite(e.mean_absolute_error);
}

std::string to_json(const StepMetrics& m) {
  std::string out = "{";
  put(out, "step", m.step);
  put(out, "loss", m.loss);
  if (m.skipped) {
    out += ", \"grad_norm\": null";  // JSON has no infinity
  } else {
    put(out, "grad_norm", m.grad_norm);
  }
  put(out, "lr", m.lr);
  put(out, "tokens", m.tokens);
  put(out, "tokens_per_s", m.tokens_per_s);
  put(out, "step_s", m.step_s);
  put(out, "mfu", m.mfu);
  put(out, "data_wait_s", m.data_wait_s);
  put(out, "comm_exposed_s", m.comm_exposed_s);
  put(out, "loss_scale", m.loss_scale);
  if (m.members) put(out, "members", *m.members);
  put(out, "memory_bytes", m.memory_bytes);
  for (std::size_t c = 0; c < m.memory.size() && m.memory_bytes; ++c)
    put(out, memory_key(c).c_str(), m.memory[c]);
  if (m.skipped) out += ", \"skipped\": true";
  if (m.evaluation) put(out, *m.evaluation);
  return out + "}";
}

std::string to_json(const Evaluation& evaluation) {
  std::string out = "{";
  put(out, evaluation);
  return out + "}";
}

StepMetrics parse_metrics(const std::string& line) {
  try {
    const auto object = nlohmann::json::parse(line);
    StepMetrics m{.step = object.at("step"),
                  .loss = object.at("loss"),
                  .grad_norm = object.at("grad_norm").is_null()
                                   ? std::numeric_limits<double>::infinity()
                                   : object.at("grad_norm").get<double>(),
                  .lr = object.at("lr"),
                  .tokens = object.at("tokens"),
                  .tokens_per_s = object.at("tokens_per_s"),
                  .step_s = number(object, "step_s"),
                  .mfu = number(object, "mfu"),
                  .data_wait_s = number(object, "data_wait_s"),
                  .comm_exposed_s = number(object, "comm_exposed_s"),
                  .loss_scale = number(object, "loss_scale"),
                  .members = whole_number(object, "members"),
                  .memory_bytes = number(object, "memory_bytes"),
                  .skipped = object.value("skipped", false),
                  .evaluation = std::nullopt};
    // Absent where no arena counts.
    for (std::size_t c = 0; c < m.memory.size(); ++c)
      m.memory[c] = object.value(memory_key(c), 0.0);
    if (object.contains("eval_loss")) {
      m.evaluation = Evaluation{.loss = object.at("eval_loss"),
                                .labels = object.value("eval_labels", std::int64_t{0}),
                                .bits_per_byte = number(object, "eval_bits_per_byte"),
                                .accuracy = number(object, "eval_accuracy"),
                                .mean_squared_error = number(object, "eval_mse"),
                                .mean_absolute_error = number(object, "eval_mae")};
    }
    return m;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, kMetrics, fmt::format("not a line of metrics: {}", error.what()));
  }
}

std::vector<StepMetrics> read_metrics(const std::string& path) {
  std::vector<StepMetrics> all;
  StepLines::read(path, kMetrics, [&](const std::string& line) {
    all.push_back(parse_metrics(line));
    return true;
  });
  return all;
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t step)
    : lines_(path, kMetrics,
             [step](const std::string& line) { return parse_metrics(line).step <= step; }) {}

void MetricsFile::append(const StepMetrics& metrics) { lines_.append(to_json(metrics)); }

}  // namespace shoal::train
