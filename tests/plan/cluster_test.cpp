#include "shoal/plan/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "shoal/base/error.h"
#include "tests/error_text.h"
#include "tests/plan/gib.h"

namespace shoal::plan::cluster_test {
namespace {

using ::testing::HasSubstr;

struct Sheet {
  const char* name;
  std::int64_t per_host;
  double memory_gib;
  double memory_gbs;
  double f16_tflops;
  double f32_tflops;
  double inside_gbs;
  double between_gbs;
  double power_w;
  double price;
};

// What the data sheets of the hosts say of one device; prices an hour as docs and users see them.
TEST(ClusterPresets, AreTheirDataSheets) {
  for (const Sheet& sheet : {Sheet{"v100", 16, 32, 900, 125, 15.7, 150, 6.25, 625, 0},
                             Sheet{"a100", 8, 80, 2039, 312, 19.5, 300, 25, 812, 2},
                             Sheet{"a100-40gb", 8, 40, 1555, 312, 19.5, 300, 25, 812, 2},
                             Sheet{"h100", 8, 80, 3352, 989.4, 67, 450, 50, 1275, 3},
                             Sheet{"h200", 8, 141, 4800, 989.4, 67, 450, 50, 1275, 3},
                             Sheet{"b200", 8, 180, 8000, 2250, 80, 900, 50, 1790, 5}}) {
    SCOPED_TRACE(sheet.name);
    const Cluster cluster = *cluster_preset(sheet.name);
    EXPECT_EQ(cluster.name, sheet.name);
    EXPECT_EQ(cluster.device.name, sheet.name);
    EXPECT_EQ(cluster.hosts, 1);
    EXPECT_EQ(cluster.devices_per_host, sheet.per_host);
    EXPECT_DOUBLE_EQ(cluster.device.memory_bytes, sheet.memory_gib * kGiB);
    EXPECT_DOUBLE_EQ(cluster.device.memory_bandwidth, sheet.memory_gbs * 1e9);
    EXPECT_DOUBLE_EQ(cluster.peak(ElementType::kF16), sheet.f16_tflops * 1e12);
    EXPECT_DOUBLE_EQ(cluster.peak(ElementType::kF32), sheet.f32_tflops * 1e12);
    EXPECT_DOUBLE_EQ(cluster.inside.bandwidth, sheet.inside_gbs * 1e9);
    EXPECT_DOUBLE_EQ(cluster.between.bandwidth, sheet.between_gbs * 1e9);
    EXPECT_DOUBLE_EQ(cluster.inside.latency_s, 5e-6);
    EXPECT_DOUBLE_EQ(cluster.between.latency_s, 10e-6);
    EXPECT_DOUBLE_EQ(cluster.device.power_w, sheet.power_w);
    EXPECT_DOUBLE_EQ(cluster.device.price_per_hour, sheet.price);
    EXPECT_DOUBLE_EQ(cluster.host.memory_bytes, 2048 * kGiB);
    EXPECT_DOUBLE_EQ(cluster.host.memory_bandwidth, 400e9);
    EXPECT_DOUBLE_EQ(cluster.host.link_bandwidth, 25e9);
    EXPECT_DOUBLE_EQ(cluster.storage.read_bandwidth, 100e9);
    EXPECT_DOUBLE_EQ(cluster.storage.write_bandwidth, 50e9);
    // 419 interruptions of 16,384 devices in 54 days: one device fails every 5.8 years.
    EXPECT_NEAR(cluster.device.hours_between_failures, 50677, 1);
    EXPECT_EQ(cluster.runtime, Runtime::kPublished);
    EXPECT_EQ(cluster.device.peak_flops.contains(ElementType::kBF16),
              std::string(sheet.name) != "v100");
  }
  EXPECT_DOUBLE_EQ(cluster_preset("a100")->peak(ElementType::kBF16), 312e12);
  EXPECT_DOUBLE_EQ(cluster_preset("h100")->peak(ElementType::kBF16), 989.4e12);
  EXPECT_DOUBLE_EQ(cluster_preset("h200")->peak(ElementType::kF8E4M3), 1978.9e12);
  EXPECT_DOUBLE_EQ(cluster_preset("b200")->peak(ElementType::kBF16), 2250e12);
  EXPECT_DOUBLE_EQ(cluster_preset("b200")->peak(ElementType::kF8E4M3), 4500e12);
  EXPECT_FALSE(cluster_preset("a100")->device.peak_flops.contains(ElementType::kF8E4M3));
}

TEST(ClusterPresets, OfProcessorsAndOfTheInternet) {
  const Cluster cpu = *cluster_preset("cpu");
  EXPECT_EQ(cpu.devices(), 1);
  EXPECT_EQ(cpu.runtime, Runtime::kShoal);
  EXPECT_DOUBLE_EQ(cpu.device.memory_bytes, 256 * kGiB);
  EXPECT_DOUBLE_EQ(cpu.device.memory_bandwidth, 8 * 3200e6 * 8) << "eight channels of DDR4-3200";
  EXPECT_DOUBLE_EQ(cpu.peak(ElementType::kF32), 32 * 2.5e9 * 64);
  EXPECT_DOUBLE_EQ(cpu.peak(ElementType::kBF16), 32 * 2.5e9 * 64);
  EXPECT_EQ(cpu.device.efficiency, (Efficiency{0.7, 1e7, 0.6, 5e-6, 0.6, 0.8}));
  EXPECT_EQ(cpu.inside, (Link{1e-6, 10e9}));
  EXPECT_EQ(cpu.between, (Link{30e-6, 1.25e9})) << "ten-gigabit Ethernet";
  EXPECT_EQ(cpu.storage, (Storage{1e9, 1e9}));
  EXPECT_DOUBLE_EQ(cpu.device.power_w, 400);
  EXPECT_DOUBLE_EQ(cpu.device.hours_between_failures, 3 * 365 * 24) << "three years";
  EXPECT_FALSE(cpu.host.described());
  const Cluster wan = *cluster_preset("wan");
  EXPECT_EQ(wan.name, "wan");
  EXPECT_EQ(wan.device.memory_bytes, cluster_preset("a100")->device.memory_bytes);
  EXPECT_DOUBLE_EQ(wan.between.latency_s, 0.05);
  EXPECT_DOUBLE_EQ(wan.between.bandwidth * 8 * 8, 1e9) << "a gigabit a second for eight devices";
  EXPECT_DOUBLE_EQ(wan.device.efficiency.link_between, 0.8);
  EXPECT_EQ(cluster_preset("mars"), std::nullopt);
  // As fitted for the one before.
  EXPECT_EQ(cluster_preset("v100")->device.efficiency, cluster_preset("a100")->device.efficiency);
  EXPECT_EQ(cluster_preset("b200")->device.efficiency, cluster_preset("h100")->device.efficiency);
  EXPECT_EQ(cluster_preset("a100")->device.efficiency,
            (Efficiency{0.7921, 1, 0.7184, 54.48e-6, 0.98, 0.5145}));
  EXPECT_EQ(cluster_preset("h100")->device.efficiency,
            (Efficiency{0.6464, 17.11e9, 0.3219, 3.589e-6, 0.98, 0.5178}));
  EXPECT_EQ(Efficiency{}, (Efficiency{0.8, 0, 0.8, 0, 0.8, 0.8}));
}

TEST(Cluster, RuntimesHaveNames) {
  EXPECT_EQ(runtime("published"), Runtime::kPublished);
  EXPECT_EQ(runtime("shoal"), Runtime::kShoal);
  EXPECT_EQ(runtime("other"), std::nullopt);
  EXPECT_STREQ(name(Runtime::kPublished), "published");
  EXPECT_STREQ(name(Runtime::kShoal), "shoal");
}

TEST(Cluster, DevicesFillHosts) {
  const Cluster a100 = *cluster_preset("a100");
  const auto shape = [&](std::int64_t devices) {
    const Cluster cluster = with_devices(a100, devices);
    return std::pair(cluster.hosts, cluster.devices_per_host);
  };
  EXPECT_EQ(shape(1), std::pair(std::int64_t{1}, std::int64_t{1}));
  EXPECT_EQ(shape(7), std::pair(std::int64_t{1}, std::int64_t{7}));
  EXPECT_EQ(shape(8), std::pair(std::int64_t{1}, std::int64_t{8}));
  EXPECT_EQ(shape(24), std::pair(std::int64_t{3}, std::int64_t{8}));
  EXPECT_THAT(error_text([&] { shape(0); }), HasSubstr("devices = 0: must be at least 1"));
  EXPECT_THAT(error_text([&] { shape(9); }), HasSubstr("must be a multiple of the 8 devices"));
  EXPECT_THAT(error_text([&] { a100.peak(ElementType::kF8E4M3); }),
              HasSubstr("device a100 has no peak for f8_e4m3"));
}

TEST(Cluster, AHostIsDescribedWhole) {
  EXPECT_TRUE((Host{1, 1, 1}.described()));
  EXPECT_FALSE((Host{0, 1, 1}.described()));
  EXPECT_FALSE((Host{1, 0, 1}.described()));
  EXPECT_FALSE((Host{1, 1, 0}.described()));
}

struct Field {
  const char* name;
  std::function<double&(Cluster&)> of;
  bool zero_allowed;
};

// Every figure: what it may be least, and what it may not.
TEST(Cluster, EveryFigureIsChecked) {
  const Field fields[] = {
      {"device.memory_bytes", [](Cluster& c) -> double& { return c.device.memory_bytes; }, false},
      {"device.memory_bandwidth", [](Cluster& c) -> double& { return c.device.memory_bandwidth; },
       false},
      {"device.peak_flops.f16",
       [](Cluster& c) -> double& { return c.device.peak_flops[ElementType::kF16]; }, false},
      {"device.power_w", [](Cluster& c) -> double& { return c.device.power_w; }, true},
      {"device.price_per_hour", [](Cluster& c) -> double& { return c.device.price_per_hour; },
       true},
      {"device.hours_between_failures",
       [](Cluster& c) -> double& { return c.device.hours_between_failures; }, true},
      {"efficiency.matmul_ramp_flops",
       [](Cluster& c) -> double& { return c.device.efficiency.matmul_ramp_flops; }, true},
      {"efficiency.operation_s",
       [](Cluster& c) -> double& { return c.device.efficiency.operation_s; }, true},
      {"inside.latency_s", [](Cluster& c) -> double& { return c.inside.latency_s; }, true},
      {"inside.bandwidth", [](Cluster& c) -> double& { return c.inside.bandwidth; }, false},
      {"between.latency_s", [](Cluster& c) -> double& { return c.between.latency_s; }, true},
      {"between.bandwidth", [](Cluster& c) -> double& { return c.between.bandwidth; }, false},
      {"host.memory_bytes", [](Cluster& c) -> double& { return c.host.memory_bytes; }, true},
      {"host.memory_bandwidth", [](Cluster& c) -> double& { return c.host.memory_bandwidth; },
       true},
      {"host.link_bandwidth", [](Cluster& c) -> double& { return c.host.link_bandwidth; }, true},
      {"host.devices_at_once", [](Cluster& c) -> double& { return c.host.devices_at_once; }, true},
      {"storage.read_bandwidth", [](Cluster& c) -> double& { return c.storage.read_bandwidth; },
       true},
      {"storage.write_bandwidth", [](Cluster& c) -> double& { return c.storage.write_bandwidth; },
       true},
      {"kernels.loss.start_s", [](Cluster& c) -> double& { return c.kernels["loss"].start_s; },
       true},
      {"kernels.loss.flop_s", [](Cluster& c) -> double& { return c.kernels["loss"].flop_s; }, true},
      {"kernels.loss.weight_s", [](Cluster& c) -> double& { return c.kernels["loss"].weight_s; },
       true},
      {"kernels.loss.byte_s", [](Cluster& c) -> double& { return c.kernels["loss"].byte_s; },
       true}};
  for (const Field& field : fields) {
    const auto error_with = [&](double value) {
      Cluster cluster = *cluster_preset("a100");
      field.of(cluster) = value;
      return error_text([&] { validate(cluster); });
    };
    EXPECT_EQ(error_with(1), "") << field.name;
    EXPECT_EQ(error_with(0).empty(), field.zero_allowed) << field.name;
    EXPECT_THAT(error_with(-1), HasSubstr(std::string(field.name) + " = -1: must "));
    EXPECT_THAT(error_with(std::nan("")), HasSubstr(field.name));
    EXPECT_THAT(error_with(std::numeric_limits<double>::infinity()), HasSubstr(field.name));
  }
  const auto with = [](auto change) {
    Cluster cluster = *cluster_preset("a100");
    change(cluster);
    return error_text([&] { validate(cluster); });
  };
  for (const auto member : {&Efficiency::matmul, &Efficiency::memory, &Efficiency::link_inside,
                            &Efficiency::link_between}) {
    EXPECT_EQ(with([&](Cluster& c) { c.device.efficiency.*member = 1; }), "");
    EXPECT_THAT(with([&](Cluster& c) { c.device.efficiency.*member = 0; }),
                HasSubstr("must lie in (0, 1]"));
    EXPECT_THAT(with([&](Cluster& c) { c.device.efficiency.*member = 1.01; }),
                HasSubstr("must lie in (0, 1]"));
  }
  EXPECT_EQ(with([](Cluster& c) { c.hosts = 10000000; }), "");
  EXPECT_THAT(with([](Cluster& c) { c.hosts = 10000001; }), HasSubstr("hosts = 10000001"));
  EXPECT_THAT(with([](Cluster& c) { c.hosts = 0; }), HasSubstr("hosts = 0"));
  EXPECT_EQ(with([](Cluster& c) { c.devices_per_host = 100000; }), "");
  EXPECT_THAT(with([](Cluster& c) { c.devices_per_host = 100001; }),
              HasSubstr("devices_per_host = 100001"));
  EXPECT_THAT(with([](Cluster& c) { c.devices_per_host = 0; }), HasSubstr("devices_per_host = 0"));
  EXPECT_THAT(with([](Cluster& c) { c.device.peak_flops.clear(); }),
              HasSubstr("at least one element type needs a peak"));
  EXPECT_EQ(with([](Cluster& c) { c.kernels["loss"].timed = {{{0, 0, 0}, 1e-9}}; }), "");
  EXPECT_THAT(with([](Cluster& c) {
                c.kernels["loss"].timed = {{{-1, 0, 0}, 1}};
              }),
              HasSubstr("kernels.loss.timed = -1"));
  EXPECT_THAT(with([](Cluster& c) {
                c.kernels["loss"].timed = {{{0, -2, 0}, 1}};
              }),
              HasSubstr("kernels.loss.timed = -2"));
  EXPECT_THAT(with([](Cluster& c) {
                c.kernels["loss"].timed = {{{0, 0, -3}, 1}};
              }),
              HasSubstr("kernels.loss.timed = -3"));
  EXPECT_THAT(with([](Cluster& c) {
                c.kernels["loss"].timed = {{{1, 1, 1}, 0}};
              }),
              HasSubstr("kernels.loss.timed = 0: must be positive"));
}

}  // namespace
}  // namespace shoal::plan::cluster_test
