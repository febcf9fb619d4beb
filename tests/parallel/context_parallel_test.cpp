// Context parallelism against one rank: every gradient in double, logits when single tokens change,
// dropout masks bit for bit, bytes to the byte, and what is refused.
#include "shoal/parallel/context/context_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/model/kept_activations.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/context/ring_attention.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/tensor/tensor_parallel.h"
#include "shoal/plan/traffic.h"
#include "tests/error_text.h"
#include "tests/parallel/divided_pass.h"
#include "tests/parallel/small_transformers.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::context_parallel_test {
namespace {

using plan::Degrees;
using testing::HasSubstr;

constexpr auto kBothWays = {ContextMethod::kRing, ContextMethod::kHeads};

void on_ranks(const Degrees& degrees, const std::function<void(const mesh::Mesh&)>& body) {
  comm::run_on_threads({.size = static_cast<int>(degrees.ranks()),
                        .arena = false,
                        .timeout = std::chrono::seconds(30)},
                       [&](const comm::Group& world) { body(mesh::Mesh(world, degrees)); });
}

/// A model in double, divided as the mesh says. In bf16 its matrices alone are that, as in a job.
std::shared_ptr<nn::Model> divided(const ModelSpec& spec, const mesh::Mesh& mesh, ContextMethod way,
                                   at::ScalarType type = at::kDouble) {
  auto model = nn::make_model(spec);
  split_tensors(*model, mesh);
  split_sequence(*model, mesh, way);
  if (type == at::kBFloat16) {
    for (const auto& parameter : model->parameters())
      if (parameter->global_shape().size() > 1) parameter->set_types(type, at::kFloat);
    model->materialize();
  } else {
    model->materialize(type);
  }
  fill(*model);
  return model;
}

/// A context of whole rows.
nn::Context whole_context(const Data& part, std::int64_t first, const at::Tensor& documents) {
  nn::Context context;
  context.key = Key(9);
  context.samples = at::arange(first, first + part.inputs.size(0), at::kLong);
  context.labels = part.labels;
  context.loss_scale = 1.0 / 50;
  context.documents = documents;
  return context;
}

struct ContextCase {
  ModelSpec spec;
  Degrees degrees;
  ContextMethod way = ContextMethod::kRing;
  std::int64_t samples = 1;  ///< of all data-parallel ranks
  std::int64_t columns = 12;
  at::Tensor documents;  ///< [1 or samples, columns]
  model::Keep keep = model::Keep::kEverything;
};

at::Tensor rows_of(const at::Tensor& documents, std::int64_t first, std::int64_t count) {
  if (!documents.defined() || documents.size(0) == 1) return documents;
  return documents.narrow(0, first, count);
}

/// Compares loss and gradients of a mesh with those of one rank.
void check_context_gradients(const ContextCase& c) {
  const Data all = data(c.samples, c.columns);
  const auto alone = nn::make_model(c.spec);
  alone->materialize(at::kDouble);
  fill(*alone);
  const at::Tensor expected = (*alone)(all.inputs, whole_context(all, 0, c.documents));
  expected.backward();
  on_ranks(c.degrees, [&](const mesh::Mesh& mesh) {
    const BatchShare share(mesh, 0, c.way);
    const auto model = divided(c.spec, mesh, c.way);
    checkpoint_activations(
        *model, std::vector<model::Keep>(static_cast<std::size_t>(c.spec.layers), c.keep));
    const auto reduction = data_parallel_on(*model, mesh);
    const std::int64_t count = c.samples / share.ranks();
    const std::int64_t first = share.rank() * count;
    const Data own{all.inputs.narrow(0, first, count), all.labels.narrow(0, first, count)};
    nn::Context context = whole_context(own, first, rows_of(c.documents, first, count));
    const at::Tensor inputs = share.cut(own.inputs, context);
    reduction->begin(0, 1);
    const at::Tensor loss = (*model)(inputs, context);
    loss.backward();
    reduction->finish();
    EXPECT_NEAR(mesh.world().sum(loss.item<double>()), expected.item<double>(), 1e-12);
    // Every label is counted once.
    const auto counted = static_cast<double>(share.counted(own.labels).numel());
    EXPECT_EQ(mesh.world().sum(counted), static_cast<double>(all.labels.numel()));
    for (const auto& parameter : model->parameters()) {
      const at::Tensor whole = alone->find_parameter(parameter->name())->gradient();
      const at::Tensor wanted = local_part(whole, parameter->box());
      const double scale = whole.abs().max().item<double>();
      EXPECT_LE((parameter->gradient() - wanted).abs().max().item<double>(), 1e-10 * scale)
          << parameter->name() << " on rank " << mesh.rank() << " of " << c.spec.name << ", cp "
          << c.degrees.cp << ", way " << static_cast<int>(c.way);
    }
  });
}

// Columns that the ranks divide, and columns that they do not; ranks with one of two chunks, and
// with one column.
TEST(ContextParallel, RingGivesTheGradientsOfOneRank) {
  check_context_gradients({gpt2(), {.cp = 2}, ContextMethod::kRing, 2});
  check_context_gradients({gpt2(), {.cp = 4}, ContextMethod::kRing, 1, 5});
  check_context_gradients({llama(), {.cp = 4}, ContextMethod::kRing, 2, 11});
  check_context_gradients({llama(), {.cp = 4}, ContextMethod::kRing, 1, 4});
  check_context_gradients({qwen(), {.cp = 3}, ContextMethod::kRing, 1, 13});
}

TEST(ContextParallel, HeadExchangeGivesTheGradientsOfOneRank) {
  check_context_gradients({gpt2(), {.cp = 4}, ContextMethod::kHeads, 2, 11});
  check_context_gradients({llama(), {.cp = 2}, ContextMethod::kHeads, 1, 13});
  check_context_gradients({qwen(), {.cp = 2}, ContextMethod::kHeads, 2});
}

// Streams that are cut along samples, and along uneven columns; more tensor ranks than key-value
// heads.
TEST(ContextParallel, WithTensorAndDataParallelRanks) {
  check_context_gradients({gpt2(), {.cp = 2, .tp = 2}, ContextMethod::kRing, 2});
  check_context_gradients({gpt2(), {.cp = 2, .tp = 2}, ContextMethod::kHeads, 1, 11});
  check_context_gradients({llama(), {.dp_shard = 2, .cp = 2}, ContextMethod::kHeads, 2});
  // Ranks whose stream has no rows.
  check_context_gradients({gpt2(), {.cp = 4, .tp = 2}, ContextMethod::kRing, 1, 7});
  check_context_gradients({gpt2(), {.dp_replicate = 2, .cp = 2}, ContextMethod::kRing, 4});
  check_context_gradients({qwen(), {.cp = 2, .tp = 4}, ContextMethod::kRing, 1, 16});
}

TEST(ContextParallel, WithRecomputedBlocks) {
  check_context_gradients(
      {gpt2(), {.cp = 2}, ContextMethod::kRing, 2, 12, {}, model::Keep::kInput});
  check_context_gradients(
      {gpt2(), {.cp = 2}, ContextMethod::kRing, 1, 12, {}, model::Keep::kProducts});
  check_context_gradients(
      {gpt2(), {.cp = 2}, ContextMethod::kHeads, 2, 12, {}, model::Keep::kInput});
}

// Of 12 columns, chunks are 3 wide for two ranks with zigzag, and 2 for three; stretches 6 for two.
// One row has a document that begins at column 1, one at 2 ...: one before, at and one behind each
// border; and one row has many.
TEST(ContextParallel, DocumentsMayBeginAnywhere) {
  std::vector<at::Tensor> rows;
  for (std::int64_t begin = 1; begin < 12; ++begin) rows.push_back(documents_from({begin}, 12));
  rows.push_back(documents_from({1, 2, 4, 7, 8}, 12));
  const at::Tensor documents = at::cat(rows);
  check_context_gradients({llama(), {.cp = 2}, ContextMethod::kRing, 12, 12, documents});
  check_context_gradients({gpt2(), {.cp = 3}, ContextMethod::kRing, 12, 12, documents});
  check_context_gradients(
      {gpt2(), {.dp_shard = 2, .cp = 2}, ContextMethod::kHeads, 12, 12, documents});
}

/// Logits of whole rows [B, columns], computed by context-parallel ranks.
at::Tensor gathered_logits(const ModelSpec& spec, const at::Tensor& rows, int ranks,
                           ContextMethod way, const at::Tensor& documents) {
  const at::Tensor logits = at::full({rows.size(0), rows.size(1), spec.vocab}, NAN, at::kDouble);
  on_ranks({.cp = ranks}, [&](const mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad;
    const auto model = divided(spec, mesh, way);
    nn::Context context;
    context.training = false;
    context.documents = documents;
    const at::Tensor inputs = BatchShare(mesh, 0, way).cut(rows, context);
    const at::Tensor own = (*model)(inputs, context);
    // Ranks write to columns of their own.
    for (std::int64_t i = 0; i < own.size(1); ++i)
      logits.select(1, context.positions[i].item<std::int64_t>()).copy_(own.select(1, i));
  });
  return logits;
}

// Row i has another token at column i - 1 than row 0: what changes is column i - 1 and columns
// behind it, in its document.
TEST(ContextParallel, ATokenMovesNothingBeforeItNorInAnotherDocument) {
  constexpr std::int64_t kColumns = 11;
  const at::Tensor rows = data(1, kColumns).inputs.repeat({kColumns + 1, 1});
  for (std::int64_t i = 0; i < kColumns; ++i) rows.select(0, i + 1).select(0, i).sub_(36).abs_();
  for (const ContextMethod way : kBothWays) {
    for (const int ranks : {2, way == ContextMethod::kRing ? 3 : 4}) {
      for (const at::Tensor& documents : {at::Tensor(), documents_from({2, 6}, kColumns)}) {
        const at::Tensor logits = gathered_logits(gpt2(), rows, ranks, way, documents);
        for (std::int64_t changed = 0; changed < kColumns; ++changed) {
          for (std::int64_t i = 0; i < kColumns; ++i) {
            const bool sees =
                i >= changed && (!documents.defined() ||
                                 documents[0][i].item<int>() == documents[0][changed].item<int>());
            // Rows of one product may round otherwise.
            const double moved = (logits[0][i] - logits[changed + 1][i]).abs().max().item<double>();
            EXPECT_TRUE(sees ? moved > 1e-6 : moved < 1e-12)
                << moved << ": token " << changed << ", logits " << i << ", " << ranks << " ranks";
          }
        }
      }
    }
  }
}

// Embedding, positions and dropout: bitwise those of one rank.
TEST(ContextParallel, MasksAndPositionsAreThoseOfOneRank) {
  ModelSpec spec = gpt2();
  spec.dropout = 0.5;
  for (const std::int64_t samples : {1, 4}) {
    const Data all = data(samples, 15);
    const auto alone = nn::make_model(spec);
    alone->materialize();
    fill(*alone);
    const at::Tensor expected = (*alone->units()[0])(all.inputs, whole_context(all, 3, {}));
    for (const Degrees& degrees : {Degrees{.cp = 3}, Degrees{.cp = 2, .tp = 2}}) {
      on_ranks(degrees, [&](const mesh::Mesh& mesh) {
        const BatchShare share(mesh);
        const auto model = divided(spec, mesh, ContextMethod::kRing, at::kFloat);
        nn::Context context = whole_context(all, 3, {});
        const at::Tensor inputs = share.cut(all.inputs, context);
        const at::Tensor found = (*model->units()[0])(inputs, context);
        at::Tensor wanted = expected.index_select(1, context.positions);
        const nn::Stream& stream = context.stream;
        if (stream.divided()) wanted = wanted.narrow(stream.dim, stream.begin, stream.count);
        EXPECT_TRUE(at::equal(found, wanted)) << samples << " samples, rank " << mesh.rank();
      });
    }
  }
}

/// Whether ranks know of memory that they share.
enum class Memory { kApart, kShared };

/// Bytes that the ranks of cp send among themselves for one forward and backward pass.
std::vector<double> bytes_along_context(const ModelSpec& spec, int cp, ContextMethod way,
                                        const Data& all, model::Keep keep,
                                        at::ScalarType weights = at::kFloat,
                                        Memory memory = Memory::kApart) {
  std::vector<double> bytes(static_cast<std::size_t>(cp));
  on_ranks({.cp = cp}, [&](const mesh::Mesh& in_memory) {
    const comm::Group& world = in_memory.world();
    const mesh::Mesh mesh(memory == Memory::kShared ? world : comm::without_shared_memory(world),
                          {.cp = cp});
    const auto model = divided(spec, mesh, way, weights);
    checkpoint_activations(*model,
                           std::vector<model::Keep>(static_cast<std::size_t>(spec.layers), keep));
    const comm::Group& ranks = mesh.along(mesh::Axis::kContext);
    nn::Context context = whole_context(all, 0, {});
    const at::Tensor inputs = BatchShare(mesh, 0, way).cut(all.inputs, context);
    const double before = ranks.bytes_sent();
    (*model)(inputs, context).backward();
    bytes[static_cast<std::size_t>(mesh.rank())] = ranks.bytes_sent() - before;
  });
  return bytes;
}

/// The planner's count for one such pass.
double planned_along_context(const ModelSpec& spec, int cp, ContextMethod way,
                             plan::Recompute again, const char* precision = "fp32",
                             Memory memory = Memory::kApart) {
  plan::Training training;
  training.degrees.cp = cp;
  training.micro_batch = training.global_batch = 3;
  training.sequence = 16;
  training.precision = precision;
  training.ulysses = way == ContextMethod::kHeads;
  training.recompute = again;
  plan::Cluster shoal{.hosts = cp, .runtime = plan::Runtime::kShoal};
  if (memory == Memory::kShared) std::swap(shoal.hosts, shoal.devices_per_host);
  for (const plan::Traffic& part : plan::traffic(spec, training, shoal))
    if (part.technique == "context") return part.bytes;
  return 0;
}

// The planner's formulas. A recomputed block goes round the ring once more: half as much again, of
// the three parts one forward and two backward, and the exchange of heads half as much again.
TEST(ContextParallel, SendsWhatTheFormulasSay) {
  using testing::Each;
  const ModelSpec spec = gpt2();
  const auto layers = static_cast<double>(spec.layers);
  const double width = 24;  // all heads, of queries and of keys
  for (const int cp : {2, 4}) {
    const double length = 16.0 / cp;
    const double ring = 4 * layers * plan::context_elements(cp, 3, length, width);
    const double heads = 4 * layers * plan::ulysses_elements(cp, 3, length, width, width);
    const Data all = data(3, 16);
    for (const auto& [way, bytes, again] : {std::tuple(ContextMethod::kRing, ring, ring / 3),
                                            std::tuple(ContextMethod::kHeads, heads, heads / 2)}) {
      EXPECT_THAT(bytes_along_context(spec, cp, way, all, model::Keep::kEverything), Each(bytes));
      EXPECT_THAT(bytes_along_context(spec, cp, way, all, model::Keep::kInput),
                  Each(bytes + again));
      EXPECT_DOUBLE_EQ(planned_along_context(spec, cp, way, plan::Recompute::kNone), bytes);
      EXPECT_DOUBLE_EQ(planned_along_context(spec, cp, way, plan::Recompute::kFull), bytes + again);
      // Activations are fp32 beside bf16 weights too.
      EXPECT_THAT(bytes_along_context(spec, cp, way, all, model::Keep::kEverything, at::kBFloat16),
                  Each(bytes));
      EXPECT_DOUBLE_EQ(planned_along_context(spec, cp, way, plan::Recompute::kNone, "bf16"), bytes);
      // Of the ring's three parts ranks that share memory send the gradients, and the other two, or
      // three, are read in place, as all of the heads is.
      const double kept = way == ContextMethod::kRing ? ring / 3 : 0;
      EXPECT_THAT(
          bytes_along_context(spec, cp, way, all, model::Keep::kInput, at::kFloat, Memory::kShared),
          Each(kept));
      EXPECT_DOUBLE_EQ(
          planned_along_context(spec, cp, way, plan::Recompute::kFull, "fp32", Memory::kShared),
          kept);
    }
  }
  // Fewer key-value heads, and columns in chunks of 3 3 2 2 2 2: ranks have 5, 5 and 4. Each rank
  // passes on all blocks but that of the rank before it, and back all but that of the rank behind
  // it; of gradients it sends all but its own.
  const auto sent =
      bytes_along_context(llama(), 3, ContextMethod::kRing, data(1, 14), model::Keep::kEverything);
  const double element = 4.0 * 2 * 2 * 16;  // bytes, layers, keys and values, width
  EXPECT_THAT(sent, testing::ElementsAre(element * ((14 - 4) + (14 - 5) + (14 - 5)),
                                         element * ((14 - 5) + (14 - 4) + (14 - 5)),
                                         element * ((14 - 5) + (14 - 5) + (14 - 4))));
}

// Ranks that read keys and values where they lie, and ranks that pass them on: the same bits, and
// of three parts that are sent only the gradients, where columns are equally many.
TEST(ContextParallel, RingHasTheSameBitsInPlace) {
  for (const int ranks : {2, 3, 4}) {
    for (const DividedPass& pass : ring_passes()) {
      on_ranks({.cp = ranks}, [&](const mesh::Mesh& mesh) {
        const comm::Group copying = comm::without_shared_memory(mesh.world());
        const double before = mesh.world().bytes_sent();
        const at::Tensor in_place = loss_and_gradients(mesh.world(), pass);
        const double sent = mesh.world().bytes_sent() - before;
        EXPECT_TRUE(at::equal(in_place, loss_and_gradients(copying, pass)))
            << pass.spec.name << ", " << pass.columns << " columns, rank " << mesh.rank() << " of "
            << ranks;
        if (pass.columns % ranks == 0) {
          EXPECT_EQ(3 * sent, copying.bytes_sent());
        }
      });
    }
  }
}

// Heads that are copied from where they lie, and heads that are packed and sent: the same bits.
TEST(ContextParallel, HeadsHaveTheSameBitsInPlace) {
  for (const int ranks : {2, 4}) {
    for (const DividedPass& pass : head_passes(ranks)) {
      on_ranks({.cp = ranks}, [&](const mesh::Mesh& mesh) {
        const comm::Group copying = comm::without_shared_memory(mesh.world());
        const double before = mesh.world().bytes_sent();
        const at::Tensor in_place = loss_and_gradients(mesh.world(), pass);
        EXPECT_EQ(mesh.world().bytes_sent(), before) << pass.text();
        EXPECT_TRUE(at::equal(in_place, loss_and_gradients(copying, pass)))
            << pass.text() << ", rank " << mesh.rank() << " of " << ranks;
        EXPECT_GT(copying.bytes_sent(), 0);
      });
    }
  }
}

TEST(ContextParallel, RefusesWhatItCannotDivide) {
  const auto refusal = [](const ModelSpec& spec, const Degrees& degrees, ContextMethod way) {
    std::string text;
    on_ranks(degrees, [&](const mesh::Mesh& mesh) {
      const auto model = nn::make_model(spec);
      const std::string said = error_text([&] { split_sequence(*model, mesh, way); });
      if (mesh.rank() == 0) text = said;
    });
    return text;
  };
  EXPECT_THAT(refusal(llama(), {.cp = 3}, ContextMethod::kHeads),
              HasSubstr("tp x cp = 3 must divide kv_heads = 2"));
  EXPECT_THAT(refusal(llama(), {.cp = 2, .tp = 2}, ContextMethod::kHeads),
              HasSubstr("tp x cp = 4 must divide kv_heads = 2"));
  EXPECT_THAT(refusal(*model::named_model("mlp-digits"), {.cp = 2}, ContextMethod::kRing),
              HasSubstr("divides sequences, and so transformers only"));
  EXPECT_THAT(error_text([] { columns_of(3, mesh::Placement::Cut::kEven, 4, 0); }),
              HasSubstr("a sequence of 3 tokens has no column for each rank. Hint: cp may be at "
                        "most 3"));
}

TEST(ContextParallel, RefusesWhatWouldBeCountedTwiceOrMeantOtherwise) {
  on_ranks({.cp = 2}, [](const mesh::Mesh& mesh) {
    const auto model = divided(gpt2(), mesh, ContextMethod::kRing);
    const Data all = data(1, 8);
    EXPECT_THAT(error_text([&] { (*model)(all.inputs, whole_context(all, 0, {})); }),
                HasSubstr("the sequence must be divided among the ranks"));
    nn::Context other = whole_context(all, 0, {});
    // Columns of the other way.
    const at::Tensor inputs = BatchShare(mesh, 0, ContextMethod::kHeads).cut(all.inputs, other);
    EXPECT_THAT(error_text([&] { (*model)(inputs, other); }),
                HasSubstr("the positions are not its columns of 8"));
    nn::Context again = whole_context(all, 0, {});
    again.documents = at::zeros({1, 8}, at::kInt);
    again.documents.slice(1, 2, 5).fill_(1);
    EXPECT_THAT(error_text([&] { BatchShare(mesh).cut(all.inputs, again); }),
                HasSubstr("document 0 ends at column 2 and comes back at column 5"));
  });
}

TEST(CutSequence, OneRankHasTheWholeSequence) {
  using Cut = mesh::Placement::Cut;
  const at::Tensor inputs = at::arange(6, at::kLong).view({1, 6});
  nn::Context context;
  EXPECT_TRUE(cut_sequence(inputs, context, Cut::kEven, 1, 0).is_same(inputs));
  EXPECT_FALSE(context.positions.defined() || context.sequence.divided());
  EXPECT_THAT(error_text([&] { cut_sequence(inputs[0], context, Cut::kEven, 2, 0); }),
              HasSubstr("inputs [B, T], not 1 dimensions"));
}

TEST(CutSequence, PartsAreAPartition) {
  using Cut = mesh::Placement::Cut;
  EXPECT_EQ(
      columns_of(8, Cut::kZigzag, 2, 0)
          .equal(at::arange(8).index_select(0, at::cat({at::arange(0, 2), at::arange(6, 8)}))),
      true);
  for (const Cut cut : {Cut::kEven, Cut::kZigzag}) {
    for (std::int64_t columns = 3; columns < 15; ++columns) {
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < 3; ++rank) {
        parts.push_back(columns_of(columns, cut, 3, rank));
        EXPECT_GE(parts.back().numel(), columns / 3 - 1);
        EXPECT_LE(parts.back().numel(), (columns + 2) / 3 + 1);
      }
      const auto [sorted, order] = at::cat(parts).sort();
      EXPECT_TRUE(at::equal(sorted, at::arange(columns, at::kLong)));
    }
  }
}

}  // namespace
}  // namespace shoal::parallel::context_parallel_test
