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

bool contains(const std::vector<std::int64_t>& list, std::int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// Visits the space dimension by dimension: mesh, experts, schedule, sharding, micro-batch,
/// recomputation. Each level drops what the levels below could not use.
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
    visit_meshes();
    sort_by_time();
    if (found_.size() > count_) found_.resize(count_);
    // Only for those that are shown: it prices every operation again.
    for (Candidate& candidate : found_)
      candidate.limited_by = limiting_part(spec_, candidate.training, cluster_, candidate.time);
    result_.best = std::move(found_);
    return result_;
  }

  /// Returns every candidate with every recomputation, also those that do not fit.
  std::vector<Candidate> everything() {
    everything_ = true;
    visit_meshes();
    return std::move(found_);
  }

 private:
  void visit_meshes() {
    // Tensor ranks must divide the heads; everything else that must divide is refused by
    // validate().
    const bool transformer = spec_.family == Family::kTransformer;
    const std::int64_t n = cluster_.devices();
    const std::vector<std::int64_t> one{1};
    const auto tensors =
        given_or(space_.tensor, transformer ? divisors(std::gcd(n, spec_.heads)) : one);
    const auto pipelines = given_or(space_.pipeline, transformer ? divisors(n) : one);
    const auto contexts = given_or(space_.context, transformer ? context_sizes() : one);
    // The data ranks are what the others leave of the devices.
    for (const std::int64_t t : tensors) {
      for (const std::int64_t p : pipelines) {
        for (const std::int64_t c : contexts) {
          if (!divides_devices(t, p, c) || !has_blocks_for(p)) continue;
          Training training = start_;
          training.degrees.tp = t;
          training.degrees.pp = p;
          training.degrees.cp = c;
          training.degrees.dp_shard = n / (t * p * c);
          if (data_size_is_wanted(training.degrees.dp())) visit_experts(training);
        }
      }
    }
  }

  /// The comparisons come before the product, which could overflow for sizes that a user gives.
  bool divides_devices(std::int64_t t, std::int64_t p, std::int64_t c) const {
    const std::int64_t n = cluster_.devices();
    if (t < 1 || p < 1 || c < 1) return false;
    if (t > n || p > n / t || c > n / (t * p)) return false;
    return n % (t * p * c) == 0;
  }

  bool has_blocks_for(std::int64_t pipeline) const {
    return spec_.family != Family::kTransformer || pipeline <= spec_.layers;
  }

  bool data_size_is_wanted(std::int64_t data) const {
    if (!space_.data.empty() && !contains(space_.data, data)) return false;
    return start_.global_batch % data == 0;
  }

  /// A cut sequence pays when it is long: at least 4096 tokens are left to a rank.
  std::vector<std::int64_t> context_sizes() const {
    std::vector<std::int64_t> list{1};
    for (std::int64_t c = 2; start_.length(spec_) / c >= 4096; c *= 2) list.push_back(c);
    return list;
  }

  void visit_experts(Training training) {
    const Degrees& degrees = training.degrees;
    std::vector<std::int64_t> choices{1};
    // Experts are spread over the dense ranks of a pipeline stage: the number must divide both.
    if (spec_.experts > 0)
      choices = divisors(std::gcd(spec_.experts, degrees.tp * degrees.cp * degrees.dp()));
    for (const std::int64_t e : given_or(space_.expert, choices)) {
      training.degrees.ep = e;
      visit_schedules(training);
    }
  }

  void visit_schedules(Training training) {
    const bool one_stage_a_rank =
        space_.virtual_stages.empty() || contains(space_.virtual_stages, 1);
    training.virtual_stages = 1;
    // Without a pipeline all schedules are the same.
    if (training.degrees.pp == 1) {
      training.schedule = "1f1b";
      if (one_stage_a_rank) visit_sharding(training);
      return;
    }
    for (const std::string& schedule : space_.schedules) {
      training.schedule = schedule;
      if (schedule == "interleaved") {
        visit_virtual_stages(training);
      } else if (one_stage_a_rank && training.stages() <= spec_.layers) {
        visit_sharding(training);
      }
    }
  }

  void visit_virtual_stages(Training training) {
    const auto choices = divisors(spec_.layers / training.degrees.pp);
    for (const std::int64_t v : given_or(space_.virtual_stages, choices)) {
      training.virtual_stages = v;
      const std::int64_t stages = training.stages();
      // Equal stages only: a chunk with one block more would hold up all others in every turn.
      if (v > 1 && stages <= spec_.layers && spec_.layers % stages == 0) visit_sharding(training);
    }
  }

  void visit_sharding(Training training) {
    const std::int64_t ranks = training.degrees.dp() * training.degrees.cp;
    const std::vector<int> every_stage =
        ranks > 1 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0};
    for (const std::string& precision : given_or(space_.precisions, {start_.precision})) {
      training.precision = precision;
      // The states that a job describes are those of its own precision.
      if (precision != start_.precision) training.states.reset();
      for (const int zero : given_or(space_.zero_stage, every_stage)) {
        training.zero_stage = zero;
        for (const std::int64_t shard : shard_sizes(training)) {
          training.degrees.shard_over(shard, training.degrees.dp());
          for (const bool offload : space_.offload) {
            training.offload_optimizer = offload;
            if (states_fit(training)) visit_micro_batches(training);
          }
        }
      }
    }
  }

  /// Ranks over which ZeRO may shard.
  std::set<std::int64_t> shard_sizes(const Training& training) const {
    const std::int64_t ranks = training.degrees.dp() * training.degrees.cp;
    std::set<std::int64_t> sizes(space_.shard.begin(), space_.shard.end());
    if (sizes.empty()) {
      sizes.insert(ranks);
      const std::int64_t on_host = cluster_.devices_per_host / training.degrees.tp;
      const bool hybrid = space_.hybrid_sharding && training.zero_stage > 0;
      // Hybrid sharding within one host: the gathers of parameters never leave it.
      if (hybrid && on_host > 1 && on_host < ranks && ranks % on_host == 0) sizes.insert(on_host);
    }
    std::erase_if(sizes, [&](std::int64_t size) {
      if (training.zero_stage == 0) return size != ranks;
      return size < 1 || ranks % size != 0 || size % training.degrees.cp != 0;
    });
    return sizes;
  }

  bool states_fit(const Training& training) {
    const StateBytes whole = precision(training.precision, training.optimizer)->state;
    const auto ranks = static_cast<double>(training.degrees.shard_ranks());
    const StateBytes held = state_bytes(whole, training.zero_stage, ranks);
    double bytes = held.all();
    if (training.offload_optimizer)
      bytes = (training.offload_parameters ? 0 : held.parameter) + held.gradient;
    double most = 0;
    for (const HeldParameters& rank : held_by_rank(spec_, training))
      most = std::max(most, rank.all());
    // Experts are sharded over fewer ranks than the dense parameters: this bound is not theirs.
    // Pruning: states alone exceed the memory, so no micro-batch and no recomputation can help.
    if (everything_ || most * bytes <= capacity_ || spec_.experts > 0) return true;
    note_size(most * bytes);
    ++result_.considered;
    ++result_.too_large;
    return false;
  }

  void visit_micro_batches(Training training) {
    const std::int64_t per_rank = training.global_batch / training.degrees.dp();
    std::vector<std::int64_t> choices;
    for (std::int64_t b = 1; b <= per_rank; b *= 2)
      if (per_rank % b == 0) choices.push_back(b);
    for (const std::int64_t b : given_or(space_.micro_batch, choices)) {
      training.micro_batch = b;
      // Larger micro-batches need more memory: nothing after one that does not fit fits.
      if (per_rank % b == 0 && !visit_recomputation(training)) return;
    }
  }

  /// Takes the lightest recomputation that fits. Returns false when none does.
  bool visit_recomputation(Training training) {
    const std::vector<Recompute> lightest_first =
        training.flash_attention
            ? std::vector{Recompute::kNone, Recompute::kFull}
            : std::vector{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
    for (const Recompute recompute : given_or(space_.recompute, lightest_first)) {
      training.recompute = recompute;
      // A number of micro-batches may not suit the schedule; another one may.
      if (!is_valid(training)) return true;
      ++result_.considered;
      // Found once for both questions.
      Training chosen = training;
      chosen.recompute_logits = estimator_.recomputes_logits(spec_, training, cluster_);
      const auto ranks = estimator_.memory(spec_, chosen, cluster_, cache_);
      const double peak = worst(ranks).peak().use.all();
      note_size(peak);
      if (!fits(training, peak)) {
        ++result_.too_large;
        continue;
      }
      const StepTime time = estimator_.step_time(spec_, chosen, cluster_, cache_, cutoff_s_);
      if (time.all() < cutoff_s_) found_.push_back({training, time, peak, ""});
      if (everything_) continue;
      // Trimmed now and then, which also lowers the time that a further candidate must beat.
      if (found_.size() >= count_ + kMore) keep_best();
      return true;
    }
    return everything_;
  }

  bool is_valid(const Training& training) const {
    try {
      validate(spec_, training, cluster_.runtime);
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  /// `everything_` ignores the devices' memory, which a question can change, but not the hosts',
  /// which none can.
  bool fits(const Training& training, double peak) const {
    if (offloaded_bytes(spec_, training, cluster_) > cluster_.host.memory_bytes) return false;
    return everything_ || peak <= capacity_;
  }

  void note_size(double bytes) {
    result_.least_bytes = result_.least_bytes == 0 ? bytes : std::min(result_.least_bytes, bytes);
  }

  void sort_by_time() {
    // Stable: of equal times the one that was visited first stays first, on every machine.
    std::stable_sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
      return a.time.all() < b.time.all();
    });
  }

  /// Drops all but the first `count_`, and from then on whatever is no faster than the last of
  /// them.
  void keep_best() {
    sort_by_time();
    found_.resize(std::min(found_.size(), count_));
    if (!found_.empty() && found_.size() == count_) cutoff_s_ = found_.back().time.all();
  }

  /// Candidates kept beyond those wanted, before the rest is dropped.
  static constexpr std::size_t kMore = 64;

  const Estimator& estimator_;
  const ModelSpec& spec_;
  const Training& start_;
  const Cluster& cluster_;
  const SearchSpace& space_;
  std::size_t count_;
  double capacity_;
  double cutoff_s_ = INFINITY;
  ScheduleCache& cache_;
  bool everything_ = false;
  std::vector<Candidate> found_;
  SearchResult result_;
};

}  // namespace

std::string limiting_part(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const StepTime& time) {
  // The operations divide the computation of the busiest rank between matmuls and the
  // rest.
  const ElementType type = precision(training.precision)->compute;
  double products = 0;
  double others = 0;
  const auto add = [&](const std::vector<OperationCost>& list, double times) {
    for (const OperationCost& operation : list) {
      for (const double work : {operation.work, operation.backward, operation.weights}) {
        if (work <= 0) continue;
        const double repeats = times * operation.count;
        if (operation.product) {
          products += repeats * product_s(cluster, type, work);
        } else {
          others += repeats * memory_s(cluster, work);
        }
      }
    }
  };
  add(block_operations(spec, training), static_cast<double>(spec.layers) / training.degrees.pp);
  add(head_operations(spec, training), 1.0 / training.degrees.pp);
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
