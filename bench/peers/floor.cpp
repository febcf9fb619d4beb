// The floor: collectives as plain loops over memory that every rank has mapped, with a spinning
// barrier before and after.
//   g++ -O3 -march=native -std=c++20 floor.cpp -o floor && ./floor [ranks=2] [max_mib=256]
//   [operation]
// One JSON line a case, fields as in torch_collectives.py (backend "floor"). Ranks are forked and
// pinned; the barrier that lines them up is not timed. all_reduce is in place; the others read one
// buffer and write another. float32 sums. Every answer is checked once a case.
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kMaxRanks = 16;
struct alignas(64) Flag {
  std::atomic<uint32_t> value;
};

template <class T>
T* shared(size_t count) {
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  return static_cast<T*>(p);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int ranks, me;
Flag* flags;
double* times;  // [ranks][kMaxIterations]
constexpr int kMaxIterations = 20000;
uint32_t epoch = 0;

void barrier() {
  ++epoch;
  flags[me].value.store(epoch, std::memory_order_release);
  for (int r = 0; r < ranks; ++r)
    while (static_cast<int32_t>(flags[r].value.load(std::memory_order_acquire) - epoch) < 0)
      _mm_pause();
}

float *in[kMaxRanks], *out[kMaxRanks];

void all_reduce(size_t n) {
  const size_t begin = n * me / ranks, end = n * (me + 1) / ranks;
  if (n < 1024) {  // every rank reduces everything, then overwrites its own copy
    static float sum[1024];
    for (size_t i = 0; i < n; ++i) {
      float s = 0;
      for (int r = 0; r < ranks; ++r) s += in[r][i];
      sum[i] = s;
    }
    barrier();
    std::memcpy(in[me], sum, n * sizeof(float));
    return;
  }
  if (ranks == 2) {
    float* __restrict a = in[0];
    float* __restrict b = in[1];
    for (size_t i = begin; i < end; ++i) a[i] = b[i] = a[i] + b[i];
  } else {
    for (size_t block = begin; block < end; block += 4096) {
      const size_t stop = std::min(block + 4096, end);
      for (int r = 1; r < ranks; ++r)
        for (size_t i = block; i < stop; ++i) in[0][i] += in[r][i];
      for (int r = 1; r < ranks; ++r)
        std::memcpy(in[r] + block, in[0] + block, (stop - block) * sizeof(float));
    }
  }
}

void reduce_scatter(size_t n) {
  const size_t shard = n / ranks, begin = shard * me;
  float* __restrict o = out[me];
  if (ranks == 2) {
    const float* __restrict a = in[0] + begin;
    const float* __restrict b = in[1] + begin;
    for (size_t i = 0; i < shard; ++i) o[i] = a[i] + b[i];
  } else {
    for (size_t block = 0; block < shard; block += 4096) {
      const size_t stop = std::min(block + 4096, shard);
      for (size_t i = block; i < stop; ++i) o[i] = in[0][begin + i];
      for (int r = 1; r < ranks; ++r)
        for (size_t i = block; i < stop; ++i) o[i] += in[r][begin + i];
    }
  }
}

void all_gather(size_t n) {
  const size_t shard = n / ranks;
  for (int r = 0; r < ranks; ++r) std::memcpy(out[me] + r * shard, in[r], shard * sizeof(float));
}

void all_to_all(size_t n) {
  const size_t shard = n / ranks;
  for (int r = 0; r < ranks; ++r)
    std::memcpy(out[me] + r * shard, in[r] + me * shard, shard * sizeof(float));
}

void broadcast(size_t n) {
  if (me != 0) std::memcpy(in[me], in[0], n * sizeof(float));
}

struct Case {
  const char* name;
  void (*run)(size_t);
  double busbw_factor;
};

void check(const Case& c, size_t n) {
  const std::string name = c.name;
  const size_t shard = n / ranks;
  for (size_t i = 0; i < n; ++i) in[me][i] = static_cast<float>(me + 1 + i % 7);
  barrier();
  c.run(n);
  barrier();
  const float ranks_f = static_cast<float>(ranks);
  for (size_t i = 0; i < n; i += std::max<size_t>(n / 97, 1)) {
    float want = 0, got = in[me][i];
    if (name == "all_reduce")
      want = ranks_f * (ranks_f + 1) / 2 + ranks_f * static_cast<float>(i % 7);
    if (name == "broadcast") want = static_cast<float>(1 + i % 7);
    if (name == "all_gather" || name == "all_to_all") {
      if (i >= shard * ranks) continue;
      const size_t from = i / shard, at = name == "all_gather" ? i % shard : me * shard + i % shard;
      want = static_cast<float>(from + 1 + at % 7), got = out[me][i];
    }
    if (name == "reduce_scatter") {
      if (i >= shard) continue;
      want = ranks_f * (ranks_f + 1) / 2 + ranks_f * static_cast<float>((me * shard + i) % 7),
      got = out[me][i];
    }
    if (got != want) {
      std::fprintf(stderr, "%s: rank %d, element %zu of %zu is %g, not %g\n", c.name, me, i, n, got,
                   want);
      std::_Exit(1);
    }
  }
  barrier();
}

}  // namespace

int main(int argc, char** argv) {
  ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const size_t limit = static_cast<size_t>((argc > 2 ? std::atof(argv[2]) : 256) * (1 << 20));
  if (ranks < 1 || ranks > kMaxRanks) return std::fprintf(stderr, "ranks: 1 to %d\n", kMaxRanks), 2;
  flags = shared<Flag>(kMaxRanks);
  times = shared<double>(static_cast<size_t>(ranks) * kMaxIterations);
  for (int r = 0; r < ranks; ++r)
    in[r] = shared<float>(limit / 4 + 16), out[r] = shared<float>(limit / 4 + 16);
  me = 0;
  for (int r = 1; r < ranks; ++r)
    if (fork() == 0) {
      me = r;
      break;
    }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(me % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &set);
  sched_setaffinity(0, sizeof set, &set);
  const double n = ranks;
  const Case cases[] = {{"all_reduce", all_reduce, 2 * (n - 1) / n},
                        {"reduce_scatter", reduce_scatter, (n - 1) / n},
                        {"all_gather", all_gather, (n - 1) / n},
                        {"all_to_all", all_to_all, (n - 1) / n},
                        {"broadcast", broadcast, 1}};
  for (const Case& c : cases) {
    if (argc > 3 && std::strcmp(argv[3], c.name) != 0) continue;
    for (size_t bytes = 4; bytes <= limit; bytes *= 4) {
      const size_t count = std::max<size_t>(bytes / 4 / ranks * ranks, ranks);
      check(c, count);
      const int iterations = bytes < 65536        ? kMaxIterations
                             : bytes < (4 << 20)  ? 2000
                             : bytes < (64 << 20) ? 100
                                                  : 15;
      for (size_t i = 0; i < count; ++i) in[me][i] = 0;
      for (int i = -3; i < iterations; ++i) {
        barrier();
        const double start = seconds();
        barrier();  // every input is ready
        c.run(count);
        barrier();  // every output may be read, every input reused
        if (i >= 0) times[static_cast<size_t>(me) * kMaxIterations + i] = seconds() - start;
      }
      barrier();
      if (me == 0) {
        std::vector<double> t(iterations);
        for (int i = 0; i < iterations; ++i)
          for (int r = 0; r < ranks; ++r)
            t[i] = std::max(t[i], times[static_cast<size_t>(r) * kMaxIterations + i]);
        std::sort(t.begin(), t.end());
        const double p50 = t[iterations / 2];
        std::printf(
            "{\"op\": \"%s\", \"backend\": \"floor\", \"world\": %d, \"bytes\": %zu, \"us_min\": "
            "%.2f, \"us_p50\": %.2f, \"us_p99\": %.2f, "
            "\"busbw_gbs\": %.3f, \"iters\": %d}\n",
            c.name, ranks, count * 4, t[0] * 1e6, p50 * 1e6,
            t[static_cast<size_t>(iterations * 0.99)] * 1e6, count * 4e-9 / p50 * c.busbw_factor,
            iterations);
        std::fflush(stdout);
      }
      barrier();
    }
  }
  if (me == 0)
    while (wait(nullptr) > 0) {
    }
}
