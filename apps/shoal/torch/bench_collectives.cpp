#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/shoal/torch/entry.h"
#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/comm/world.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::apps {
namespace {

/// One operation at one size: what to call, what in, and where the result goes. Element i of what
/// rank r contributes is r + 1 + i % 7.
struct Case {
  using Call = void (*)(const comm::Group& group, const Case& c);
  std::string op;
  Call call;           ///< found once, before any clock runs
  std::int64_t count;  ///< elements of the full buffer
  at::Tensor full, part, out;
};

constexpr std::int64_t kBlock =
    1 << 20;  // elements that are made and compared at once: a check takes no memory to speak of
constexpr int kBurst = 64;  // messages that are timed as one

/// Every rank sends to the next and receives from the one before.
void send_and_receive(const comm::Group& group, const Case& c) {
  const int size = group.size();
  const int rank = group.rank();
  // Both are started before either is waited for: if all ranks sent first and received then, a ring
  // of blocking sends would stand still.
  comm::Work sent = group.send(c.full, (rank + 1) % size, 0, {.async = true});
  comm::Work received = group.recv(c.out, (rank + size - 1) % size, 0, {.async = true});
  received.wait(Deadline::never());
  sent.wait(Deadline::never());
}

/// From rank 0 to rank 1 and back.
void ping_pong(const comm::Group& group, const Case& c) {
  if (group.rank() == 0) {
    group.send(c.full, 1);
    group.recv(c.out, 1);
  } else if (group.rank() == 1) {
    group.recv(c.out, 0);
    group.send(c.out, 0);
  }
}

/// From rank 0 to rank 1, one behind the other, and an answer to all of them.
void burst(const comm::Group& group, const Case& c) {
  const at::Tensor answer = c.part.narrow(0, 0, 1);
  if (group.rank() == 0) {
    for (int i = 0; i < kBurst; ++i) group.send(c.full, 1);
    group.recv(answer, 1, 1);
  } else if (group.rank() == 1) {
    for (int i = 0; i < kBurst; ++i) group.recv(c.out, 0);
    group.send(answer, 0, 1);
  }
}

Case::Call call_named(const std::string& op) {
  using comm::Group;
  static const std::map<std::string, Case::Call> calls{
      {"all_reduce", [](const Group& group, const Case& c) { group.all_reduce(c.full); }},
      {"all_gather", [](const Group& group, const Case& c) { group.all_gather(c.out, c.part); }},
      {"reduce_scatter",
       [](const Group& group, const Case& c) { group.reduce_scatter(c.part, c.full); }},
      {"all_to_all", [](const Group& group, const Case& c) { group.all_to_all(c.out, c.full); }},
      {"broadcast", [](const Group& group, const Case& c) { group.broadcast(c.full, 0); }},
      {"reduce", [](const Group& group, const Case& c) { group.reduce(c.full, 0); }},
      {"gather", [](const Group& group, const Case& c) { group.gather(c.out, c.part, 0); }},
      {"scatter", [](const Group& group, const Case& c) { group.scatter(c.part, c.full, 0); }},
      {"sendrecv", send_and_receive},
      {"ping_pong", ping_pong},
      {"message_rate", burst},
      {"barrier", [](const Group& group, const Case&) { group.barrier(); }},
  };
  return calls.at(op);
}

/// Makes those of the three buffers that the operation works on.
Case make_case(const BenchArguments& a, const std::string& op, std::int64_t bytes) {
  const at::ScalarType type = comm::scalar_type(*element_type(a.type));
  const auto size = static_cast<std::int64_t>(size_of(*element_type(a.type)));
  const std::int64_t count = std::max<std::int64_t>(bytes / size, a.world) / a.world * a.world;
  const bool full = op != "all_gather" && op != "gather";
  const bool out = !full || op == "all_to_all" || is_of_messages(op);
  const bool part = !full || op == "reduce_scatter" || op == "scatter" || op == "message_rate";
  const auto buffer = [&](bool needed, std::int64_t n) { return at::ones({needed ? n : 0}, type); };
  return {op,
          call_named(op),
          count,
          buffer(full, count),
          buffer(part, count / a.world),
          buffer(out, count)};
}

void run(const comm::Group& group, const Case& c) { c.call(group, c); }

/// Computed in whole numbers; rounded once to the type where it is compared, as the operations
/// round.
at::Tensor pattern(std::int64_t first, std::int64_t count, std::int64_t times, std::int64_t plus) {
  return at::arange(first, first + count, at::kLong).remainder(7).mul(times).add(plus);
}

void fill(const at::Tensor& t, std::int64_t plus) {
  for (std::int64_t begin = 0; begin < t.numel(); begin += kBlock) {
    const at::Tensor block = t.narrow(0, begin, std::min(kBlock, t.numel() - begin));
    block.copy_(pattern(begin, block.numel(), 1, plus));
  }
}

/// Is element i of `t` ((first + i) % 7) * times + plus, as its type has it: integers wrap, floats
/// are rounded?
bool holds(const at::Tensor& t, std::int64_t first, std::int64_t times, std::int64_t plus) {
  for (std::int64_t begin = 0; begin < t.numel(); begin += kBlock) {
    const at::Tensor block = t.narrow(0, begin, std::min(kBlock, t.numel() - begin));
    if (!block.equal(pattern(first + begin, block.numel(), times, plus).to(t.scalar_type())))
      return false;
  }
  return true;
}

/// Returns true when this rank has what the operation promises.
bool is_right(const Case& c, int rank, int ranks) {
  const std::int64_t share = c.count / ranks;
  const std::int64_t total = static_cast<std::int64_t>(ranks) * (ranks + 1) / 2;
  const auto part_is = [&](int r, std::int64_t first) {
    return holds(c.out.narrow(0, r * share, share), first, 1, r + 1);
  };
  if (c.op == "all_reduce" || (c.op == "reduce" && rank == 0))
    return holds(c.full, 0, ranks, total);
  if (c.op == "broadcast") return holds(c.full, 0, 1, 1);
  if (c.op == "scatter") return holds(c.part, rank * share, 1, 1);
  if (c.op == "reduce_scatter") return holds(c.part, rank * share, ranks, total);
  if (c.op == "sendrecv") return holds(c.out, 0, 1, (rank + ranks - 1) % ranks + 1);
  if (c.op == "ping_pong") return rank > 1 || holds(c.out, 0, 1, 1);
  if (c.op == "message_rate") return rank != 1 || holds(c.out, 0, 1, 1);
  bool right = true;
  for (int r = 0; r < ranks; ++r) {
    if (c.op == "all_gather" || (c.op == "gather" && rank == 0)) right = right && part_is(r, 0);
    if (c.op == "all_to_all") right = right && part_is(r, rank * share);
  }
  return right;
}

void check(const comm::Group& group, const Case& c) {
  const int ranks = group.size();
  const int rank = group.rank();
  // Every rank contributes other numbers, and neighbours in a buffer differ: a part in the wrong
  // place is noticed.
  fill(c.full, rank + 1), fill(c.part, rank + 1);
  group.barrier();
  run(group, c);
  if (!is_right(c, rank, ranks)) {
    throw Error(ErrorKind::kInternal, "bench",
                fmt::format("{} of {} elements gave a wrong answer", c.op, c.count))
        .at(rank, ranks);
  }
  // Zeros stay what they are however often they are summed.
  c.full.zero_();
  c.part.zero_();
  group.barrier();
}

/// Returns the number of messages that one call moves from rank to rank one after the other.
int in_a_row(const std::string& op) {
  if (op == "ping_pong") return 2;
  return op == "message_rate" ? kBurst : 1;
}

/// Percentiles of short calls need many of them.
std::int64_t least_calls(const Case& c) {
  const bool small = c.count * static_cast<std::int64_t>(c.full.element_size()) <= 1 << 20;
  if (!small) return 5;
  return c.op == "message_rate" ? 100 : 1000;
}

/// Returns the seconds of one of several messages in a row, on the rank that knows it.
double seconds_of(const comm::Group& group, const Case& c) {
  const auto start = Clock::now();
  run(group, c);
  const double seconds = to_seconds(Clock::now() - start);
  const int messages = in_a_row(c.op);
  return messages > 1 && group.rank() > 0 ? 0 : seconds / messages;
}

/// Times of the slowest rank, call by call, ascending; each call starts when every rank has just
/// left the one before.
at::Tensor measure(const comm::Group& group, const Case& c, double seconds) {
  // The first calls touch memory and find connections.
  for (int i = 0; i < 3; ++i) run(group, c);
  group.barrier();
  const at::Tensor estimate = at::empty({1}, at::kDouble);
  *estimate.data_ptr<double>() = seconds_of(group, c);
  // The number of calls must be the same on all ranks, or they would wait for one another for ever:
  // it follows from the slowest estimate.
  group.all_reduce(estimate, {.reduction = comm::Reduction::kMax});
  const double each = std::max(*estimate.const_data_ptr<double>(), 1e-7) * in_a_row(c.op);
  const auto calls =
      std::clamp(static_cast<std::int64_t>(seconds / each), least_calls(c), std::int64_t{20000});
  const at::Tensor times = at::empty({calls}, at::kDouble);
  for (std::int64_t i = 0; i < calls; ++i) times.data_ptr<double>()[i] = seconds_of(group, c);
  // A call is over when its slowest rank has its result.
  group.all_reduce(times, {.reduction = comm::Reduction::kMax});
  std::sort(times.data_ptr<double>(), times.data_ptr<double>() + calls);
  return times;
}

comm::Kind kind_of(const std::string& op) {
  using collective::Kind;
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                          Kind::kReduceScatter, Kind::kAllToAll, Kind::kGather, Kind::kScatter})
    if (op == name(kind)) return kind;
  return Kind::kBarrier;
}

/// How an operation of that size is carried out: the algorithm on TCP, the way on shared memory.
std::string way_of(const BenchArguments& a, const comm::Group& group, const Case& c) {
  const bool parts = c.op != "all_reduce" && c.op != "broadcast" && c.op != "reduce";
  if (is_of_messages(c.op)) return "message";
  const std::size_t bytes = c.op == "barrier"
                                ? 1
                                : static_cast<std::size_t>(c.count) * c.full.element_size() /
                                      (parts ? static_cast<std::size_t>(a.world) : 1);
  const collective::Communicator* communicator = group.communicator();
  if (const auto* tcp = dynamic_cast<const collective::TcpCommunicator*>(communicator))
    return name(tcp->choice()(kind_of(c.op), bytes));
  if (dynamic_cast<const collective::HierarchicalCommunicator*>(communicator))
    return "hierarchical";
  if (collective::travels_inline(kind_of(c.op), bytes, a.world)) return "inline";
  return a.arena ? "direct" : "staged";
}

comm::Transport transport_of(const BenchArguments& a) {
  if (a.tcp) return comm::Transport::kTcp;
  const bool several_hosts = a.hosts > 1 || !a.rendezvous.empty();
  return several_hosts ? comm::Transport::kAutomatic : comm::Transport::kSharedMemory;
}

const char* name_of(comm::Transport transport) {
  if (transport == comm::Transport::kTcp) return "tcp";
  return transport == comm::Transport::kAutomatic ? "auto" : "shared_memory";
}

/// Bus bandwidth as nccl-tests define it, the bytes that the slowest link must carry over the time,
/// is the algorithm's times this.
double bus_factor(const std::string& op, double ranks) {
  if (op == "barrier") return 0;
  if (op == "all_reduce") return 2 * (ranks - 1) / ranks;
  const bool plain = op == "broadcast" || op == "reduce" || is_of_messages(op);
  return plain ? 1 : (ranks - 1) / ranks;
}

comm::WorldOptions world_options(const BenchArguments& a) {
  comm::WorldOptions options{
      .name = a.name, .key = a.name, .rank = a.rank, .size = a.world, .arena = a.arena};
  options.network = a.network;
  options.transport = transport_of(a);
  options.rendezvous = a.rendezvous;
  if (a.hosts > 1) {
    // Playing several hosts: ranks that say other names share no memory and meet through a file.
    options.network.host = fmt::format("host-{}", a.rank * a.hosts / a.world);
    options.rendezvous = "file:" + wire::rendezvous_directory() + "/" + a.name + ".store";
    options.network.interface = "lo";
  }
  return options;
}

void print(const BenchArguments& a, const comm::Group& group, const Case& c,
           const at::Tensor& times) {
  const double* t = times.const_data_ptr<double>();
  const auto calls = static_cast<std::size_t>(times.numel());
  // Times are sorted.
  const double p50 = t[calls / 2];
  const double p99 = t[static_cast<std::size_t>(static_cast<double>(calls) * 0.99)];
  const double n = a.world;
  const std::int64_t whole = c.count * static_cast<std::int64_t>(c.full.element_size());
  const double bytes = static_cast<double>(whole);
  const double factor = bus_factor(c.op, n);
  const double algorithm_gbs = bytes / p50 * 1e-9;
  const std::string way = way_of(a, group, c);
  if (a.json) {
    fmt::print(
        R"({{"op": "{}", "backend": "shoal", "world": {}, "transport": "{}", "algorithm": "{}", )"
        R"("memory": "{}", "type": "{}", )"
        R"("bytes": {}, "us_min": {:.3f}, )"
        R"("us_p50": {:.3f}, "us_p99": {:.3f}, "algbw_gbs": {:.3f}, "busbw_gbs": {:.3f}, )"
        R"("iters": {}}})"
        "\n",
        c.op, a.world, name_of(transport_of(a)), way, a.arena && !a.tcp ? "arena" : "foreign",
        a.type, whole, t[0] * 1e6, p50 * 1e6, p99 * 1e6, algorithm_gbs, algorithm_gbs * factor,
        calls);
  } else {
    fmt::print("{:<16}{:>12}{:>20}{:>12.2f}{:>12.2f}{:>12.2f}{:>11.3f}{:>11.3f}\n", c.op, whole,
               way, t[0] * 1e6, p50 * 1e6, p99 * 1e6, algorithm_gbs, algorithm_gbs * factor);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace shoal::apps

int shoal_bench_collectives_main(const shoal::apps::BenchArguments* arguments) {
  using namespace shoal;
  const apps::BenchArguments& a = *arguments;
  // Each rank keeps to one core.
  at::set_num_threads(1);
  const comm::Group group = comm::connect(apps::world_options(a));
  try {
    if (a.rank == 0 && !a.json) {
      fmt::print("{:<16}{:>12}{:>20}{:>12}{:>12}{:>12}{:>11}{:>11}\n", "operation", "bytes", "way",
                 "min us", "p50 us", "p99 us", "algbw GB/s", "busbw GB/s");
    }
    for (const std::string& op : a.operations) {
      for (std::uint64_t bytes = a.min_bytes; bytes <= a.max_bytes;
           bytes *= static_cast<std::uint64_t>(a.factor)) {
        const apps::Case c = apps::make_case(a, op, static_cast<std::int64_t>(bytes));
        apps::check(group, c);
        const at::Tensor times = apps::measure(group, c, a.seconds);
        if (a.rank == 0) apps::print(a, group, c, times);
        // It has no sizes.
        if (op == "barrier") break;
      }
    }
    group.barrier();
  } catch (const Error& error) {
    // The other ranks end with this cause instead of waiting.
    group.abort(error);
    throw;
  }
  return 0;
}
