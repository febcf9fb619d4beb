#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "shoal/collective/codec/coding.h"
#include "shoal/collective/route/route_mode.h"
#include "shoal/model/kept_activations.h"
#include "shoal/model/model_spec.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::train {

// Keys of a job file that take one of a few words are enumerations. ChoiceNames has the words of
// each: parsing, printing and the reference page use no others.

enum class DataKind { kTokens, kDigits, kCsv, kRegression };
enum class DataPreparation { kNothing, kHeaders, kFiles };
enum class TokenizerChoice { kBpe, kByte, kModel };
enum class TableTask { kClassification, kRegression };
enum class LossKind { kAuto, kCrossEntropy, kMeanSquaredError, kMeanAbsoluteError };
enum class OptimizerKind { kAdamW, kSgd };
/// kAuto is a choice of precision.type alone, and kFp16 of weights alone.
enum class Precision { kFp32, kBf16, kFp16, kAuto };
enum class SchedulerKind { kConstant, kLinear, kCosine, kWarmupStableDecay };
/// The kind of device on which ranks compute.
enum class DeviceKind { kCpu, kCuda };
enum class Transport { kAuto, kSharedMemory, kTcp, kMpi };
/// How context-parallel ranks compute attention: keys and values travel, or columns become heads.
enum class ContextParallelMethod { kRing, kHeads };
/// The quantity that is as even as possible between the stages of a pipeline.
enum class StagesBy { kCost, kCount };
/// How data-parallel members that exchange no gradients bring their parameters together.
enum class LowCommunication { kNone, kLocalSgd, kDiLoCo, kStreamingDiLoCo };
/// A codec gives a value between two of its codes one of them.
enum class CodecRounding { kNearest, kRandom };
/// Members of an elastic group divide the samples of a round like this.
enum class MemberShares { kEven, kBySpeed };
/// Members of an elastic group that have lost the majority of the keepers do this.
enum class OnQuorumLoss { kStop, kSurvivors };
enum class ShardUnits { kBlock, kSize, kNames, kModel };
using RecomputeMode = model::RecomputePolicy::Mode;
enum class Fault { kNone, kError, kExit, kKill, kStop, kNan, kOverflow, kFlip };

/// Holds the words of a job file for the enumerators of E, in their order.
template <class E>
struct ChoiceNames;

template <>
struct ChoiceNames<model::Family> {
  static constexpr std::array names{"transformer", "mlp"};
};
template <>
struct ChoiceNames<model::Positions> {
  static constexpr std::array names{"learned", "rotary"};
};
template <>
struct ChoiceNames<model::Norm> {
  static constexpr std::array names{"layer", "rms"};
};
template <>
struct ChoiceNames<model::Activation> {
  static constexpr std::array names{"relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};
};
template <>
struct ChoiceNames<model::RouterScore> {
  static constexpr std::array names{"softmax", "sigmoid"};
};
template <>
struct ChoiceNames<DataKind> {
  static constexpr std::array names{"tokens", "digits", "csv", "regression"};
};
template <>
struct ChoiceNames<DataPreparation> {
  static constexpr std::array names{"nothing", "headers", "files"};
};
template <>
struct ChoiceNames<TokenizerChoice> {
  static constexpr std::array names{"bpe", "byte", "model"};
};
template <>
struct ChoiceNames<TableTask> {
  static constexpr std::array names{"classification", "regression"};
};
template <>
struct ChoiceNames<LossKind> {
  static constexpr std::array names{"auto", "cross_entropy", "mean_squared_error",
                                    "mean_absolute_error"};
};
template <>
struct ChoiceNames<OptimizerKind> {
  static constexpr std::array names{"adamw", "sgd"};
};
template <>
struct ChoiceNames<Precision> {
  static constexpr std::array names{"fp32", "bf16", "fp16", "auto"};
};
template <>
struct ChoiceNames<SchedulerKind> {
  static constexpr std::array names{"constant", "linear", "cosine", "wsd"};
};
template <>
struct ChoiceNames<DeviceKind> {
  static constexpr std::array names{"cpu", "cuda"};
};
template <>
struct ChoiceNames<Transport> {
  static constexpr std::array names{"auto", "shared_memory", "tcp", "mpi"};
};
template <>
struct ChoiceNames<wire::TlsMode> {
  static constexpr std::array names = wire::kTlsModes;
};
template <>
struct ChoiceNames<collective::RouteMode> {
  static constexpr std::array names = collective::kRouteModes;
};
template <>
struct ChoiceNames<ContextParallelMethod> {
  static constexpr std::array names{"ring", "heads"};
};
template <>
struct ChoiceNames<StagesBy> {
  static constexpr std::array names{"cost", "count"};
};
template <>
struct ChoiceNames<LowCommunication> {
  static constexpr std::array names{"none", "local_sgd", "diloco", "streaming_diloco"};
};
template <>
struct ChoiceNames<collective::Codec> {
  static constexpr std::array names = collective::kCodecNames;
};
template <>
struct ChoiceNames<CodecRounding> {
  static constexpr std::array names{"nearest", "random"};
};
template <>
struct ChoiceNames<MemberShares> {
  static constexpr std::array names{"even", "by_speed"};
};
template <>
struct ChoiceNames<OnQuorumLoss> {
  static constexpr std::array names{"stop", "survivors"};
};
template <>
struct ChoiceNames<ShardUnits> {
  static constexpr std::array names{"block", "size", "names", "model"};
};
template <>
struct ChoiceNames<RecomputeMode> {
  static constexpr std::array names{"none", "full", "every_k", "selective", "budget"};
};
template <>
struct ChoiceNames<Fault> {
  static constexpr std::array names{"none", "error", "exit",     "kill",
                                    "stop", "nan",   "overflow", "flip"};
};

template <class E>
concept JobChoice = requires {
  ChoiceNames<E>::names.size();
};

template <JobChoice E>
constexpr const char* name_of(E value) {
  return ChoiceNames<E>::names[static_cast<std::size_t>(value)];
}

/// Returns the enumerator of this name; empty when E has none.
template <JobChoice E>
constexpr std::optional<E> find_choice(std::string_view name) {
  const auto& names = ChoiceNames<E>::names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<E>(found - names.begin());
}

}  // namespace shoal::train
