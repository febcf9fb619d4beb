// Memory by figures that are worked out by hand: of a rank, of what is saved, of a host.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/plan.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::memory_figures_test {
namespace {

const MemoryUse& phase(const std::vector<RankMemory>& ranks, std::size_t rank, const char* name) {
  for (const MemoryPhase& one : ranks.at(rank).phases)
    if (one.name == name) return one.use;
  throw Error(ErrorKind::kInternal, "test", name);
}

TEST(PublishedMemory, OfOneRank) {
  const ModelSpec spec = small();
  const double p = count_of(spec);
  const auto ranks = published_memory(spec, on(1));
  ASSERT_EQ(ranks.size(), 1u);
  const MemoryUse& running = phase(ranks, 0, "backward");
  EXPECT_DOUBLE_EQ(running.parameters, 2 * p);
  EXPECT_DOUBLE_EQ(running.gradients, 2 * p);
  EXPECT_DOUBLE_EQ(running.optimizer, 12 * p);
  EXPECT_EQ(running.gathered, 0);
  EXPECT_EQ(running.communication, 0) << "nobody to send to";
  // 256 tokens: in each block four inputs of norms and products, queries, keys and values, the
  // input of the output product, those of the activation and the down product, and a fp32 number of
  // each head's row; then norm and product of the head, and fp32 logits.
  const double block = 256 * (2.0 * (4 * 64 + 3 * 64 + 64 + 2 * 256) + 4 * 4);
  EXPECT_DOUBLE_EQ(running.activations, 4 * block + 256 * (2.0 * 2 * 64 + 4 * 512));
  EXPECT_DOUBLE_EQ(running.workspace, 256 * 512 * 6) << "the gradient of the logits, in both types";
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "steady state").activations, running.activations);
  EXPECT_EQ(phase(ranks, 0, "steady state").workspace, 0);
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "optimizer").all(), 16 * p);
  // A block beside the states: parameter, master and moments.
  const double of_block = 4.0 * 64 * 64 + 4 * 64 + 2.0 * 64 * 256 + 256 + 64 + 4 * 64;
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "checkpoint").staging, 14 * of_block);
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "checkpoint").all(), 16 * p + 14 * of_block);
}

TEST(PublishedMemory, OfWhatIsRecomputed) {
  const ModelSpec spec = small();
  Training training = on(1);
  const double block = 256 * (2.0 * (4 * 64 + 3 * 64 + 64 + 2 * 256) + 4 * 4);
  const double head = 256 * (2.0 * 2 * 64 + 4 * 512);
  training.recompute = Recompute::kFull;
  const MemoryUse full = phase(published_memory(spec, training), 0, "backward");
  EXPECT_DOUBLE_EQ(full.activations, 4 * 256 * 2.0 * 64 + head);
  EXPECT_DOUBLE_EQ(full.workspace, std::max(block, 256.0 * 512 * 6));
  // Blocks that weigh more than the logits.
  ModelSpec wide = spec;
  wide.vocab = 64;
  EXPECT_DOUBLE_EQ(phase(published_memory(wide, training), 0, "backward").workspace, block);
  training.recompute = Recompute::kSelective;
  training.flash_attention = false;
  const double scores = 2.0 * 256 * 4 * 128;
  EXPECT_DOUBLE_EQ(phase(published_memory(wide, training), 0, "backward").workspace, scores);
}

TEST(PublishedMemory, OfBuffersAndMessages) {
  const ModelSpec spec = small();
  const auto buffers = [&](const Training& training) {
    return phase(published_memory(spec, training), 0, "backward").communication;
  };
  constexpr double kBuckets = 2 * 25.0 * 1024 * 1024;
  constexpr double kMessage = 2 * 256 * 64;
  EXPECT_DOUBLE_EQ(buffers(on(2)), kBuckets);
  Training training = on(1);
  training.degrees.cp = 2;
  EXPECT_DOUBLE_EQ(buffers(training), kBuckets);
  EXPECT_DOUBLE_EQ(buffers(on(1, 2)), kMessage);
  EXPECT_DOUBLE_EQ(buffers(on(1, 1, 2)), 4 * kMessage);
  training = on(1, 2, 2);
  EXPECT_DOUBLE_EQ(buffers(training), kMessage + 4 * kMessage / 2);
  training.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(buffers(training), 5 * kMessage);
}

// Beside the states: eight bytes of each value that a rank owns, and four during an exchange, which
// comes behind the update or travels while training goes on. Members of one rank reduce nothing.
TEST(PublishedMemory, OfMembers) {
  const ModelSpec spec = small();
  const double p = count_of(spec);
  Training training = on(2);
  training.degrees.shard_over(1, 2);
  training.exchange =
      MemberExchange{.every = 10, .sent_bytes = 4, .state_bytes = 8, .flight_bytes = 4};
  const auto all_phases = [&] {
    std::map<std::string, MemoryUse> phases;
    const auto ranks = published_memory(spec, training);
    for (const MemoryPhase& one : ranks.front().phases) phases[one.name] = one.use;
    return phases;
  };
  const double block_states = held_by_block(spec, training).all() * (14 + 8);
  auto found = all_phases();
  ASSERT_EQ(found.size(), 4u);
  for (const auto& [name, use] : found) {
    EXPECT_DOUBLE_EQ(use.optimizer, (12 + 8) * p) << name;
    EXPECT_DOUBLE_EQ(use.communication, name == "optimizer" ? 4 * p : 0) << name;
  }
  EXPECT_DOUBLE_EQ(found["checkpoint"].staging, block_states);
  training.exchange->overlapped = true;
  for (const auto& [name, use] : all_phases()) EXPECT_DOUBLE_EQ(use.communication, 4 * p) << name;
  // Four ranks in two members: each owns half, and sums gradients with the other of its member.
  training.degrees.shard_over(2, 4);
  training.zero_stage = 1;
  found = all_phases();
  EXPECT_DOUBLE_EQ(found["optimizer"].optimizer, (12 + 8) * p / 2);
  EXPECT_DOUBLE_EQ(found["optimizer"].communication, 4 * p / 2);
  EXPECT_DOUBLE_EQ(found["backward"].communication, 4 * p / 2 + 2 * 25.0 * 1024 * 1024);
}

TEST(PublishedMemory, OfWholeUnits) {
  ModelSpec spec = small();
  Training training = on(4);
  const auto gathered = [&] {
    return phase(published_memory(spec, training), 0, "backward").gathered;
  };
  training.zero_stage = 2;
  EXPECT_EQ(gathered(), 0);
  training.zero_stage = 3;
  // The largest unit is a block; one more is gathered ahead of it.
  const double block = held_by_block(spec, training).all();
  ASSERT_GT(block, held_by_embedding(spec, training).all());
  EXPECT_DOUBLE_EQ(gathered(), 2 * 2 * block);
  training.gather_ahead = 2;
  EXPECT_DOUBLE_EQ(gathered(), 2 * 3 * block);
  training.gather_ahead = 100;
  EXPECT_DOUBLE_EQ(gathered(), 2 * count_of(spec)) << "there is no more";
  training.gather_ahead = 0;
  spec.vocab = 5120;
  EXPECT_DOUBLE_EQ(gathered(), 2 * held_by_embedding(spec, training).all());
  training.degrees.shard_over(1, training.degrees.dp());
  EXPECT_EQ(gathered(), 0) << "whole already";
}

TEST(PublishedMemory, OfShardsInACheckpoint) {
  Training training = on(4);
  const double whole = phase(published_memory(small(), training), 0, "checkpoint").staging;
  training.zero_stage = 1;
  EXPECT_DOUBLE_EQ(phase(published_memory(small(), training), 0, "checkpoint").staging, whole / 4);
}

TEST(PublishedMemory, OfDroppedEmbeddings) {
  ModelSpec spec = small();
  Training training = on(1, 2, 2);
  training.schedule = "gpipe";
  const auto first = [&] {
    return phase(published_memory(spec, training), 0, "backward").activations -
           2 * 12 * block_activation_bytes(spec, training);
  };
  EXPECT_NEAR(first(), 0, 1e-6);
  spec.dropout = 0.1;
  EXPECT_NEAR(first(), 12 * 256 * 64 / 2.0, 1e-6) << "a byte an element of twelve micro-batches";
  training.sequence_parallel = false;
  EXPECT_NEAR(first(), 12 * 256 * 64, 1e-6);
}

TEST(PublishedMemory, PeaksAreTheLargest) {
  RankMemory one{0, {{"a", {}}, {"b", {}}, {"c", {}}}};
  one.phases[1].use.activations = 5;
  one.phases[2].use.parameters = 3;
  EXPECT_EQ(one.peak().name, "b");
  RankMemory other{1, {{"a", {}}}};
  other.phases[0].use.staging = 6;
  EXPECT_EQ(worst({one, other}).rank, 1);
  EXPECT_EQ(worst({other, one}).rank, 1);
}

// A rank of the interleaved schedule has all of its stages' micro-batches at once where there are
// only as many as ranks.
TEST(InFlight, OfAsManyMicroBatchesAsRanks) {
  ModelSpec spec = small();
  spec.layers = 8;
  Training training = on(1, 1, 4);
  training.micro_batch = 1;
  training.virtual_stages = 2;
  training.schedule = "interleaved";
  for (const std::int64_t m : {4, 8}) {
    training.global_batch = m;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const double chunks = m == 4 ? 8 : 2.0 * static_cast<double>(3 - rank) + 5;
      EXPECT_DOUBLE_EQ(in_flight(spec, training, rank), chunks / 2) << m << " on " << rank;
    }
  }
  training.virtual_stages = 1;
  training.schedule = "1f1b";
  training.global_batch = 2;
  EXPECT_EQ(in_flight(spec, training, 0), 2) << "no more than there are";
  EXPECT_EQ(in_flight(spec, training, 3), 1);
}

// 256 tokens on two tensor ranks that hold halves of the experts' width: each visits two experts.
TEST(SavedTensors, OfExperts) {
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  Training training = on(1, 2);
  training.expert_tensor = 2;
  training.expert_imbalance = 1.5;
  const double visits = 256 * 2 * 1.5;
  const std::map<std::string, double> expected{
      {"input of the router", 2.0 * 256 * 64},
      {"router's probabilities", 4.0 * 256 * 8},
      {"tokens sent to experts", 2 * 2 * visits * 64},
      {"input of the experts' activation", 2 * visits * 256},
      {"input of the experts' down product", 2 * visits * 256},
      {"outputs of the experts", 2 * visits * 64}};
  std::size_t found = 0;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    const auto one = expected.find(tensor.what);
    if (one == expected.end()) continue;
    ++found;
    EXPECT_DOUBLE_EQ(tensor.bytes, one->second) << tensor.what;
    EXPECT_EQ(tensor.division, Division::kSequence) << tensor.what;
  }
  EXPECT_EQ(found, expected.size());
  spec.gated = true;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    if (std::string(tensor.what) == "input of the experts' activation") {
      EXPECT_DOUBLE_EQ(tensor.bytes, 2 * 2 * visits * 256);
    }
  }
}

TEST(SavedTensors, OfSharedExperts) {
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  const auto bytes_of = [&](const std::string& what) {
    double bytes = 0;
    for (const SavedTensor& tensor : saved_tensors(spec, on(1, 2))) {
      if (tensor.what != what) continue;
      bytes += tensor.bytes;
      EXPECT_EQ(tensor.division, Division::kSequence) << what;
    }
    return bytes;
  };
  const std::string activation = "input of the shared experts' activation";
  const std::string down = "input of the shared experts' down product";
  EXPECT_EQ(bytes_of(activation) + bytes_of(down), 0);
  spec.shared_ffn = 96;
  EXPECT_EQ(bytes_of(activation), 2 * 256 * 96);
  EXPECT_EQ(bytes_of(down), 2 * 256 * 96);
  spec.gated = true;
  EXPECT_EQ(bytes_of(activation), 2 * 2 * 256 * 96);
  EXPECT_EQ(bytes_of(down), 2 * 256 * 96);
}

// Offloading keeps in a host what its fullest rank has, for all of its devices.
TEST(OffloadedBytes, AreThoseOfTheFullestRank) {
  ModelSpec spec = small();
  spec.tied_embeddings = false;
  Training training = on(1, 1, 2);
  training.stage_layers = {3, 1};
  training.offload_optimizer = true;
  double most = 0;
  for (const HeldParameters& held : held_by_rank(spec, training)) most = std::max(most, held.all());
  ASSERT_EQ(most, held_by_rank(spec, training).front().all());
  EXPECT_DOUBLE_EQ(offloaded_bytes(spec, training, cluster_of(2)), 2 * 12 * most);
}

}  // namespace
}  // namespace shoal::plan::memory_figures_test
