// docs/reference/published_times.md: every table there is what this computes, row by row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "shoal/plan/flops.h"
#include "tests/plan/published_times.h"

namespace shoal::plan::published_page_test {
namespace {

struct Predicted {
  std::string name;
  /// a rank
  std::int64_t micro_batch = 0;
  std::int64_t stages = 0;
  double predicted = 0;
  double measured = 0;

  double error() const { return predicted / measured - 1; }
};

std::string table(const std::vector<Predicted>& rows) {
  std::string text =
      "| row | micro-batch | stages a rank | predicted, s | published, s | error "
      "|\n|---|---|---|---|---|---|\n";
  double mean = 0;
  double most = 0;
  for (const Predicted& row : rows) {
    text +=
        fmt::format("| {} | {} | {} | {:.2f} | {:.2f} | {:+.1f} % |\n", row.name, row.micro_batch,
                    row.stages, row.predicted, row.measured, 100 * row.error());
    mean += std::abs(row.error()) / static_cast<double>(rows.size());
    most = std::max(most, std::abs(row.error()));
  }
  return text + fmt::format("\nMean {:.2f} %, largest {:.2f} %.\n", 100 * mean, 100 * most);
}

/// What the efficiency was fitted on, and the other rows apart.
std::string tables(const std::vector<Predicted>& rows, const std::set<std::string>& fitted) {
  std::vector<Predicted> inside;
  std::vector<Predicted> outside;
  for (const Predicted& row : rows) (fitted.contains(row.name) ? inside : outside).push_back(row);
  return fmt::format("Fitted rows:\n\n{}\nOther rows:\n\n{}", table(inside), table(outside));
}

/// How many pairs of step times and of throughputs come out in the published order, and those of
/// the latter that do not; what an `earlier` publication of the same rows had of them.
std::string order(const std::vector<Predicted>& rows, const std::vector<double>& measured,
                  const std::vector<double>& earlier = {}) {
  const bool twice = !earlier.empty();
  std::string text = fmt::format(
      "| faster, as published | than | published, more | predicted, less "
      "|{}\n|---|---|---|---|{}\n",
      twice ? " January 2021, less |" : "", twice ? "---|" : "");
  int pairs = 0;
  int wrong = 0;
  int times = 0;
  int times_in_order = 0;
  const auto predicted = [&](std::size_t i) { return measured[i] / (1 + rows[i].error()); };
  for (const Predicted& longer : rows) {
    for (const Predicted& shorter : rows) {
      if (longer.measured > shorter.measured) {
        ++times;
        times_in_order += longer.predicted > shorter.predicted ? 1 : 0;
      }
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < rows.size(); ++j) {
      if (measured[i] <= measured[j]) continue;
      ++pairs;
      if (predicted(i) > predicted(j)) continue;
      ++wrong;
      text += fmt::format("| {} | {} | {:.1f} % | {:.1f} % |", rows[i].name, rows[j].name,
                          100 * (measured[i] / measured[j] - 1),
                          100 * (1 - predicted(i) / predicted(j)));
      if (twice) {
        text += fmt::format(" {:.1f} % |", 100 * (1 - earlier[i] / earlier[j]));
        EXPECT_LE(earlier[i], earlier[j])
            << rows[i].name << " before " << rows[j].name << ": in neither publication's order";
      }
      text += "\n";
    }
  }
  return fmt::format(
      "Step times: {} of {} pairs in the published order. Throughputs: {} of {}; the others:\n\n{}",
      times_in_order, times, pairs - wrong, pairs, text);
}

std::vector<double> column(const std::string& table, const std::string& name) {
  std::vector<double> list;
  for (const Row& row : published(table)) list.push_back(row[name]);
  return list;
}

std::vector<Predicted> korthikanti() {
  std::vector<Predicted> list;
  const Efficiency efficiency = cluster_preset("a100")->device.efficiency;
  for (const Row& row : published("korthikanti_table_5")) {
    for (const bool full : {true, false}) {
      const TimedRow timed = korthikanti_row(row, full);
      list.push_back({timed.name, row.whole("micro_batch"), row.whole("vpp"),
                      timed.predicted_s(efficiency), timed.measured_s});
    }
  }
  return list;
}

Predicted predicted(const SearchedRow& row) {
  const Candidate best = row.best(row.cluster.device.efficiency);
  return {row.name, best.training.micro_batch, best.training.virtual_stages, best.time.all(),
          row.seconds};
}

std::vector<Predicted> searched(const std::string& name, SearchedRow (*of)(const Row&)) {
  std::vector<Predicted> list;
  for (const Row& row : published(name)) list.push_back(predicted(of(row)));
  return list;
}

std::string layers() {
  std::string text =
      "| one layer, 22B | predicted, ms | published, ms | error |\n|---|---|---|---|\n";
  const Efficiency efficiency = cluster_preset("a100")->device.efficiency;
  for (const TimedRow& row : layer_rows()) {
    text += fmt::format("| {} | {:.1f} | {:.1f} | {:+.1f} % |\n", row.name.substr(7),
                        1e3 * row.predicted_s(efficiency), 1e3 * row.measured_s,
                        100 * (row.predicted_s(efficiency) / row.measured_s - 1));
  }
  return text;
}

std::string zero3() {
  std::string text =
      "| model | devices | micro-batch | predicted, TFLOP/s a device | published | error "
      "|\n|---|---|---|---|---|---|\n";
  for (const Row& row : published("sc21_table_2")) {
    if (row["zero3"] == 0) continue;
    const ModelSpec spec = megatron_gpt(row, 51200, 2048);
    const Training training = zero3_training(row);
    const double seconds =
        published_step_time(spec, training,
                            with_devices(*cluster_preset("a100"), row.whole("gpus")))
            .all();
    const double rate = step_flops(spec, training).hardware / seconds / row["gpus"] / 1e12;
    text += fmt::format("| {}B | {} | {} | {:.0f} | {:.0f} | {:+.0f} % |\n",
                        row.text("parameters_b"), row.whole("gpus"), row.whole("micro_batch"), rate,
                        row["tflops"], 100 * (rate / row["tflops"] - 1));
  }
  return text;
}

/// The rows of the data that no part of the model had seen when they were predicted.
std::vector<Predicted> ptdp() {
  std::vector<Predicted> list;
  for (const Row& row : published("sc21_table_2"))
    if (row["zero3"] == 0) list.push_back(predicted(ptdp_row(row)));
  return list;
}

std::vector<Predicted> readme() {
  std::vector<Predicted> list;
  for (const char* column : {"v100", "a100", "cluster"}) {
    for (const Row& row : published("megatron_readme_tp"))
      list.push_back(predicted(readme_row(row, column)));
  }
  return list;
}

std::string bubbles() {
  std::string text =
      "| model | ranks | micro-batches | 1F1B | published | interleaved | published | ZB-H1 | "
      "published | ZB-H2 | published |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : published("zero_bubble_table_5")) {
    const auto [plain, interleaved, h1, h2] = zero_bubble_rates(row);
    text += fmt::format(
        "| {} | {} | {} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} "
        "|\n",
        row.text("model"), row.whole("p"), row.whole("m"), plain, row["f1b1"], interleaved,
        row["interleaved"], h1, row["zb_h1"], h2, row["zb_h2"]);
  }
  return text;
}

/// Korthikanti et al., section 6.3: the 530-billion row on 8 data ranks, gradients exchanged after
/// the backward pass: 39.15 s instead of 37.83.
Predicted data_parallel_530b() {
  for (const Row& row : published("korthikanti_table_5")) {
    if (row.text("model") != "530B") continue;
    Training training = megatron_training(8, row.whole("pp"), row.whole("vpp"), 8, 2240, 1);
    training.recompute = Recompute::kSelective;
    training.sequence_parallel = true;
    const Cluster cluster = with_devices(*cluster_preset("a100"), 2240);
    return {"530B selective, 2240 devices", 1, row.whole("vpp"),
            published_step_time(megatron_gpt(row, 51200, 2048), training, cluster).all(), 39.15};
  }
  throw std::runtime_error("no such row");
}

/// Megatron-Core's README: 177B, batch 1152, on 96 to 4608 devices: from 47 % to 42 % of the peak.
std::string strong_scaling(std::vector<double>& errors) {
  std::string text =
      "| devices | micro-batch | stages a rank | predicted, MFU | published | error "
      "|\n|---|---|---|---|---|---|\n";
  for (const Row& row : published("megatron_core_h100")) {
    if (row.text("model") != "177B") continue;
    for (const auto& [devices, percent] : {std::pair<std::int64_t, double>{96, 47}, {4608, 42}}) {
      SearchedRow one = h100_row(row);
      one.start.degrees.dp_shard = devices / 48;
      one.start.global_batch = 1152;
      one.cluster = with_devices(*cluster_preset("h100"), devices);
      const Candidate best = one.best(one.cluster.device.efficiency);
      const double flops = step_flops(one.spec, best.training).model / best.time.all() /
                           static_cast<double>(devices);
      const double mfu = 100 * flops / one.cluster.peak(ElementType::kBF16);
      errors.push_back(mfu / percent - 1);
      text += fmt::format("| {} | {} | {} | {:.1f} % | {:.0f} % | {:+.1f} % |\n", devices,
                          best.training.micro_batch, best.training.virtual_stages, mfu, percent,
                          100 * errors.back());
    }
  }
  return text;
}

/// What stands between <!-- name --> and <!-- end -->.
std::string section(const std::string& page, const std::string& name) {
  const std::string head = "<!-- " + name + " -->\n";
  const std::string tail = "<!-- end -->";
  const auto begin = page.find(head);
  if (begin == std::string::npos) return "no section " + name;
  const auto from = begin + head.size();
  return page.substr(from, page.find(tail, from) - from);
}

TEST(PublishedPage, HoldsWhatIsComputed) {
  std::ifstream file(SHOAL_DOCS "/reference/published_times.md");
  std::stringstream page;
  page << file.rdbuf();
  const auto expect = [&](const char* name, const std::string& text) {
    EXPECT_EQ(section(page.str(), name), text)
        << "docs/reference/published_times.md, section " << name << ", should read:\n"
        << text;
  };
  expect("korthikanti", tables(korthikanti(), kA100Fitted));
  const Predicted large = data_parallel_530b();
  EXPECT_NEAR(large.error(), 0, 0.07);
  expect("530b", table({large}));
  expect("layers", layers());
  const auto weak = searched("sc21_table_1", sc21_row);
  const auto h100 = searched("megatron_core_h100", h100_row);
  expect("sc21", tables(weak, kA100Fitted));
  expect("sc21 order",
         order(weak, column("sc21_table_1", "tflops"), column("sc21_table_1", "january_tflops")));
  expect("h100", tables(h100, kH100Fitted));
  expect("h100 order", order(h100, column("megatron_core_h100", "tflops")));
  std::vector<double> strong;
  expect("strong scaling", strong_scaling(strong));
  for (const double error : strong) EXPECT_NEAR(error, 0, 0.15);
  expect("zero3", zero3());
  expect("unseen ptdp", table(ptdp()));
  expect("unseen readme", table(readme()));
  expect("bubbles", bubbles());
}

}  // namespace
}  // namespace shoal::plan::published_page_test
