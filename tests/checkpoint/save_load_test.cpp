#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/saver.h"
#include "tests/checkpoint/sharded_state.h"
#include "tests/checkpoint/thread_ranks.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/error_text.h"

namespace shoal::checkpoint::save_load_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace testing;

constexpr Sharding kAll[] = {Sharding::kReplicated, Sharding::kRows, Sharding::kColumns,
                             Sharding::kFlat};
const comm::Group kAlone;

std::string save_on(int ranks, Sharding sharding, const std::string& directory,
                    std::int64_t step = 10) {
  const GlobalState state;
  run_ranks(ranks, [&](const comm::Group& group) {
    save(directory, step, items_of(state, sharding, group.rank(), ranks), R"({"cursor":[1,2]})",
         group, {.fsync = false});
  });
  return directory + "/step-" + std::to_string(step);
}

TEST(SaveLoad, EveryMeshReadsWhatEveryMeshWrote) {
  const GlobalState state;
  for (int writers = 1; writers <= 4; ++writers) {
    for (const Sharding written : kAll) {
      Scratch scratch;
      const std::string path = save_on(writers, written, scratch.path());
      for (int readers = 1; readers <= 4; ++readers) {
        for (const Sharding read : kAll) {
          run_ranks(readers, [&](const comm::Group& group) {
            const auto expected = items_of(state, read, group.rank(), readers);
            const auto found = items_of(state, read, group.rank(), readers);
            wipe(found);
            const Loaded loaded = load(path, found, group);
            EXPECT_EQ(loaded.step, 10);
            EXPECT_EQ(loaded.metadata, R"({"cursor":[1,2]})");
            EXPECT_TRUE(same(found, expected))
                << writers << " x " << name(written) << " to " << readers << " x " << name(read);
          });
        }
      }
    }
  }
}

// Threads of one process are one host: replicas read each byte once together, and so do ranks of
// which each holds rows.
TEST(SaveLoad, AHostReadsEveryByteOnce) {
  const GlobalState state;
  Scratch scratch;
  const std::string path = save_on(1, Sharding::kReplicated, scratch.path());
  std::int64_t all = 0;
  for (const auto& tensor : format::read_manifest(path).tensors) all += tensor.bytes();
  for (const int ranks : {1, 2, 3}) {
    std::atomic<std::int64_t> read = 0;
    std::atomic<std::int64_t> most = 0;
    run_ranks(ranks, [&](const comm::Group& group) {
      const auto found = items_of(state, Sharding::kReplicated, group.rank(), ranks);
      wipe(found);
      const std::int64_t mine = load(path, found, group).bytes_read;
      read += mine;
      group.barrier();
      if (mine > most) most = mine;
      EXPECT_TRUE(same(found, items_of(state, Sharding::kReplicated, group.rank(), ranks)));
    });
    EXPECT_EQ(read, all) << ranks << " ranks";
    if (ranks == 2) {
      EXPECT_LT(most, 0.8 * static_cast<double>(all)) << "one rank reads nearly all";
    }
  }
}

TEST(SaveLoad, ValueChecksumsDoNotDependOnRanksOrSharding) {
  std::map<std::string, std::uint64_t> expected;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (const Sharding sharding : kAll) {
      Scratch scratch;
      std::map<std::string, std::uint64_t> found;
      for (const auto& tensor :
           format::read_manifest(save_on(ranks, sharding, scratch.path())).tensors)
        found[tensor.name] = tensor.checksum();
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(SaveLoad, ReplicasShareTheWriting) {
  Scratch scratch;
  const format::Manifest manifest =
      format::read_manifest(save_on(2, Sharding::kReplicated, scratch.path()));
  ASSERT_EQ(manifest.files.size(), 2);
  std::int64_t bytes[2] = {};
  std::int64_t largest = 0;
  for (const auto& tensor : manifest.tensors) {
    bytes[tensor.pieces[0].file] += tensor.bytes();
    largest = std::max(largest, tensor.bytes());
  }
  // Each tensor goes to the replica that has fewer bytes, so that they never differ by more than
  // one tensor.
  EXPECT_LE(std::abs(bytes[0] - bytes[1]), largest);
  for (const auto& tensor : manifest.tensors)
    EXPECT_EQ(tensor.pieces.size(), 1) << "a replicated tensor stands whole in one file";
}

// Rank 0 takes itself for one of two holders of "b" and leaves it to the other, which has never
// heard of it. Found when it is saved, not when it is missed.
TEST(SaveLoad, ATensorThatNobodyWritesIsAnError) {
  Scratch scratch;
  const auto save_both = [&](bool with_saver) {
    run_ranks(2, [&](const comm::Group& group) {
      const auto item = [&](const char* name, int replica) {
        return StateItem{.name = name,
                         .local = at::full({4}, 1.0f),
                         .global_shape = {4},
                         .boxes = {},
                         .replica = replica,
                         .replicas = 2};
      };
      std::vector<StateItem> items{item("a", group.rank())};
      if (group.rank() == 0) items.push_back(item("b", 0));
      if (with_saver) {
        Saver saver(group, {});
        saver.start(scratch.path(), 1, items, "{}");
        saver.wait();
      } else {
        save(scratch.path(), 1, items, "{}", group);
      }
    });
  };
  for (const bool with_saver : {false, true}) {
    const std::string said = error_text([&] { save_both(with_saver); });
    EXPECT_NE(said.find("no rank writes 'b'"), std::string::npos) << said;
    EXPECT_FALSE(fs::exists(scratch / "step-1")) << "what was written is removed";
  }
}

TEST(SaveLoad, FilesStayBelowTheirLimit) {
  Scratch scratch;
  const GlobalState state;
  save(scratch.path(), 1, items_of(state, Sharding::kRows, 0, 1), "{}", kAlone,
       {.fsync = false, .max_shard_bytes = 300});
  const auto manifest = format::read_manifest(scratch / "step-1");
  EXPECT_GT(manifest.files.size(), 2);
  const auto found = items_of(state, Sharding::kRows, 0, 1);
  wipe(found);
  load(scratch / "step-1", found, kAlone);
  EXPECT_TRUE(same(found, items_of(state, Sharding::kRows, 0, 1)));
}

TEST(SaveLoad, KeepsTheLast) {
  Scratch scratch;
  const GlobalState state;
  for (int step = 1; step <= 4; ++step) {
    save(scratch.path(), step, items_of(state, Sharding::kRows, 0, 1), "{}", kAlone,
         {.keep_last = 2, .fsync = step > 3});
  }
  const auto steps = format::list_steps(scratch.path());
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].step, 3);
}

TEST(SaveLoad, AScopeLeavesTheRestAlone) {
  Scratch scratch;
  const std::string path = save_on(2, Sharding::kFlat, scratch.path());
  const GlobalState state;
  std::vector<StateItem> model;
  for (const StateItem& item : items_of(state, Sharding::kReplicated, 0, 1))
    if (item.name.starts_with("model.")) model.push_back(item);
  wipe(model);
  load(path, model, kAlone, {.scope = "model."});
  EXPECT_TRUE(model[0].local.equal(state.tensors[0].second));
  EXPECT_THROW(load(path, model, kAlone), Error)
      << "without a scope the optimizer's tensors are missed";
}

TEST(SaveLoad, PipelineStagesHoldDifferentTensors) {
  Scratch scratch;
  const GlobalState state;
  const auto stage = [&](int rank) {
    const auto all = items_of(state, Sharding::kReplicated, 0, 1);
    return rank == 0 ? std::vector<StateItem>(all.begin(), all.begin() + 2)
                     : std::vector<StateItem>(all.begin() + 2, all.end());
  };
  run_ranks(2, [&](const comm::Group& group) {
    save(scratch.path(), 1, stage(group.rank()), "{}", group, {.fsync = false});
    const auto found = stage(group.rank());
    wipe(found);
    load(scratch / "step-1", found, group);
    EXPECT_TRUE(same(found, stage(group.rank())));
  });
}

/// What went wrong, of the kind that is expected.
std::string words_of(ErrorKind kind, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SaveLoad, AnotherModelIsRefusedByName) {
  Scratch scratch;
  const std::string path = save_on(1, Sharding::kReplicated, scratch.path());
  GlobalState other;
  other.tensors[0].second = other.tensors[0].second.slice(0, 0, 12).contiguous();
  other.tensors[1].second = other.tensors[1].second.to(at::kDouble);
  other.tensors[2].first = "optimizer.momentum.embedding.weight";
  const auto items = items_of(other, Sharding::kReplicated, 0, 1);
  EXPECT_THAT(words_of(ErrorKind::kConfig, [&] { load(path, items, kAlone); }),
              AllOf(HasSubstr("only in the job: optimizer.momentum.embedding.weight"),
                    HasSubstr("only in the checkpoint: optimizer.exp_avg.embedding.weight"),
                    HasSubstr("model.embedding.weight (f32 [12, 8] here, f32 [13, 8] there)"),
                    HasSubstr("model.norm.weight (f64 [8] here, f32 [8] there)")));
}

// bf16 to float32 is exact; back it rounds to nearest, as LibTorch does. Boxes convert as the whole
// does.
TEST(SaveLoad, ValuesConvertBetweenPrecisions) {
  Scratch scratch;
  const std::string path = save_on(2, Sharding::kRows, scratch.path());
  const GlobalState saved;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    GlobalState here;
    for (auto& [name, tensor] : here.tensors)
      if (tensor.is_floating_point()) tensor = at::zeros_like(tensor, tensor.options().dtype(type));
    for (const Sharding sharding : {Sharding::kReplicated, Sharding::kColumns, Sharding::kFlat}) {
      for (int rank = 0; rank < 2; ++rank) {
        const auto items = items_of(here, sharding, rank, 2);
        const auto wanted = items_of(saved, sharding, rank, 2);
        load(path, items, kAlone);
        for (std::size_t i = 0; i < items.size(); ++i) {
          EXPECT_TRUE(items[i].local.equal(wanted[i].local.to(items[i].local.scalar_type())))
              << items[i].name << " " << name(sharding);
        }
      }
    }
  }
}

TEST(SaveLoad, MissingAndBrokenCheckpointsAreToldApart) {
  Scratch scratch;
  const auto items = items_of(GlobalState(), Sharding::kReplicated, 0, 1);
  EXPECT_THAT(words_of(ErrorKind::kInputMissing, [&] { load(scratch / "step-9", items, kAlone); }),
              HasSubstr("step-9/manifest.json"));
  const std::string path = save_on(1, Sharding::kReplicated, scratch.path());
  const std::string data = path + "/shard-0000-00.safetensors";
  flip_byte(data, slurp(data).size() - 3);
  EXPECT_THAT(words_of(ErrorKind::kData, [&] { load(path, items, kAlone); }),
              AllOf(HasSubstr(data), HasSubstr("checksum")));
}

TEST(SaveLoad, OneRanksTroubleIsEveryRanksError) {
  Scratch scratch;
  const std::string path = save_on(2, Sharding::kRows, scratch.path());
  const std::string data = path + "/shard-0001-00.safetensors";
  flip_byte(data, slurp(data).size() - 1);
  const auto thrown = on_ranks(2, [&](const comm::Group& group) {
    load(path, items_of(GlobalState(), Sharding::kRows, group.rank(), 2), group);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(words_of(ErrorKind::kData, [&] { std::rethrow_exception(thrown[rank]); }),
                HasSubstr("shard-0001-00"))
        << "rank " << rank;
  }
  EXPECT_THAT(words_of(ErrorKind::kData, [&] { std::rethrow_exception(thrown[0]); }),
              HasSubstr("rank 0 of 2, peer 1"));
}

TEST(SaveLoad, OptionsAndItemsThatMakeNoSenseAreRefused) {
  Scratch scratch;
  const StateItem good{.name = "w", .local = at::full({4}, 1.f), .global_shape = {4}};
  const auto refused = [&](std::int64_t step, const std::vector<StateItem>& items,
                           const SaveOptions& options, const std::string& words) {
    EXPECT_THAT(words_of(ErrorKind::kUsage,
                         [&] { save(scratch.path(), step, items, "{}", kAlone, options); }),
                HasSubstr(words));
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  };
  refused(-1, {good}, {}, "step=-1");
  refused(1, {good}, {.keep_last = -1}, "keep_last=-1");
  refused(1, {good}, {.max_shard_bytes = 0}, "max_shard_bytes=0");
  refused(1, {good, good}, {}, "'w' is empty or stands twice");
  StateItem bad = good;
  bad.name = "";
  refused(1, {bad}, {}, "'' is empty or stands twice");
  for (const auto& [replica, replicas] : {std::pair{-1, 1}, {1, 1}, {2, 2}}) {
    bad = good;
    bad.replica = replica, bad.replicas = replicas;
    refused(1, {bad}, {}, fmt::format("replica {} of {}", replica, replicas));
  }
  bad = good;
  bad.local = at::full({4, 2}, 1.f).select(1, 0);
  refused(1, {bad}, {}, "is undefined or not contiguous");
  bad.local = at::Tensor();
  refused(1, {bad}, {}, "is undefined or not contiguous");
  bad.local = at::full({3}, 1.f);
  refused(1, {bad}, {}, "boxes have 4 elements, local has 3");
  EXPECT_EQ(SaveOptions().keep_last, 0);
  EXPECT_TRUE(SaveOptions().fsync);
  EXPECT_EQ(SaveOptions().max_shard_bytes, std::int64_t{4} << 30);
  EXPECT_EQ(save(scratch.path(), 0, {good}, "{}", kAlone, {.fsync = false}), scratch / "step-0");
}

TEST(SaveLoad, OfManyNamesEightAreShown) {
  Scratch scratch;
  const auto items = [](const std::string& prefix, int count) {
    std::vector<StateItem> made;
    for (int i = 0; i < count; ++i) {
      made.push_back(
          {.name = prefix + std::to_string(i), .local = at::full({1}, 1.f), .global_shape = {1}});
    }
    return made;
  };
  save(scratch.path(), 1, items("there", 8), "{}", kAlone, {.fsync = false});
  const std::string words =
      words_of(ErrorKind::kConfig, [&] { load(scratch / "step-1", items("here", 11), kAlone); });
  EXPECT_THAT(words, HasSubstr("here5, here6 and 3 more; only in the checkpoint: there0, there1, "
                               "there2, there3, there4, there5, there6, there7"));
}

// A part of a tensor that no rank holds, and a tensor without elements.
TEST(SaveLoad, WhatHasNoElementIsSavedToo) {
  Scratch scratch;
  const auto items = [](float value) {
    std::vector<StateItem> made{
        {.name = "none", .local = at::full({0, 3}, value), .global_shape = {0, 3}},
        {.name = "w", .local = at::full({4}, value), .global_shape = {4}}};
    return made;
  };
  save(scratch.path(), 1, items(3), "{}", kAlone, {.fsync = false});
  const auto found = items(9);
  load(scratch / "step-1", found, kAlone);
  EXPECT_TRUE(same(found, items(3)));
  EXPECT_EQ(format::read_manifest(scratch / "step-1").find("none")->shape, (format::Shape{0, 3}));
}

TEST(SaveLoad, BoxesMustCoverATensorOnce) {
  Scratch scratch;
  StateItem half{.name = "w",
                 .local = at::full({2, 2}, 1.f),
                 .global_shape = {2, 4},
                 .boxes = {{{0, 0}, {2, 2}}}};
  EXPECT_THAT(words_of(ErrorKind::kUsage, [&] { save(scratch.path(), 1, {half}, "{}", kAlone); }),
              HasSubstr("hold 4 of 8"));
  half.boxes = {{{0, 0}, {2, 3}}};
  EXPECT_THAT(words_of(ErrorKind::kUsage, [&] { save(scratch.path(), 1, {half}, "{}", kAlone); }),
              HasSubstr("boxes have 6 elements, local has 4"));
  half.boxes = {{{0, 3}, {2, 5}}};
  EXPECT_THAT(words_of(ErrorKind::kUsage, [&] { save(scratch.path(), 1, {half}, "{}", kAlone); }),
              HasSubstr("does not lie in [2, 4]"));
  EXPECT_TRUE(fs::is_empty(scratch.path())) << "a save that failed leaves nothing behind";
}

// Its name grows when it is taken out of sight, and is then too long.
TEST(SaveLoad, ACheckpointStandsThoughAnOlderOneCannotBeRemoved) {
  Scratch scratch;
  const GlobalState state;
  const std::string old = scratch / ("step-" + std::string(240, '0') + "1");
  fs::create_directory(old);
  spill(old + "/" + format::kManifestName, "{}");
  std::string path;
  EXPECT_NO_THROW(path = save(scratch.path(), 2, items_of(state, Sharding::kRows, 0, 1), "{}",
                              kAlone, {.keep_last = 1, .fsync = false}));
  EXPECT_EQ(path, scratch / "step-2");
  EXPECT_EQ(format::newest_step(scratch.path())->step, 2);
  EXPECT_TRUE(fs::exists(old));
}

}  // namespace
}  // namespace shoal::checkpoint::save_load_test
