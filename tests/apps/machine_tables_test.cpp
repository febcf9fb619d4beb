// The benches of a machine print this for given times; and they measure storage and find caches by
// pieces that run here as they are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/machine/caches.h"
#include "apps/shoal/machine/compared_cluster.h"
#include "apps/shoal/machine/memory_table.h"
#include "apps/shoal/machine/product_table.h"
#include "apps/shoal/machine/storage_pattern.h"
#include "apps/shoal/machine/storage_table.h"
#include "apps/shoal/plan/options.h"
#include "shoal/base/error.h"
#include "shoal/train/config/link_costs.h"
#include "tests/apps/program.h"

namespace shoal::apps::testing::machine_tables_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

/// A GFLOP in each pass, twice in a micro-batch: forward at 100 GFLOP/s, the gradients at 50.
ProductTable table_of_one() {
  ProductTable table{.title = "gpt.toml", .planned_by = "here.toml", .others_cores = 0.5};
  ProductArguments& measured = table.measured;
  measured.by = {.ranks = 2, .threads = 3, .cores = {}};
  measured.shapes = {{"up", 500, 1000, 1000, 2}};
  measured.passes = {forecast::ProductPass::kForward, forecast::ProductPass::kInputGradient,
                     forecast::ProductPass::kWeightGradient};
  measured.types = {ElementType::kF32, ElementType::kBF16};
  measured.seconds = {{ElementType::kF32, {{0.01, 0.02, 0.02}}},
                      {ElementType::kBF16, {{0.005, 0.01, 0.01}}}};
  measured.peak_flops = {{ElementType::kF32, 120e9}, {ElementType::kBF16, 240e9}};
  table.planned = *plan::cluster_preset("cpu");
  // A matmul of a GFLOP takes 10 ms.
  table.planned.device.peak_flops = {{ElementType::kF32, 100e9}};
  table.planned.device.efficiency = {.matmul = 1};
  return table;
}

TEST(ProductTable, StandsBesideThePeakAndThePlan) {
  const std::string text = products_text(table_of_one());
  EXPECT_THAT(text, HasSubstr("one of 2 ranks of 3 threads"));
  EXPECT_THAT(text, HasSubstr("f32: a plain loop reaches 120 GFLOP/s on a rank"));
  // 3 GFLOP in 50 ms are 60 GFLOP/s, half of 120; the plan has them in 30 ms.
  EXPECT_THAT(text, ::testing::ContainsRegex("up +500 +1000 +1000 +2 +100 +50 +50 +50 % +100\n"));
  EXPECT_THAT(text, HasSubstr("all of them: 100 ms, 60 GFLOP/s, 50 % of the peak; planned 60 ms, "
                              "0.60 times as long"));
  EXPECT_THAT(text, HasSubstr("all of them: 50 ms, 120 GFLOP/s, 50 % of the peak\n"))
      << "this cluster has no peak of bf16";
  const Json json = Json::parse(products_json(table_of_one()));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["others_cores"], 0.5);
  const Json& f32 = json["types"][0];
  EXPECT_EQ(f32["type"], "f32");
  EXPECT_EQ(f32["products"][0]["input_gradient_s"], 0.02);
  EXPECT_EQ(f32["products"][0]["share_of_peak"], 0.5);
  EXPECT_NEAR(f32["planned_s"], 0.06, 1e-12);
  EXPECT_FALSE(json["types"][1].contains("planned_s"));
}

// The kernel of a loss has more than its matmul: no figure of the plan stands beside it.
TEST(ProductTable, HasNoPlanForWhatIsAPartOfAnotherKernel) {
  ProductTable table = table_of_one();
  ProductArguments& measured = table.measured;
  measured.types = {ElementType::kF32};
  measured.shapes.push_back({"output", 500, 1000, 2000, 1, false});
  measured.seconds[ElementType::kF32].push_back({0.04, 0.04, 0.04});
  EXPECT_THAT(products_text(table),
              ::testing::ContainsRegex("output +500 +1000 +2000 +1 +50 +50 +50 +42 % +100\n"));
  EXPECT_THAT(products_text(table), Not(HasSubstr("its kernels")));
  table.by_kernels = {ElementType::kF32};
  // A GFLOP takes 20 ms forward and in each gradient.
  table.planned.kernels["linear"] = {.flop_s = 20e-12};
  table.planned.kernels["linear_backward"] = {.flop_s = 40e-12};
  const std::string text = products_text(table);
  EXPECT_THAT(text, ::testing::ContainsRegex("up +500 +1000 +1000 +2 +100 +50 +50 +50 % +50\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("output +500 +1000 +2000 +1 +50 +50 +50 +42 % +-\n"));
  EXPECT_THAT(text, HasSubstr("all of them: 220 ms"));
  EXPECT_THAT(text, HasSubstr("; planned 120 ms for 100 ms, 1.20 times as long"));
  EXPECT_THAT(text, HasSubstr("for f32 from its kernels; -: a part of the kernel of the loss"));
  const Json f32 = Json::parse(products_json(table))["types"][0];
  EXPECT_FALSE(f32["products"][1].contains("planned_s"));
  EXPECT_NEAR(f32["planned_of_seconds"], 0.1, 1e-12);
}

TEST(ProductTable, GivesForwardPassesToTheFit) {
  const auto timed = timed_products(table_of_one().measured);
  ASSERT_EQ(timed.at(ElementType::kBF16).size(), 1u);
  EXPECT_EQ(timed.at(ElementType::kBF16)[0].work, 1e9);
  EXPECT_EQ(timed.at(ElementType::kBF16)[0].seconds, 0.005);
}

TEST(MemoryTable, StandsBesideThePlan) {
  MemoryTable table{.places = {"L1", "memory"}, .planned_by = "here.toml"};
  table.measured.by = {.ranks = 1, .threads = 2, .cores = {}};
  table.measured.loops = {
      {.threads = 1, .thread_bytes = 24 << 10, .read = 90e9, .write = 80e9, .copy = 70e9},
      {.threads = 2, .thread_bytes = 64 << 20, .read = 9e9, .write = 8e9, .copy = 7e9}};
  for (const double bytes : {1e4, 1e8})
    table.measured.traversals.push_back({bytes, 2e-6 + bytes / 10e9});
  table.planned = *plan::cluster_preset("cpu");
  table.planned.device.memory_bandwidth = 40e9;
  table.planned.device.efficiency.memory = 0.5;
  const std::string text = memory_text(table);
  EXPECT_THAT(text, ::testing::ContainsRegex("1 +L1 +24 KiB +90 +80 +70\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("2 +memory +64 MiB +9 +8 +7\n"));
  EXPECT_THAT(text, HasSubstr("on 1 rank of 2 threads: 10 GB/s from memory, and 2 us each"));
  EXPECT_THAT(text, HasSubstr("planned by here.toml: 20 GB/s, and 5 us; 2.00 times the measured"));
  const Json json = Json::parse(memory_json(table));
  EXPECT_EQ(json["loops"][1]["copy_bytes_per_s"], 7e9);
  EXPECT_NEAR(json["operation"]["bytes_per_s"], 10e9, 1);
  EXPECT_EQ(json["planned_operation"]["bytes_per_s"], 20e9);
}

StorageTable table_of_storage() {
  StorageTable table;
  table.test = {.folder = "runs", .bytes = 1000, .writers = 2};
  // The second round is the middle one of reading, the third that of writing.
  table.rounds = {{.bytes = 1e9, .write_s = 1, .read_s = 4},
                  {.bytes = 1e9, .write_s = 4, .read_s = 2},
                  {.bytes = 1e9, .write_s = 2, .read_s = 1}};
  table.planned = {.read_bandwidth = 2e9, .write_bandwidth = 1e9};
  table.planned_by = "here.toml";
  return table;
}

TEST(StorageTable, SaysWhatACheckpointTakes) {
  StorageTable table = table_of_storage();
  EXPECT_THAT(storage_text(table), Not(HasSubstr("A checkpoint")));
  table.job = "gpt.toml";
  table.checkpoint_bytes = 2e9;
  const std::string text = storage_text(table);
  EXPECT_THAT(text, ::testing::ContainsRegex("median +0.5 +0.5\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("planned +1 +2  by here.toml\n"));
  EXPECT_THAT(text, HasSubstr("A checkpoint of gpt.toml has 2000 MB: 4 s to write and 4 s to read; "
                              "planned by here.toml: 2 s and 1 s\n"));
  EXPECT_THAT(text, Not(HasSubstr("still in memory")));
  const Json json = Json::parse(storage_json(table));
  EXPECT_EQ(json["storage"]["write_bytes_per_s"], 5e8);
  EXPECT_EQ(json["rounds"].size(), 3u);
  EXPECT_EQ(json["checkpoint"]["bytes"], 2e9);
}

TEST(StorageTable, SaysWhatIsNotTheDisks) {
  StorageTable table = table_of_storage();
  table.rounds[1].cached_part = 0.4;
  table.planned = {};
  table.job = "gpt.toml";
  table.checkpoint_bytes = 1e6;
  const std::string text = storage_text(table);
  EXPECT_THAT(text, HasSubstr("Up to 40 % of what was read was still in memory"));
  EXPECT_THAT(text, HasSubstr("2 ms to write and 2 ms to read; here.toml says nothing of storage"));
  EXPECT_THAT(text, Not(HasSubstr("\n  planned")));
}

// Storage that keeps equal blocks once, or that answers with another block, must not pass.
TEST(StoragePattern, NoBlockIsEqualToAnother) {
  constexpr std::int64_t kChunk = 4 * StoragePattern::kBlockBytes;
  std::set<std::string> blocks;
  for (const std::uint64_t stream : {0, 1, 2}) {
    StoragePattern pattern(kChunk, stream);
    for (const std::int64_t offset : {std::int64_t{0}, kChunk, 2 * kChunk}) {
      pattern.move_to(offset);
      const auto* const bytes = static_cast<const char*>(pattern.data());
      for (std::int64_t at = 0; at < kChunk; at += StoragePattern::kBlockBytes)
        blocks.emplace(bytes + at, static_cast<std::size_t>(StoragePattern::kBlockBytes));
    }
  }
  EXPECT_EQ(blocks.size(), 3u * 3 * 4);
}

TEST(StoragePattern, FindsABlockOfAnotherPlace) {
  constexpr std::int64_t kBlock = StoragePattern::kBlockBytes;
  StoragePattern pattern(4 * kBlock, 7);
  pattern.move_to(8 * kBlock);
  EXPECT_EQ(pattern.first_wrong(8 * kBlock, 4 * kBlock), std::nullopt);
  EXPECT_EQ(pattern.first_wrong(4 * kBlock, 4 * kBlock), 4 * kBlock);
  auto* const bytes = static_cast<char*>(pattern.data());
  bytes[2 * kBlock] ^= 1;
  EXPECT_EQ(pattern.first_wrong(8 * kBlock, 4 * kBlock), 10 * kBlock);
  EXPECT_EQ(pattern.first_wrong(8 * kBlock, 2 * kBlock), std::nullopt) << "beyond what was read";
}

TEST(StorageSpeed, TwoRoundsHaveAMedianBetweenThem) {
  std::vector<StorageSpeed> rounds{{.bytes = 8, .write_s = 1, .read_s = 1},
                                   {.bytes = 8, .write_s = 4, .read_s = 1}};
  EXPECT_EQ(median_of(rounds, &StorageSpeed::write_bandwidth), 5);
  rounds.push_back({.bytes = 9, .write_s = 3, .read_s = 1});
  EXPECT_EQ(median_of(rounds, &StorageSpeed::write_bandwidth), 3);
}

TEST(StorageSpeed, WritesReadsAndLeavesNothing) {
  const Folder folder;
  const StorageSpeed speed =
      storage_speed({.folder = folder.path(), .bytes = 20 << 20, .writers = 2});
  EXPECT_EQ(speed.bytes, 20 << 20);
  EXPECT_GT(speed.write_s, 0);
  EXPECT_GT(speed.read_s, 0);
  EXPECT_GE(speed.cached_part, 0);
  EXPECT_LE(speed.cached_part, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StorageSpeed, StopsWhenItsTimeIsUp) {
  const Folder folder;
  const StorageSpeed speed =
      storage_speed({.folder = folder.path(), .bytes = 64 << 20, .writers = 1, .seconds = 1e-9});
  EXPECT_EQ(speed.bytes, 8 << 20) << "a chunk";
}

TEST(StorageSpeed, MemoryIsSeenAsSuch) {
  const auto folder = std::filesystem::path("/dev/shm") / fmt::format("shoal-test-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const StorageSpeed speed = storage_speed({.folder = folder, .bytes = 8 << 20});
  std::filesystem::remove_all(folder);
  EXPECT_EQ(speed.cached_part, 1);
}

/// A cache as Linux describes it.
void write_cache(const Folder& folder, int index, const std::string& level, const std::string& type,
                 const std::string& size, const std::string& sharers) {
  const auto path = folder.path() / fmt::format("index{}", index);
  std::filesystem::create_directory(path);
  std::ofstream(path / "level") << level << "\n";
  std::ofstream(path / "type") << type << "\n";
  std::ofstream(path / "size") << size << "\n";
  std::ofstream(path / "shared_cpu_list") << sharers << "\n";
}

TEST(Caches, AreReadAsLinuxTellsThem) {
  const Folder folder;
  EXPECT_TRUE(caches_of_core(folder.path()).empty());
  write_cache(folder, 0, "3", "Unified", "32M", "0-3,8-11");
  write_cache(folder, 1, "1", "Data", "48K", "0");
  write_cache(folder, 2, "1", "Instruction", "32K", "0");
  write_cache(folder, 3, "2", "Unified", "1024K", "0,8");
  write_cache(folder, 4, "4", "Unified", "much", "0");
  write_cache(folder, 5, "4", "Unified", "64M", "4-1");
  EXPECT_EQ(caches_of_core(folder.path()),
            (std::vector<Cache>{{1, 48 << 10, 1}, {2, 1 << 20, 2}, {3, 32 << 20, 8}}));
}

TEST(Caches, SetsLieInOneCacheEach) {
  const std::vector<Cache> caches{{1, 48 << 10, 1}, {2, 1 << 20, 1}, {3, 32 << 20, 8}};
  constexpr std::int64_t kMuch = std::int64_t{1} << 40;
  EXPECT_EQ(working_sets(caches, 1, 16, kMuch),
            (std::vector<WorkingSet>{
                {"L1", 24 << 10}, {"L2", 512 << 10}, {"L3", 16 << 20}, {"memory", 256 << 20}}));
  // Eight threads have 4 MiB each of a cache that eight cores share. Caches of 64 cores hold 256
  // MiB.
  EXPECT_EQ(working_sets(caches, 8, 64, kMuch),
            (std::vector<WorkingSet>{
                {"L1", 24 << 10}, {"L2", 512 << 10}, {"L3", 2 << 20}, {"memory", 128 << 20}}));
  // A thread has no more of the third cache than its second one holds.
  const std::vector<Cache> small{{2, 1 << 20, 1}, {3, 8 << 20, 8}};
  EXPECT_EQ(working_sets(small, 8, 8, kMuch),
            (std::vector<WorkingSet>{{"L2", 512 << 10}, {"memory", 32 << 20}}));
  EXPECT_EQ(working_sets({}, 2, 2, 64 << 20),
            (std::vector<WorkingSet>{
                {"a cache", 16 << 10}, {"a cache", 256 << 10}, {"memory", 8 << 20}}));
}

TEST(ComparedCluster, KeepsWhatElseTheFileSays) {
  const Folder folder;
  const std::string file = folder.path() / "here.toml";
  collective::CostModel tcp;
  tcp.inside.alpha = 7e-6;
  plan::Cluster cluster = cpu_host(2);
  cluster.source = "a \"test\", with \\, a\nline and \x7f";
  folder.write("here.toml", "# mine\n" + cluster_text(cluster, tcp));
  const ComparedCluster compared{file, true};
  EXPECT_EQ(compared.load(2, Measured::kRanks), cluster);
  cluster.storage = {5, 6};
  compared.write(cluster);
  EXPECT_EQ(compared.load(2, Measured::kRanks), cluster);
  EXPECT_EQ(train::read_link_costs(file).inside.alpha, 7e-6);
  EXPECT_EQ(compared.called(cluster), file);
  EXPECT_EQ(ComparedCluster{}.called(cpu_host(1)), "the preset cpu");
  // A cluster that the planner refuses does not take the place of the file.
  cluster.device.memory_bytes = -1;
  EXPECT_THROW(compared.write(cluster), Error);
  EXPECT_EQ(compared.load(2, Measured::kRanks).storage.read_bandwidth, 5);
}

}  // namespace
}  // namespace shoal::apps::testing::machine_tables_test
