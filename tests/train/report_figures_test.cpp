// Figures that a run shows, worked out by hand: lines of the console, records of
// TensorBoard, points of the plot, memory, precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "shoal/train/config/loss_plot.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/precision.h"
#include "shoal/train/report/memory_watch.h"
#include "shoal/train/report/progress.h"
#include "shoal/train/report/tensorboard.h"
#include "shoal/train/run_record.h"
#include "shoal/train/sampling.h"
#include "tests/error_text.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::report_figures_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// ---- the console ------------------------------------------------------------------------------

/// The lines that a run writes that has no terminal.
std::vector<std::string> lines(std::int64_t interval, std::int64_t first, std::int64_t total,
                               const std::function<void(StepMetrics&)>& change = {}) {
  std::FILE* out = std::tmpfile();
  Progress progress(out, false, interval, first, total, "rows");
  for (std::int64_t step = first + 1; step <= total; ++step) {
    StepMetrics metrics{.step = step, .loss = 2, .grad_norm = 3, .lr = 0.5, .tokens_per_s = 1500};
    if (change) change(metrics);
    progress.step(metrics);
  }
  progress.finish();
  std::rewind(out);
  std::vector<std::string> list;
  for (char line[400]; std::fgets(line, sizeof line, out);) {
    list.emplace_back(line);
    list.back().pop_back();
  }
  std::fclose(out);
  return list;
}

std::vector<std::string> steps_of(const std::vector<std::string>& lines) {
  std::vector<std::string> list;
  list.reserve(lines.size());
  for (const std::string& line : lines) list.push_back(line.substr(5, line.find('/') - 5));
  return list;
}

TEST(Console, HasTheFirstTheLastAndEveryFewSteps) {
  EXPECT_THAT(steps_of(lines(3, 0, 7)), ElementsAre("1", "3", "6", "7"));
  EXPECT_THAT(steps_of(lines(1, 0, 3)), ElementsAre("1", "2", "3"));
  EXPECT_THAT(steps_of(lines(4, 4, 10)), ElementsAre("5", "8", "10"));
  EXPECT_THAT(steps_of(lines(100, 7, 9)), ElementsAre("8", "9"));
}

TEST(Console, SaysWhatRemainsAndWhatItTook) {
  const auto all = lines(1, 0, 2);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0], MatchesRegex("step 1/2  loss 2.0000  lr 0.5  1.5 k rows/s  grad norm 3  ETA "
                                   "[0-9]+ s"));
  EXPECT_THAT(all[1], MatchesRegex("step 2/2  loss 2.0000  lr 0.5  1.5 k rows/s  grad norm 3  took "
                                   "[0-9]+ s"));
}

TEST(Console, TellsTheLossScale) {
  EXPECT_THAT(lines(1, 0, 1, [](StepMetrics& m) { m.loss_scale = 1024; })[0],
              HasSubstr("grad norm 3  loss scale 1024  took"));
  const std::string skipped = lines(1, 0, 1, [](StepMetrics& m) {
    m.loss_scale = 512;
    m.skipped = true;
  })[0];
  EXPECT_THAT(skipped, HasSubstr("1.5 k rows/s  overflow at loss scale 512: skipped  took"));
  EXPECT_THAT(skipped, Not(HasSubstr("grad norm")));
}

// A twentieth of the memory is named, less is not.
TEST(Console, NamesTheLargePartsOfMemory) {
  const auto line = [](double bytes) {
    return lines(1, 0, 1, [&](StepMetrics& m) {
      m.memory_bytes = 1000;
      m.memory[static_cast<std::size_t>(MemoryCategory::kGradients)] = bytes;
    })[0];
  };
  EXPECT_THAT(line(50), HasSubstr("mem 1 kB  (gradients 5 %)"));
  EXPECT_THAT(line(49), HasSubstr("mem 1 kB  took"));
}

// ---- TensorBoard ------------------------------------------------------------------------------

/// The mask of TFRecord files: a rotation to the right by 15 bits and a sum.
std::uint32_t masked(std::uint32_t crc) {
  const std::uint64_t rotated = (crc / 32768u) | (static_cast<std::uint64_t>(crc) << 17);
  return static_cast<std::uint32_t>(rotated + 2726488792u);
}

TEST(TensorBoard, ChecksumsAreMasked) {
  EXPECT_EQ(masked_crc32c("123456789"), masked(0xe3069283u));
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), masked(0x8a9136aau));
}

TEST(TensorBoard, EventsHaveTheirTimeAndTheirStep) {
  const TemporaryFolder folder;
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const double before = now();
  EventFile file(folder.path(), 41);
  const double after = now();
  const std::string name = std::filesystem::path(file.path()).filename().string();
  EXPECT_THAT(name, MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..*\\." +
                                 std::to_string(::getpid()) + "\\.41"));
  EXPECT_NEAR(std::stod(name.substr(20, 10)), before, 2);
  std::ifstream in(file.path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  // Behind eight bytes of length and four of its checksum: field 1, eight bytes, is the time; field
  // 2 is the step. The first event has step 0, the second the step that the run begins with.
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const std::size_t second = 12 + length + 4;
  for (const std::size_t at : {std::size_t{12}, second + 12}) {
    EXPECT_EQ(bytes[at], 1 << 3 | 1);
    double time = 0;
    std::memcpy(&time, bytes.data() + at + 1, 8);
    EXPECT_GE(time, before);
    EXPECT_LE(time, after);
    EXPECT_EQ(bytes[at + 9], 2 << 3);
  }
  EXPECT_EQ(bytes[12 + 10], 0);
  EXPECT_EQ(bytes[second + 12 + 10], 42);
  // Seven bits a byte: 128 is the first number of two.
  EventFile later(folder.path(), 127);
  std::ifstream longer(later.path(), std::ios::binary);
  const std::string more{std::istreambuf_iterator<char>(longer), {}};
  EXPECT_EQ(more.substr(second + 12 + 10, 2), "\x80\x01");
}

// ---- the plot ---------------------------------------------------------------------------------

StepMetrics loss_at(std::int64_t step, double loss) { return {.step = step, .loss = loss}; }

struct Drawn {
  double x, y;
};
/// The points of the polyline number `which` of that color.
std::vector<Drawn> points_of(const std::string& svg, const std::string& color, std::size_t which) {
  const std::regex line("<polyline points=\"([^\"]*)\" fill=\"none\" stroke=\"" + color + "\"");
  std::sregex_iterator at(svg.begin(), svg.end(), line);
  std::advance(at, static_cast<std::ptrdiff_t>(which));
  std::istringstream text((*at)[1]);
  std::vector<Drawn> points;
  for (Drawn point{}; text >> point.x && text.ignore(1) && text >> point.y;)
    points.push_back(point);
  return points;
}
constexpr const char* kTrain = "#3b6fb6";
constexpr const char* kEvaluation = "#d1495b";

// From 76 to 836 on the axis of steps, from 422 to 52 on that of losses, with a twentieth of the
// span above and below.
TEST(LossPlotFigures, PointsAreInTheirPlaces) {
  std::vector<StepMetrics> metrics{loss_at(5, 1), loss_at(10, 3)};
  metrics[1].evaluation = Evaluation{.loss = 2, .labels = 1};
  const std::string svg = loss_plot("t", metrics);
  const auto pale = points_of(svg, kTrain, 0);
  ASSERT_EQ(pale.size(), 2u);
  EXPECT_NEAR(pale[0].x, 76 + 760 * 0.5, 0.06);
  EXPECT_NEAR(pale[1].x, 836, 0.06);
  EXPECT_NEAR(pale[0].y, 422 - 370 * 0.1 / 2.2, 0.06);
  EXPECT_NEAR(pale[1].y, 422 - 370 * 2.1 / 2.2, 0.06);
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"836.0\" cy=\"237.0\" r=\"3\""));
  EXPECT_THAT(svg, HasSubstr("training, last 3<"));
  EXPECT_THAT(svg, HasSubstr("validation, last 2<"));
  EXPECT_THAT(loss_plot("t", {loss_at(1, 1)}), Not(HasSubstr("validation")));
  // Losses are not below zero: neither is the axis.
  EXPECT_NEAR(points_of(loss_plot("t", {loss_at(1, 0), loss_at(2, 2)}), kTrain, 0)[0].y, 422, 0.06);
}

TEST(LossPlotFigures, TheAxisReachesTheEvaluations) {
  std::vector<StepMetrics> metrics{loss_at(1, 2), loss_at(2, 2)};
  metrics[0].evaluation = Evaluation{.loss = 3, .labels = 1};
  metrics[1].evaluation = Evaluation{.loss = 1, .labels = 1};
  const auto points = points_of(loss_plot("t", metrics), kEvaluation, 0);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_NEAR(points[0].y, 422 - 370 * 2.1 / 2.2, 0.06);
  EXPECT_NEAR(points[1].y, 422 - 370 * 0.1 / 2.2, 0.06);
}

TEST(LossPlotFigures, LogarithmicFromMoreThanADecade) {
  EXPECT_THAT(loss_plot("t", {loss_at(1, 10), loss_at(2, 1)}), Not(HasSubstr("(logarithmic)")));
  const std::string svg = loss_plot("t", {loss_at(1, 10.1), loss_at(2, 1)});
  EXPECT_THAT(svg, HasSubstr("(logarithmic)"));
  // A tenth beyond either end.
  const double span = std::log(10.1 * 1.1 * 1.1);
  EXPECT_NEAR(points_of(svg, kTrain, 0)[1].y, 422 - 370 * std::log(1.1) / span, 0.06);
  EXPECT_NEAR(points_of(svg, kTrain, 0)[0].y, 422 - 370 * std::log(11.11) / span, 0.06);
}

// 160 steps, of which one has a loss: the mean reaches two steps to either side, and no further to
// the right than to the left at the beginning.
TEST(LossPlotFigures, TheStrongLineIsAMean) {
  const auto means = [](std::size_t spike) {
    std::vector<StepMetrics> metrics;
    for (std::size_t i = 0; i < 160; ++i)
      metrics.push_back(loss_at(static_cast<std::int64_t>(i) + 1, i == spike ? 5 : 0));
    std::vector<double> list;
    for (const Drawn& point : points_of(loss_plot("t", metrics), kTrain, 1))
      list.push_back((422 - point.y) / 370 * 5.25);
    EXPECT_EQ(list.size(), 160u);
    return list;
  };
  const auto middle = means(80);
  for (std::size_t i = 76; i < 86; ++i) EXPECT_NEAR(middle[i], i >= 78 && i <= 82 ? 1 : 0, 0.01);
  const auto begin = means(1);
  EXPECT_NEAR(begin[0], 0, 0.01);
  EXPECT_NEAR(begin[1], 5.0 / 3, 0.01);
  EXPECT_NEAR(begin[2], 1, 0.01);
  EXPECT_NEAR(begin[3], 1, 0.01);
  EXPECT_NEAR(begin[4], 0, 0.01);
  const auto end = means(159);
  EXPECT_NEAR(end[159], 5.0 / 3, 0.01);
  EXPECT_NEAR(end[158], 5.0 / 4, 0.01);
  EXPECT_NEAR(end[157], 1, 0.01);
  EXPECT_NEAR(end[156], 0, 0.01);
}

// The legend has the mean of the last fortieth; a long line is drawn with 1500 points.
TEST(LossPlotFigures, LongRunsAreThinned) {
  std::vector<StepMetrics> metrics;
  for (int i = 1; i <= 3000; ++i) metrics.push_back(loss_at(i, i <= 2925 ? 1 : 3));
  const std::string svg = loss_plot("t", metrics);
  EXPECT_THAT(svg, HasSubstr("training, last 3<"));
  const auto points = points_of(svg, kTrain, 0);
  ASSERT_EQ(points.size(), 1500u);
  EXPECT_NEAR(points[0].x, 76 + 760 * 1.5 / 3000, 0.06);
  EXPECT_NEAR(points[1499].x, 76 + 760 * 2999.5 / 3000, 0.06);
  metrics.resize(1500);
  EXPECT_EQ(points_of(loss_plot("t", metrics), kTrain, 0).size(), 1500u);
  metrics.resize(80);
  metrics[78].loss = 2;
  metrics[79].loss = 4;
  EXPECT_THAT(loss_plot("t", metrics), HasSubstr("training, last 3<"));
}

// ---- memory -----------------------------------------------------------------------------------

TEST(MemoryFigures, AreSumsOfRanks) {
  MemoryPeak one{.total = 100e6, .staged = 20e6, .evaluation = 30e6};
  one.categories[static_cast<std::size_t>(MemoryCategory::kParameters)] = 60e6;
  MemoryPeak two{.total = 50e6, .staged = 0, .evaluation = 40e6};
  two.categories[static_cast<std::size_t>(MemoryCategory::kParameters)] = 10e6;
  two.categories[static_cast<std::size_t>(MemoryCategory::kTemporary)] = 1.5e6;
  two.categories[static_cast<std::size_t>(MemoryCategory::kActivations)] = 1.4e6;
  const MemoryPeak both = sum({one, two});
  EXPECT_EQ(both.total, 150e6);
  EXPECT_EQ(both.staged, 20e6);
  EXPECT_EQ(both.categories[static_cast<std::size_t>(MemoryCategory::kParameters)], 70e6);
  // A hundredth is named, less is not.
  EXPECT_EQ(describe(both, std::nullopt),
            "Tensors took 150 MB at the peak (temporary 1.5, parameters 70), 20 MB of them copies "
            "for a checkpoint.");
  EXPECT_EQ(describe(both, 143e6),
            "Tensors took 150 MB at the peak (temporary 1.5, parameters 70), 20 MB of them copies "
            "for a checkpoint; planned were 143 MB: 9.1 % under the plan.");
  EXPECT_EQ(describe({.total = 2e6}, 1e6),
            "Tensors took 2 MB at the peak (); planned were 1 MB: 100.0 % over the plan.");
  const auto json = nlohmann::json::parse(to_json({one, two}, {93e6, 50e6}));
  EXPECT_EQ(json["peak_bytes"], 150e6);
  EXPECT_EQ(json["staged_bytes"], 20e6);
  EXPECT_EQ(json["planned_bytes"], 143e6);
  EXPECT_EQ(json["evaluation_peak_bytes"], 70e6);
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][1]["peak_bytes"], 50e6);
  EXPECT_EQ(json["ranks"][0]["staged_bytes"], 20e6);
  EXPECT_EQ(json["ranks"][0]["planned_bytes"], 93e6);
  EXPECT_EQ(json["ranks"][1]["planned_bytes"], 50e6);
  EXPECT_EQ(json["ranks"][1]["evaluation_peak_bytes"], 40e6);
  EXPECT_EQ(json["ranks"][1]["parameters"], 10e6);
  EXPECT_EQ(json["ranks"][0]["temporary"], 0);
  const auto of_threads = nlohmann::json::parse(to_json({one}, {93e6, 50e6}));
  EXPECT_EQ(of_threads["ranks"][0]["planned_bytes"], 143e6) << "one peak of two ranks";
  const auto unplanned = nlohmann::json::parse(to_json({one}, {}));
  EXPECT_TRUE(unplanned["planned_bytes"].is_null());
  EXPECT_TRUE(unplanned["ranks"][0]["planned_bytes"].is_null());
}

// ---- evaluation, precision, sampling ----------------------------------------------------------

TEST(Figures, OfAnEvaluation) {
  EXPECT_EQ(describe(Evaluation{.loss = 1.23456, .labels = 1}), "loss 1.2346");
  EXPECT_EQ(describe(Evaluation{.loss = 1, .labels = 1, .bits_per_byte = 2}),
            "loss 1.0000, 2.0000 bits per byte");
  EXPECT_EQ(describe(Evaluation{.loss = 1, .labels = 1, .accuracy = 0.875}),
            "loss 1.0000, accuracy 87.50 %");
  EXPECT_EQ(describe(Evaluation{
                .loss = 1, .labels = 1, .mean_squared_error = 0.25, .mean_absolute_error = 0.5}),
            "loss 1.0000, MSE 0.25, MAE 0.5");
}

TEST(Figures, OfAChoiceOfPrecision) {
  EXPECT_EQ(faster_type({.fp32_s = 1.05, .narrow_s = 1}), Precision::kFp32);
  EXPECT_EQ(faster_type({.fp32_s = 1.06, .narrow_s = 1}), Precision::kBf16);
  EXPECT_EQ(warn_if_slow(Precision::kFp16, {.fp32_s = 1, .narrow_s = 9.99}), std::nullopt);
  const auto warning = warn_if_slow(Precision::kFp16, {.fp32_s = 1e-3, .narrow_s = 1e-2});
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning, HasSubstr("multiplies fp16 10 times slower than fp32: a layer's products "
                                  "take 10 ms in fp16 and 1 ms in fp32"));
  EXPECT_EQ(
      describe_choice({.fp32_s = 3e-3, .narrow_s = 1e-3}),
      "precision.type = \"auto\": bf16. A layer's products take 1 ms in bf16 and 3 ms in fp32 "
      "on this processor (3.00 x).");
}

TEST(SamplingEnds, AreExact) {
  const std::vector<float> even{0, 0};
  EXPECT_EQ(sample_token(even, {}, 0.5), 1) << "the upper half begins there";
  EXPECT_EQ(sample_token(even, {.top_p = 0.5}, 0.99), 0) << "one token has half of it already";
  EXPECT_EQ(sample_token(even, {.top_p = 0.51}, 0.99), 1);
  EXPECT_EQ(sample_token(even, {.top_k = 1}, 0.99), 0);
  EXPECT_EQ(sample_token(even, {.top_k = 2}, 0.99), 1);
  EXPECT_EQ(sample_token(even, {.top_k = 3}, 0.99), 1);
  EXPECT_NO_THROW(validate(SamplingOptions{.temperature = 0, .top_k = 0, .top_p = 1}));
  for (const double temperature : {std::nan(""), HUGE_VAL})
    EXPECT_NE(error_text([&] { validate(SamplingOptions{.temperature = temperature}); }), "");
  EXPECT_NE(error_text([] { validate(SamplingOptions{.top_p = std::nan("")}); }), "");
}

// ---- records of checkpoints -------------------------------------------------------------------

RunRecord record() {
  RunRecord made{.step = 3,
                 .samples = 24,
                 .tokens = 768,
                 .data = 0xfedcba9876543210u,
                 .model = *model::named_model("gpt2-tiny"),
                 .precision = Precision::kFp16,
                 .loss_scale = optim::LossScale::State{.scale = 512, .good_steps = 2, .skipped = 1},
                 .job = "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = [\"a\"]\n",
                 .job_file = "job.toml"};
  return made;
}

TEST(RunRecords, SurviveTheRoundTrip) {
  const RunRecord read = parse_record(record().to_json(), "here");
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.samples, 24);
  EXPECT_EQ(read.tokens, 768);
  EXPECT_EQ(read.data, 0xfedcba9876543210u);
  EXPECT_EQ(read.model, record().model);
  EXPECT_EQ(read.precision, Precision::kFp16);
  ASSERT_TRUE(read.loss_scale);
  EXPECT_EQ(read.loss_scale->scale, 512);
  EXPECT_EQ(read.loss_scale->good_steps, 2);
  EXPECT_EQ(read.loss_scale->skipped, 1);
  EXPECT_EQ(read.job, record().job);
  EXPECT_EQ(read.job_file, "job.toml");
  EXPECT_EQ(read.exchanges_after, 0);
  RunRecord restarted = record();
  restarted.exchanges_after = 2;
  EXPECT_EQ(parse_record(restarted.to_json(), "here").exchanges_after, 2);
  auto json = nlohmann::json::parse(record().to_json());
  json.erase("precision");
  json.erase("loss_scale");
  const RunRecord old = parse_record(json.dump(), "here");
  EXPECT_EQ(old.precision, Precision::kFp32);
  EXPECT_FALSE(old.loss_scale);
}

TEST(RunRecords, AreRefusedWhereTheyAreBroken) {
  const auto refused = [](const std::function<void(nlohmann::json&)>& change) {
    auto json = nlohmann::json::parse(record().to_json());
    change(json);
    return error_text([&] { parse_record(json.dump(), "here"); });
  };
  EXPECT_EQ(refused([](nlohmann::json&) {}), "");
  for (const char* key : {"step", "samples", "tokens", "data"}) {
    EXPECT_THAT(refused([&](nlohmann::json& json) { json[key] = -1; }),
                HasSubstr("here is not a checkpoint of a training run"))
        << key;
  }
  EXPECT_EQ(refused([](nlohmann::json& json) { json["step"] = (1ull << 63) - 1; }), "");
  EXPECT_THAT(refused([](nlohmann::json& json) { json["step"] = 1ull << 63; }),
              HasSubstr("step is no whole number of at least 0"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["loss_scale"]["good_steps"] = -1; }),
              HasSubstr("good_steps is no whole number"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["loss_scale"]["skipped"] = -1; }),
              HasSubstr("skipped is no whole number"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["loss_scale"]["scale"] = 0; }),
              HasSubstr("loss_scale.scale is no number above 0"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["exchanges_after"] = -1; }),
              HasSubstr("exchanges_after is no whole number"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["exchanges_after"] = 4; }),
              HasSubstr("exchanges_after lies behind its step"));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["precision"] = "auto"; }),
              HasSubstr("precision is \"auto\""));
  EXPECT_THAT(refused([](nlohmann::json& json) { json["precision"] = "fp8"; }),
              HasSubstr("precision is \"fp8\""));
}

TEST(RunRecords, TellWhatAResumedRunChanges) {
  const auto changes = [](const std::string& keys) {
    RunRecord saved = record();
    saved.job = "[optimizer]\nlearning_rate = 3e-4\n[training]\nsteps = 6\n";
    RunRecord now = record();
    now.job = keys;
    return describe_changes(saved, now);
  };
  const std::string same = "[optimizer]\nlearning_rate = 3e-4\n";
  EXPECT_EQ(changes(same + "[training]\nsteps = 6\n"), "");
  EXPECT_EQ(changes(same + "[training]\nsteps = 12\n"), "") << "it may become longer";
  EXPECT_EQ(changes("[optimizer]\nlearning_rate = 0.01\n"),
            "Changed since step 3: optimizer.learning_rate 0.0003 -> 0.01.");
  EXPECT_THAT(changes(same + "[training]\nglobal_batch_sequences = 8\n"),
              HasSubstr("training.global_batch_sequences not set -> 8"));
  EXPECT_EQ(changes(same + "[data]\nfolders = [\"b\"]\n"), "") << "which is refused elsewhere";
}

TEST(RunRecords, TellWhatAResumedRunMustKeep) {
  const auto refused = [](const std::function<void(RunRecord&)>& change) {
    RunRecord now = record();
    change(now);
    return error_text([&] { check_same_run(record(), now, "there"); });
  };
  EXPECT_EQ(refused([](RunRecord&) {}), "");
  EXPECT_EQ(refused([](RunRecord& r) { r.model.name = "other"; }), "");
  EXPECT_THAT(
      refused([](RunRecord& r) { r.model.layers = 5; }),
      HasSubstr("the checkpoint there belongs to another job: model.layers was 4 and is 5"));
  EXPECT_THAT(refused([](RunRecord& r) { r.job += "[optimizer]\nname = \"sgd\"\n"; }),
              HasSubstr("optimizer.name was adamw and is sgd"));
  EXPECT_THAT(refused([](RunRecord& r) { r.data = 1; }),
              HasSubstr("had the fingerprint fedcba9876543210 and have 0000000000000001"));
  // The keys that decide which samples come are named; others may change.
  EXPECT_THAT(refused([](RunRecord& r) {
                r.data = 1;
                r.job += "[debug]\nseed = 9\n";
              }),
              HasSubstr("debug.seed was 0 and is 9"));
  EXPECT_THAT(refused([](RunRecord& r) {
                r.data = 1;
                r.job += "[training]\nsequence_length = 9\n";
              }),
              HasSubstr("training.sequence_length was"));
  EXPECT_EQ(refused([](RunRecord& r) { r.job += "[debug]\nseed = 9\n"; }), "");
}

}  // namespace
}  // namespace shoal::train::report_figures_test
