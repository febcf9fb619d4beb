// Runs that go on with other members, or with members of other ranks, against checkpoints that are
// made by hand from what was saved, against synchronous training, and against what must not change.
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/comm/group.h"
#include "shoal/train/member_changes.h"
#include "shoal/train/state_items.h"
#include "tests/error_text.h"
#include "tests/train/member_runs.h"

namespace shoal::train::member_resumption_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Exchanges after steps 3, 6 and 9; step 4 is between two of them.
const Sets kEveryThree{"low_communication.method=diloco",
                       "low_communication.every=3",
                       "training.steps=9",
                       "training.global_batch_sequences=12",
                       "checkpoint.interval=1",
                       "checkpoint.keep_last=0",
                       "validation.interval=0"};
/// In steps 2, 4, 6 and so on one of the two fragments begins, which ends a step later.
const Sets kStreaming{"low_communication.method=streaming_diloco",
                      "low_communication.every=4",
                      "low_communication.fragments=2",
                      "low_communication.overlap_steps=1",
                      "low_communication.mix=0.5",
                      "training.steps=12",
                      "training.global_batch_sequences=12",
                      "checkpoint.interval=8",
                      "checkpoint.keep_last=0",
                      "validation.interval=0"};
const Sets kOrdinary{"training.steps=9", "training.global_batch_sequences=12",
                     "checkpoint.interval=1", "checkpoint.keep_last=0", "validation.interval=0"};
/// In steps 3, 6, 9 and 12 one of the two fragments begins, which ends three steps later.
const Sets kLongOverlap{"low_communication.method=streaming_diloco",
                        "low_communication.every=6",
                        "low_communication.fragments=2",
                        "low_communication.overlap_steps=3",
                        "low_communication.mix=0.5",
                        "training.steps=12",
                        "training.global_batch_sequences=12",
                        "checkpoint.interval=1",
                        "checkpoint.keep_last=0",
                        "validation.interval=0"};
/// Values that end in as many steps as kStreaming.
const Sets kOrdinaryTwelve{"training.steps=12", "training.global_batch_sequences=12",
                           "checkpoint.interval=8", "validation.interval=0"};

using Tensors = std::map<std::string, at::Tensor>;

class MemberResumption : public MemberRuns {
 protected:
  Tensors tensors(const std::string& run, int step) const {
    checkpoint::format::Reader reader(saved(run, step));
    Tensors result;
    for (const auto& saved : reader.manifest().tensors) {
      const at::Tensor tensor = at::empty(saved.shape, comm::scalar_type(saved.type));
      const std::vector<char> bytes = reader.read(saved);
      std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
      result[saved.name] = tensor;
    }
    return result;
  }
  /// Saves tensors as if the run `run` had done so after step `step`; its metadata are those of
  /// `like`.
  void save(const std::string& run, int step, const Tensors& tensors, const std::string& like) {
    std::vector<checkpoint::StateItem> items;
    for (const auto& [name, tensor] : tensors) {
      items.push_back({.name = name,
                       .local = tensor.contiguous(),
                       .global_shape = tensor.sizes().vec(),
                       .boxes = {}});
    }
    const std::string metadata = checkpoint::format::read_manifest(saved(like, step)).metadata;
    std::filesystem::create_directories(path(run));
    checkpoint::save(path(run) + "/checkpoints", step, items, metadata, {});
  }
};

bool begins(const std::string& name, const std::string& prefix) { return name.starts_with(prefix); }

/// Puts the boxes whose names begin with `prefix` together, by parameter. Values of which there is
/// Returns the place of a box in the tensor that it is cut from; `part` has its shape.
at::Tensor place_of(const NamedBox& box, const at::Tensor& whole, const at::Tensor& part) {
  at::Tensor place = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    place = place.narrow(dim, box.begin[d], part.size(dim));
  }
  return place;
}

/// none are zero.
Tensors from_boxes(const Tensors& tensors, const std::string& prefix) {
  Tensors whole;
  for (const auto& [name, tensor] : tensors) {
    if (!begins(name, prefix)) continue;
    const NamedBox box = parse_named_box(name.substr(prefix.size()), "test");
    at::Tensor& all = whole[box.parameter];
    if (!all.defined()) all = at::zeros_like(tensors.at("model." + box.parameter));
    place_of(box, all, tensor).copy_(tensor);
  }
  return whole;
}

/// Cuts values by parameter into the boxes that `like` has.
void add_boxes(Tensors& to, const Tensors& whole, const Tensors& like, const std::string& prefix) {
  for (const auto& [name, tensor] : like) {
    if (!begins(name, prefix)) continue;
    const NamedBox box = parse_named_box(name.substr(prefix.size()), "test");
    to[name] = place_of(box, whole.at(box.parameter), tensor).clone();
  }
}

/// What a new member begins with where two are saved: "model.", "optimizer." and "loss_scale".
Tensors new_member(const Tensors& saved) {
  Tensors member;
  const std::string first = "member.0.";
  for (const auto& [name, tensor] : saved) {
    if (!begins(name, first) || begins(name, first + "outer.")) continue;
    const std::string own = name.substr(first.size());
    const at::Tensor& other = saved.at("member.1." + own);
    if (begins(own, "model.")) {
      member[own] = saved.at(own);
    } else if (begins(own, "optimizer.updates.")) {
      member[own] = at::minimum(tensor, other);
    } else if (begins(own, "optimizer.")) {
      member[own] = (tensor + other) / 2;
    } else {
      member[own] = tensor;  // the loss scale
    }
  }
  return member;
}

/// Expects that two checkpoints have the same bits.
void expect_same(const Values& found, const Values& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, bytes] : expected) {
    ASSERT_TRUE(found.contains(name)) << what << ": " << name;
    EXPECT_TRUE(found.at(name) == bytes) << what << ": " << name;
  }
}

const std::vector<Way> kMeshes{
    {"tensor-parallel", 4, {"parallelism.tensor_parallel_degree=2"}},
    {"pipelines with tied embeddings",
     4,
     {"parallelism.pipeline_parallel_degree=2", "training.micro_batch=1"}},
    {"FSDP", 4, kFsdp},
    {"one rank", 2, {}}};

TEST_F(MemberResumption, MembersOfOtherRanksGoOn) {
  for (const Way& from : {kMeshes[3], kMeshes[2]}) {
    const auto whole = train(from.name, kEveryThree + from.sets, from.ranks);
    expect_steps_differ(whole);
    for (const Way& way : kMeshes) {
      if (way.name == from.name) continue;
      const std::string what = from.name + " to " + way.name;
      const auto found = go_on(what, from.name, 4, kEveryThree + way.sets, way.ranks);
      // The last exchange that counts is that of step 6, with the momentum of the one of step 3.
      expect_same_losses(found, whole, 4, what);
    }
  }
}

// Until the next exchange nothing of the exchanges may change, whoever holds which value. Step 5 is
// saved by the mesh that goes on.
TEST_F(MemberResumption, ExchangesOfOtherRanksKeepTheirBits) {
  const Sets coded = kEveryThree + Sets{"low_communication.codec=i8"};
  for (const Way& from : {kMeshes[3], kMeshes[0]}) {
    train(from.name, coded + from.sets, from.ranks);
    const Tensors before = tensors(from.name, 4);
    for (const Way& way : kMeshes) {
      if (way.name == from.name) continue;
      const std::string what = from.name + " to " + way.name;
      ASSERT_EQ(go_on(what, from.name, 4, coded + way.sets, way.ranks).size(), 5u) << what;
      for (const char* kept :
           {"model.", "outer.momentum.", "member.0.outer.residual.", "member.1.outer.residual."}) {
        const Values expected = values(from.name, 4, kept);
        ASSERT_FALSE(expected.empty()) << kept;
        expect_same(values(what, 5, kept), expected, what);
      }
      const Tensors sums = from_boxes(before, "outer.sum_residual.");
      const Tensors found = from_boxes(tensors(what, 5), "outer.sum_residual.");
      ASSERT_EQ(found.size(), sums.size());
      double total = 0;
      for (const auto& [name, tensor] : sums) {
        EXPECT_TRUE(found.at(name).equal(tensor)) << what << ": " << name;
        total += tensor.abs().sum().item<double>();
      }
      EXPECT_GT(total, 0) << "nothing was rounded: the test shows nothing";
    }
  }
}

// With the mean after every step of SGD members make the steps of synchronous ranks, if each trains
// its part of the same samples, from the same values.
TEST_F(MemberResumption, MembersComeAndGoAndNoSampleIsLostOrTrainedTwice) {
  const Sets sgd{
      "optimizer.name=sgd",     "optimizer.momentum=0.0",      "optimizer.learning_rate=0.1",
      "optimizer.clip_norm=0",  "lr_scheduler.warmup_steps=0", "training.global_batch_sequences=12",
      "training.micro_batch=1", "training.steps=10",           "checkpoint.interval=2",
      "checkpoint.keep_last=0", "validation.interval=0"};
  const Sets mean{"low_communication.method=local_sgd", "low_communication.every=1"};
  const auto synchronous = train("synchronous", sgd, 1);
  expect_steps_differ(synchronous);
  const std::vector<Way> ways{{"two", 2, mean},
                              {"three", 3, mean},
                              {"two of two", 4, mean + kFsdp},
                              {"four ranks without members", 4, {}}};
  std::string from = "synchronous";
  int step = 2;
  for (const Way& way : ways) {
    const auto found = go_on(way.name, from, step, sgd + way.sets, way.ranks);
    expect_same_losses(found, synchronous, static_cast<std::size_t>(step), way.name);
    from = way.name;
    step += 2;
  }
}

TEST_F(MemberResumption, ANewMemberBeginsWithAnchorAndMeanOfOptimizers) {
  for (const char* codec : {"none", "i8"}) {
    const Sets sets = kEveryThree + Sets{fmt::format("low_communication.codec={}", codec)};
    const std::string name(codec);
    train(name, sets, 2);
    train(name + " like", sets, 3);
    Tensors hand = tensors(name, 4);
    const Tensors like = tensors(name + " like", 4);
    for (auto& [own, tensor] : new_member(hand)) hand["member.2." + own] = tensor;
    if (name != "none") {
      // All that rounding took, for the next mean over three instead of two.
      Tensors owed = from_boxes(hand, "outer.sum_residual.");
      std::erase_if(hand, [](const auto& one) { return begins(one.first, "outer.sum_residual."); });
      for (auto& [parameter, sum] : owed) {
        for (int m = 0; m < 3; ++m) {
          at::Tensor& own = hand[fmt::format("member.{}.outer.residual.{}", m, parameter)];
          if (own.defined()) sum += own;
          own = at::zeros_like(sum);
        }
        sum *= 1.5;
      }
      add_boxes(hand, owed, like, "outer.sum_residual.");
    }
    save(name + " hand", 4, hand, name + " like");
    // Saved by three members, so that these go on with every bit.
    const auto expected = train(name + " hand", sets, 3);
    const auto found = go_on(name + " three", name, 4, sets, 3);
    ASSERT_EQ(found.size(), 5u);
    ASSERT_EQ(expected.size(), 5u);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].loss, expected[i].loss) << i;
    expect_same(values(name + " three", 9, ""), values(name + " hand", 9, ""), name);
  }
}

TEST_F(MemberResumption, AMemberThatHasLeftTakesOnlyItsOwnWithIt) {
  train("three", kEveryThree, 3);
  train("like", kEveryThree, 2);
  Tensors hand = tensors("three", 4);
  std::erase_if(hand, [](const auto& one) { return begins(one.first, "member.2."); });
  save("hand", 4, hand, "like");
  train("hand", kEveryThree, 2);
  ASSERT_EQ(go_on("two", "three", 4, kEveryThree, 2).size(), 5u);
  expect_same(values("two", 9, ""), values("hand", 9, ""), "three to two");
}

TEST_F(MemberResumption, WithoutMembersTheRunGoesOnFromTheAnchor) {
  train("two", kEveryThree, 2);
  train("like", kOrdinary, 1);
  Tensors hand = new_member(tensors("two", 4));
  hand.erase("loss_scale");
  save("hand", 4, hand, "like");
  const auto expected = train("hand", kOrdinary, 1);
  const auto found = go_on("one", "two", 4, kOrdinary, 1);
  ASSERT_EQ(found.size(), 5u);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].loss, expected[i].loss) << i;
  expect_same(values("one", 9, ""), values("hand", 9, ""), "two to one");
  // Any other mesh of an ordinary run, too.
  expect_same_losses(go_on("FSDP", "two", 4, kOrdinary + Sets{"parallelism.zero_stage=3"}, 4),
                     expected, 0, "FSDP");
}

TEST_F(MemberResumption, AnOrdinaryModelBecomesTheAnchor) {
  train("one", kOrdinary, 1);
  train("like", kEveryThree, 2);
  const Tensors saved = tensors("one", 4);
  Tensors hand;
  for (const auto& [name, tensor] : saved) {
    if (begins(name, "model.")) {
      hand[name] = tensor;
      hand["outer.momentum." + name.substr(6)] = at::zeros_like(tensor);
    }
    for (int m = 0; m < 2; ++m) hand[fmt::format("member.{}.{}", m, name)] = tensor;
  }
  for (int m = 0; m < 2; ++m)
    hand[fmt::format("member.{}.loss_scale", m)] = at::zeros({3}, at::kDouble);
  save("hand", 4, hand, "like");
  train("hand", kEveryThree, 2);
  ASSERT_EQ(go_on("two", "one", 4, kEveryThree, 2).size(), 5u);
  expect_same(values("two", 9, ""), values("hand", 9, ""), "one to two");
}

// The checkpoint by hand has nothing in flight: the sum was taken there.
TEST_F(MemberResumption, AnExchangeInFlightIsFinished) {
  train("two", kStreaming, 2);
  const Tensors saved = tensors("two", 8);
  Tensors hand = saved;
  std::erase_if(hand, [](const auto& one) { return begins(one.first, "outer.difference."); });
  // The same without its sum, which must make a difference.
  save("dropped", 8, hand, "two");
  int boxes = 0;
  for (const auto& [name, sum] : saved) {
    const std::string prefix = "outer.difference.";
    if (!begins(name, prefix)) continue;
    ++boxes;
    const NamedBox box = parse_named_box(name.substr(prefix.size()), "test");
    const auto part = [&hand, &box, &sum = sum](const std::string& of) {
      at::Tensor& all = hand.at(of + box.parameter);
      all = all.clone();
      return place_of(box, all, sum);
    };
    const at::Tensor g = sum / 2;
    const at::Tensor b = part("outer.momentum.");
    b.copy_(0.9 * b + g);
    const at::Tensor a = part("model.");
    a.copy_(a - 0.7 * (g + 0.9 * b));
    for (int m = 0; m < 2; ++m) {
      const at::Tensor x = part(fmt::format("member.{}.model.", m));
      x.copy_(0.5 * x + 0.5 * a);
    }
  }
  ASSERT_GT(boxes, 1);
  save("hand", 8, hand, "two");
  const std::vector<Way> ways{{"tensor-parallel", 4, kStreaming + kMeshes[0].sets},
                              {"pipelines", 4, kStreaming + kMeshes[1].sets},
                              {"FSDP", 4, kStreaming + kFsdp},
                              {"three members", 3, kStreaming},
                              {"no members", 2, kOrdinaryTwelve}};
  for (const Way& way : ways) {
    const auto expected = go_on(way.name + " hand", "hand", 8, way.sets, way.ranks);
    const auto dropped = go_on(way.name + " dropped", "dropped", 8, way.sets, way.ranks);
    const auto found = go_on(way.name, "two", 8, way.sets, way.ranks);
    expect_same_losses(found, expected, 0, way.name);
    EXPECT_GT(std::abs(found[0].loss - dropped[0].loss), 1e-4 * found[0].loss) << way.name;
  }
}

// The exchange that began in step 6 was finished when the run resumed, or began in no member: until
// step 9 neither a checkpoint nor a run that resumes again may have it in flight.
TEST_F(MemberResumption, ARunThatResumesOnceMoreHasTheSameBits) {
  train("two", kLongOverlap, 2);
  const Sets ordinary{"training.steps=12", "training.global_batch_sequences=12",
                      "checkpoint.interval=6", "validation.interval=0"};
  train("one", ordinary, 1);
  for (const char* from : {"two", "one"}) {
    const std::string whole = fmt::format("{} to three", from);
    ASSERT_EQ(go_on(whole, from, 6, kLongOverlap, 3).size(), 6u);
    EXPECT_TRUE(values(whole, 8, "outer.difference.").empty());
    EXPECT_FALSE(values(whole, 9, "outer.difference.").empty());
    const Values expected = values(whole, 12, "");
    std::string saved = whole;
    // Each goes on with what the last one saved in its first step.
    for (const int step : {7, 8, 9, 10}) {
      const std::string again = fmt::format("{} from {}", whole, step);
      ASSERT_EQ(go_on(again, saved, step, kLongOverlap, 3).size(), 12u - step) << again;
      expect_same(values(again, 12, ""), expected, again);
      saved = again;
    }
  }
}

TEST_F(MemberResumption, StateOfAnOptimizerThatTheRunHasNotIsRefused) {
  const Sets sgd = kEveryThree + Sets{"optimizer.name=sgd", "checkpoint.interval=4"};
  train("two", sgd + Sets{"optimizer.momentum=0.9"}, 2);
  const auto refused = [&](const std::string& momentum) {
    return error_text(
        [&] { go_on("tensor-parallel", "two", 4, sgd + kMeshes[0].sets + Sets{momentum}, 4); });
  };
  EXPECT_THAT(refused("optimizer.momentum=0.0"), AllOf(HasSubstr("only in the checkpoint: member."),
                                                       HasSubstr(".optimizer.momentum_buffer.")));
  EXPECT_EQ(refused("optimizer.momentum=0.9"), "");
}

TEST_F(MemberResumption, CheckpointsThatAreNotWholeAreRefused) {
  const Sets sets = kEveryThree + Sets{"low_communication.codec=i8", "checkpoint.interval=4"};
  train("two", sets, 2);
  train("like", sets, 3);
  const Tensors saved = tensors("two", 4);
  const auto refused = [&](const Tensors& hand, const std::string& like, const Way& way) {
    save("hand", 4, hand, like);
    return error_text([&] { go_on(way.name, "hand", 4, sets + way.sets, way.ranks); });
  };
  const Way two{"two again", 2, {}};
  const Way three{"three", 3, {}};
  const Way four{"four", 4, {}};
  const Way& parallel = kMeshes[0];
  // Members that are not those of the record.
  EXPECT_THAT(refused(saved, "like", four),
              HasSubstr("has the state of 2 members, and its record says 3"));
  // A box of what rounding took is gone; it is one of many values.
  Tensors hand = saved;
  const std::string sums = "outer.sum_residual.";
  const auto box = std::find_if(hand.begin(), hand.end(), [&](const auto& one) {
    return begins(one.first, sums) && one.second.dim() == 2;
  });
  ASSERT_NE(box, hand.end());
  const auto [name, values] = *box;
  hand.erase(box);
  for (const Way& way : {three, parallel}) {
    EXPECT_THAT(refused(hand, "two", way), HasSubstr("has not all of what rounding took"))
        << way.name;
  }
  // Its name has fewer numbers than the parameter has dimensions.
  hand[name.substr(0, name.rfind(','))] = values;
  for (const Way& way : {three, parallel})
    EXPECT_THAT(refused(hand, "two", way), HasSubstr("is no part of the parameter")) << way.name;
  // What earlier versions saved says so to all.
  hand = saved;
  hand["outer.rank-0.anchor.0"] = values;
  for (const Way& way : {two, three, parallel})
    EXPECT_THAT(refused(hand, "two", way), HasSubstr("by an earlier version")) << way.name;
}

TEST(MemberBoxes, LieWithinTheirParameters) {
  const auto refused = [](const std::vector<std::int64_t>& begin,
                          const std::vector<std::int64_t>& shape) {
    return error_text([&] { check_box({"weight", begin}, shape, {4, 6}, "here"); });
  };
  EXPECT_EQ(refused({0, 0}, {4, 6}), "");
  EXPECT_EQ(refused({3, 2}, {1, 4}), "");
  EXPECT_THAT(refused({3}, {1, 4}), HasSubstr("here: a box of weight that begins at [3] and has"));
  for (const auto& begin : std::vector<std::vector<std::int64_t>>{
           {}, {3, 2, 0}, {-1, 0}, {4, 0}, {0, 3}, {0, std::numeric_limits<std::int64_t>::max()}})
    EXPECT_THAT(refused(begin, {1, 4}), HasSubstr("is no part of the parameter"));
  EXPECT_THAT(refused({0, 0}, {4}), HasSubstr("is no part of the parameter"));
}

// Members whose scales of the loss differ: a new one must not overflow at once.
TEST_F(MemberResumption, ANewMemberHasTheLeastLossScale) {
  const Sets fp16 = kEveryThree + Sets{"precision.type=fp16"};
  train("two", fp16 + Sets{"debug.fault=overflow", "debug.fault_step=2", "debug.fault_rank=1"}, 2);
  const auto scale_of = [&](const std::string& run, int step, const std::string& member) {
    return tensors(run, step).at(member + ".loss_scale")[0].item<double>();
  };
  ASSERT_EQ(scale_of("two", 4, "member.1"), scale_of("two", 4, "member.0") / 2);
  const auto three = go_on("three", "two", 4, fp16, 3);
  ASSERT_EQ(three.size(), 5u);
  EXPECT_EQ(scale_of("three", 5, "member.0"), scale_of("two", 4, "member.0"));
  EXPECT_EQ(scale_of("three", 5, "member.2"), scale_of("two", 4, "member.1"));
  const auto one = go_on("one", "two", 4, kOrdinary + Sets{"precision.type=fp16"}, 1);
  EXPECT_EQ(one.at(0).loss_scale, scale_of("two", 4, "member.1"));
}

TEST_F(MemberResumption, SaysWhatGoesOnAndWhatDoesNot) {
  const Sets coded = kEveryThree + Sets{"low_communication.codec=i8"};
  const auto record = [&](const Sets& sets, const std::string& members) {
    RunRecord record;
    record.step = 4;
    record.members = members;
    record.job = to_toml(parse_job(job(), "small.toml", sets).config);
    record.job_file = "small.toml";
    return record;
  };
  const RunRecord two = record(coded, "2 of 1 rank");
  const RunRecord ordinary = record(kOrdinary, "");
  EXPECT_EQ(describe_member_changes(two, two), "");
  EXPECT_EQ(describe_member_changes(ordinary, ordinary), "");
  EXPECT_THAT(describe_member_changes(two, record(coded, "2 of 2 ranks, tp 2")),
              AllOf(HasSubstr("2 of 1 rank at step 4 -> 2 of 2 ranks, tp 2"),
                    HasSubstr("Kept: all, with their own parameters"), Not(HasSubstr("New")),
                    Not(HasSubstr("lost")), Not(HasSubstr("owes"))));
  EXPECT_THAT(describe_member_changes(two, record(coded, "4 of 1 rank")),
              AllOf(HasSubstr("Kept: members 0 to 1"), HasSubstr("New: members 2 to 3"),
                    HasSubstr("still owes")));
  EXPECT_THAT(describe_member_changes(record(coded, "3 of 1 rank"), two),
              AllOf(HasSubstr("Gone: member 2; what they have trained in the 1 step since"),
                    HasSubstr("still owes")));
  EXPECT_THAT(describe_member_changes(two, ordinary),
              AllOf(HasSubstr("from their anchor"), HasSubstr("mean of the states"),
                    HasSubstr("lost"), HasSubstr("codec still owes")));
  EXPECT_THAT(describe_member_changes(ordinary, two),
              AllOf(HasSubstr("is the anchor of 2 members"), HasSubstr("begins with zeros")));
  EXPECT_THAT(describe_member_changes(record(kStreaming, "2 of 1 rank"),
                                      record(kStreaming, "2 of 2 ranks, tp 2")),
              HasSubstr("in flight were finished"));
  // Ranks that own other values, although there are as many.
  const Sets zero1{"parallelism.zero_stage=1"};
  EXPECT_FALSE(has_same_members(record(coded + zero1, "2 of 2 ranks, dp_shard 2"),
                                record(coded + kFsdp, "2 of 2 ranks, dp_shard 2")));
}

TEST_F(MemberResumption, TheConsoleNamesIt) {
  train("two", kEveryThree, 2);
  std::filesystem::create_directories(path("three") + "/checkpoints");
  std::filesystem::create_directory_symlink(saved("two", 4), saved("three", 4));
  ::testing::internal::CaptureStdout();
  comm::run_on_threads({.size = 3, .arena = false}, [&](const comm::Group& group) {
    RunOptions options;
    options.job = parse_job(job(), "small.toml", kEveryThree);
    options.run_directory = path("three");
    options.world = group;
    shoal::train::train(options);
  });
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("Members: 2 of 1 rank at step 4 -> 3 of 1 rank. Kept: members 0 to 1, "));
}

}  // namespace
}  // namespace shoal::train::member_resumption_test
