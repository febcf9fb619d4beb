#include "shoal/plan/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "shoal/base/error.h"

namespace shoal::plan {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    list.push_back(i);
    if (i * i != n) list.push_back(n / i);
  }
  std::sort(list.begin(), list.end());
  return list;
}

template <class T>
std::vector<T> given_or(const std::vector<T>& given, std::vector<T> otherwise) {
  return given.empty() ? std::move(otherwise) : given;
}

/// Walks the space dimension by dimension, cutting what cannot be.
class MeshSearch {
 public:
  MeshSearch(const Estimator& estimator, const ModelSpec& spec, const Training& start,
             const Cluster& cluster, const SearchSpace& space, std::size_t count, double share,
             ScheduleCache& cache)
      : estimator_(estimator),
        spec_(spec),
        start_(start),
        cluster_(cluster),
        space_(space),
        count_(count),
        capacity_(cluster.device.memory_bytes * share),
        cache_(cache) {}

  SearchResult run() {
    walk();
    std::stable_sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
      return a.time.all() < b.time.all();
    });
    if (found_.size() > count_) found_.resize(count_);
    for (Candidate& candidate : found_)
      candidate.limited_by = limiting_part(spec_, candidate.training, cluster_, candidate.time);
    result_.best = std::move(found_);
    return result_;
  }

  /// Nothing pruned, every recomputation.
  std::vector<Candidate> everything() {
    everything_ = true;
    walk();
    return std::move(found_);
  }

 private:
  void walk() {
    const bool transformer = spec_.family == Family::kTransformer;
    const std::int64_t n = cluster_.devices();
    const std::int64_t one = 1;
    for (const std::int64_t t : given_or(
             space_.tensor, transformer ? divisors(std::gcd(n, spec_.heads)) : std::vector{one})) {
      for (const std::int64_t p :
           given_or(space_.pipeline, transformer ? divisors(n) : std::vector{one})) {
        for (const std::int64_t c :
             given_or(space_.context, transformer ? contexts() : std::vector{one})) {
          if (t < 1 || p < 1 || c < 1 || t > n || p > n || c > n || p > n / t || c > n / (t * p) ||
              n % (t * p * c) != 0 || (transformer && p > spec_.layers))
            continue;
          Training training = start_;
          training.mesh.tensor = t, training.mesh.pipeline = p, training.mesh.context = c,
          training.mesh.data = n / (t * p * c);
          if (!space_.data.empty() &&
              std::count(space_.data.begin(), space_.data.end(), training.mesh.data) == 0)
            continue;
          if (training.global_batch % training.mesh.data != 0) continue;
          experts(training);
        }
      }
    }
  }

  /// Cutting the sequence pays when it is long: leave at least 4096 tokens a rank.
  std::vector<std::int64_t> contexts() const {
    std::vector<std::int64_t> list{1};
    for (std::int64_t c = 2; start_.length(spec_) / c >= 4096; c *= 2) list.push_back(c);
    return list;
  }

  void experts(Training training) {
    const Mesh& mesh = training.mesh;
    const auto choices =
        spec_.experts > 0
            ? divisors(std::gcd(spec_.experts, mesh.tensor * mesh.context * mesh.data))
            : std::vector<std::int64_t>{1};
    for (const std::int64_t e : given_or(space_.expert, choices)) {
      training.mesh.expert = e;
      schedules(training);
    }
  }

  void schedules(Training training) {
    const bool any_stages =
        space_.virtual_stages.empty() ||
        std::count(space_.virtual_stages.begin(), space_.virtual_stages.end(), 1) > 0;
    if (training.mesh.pipeline == 1) {
      if (!any_stages) return;
      training.schedule = "1f1b", training.mesh.virtual_stages = 1;
      return sharding(training);
    }
    for (const std::string& schedule : space_.schedules) {
      training.schedule = schedule, training.mesh.virtual_stages = 1;
      if (schedule != "interleaved") {
        if (any_stages && training.stages() <= spec_.layers) sharding(training);
        continue;
      }
      const auto choices = divisors(spec_.layers / training.mesh.pipeline);
      for (const std::int64_t v : given_or(space_.virtual_stages, choices)) {
        training.mesh.virtual_stages = v;
        if (v > 1 && training.stages() <= spec_.layers && spec_.layers % training.stages() == 0)
          sharding(training);
      }
    }
  }

  void sharding(Training training) {
    const std::int64_t ranks = training.mesh.data * training.mesh.context;
    const std::vector<std::string> precisions = given_or(space_.precisions, {start_.precision});
    std::set<std::int64_t> shards(space_.shard.begin(), space_.shard.end());
    const std::int64_t near = cluster_.devices_per_host / training.mesh.tensor;
    if (space_.shard.empty()) shards.insert(0);
    if (space_.shard.empty() && space_.hybrid_sharding && near > 1 && near < ranks &&
        ranks % near == 0)
      shards.insert(near);
    for (const std::string& precision : precisions) {
      for (const int zero :
           given_or(space_.zero, ranks > 1 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0})) {
        for (const std::int64_t shard :
             zero > 0 || !space_.shard.empty() ? shards : std::set<std::int64_t>{0}) {
          for (const bool offload : space_.offload) {
            if (shard > 0 && (zero == 0 || ranks % shard != 0)) continue;
            training.precision = precision, training.zero = zero, training.mesh.shard = shard,
            training.offload_optimizer = offload;
            if (precision != start_.precision) training.states.reset();
            if (states_fit(training)) micro_batches(training);
          }
        }
      }
    }
  }

  bool states_fit(const Training& training) {
    const StateBytes whole = precision(training.precision, training.optimizer)->state;
    const StateBytes held = state_bytes(whole, training.zero, training.mesh.shard_ranks());
    const double bytes = training.offload_optimizer
                             ? (training.offload_parameters ? 0 : held.parameter) + held.gradient
                             : held.all();
    double most = 0;
    for (const HeldParameters& rank : held_by_rank(spec_, training))
      most = std::max(most, rank.all());
    if (everything_ || most * bytes <= capacity_ || spec_.experts > 0) return true;
    note_size(most * bytes);
    ++result_.considered, ++result_.too_large;
    return false;
  }

  void micro_batches(Training training) {
    const std::int64_t per_rank = training.global_batch / training.mesh.data;
    std::vector<std::int64_t> choices;
    for (std::int64_t b = 1; b <= per_rank; b *= 2)
      if (per_rank % b == 0) choices.push_back(b);
    for (const std::int64_t b : given_or(space_.micro_batch, choices)) {
      training.micro_batch = b;
      // What does not fit once does not fit with larger micro-batches.
      if (per_rank % b == 0 && !recomputation(training)) return;
    }
  }

  /// The lightest recomputation that fits; false when none does.
  bool recomputation(Training training) {
    const std::vector<Recompute> lightest =
        training.flash_attention
            ? std::vector{Recompute::kNone, Recompute::kFull}
            : std::vector{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
    for (const Recompute recompute : given_or(space_.recompute, lightest)) {
      training.recompute = recompute;
      try {
        validate(spec_, training);
      } catch (const Error&) {
        return true;  // this number of micro-batches does not suit the schedule; another may
      }
      ++result_.considered;
      const double peak =
          worst(estimator_.memory(spec_, training, cluster_, cache_)).peak().use.all();
      note_size(peak);
      // The hosts' memory is no condition that a question can change: what does not fit there is no
      // way at all.
      if (offloaded_bytes(spec_, training, cluster_) > cluster_.host.memory_bytes) {
        ++result_.too_large;
        continue;
      }
      if (!everything_ && peak > capacity_) {
        ++result_.too_large;
        continue;
      }
      const StepTime time = estimator_.step_time(spec_, training, cluster_, cache_, cutoff_s_);
      if (time.all() < cutoff_s_) found_.push_back({training, time, peak, ""});
      if (everything_) continue;
      if (found_.size() >= count_ + kMore) keep_best();
      return true;
    }
    return everything_;
  }

  void note_size(double bytes) {
    result_.least_bytes = result_.least_bytes == 0 ? bytes : std::min(result_.least_bytes, bytes);
  }
  void keep_best() {
    std::stable_sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
      return a.time.all() < b.time.all();
    });
    found_.resize(std::min(found_.size(), count_));
    // What is no faster than the last of them is not among the first.
    if (!found_.empty() && found_.size() == count_) cutoff_s_ = found_.back().time.all();
  }

  const Estimator& estimator_;
  const ModelSpec& spec_;
  const Training& start_;
  const Cluster& cluster_;
  const SearchSpace& space_;
  std::size_t count_;
  double capacity_;
  static constexpr std::size_t kMore = 64;  // beyond those wanted, before the rest is dropped
  double cutoff_s_ = INFINITY;
  ScheduleCache& cache_;
  bool everything_ = false;
  std::vector<Candidate> found_;
  SearchResult result_;
};

}  // namespace

std::string limiting_part(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const StepTime& time) {
  // How the busiest rank's computation divides between products and the rest.
  const ElementType type = precision(training.precision)->compute;
  double products = 0;
  double others = 0;
  const auto add = [&](const std::vector<OperationCost>& list, double times) {
    for (const OperationCost& operation : list) {
      for (const double work : {operation.work, operation.backward, operation.weights}) {
        if (work <= 0) continue;
        (operation.product ? products : others) +=
            times * operation.count *
            (operation.product ? product_s(cluster, type, work) : memory_s(cluster, work));
      }
    }
  };
  add(block_operations(spec, training), static_cast<double>(spec.layers) / training.mesh.pipeline);
  add(head_operations(spec, training), 1.0 / training.mesh.pipeline);
  const double compute =
      std::max(0.0, time.pipeline - time.bubble - time.communication - time.recomputed);
  const std::pair<double, const char*> parts[] = {
      {compute * products / (products + others), "products"},
      {compute * others / (products + others), "memory traffic and launches"},
      {time.communication, "exchange inside blocks and between stages"},
      {time.recomputed, "recomputation"},
      {time.bubble, "pipeline bubbles"},
      {time.data_exposed, "gradient and parameter exchange"},
      {time.optimizer, "optimizer"}};
  return std::max_element(std::begin(parts), std::end(parts))->second;
}

SearchResult search(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                    const Cluster& cluster, const SearchSpace& space, std::size_t count,
                    double share) {
  validate(spec);
  validate(cluster);
  ScheduleCache cache;
  return MeshSearch(estimator, spec, start, cluster, space, count, share, cache).run();
}

std::vector<Candidate> every_strategy(const Estimator& estimator, const ModelSpec& spec,
                                      const Training& start, const Cluster& cluster,
                                      const SearchSpace& space, ScheduleCache& cache) {
  validate(spec);
  validate(cluster);
  return MeshSearch(estimator, spec, start, cluster, space, 0, 1, cache).everything();
}

}  // namespace shoal::plan
