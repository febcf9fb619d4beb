#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include "apps/shoal/torch/entry.h"
#include "shoal/base/check.h"
#include "shoal/collective/hierarchical_communicator.h"
#include "shoal/collective/tcp_communicator.h"
#include "shoal/comm/communicator_engine.h"
#include "shoal/comm/world.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::apps {
namespace {

/// One operation at one size: what to call, and what must come out when rank r's buffers hold r + 1 + i % 7.
struct Case {
  using Call = void (*)(const comm::Group& group, const Case& c);
  std::string op;
  Call call;           ///< found once, before any clock runs
  std::int64_t count;  ///< elements of the full buffer, float32
  at::Tensor full, part, out;
};

Case::Call call_named(const std::string& op) {
  using comm::Group;
  static const std::map<std::string, Case::Call> calls{
      {"all_reduce", [](const Group& group, const Case& c) { group.all_reduce(c.full); }},
      {"all_gather", [](const Group& group, const Case& c) { group.all_gather(c.out, c.part); }},
      {"reduce_scatter", [](const Group& group, const Case& c) { group.reduce_scatter(c.part, c.full); }},
      {"all_to_all", [](const Group& group, const Case& c) { group.all_to_all(c.out, c.full); }},
      {"broadcast", [](const Group& group, const Case& c) { group.broadcast(c.full, 0); }},
      {"reduce", [](const Group& group, const Case& c) { group.reduce(c.full, 0); }},
      {"gather", [](const Group& group, const Case& c) { group.gather(c.out, c.part, 0); }},
      {"scatter", [](const Group& group, const Case& c) { group.scatter(c.part, c.full, 0); }},
      {"barrier", [](const Group& group, const Case&) { group.barrier(); }},
  };
  return calls.at(op);
}

Case make_case(const std::string& op, std::int64_t bytes, int ranks) {
  const std::int64_t count = std::max<std::int64_t>(bytes / 4, ranks) / ranks * ranks;
  return {op, call_named(op), count, at::ones({count}), at::ones({count / ranks}), at::empty({count})};
}

void run(const comm::Group& group, const Case& c) { c.call(group, c); }

void check(const comm::Group& group, const Case& c) {
  const int ranks = group.size(), rank = group.rank();
  const std::int64_t share = c.count / ranks;
  const auto pattern = [](std::int64_t count) { return at::arange(count, at::kLong).remainder(7).to(at::kFloat); };
  const auto value = [&](int r, std::int64_t from, std::int64_t count) {
    return (at::arange(from, from + count, at::kLong).remainder(7) + (r + 1)).to(at::kFloat);
  };
  c.full.copy_(pattern(c.count) + (rank + 1));
  c.part.copy_(pattern(share) + (rank + 1));
  group.barrier();
  run(group, c);
  const float total = static_cast<float>(ranks * (ranks + 1)) / 2, n = static_cast<float>(ranks);
  bool right = true;
  const auto part_is = [&](const at::Tensor& t, int r, std::int64_t from) {
    return t.slice(0, r * share, (r + 1) * share).equal(value(r, from, share));
  };
  if (c.op == "all_reduce" || (c.op == "reduce" && rank == 0)) right = c.full.equal(pattern(c.count) * n + total);
  if (c.op == "broadcast") right = c.full.equal(pattern(c.count) + 1);
  if (c.op == "scatter") right = c.part.equal(value(0, rank * share, share));
  if (c.op == "reduce_scatter") right = c.part.equal((value(0, rank * share, share) - 1) * n + total);
  for (int r = 0; r < ranks; ++r) {
    if (c.op == "all_gather" || (c.op == "gather" && rank == 0)) right = right && part_is(c.out, r, 0);
    if (c.op == "all_to_all") right = right && part_is(c.out, r, rank * share);
  }
  if (!right) throw Error(ErrorKind::kInternal, "bench", fmt::format("{} of {} bytes gave a wrong answer", c.op, c.count * 4)).at(rank, ranks);
  c.full.fill_(1e-3), c.part.fill_(1e-3);
  group.barrier();
}

double seconds_of(const comm::Group& group, const Case& c) {
  const auto start = Clock::now();
  run(group, c);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Times of the slowest rank, call by call, ascending; each call starts when every rank has just left the one before.
at::Tensor measure(const comm::Group& group, const Case& c, double seconds) {
  for (int i = 0; i < 3; ++i) run(group, c);
  group.barrier();
  const at::Tensor estimate = at::empty({1}, at::kDouble);
  *estimate.data_ptr<double>() = seconds_of(group, c);
  group.all_reduce(estimate, {.reduction = comm::Reduction::kMax});
  const std::int64_t least = c.count * 4 <= 1 << 20 ? 1000 : 5;
  const auto calls = std::clamp(static_cast<std::int64_t>(seconds / std::max(*estimate.const_data_ptr<double>(), 1e-7)), least, std::int64_t{20000});
  const at::Tensor times = at::empty({calls}, at::kDouble);
  for (std::int64_t i = 0; i < calls; ++i) {
    times.data_ptr<double>()[i] = seconds_of(group, c);
    if (i % 8 == 7 && c.op == "all_reduce") c.full.fill_(1e-3);  // sums must not run away
  }
  group.all_reduce(times, {.reduction = comm::Reduction::kMax});
  std::sort(times.data_ptr<double>(), times.data_ptr<double>() + calls);
  return times;
}

comm::Kind kind_of(const std::string& op) {
  using collective::Kind;
  for (const Kind kind :
       {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll, Kind::kGather, Kind::kScatter})
    if (op == name(kind)) return kind;
  return Kind::kBarrier;
}

/// How an operation of that size is carried out: the algorithm on TCP, the way on shared memory.
std::string way_of(const BenchArguments& a, const comm::Group& group, const Case& c) {
  const bool parts = c.op != "all_reduce" && c.op != "broadcast" && c.op != "reduce";
  const std::size_t bytes = c.op == "barrier" ? 1 : static_cast<std::size_t>(c.count) * 4 / (parts ? static_cast<std::size_t>(a.world) : 1);
  if (const auto* engine = dynamic_cast<const comm::CommunicatorEngine*>(group.engine().get())) {
    if (const auto* tcp = dynamic_cast<const collective::TcpCommunicator*>(engine->communicator().get()))
      return name(tcp->choice()(kind_of(c.op), bytes));
    if (dynamic_cast<const collective::HierarchicalCommunicator*>(engine->communicator().get())) return "hierarchical";
  }
  const bool small = collective::HostCommunicator::travels_inline(kind_of(c.op), bytes, a.world);
  return small ? "inline" : a.arena ? "direct" : "staged";
}

const char* transport_of(const BenchArguments& a) { return a.tcp ? "tcp" : a.hosts > 1 || !a.rendezvous.empty() ? "auto" : "shared_memory"; }

comm::WorldOptions world_options(const BenchArguments& a) {
  comm::WorldOptions options{.name = a.name, .key = a.name, .rank = a.rank, .size = a.world, .arena = a.arena};
  options.algorithms = a.algorithms;
  options.transport = a.tcp                                  ? comm::Transport::kTcp
                      : a.hosts > 1 || !a.rendezvous.empty() ? comm::Transport::kAutomatic
                                                             : comm::Transport::kSharedMemory;
  options.rendezvous = a.rendezvous;
  if (a.hosts > 1) {
    options.host = fmt::format("host-{}", a.rank * a.hosts / a.world);
    options.rendezvous = "file:" + wire::meeting_directory() + "/" + a.name + ".store";
    options.interface = "lo";
  }
  return options;
}

void print(const BenchArguments& a, const comm::Group& group, const Case& c, const at::Tensor& times) {
  const double* t = times.const_data_ptr<double>();
  const auto calls = static_cast<std::size_t>(times.numel());
  const double p50 = t[calls / 2], p99 = t[static_cast<std::size_t>(static_cast<double>(calls) * 0.99)], n = a.world;
  const double bytes = static_cast<double>(c.count) * 4;
  const double factor = c.op == "all_reduce" ? 2 * (n - 1) / n : c.op == "broadcast" || c.op == "reduce" ? 1 : c.op == "barrier" ? 0 : (n - 1) / n;
  const double algorithm_gbs = bytes / p50 * 1e-9;
  const std::string way = way_of(a, group, c);
  if (a.json)
    fmt::print(
        R"({{"op": "{}", "backend": "shoal", "world": {}, "transport": "{}", "algorithm": "{}", "memory": "{}", "bytes": {}, "us_min": {:.3f}, )"
        R"("us_p50": {:.3f}, "us_p99": {:.3f}, "algbw_gbs": {:.3f}, "busbw_gbs": {:.3f}, "iters": {}}})"
        "\n",
        c.op, a.world, transport_of(a), way, a.arena && !a.tcp ? "arena" : "foreign", c.count * 4, t[0] * 1e6, p50 * 1e6, p99 * 1e6, algorithm_gbs,
        algorithm_gbs * factor, calls);
  else
    fmt::print("{:<16}{:>12}{:>20}{:>12.2f}{:>12.2f}{:>12.2f}{:>11.3f}{:>11.3f}\n", c.op, c.count * 4, way, t[0] * 1e6, p50 * 1e6, p99 * 1e6,
               algorithm_gbs, algorithm_gbs * factor);
  std::fflush(stdout);
}

}  // namespace
}  // namespace shoal::apps

int shoal_bench_collectives_main(const shoal::apps::BenchArguments* arguments) {
  using namespace shoal;
  const apps::BenchArguments& a = *arguments;
  at::set_num_threads(1);
  const comm::Group group = comm::connect(apps::world_options(a));
  try {
    if (a.rank == 0 && !a.json)
      fmt::print("{:<16}{:>12}{:>20}{:>12}{:>12}{:>12}{:>11}{:>11}\n", "operation", "bytes", "way", "min us", "p50 us", "p99 us", "algbw GB/s",
                 "busbw GB/s");
    for (const std::string& op : a.operations)
      for (std::uint64_t bytes = a.min_bytes; bytes <= a.max_bytes; bytes *= static_cast<std::uint64_t>(a.factor)) {
        const apps::Case c = apps::make_case(op, static_cast<std::int64_t>(bytes), a.world);
        apps::check(group, c);
        const at::Tensor times = apps::measure(group, c, a.seconds);
        if (a.rank == 0) apps::print(a, group, c, times);
        if (op == "barrier") break;
      }
    group.barrier();
  } catch (const Error& error) {
    group.abort(error);
    throw;
  }
  return 0;
}
