#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace shoal::plan {

/// An axis of the mesh. Ranks are numbered with kTensor fastest, then kContext, kShard, kReplicate
/// and kPipeline. Experts are folded into the ranks of a pipeline stage: neighbouring ranks hold
/// different experts, and kExpert x kExpertData = kReplicate x kShard x kContext x kTensor.
enum class Axis : std::uint8_t {
  kPipeline,
  kReplicate,
  kShard,
  kContext,
  kTensor,
  kExpert,
  kExpertData,
};
inline constexpr int kAxes = 7;
inline constexpr std::array<Axis, kAxes> kAllAxes{Axis::kPipeline,  Axis::kReplicate, Axis::kShard,
                                                  Axis::kContext,   Axis::kTensor,    Axis::kExpert,
                                                  Axis::kExpertData};

/// The name of an axis, as job files and the command line write it: "pp", "dp_replicate",
/// "dp_shard", "cp", "tp", "ep", "ep_data".
const char* name(Axis axis);

/// A set of axes. It names the groups of ranks that differ along these axes only.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  // A single axis is a set too: calls read along(Axis::kTensor).
  constexpr AxisSet(Axis axis) : bits_(1u << static_cast<unsigned>(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1u << static_cast<unsigned>(axis);
  }

  constexpr bool contains(Axis axis) const {
    return (bits_ >> static_cast<unsigned>(axis) & 1u) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet other) const { return from_bits(bits_ | other.bits_); }
  constexpr AxisSet operator&(AxisSet other) const { return from_bits(bits_ & other.bits_); }
  constexpr AxisSet without(AxisSet other) const { return from_bits(bits_ & ~other.bits_); }
  /// Its axes, in the order of the enumeration.
  std::vector<Axis> axes() const;
  std::string text() const;  ///< "dp_shard x cp"; "no axis"

  constexpr bool operator==(const AxisSet&) const = default;
  /// Any order, for maps.
  constexpr bool operator<(AxisSet other) const { return bits_ < other.bits_; }

 private:
  static constexpr AxisSet from_bits(unsigned bits) {
    AxisSet set;
    set.bits_ = bits;
    return set;
  }
  unsigned bits_ = 0;
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }

/// The ranks of one pipeline stage, which hold the same layers.
inline constexpr AxisSet kStageAxes{Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor};

/// The number of ranks along each axis: the arrangement of a job's ranks, for the planner, the job
/// file and the mesh alike. The names are TorchTitan's.
struct Degrees {
  std::int64_t pp = 1;            ///< pipeline stages, or ranks that hold several each
  std::int64_t dp_replicate = 1;  ///< copies of the sharded states (HSDP)
  std::int64_t dp_shard = 1;      ///< data ranks over which ZeRO and FSDP shard one copy
  std::int64_t cp = 1;            ///< ranks that cut a sequence
  std::int64_t tp = 1;            ///< ranks that cut matrices
  std::int64_t ep = 1;            ///< ranks among which experts are divided, folded into a stage

  std::int64_t dp() const { return dp_replicate * dp_shard; }
  /// The ranks of a stage.
  std::int64_t stage_ranks() const { return dp() * cp * tp; }
  std::int64_t ranks() const { return pp * stage_ranks(); }
  /// The ranks over which ZeRO shards a dense parameter: context ranks hold it too.
  std::int64_t shard_ranks() const { return dp_shard * cp; }
  /// Arranges `dp` data ranks so that ZeRO shards over `ranks` data and context ranks, and the
  /// shards are replicated over the rest. Throws Error(config) unless cp divides `ranks`, and
  /// `ranks` divides dp x cp.
  void shard_over(std::int64_t ranks, std::int64_t dp);

  std::int64_t extent(Axis axis) const;
  std::int64_t extent(AxisSet axes) const;
  bool operator==(const Degrees&) const = default;
};

/// Returns the index of `rank` along an axis.
std::int64_t coordinate(const Degrees& degrees, Axis axis, std::int64_t rank);

/// Returns the ranks that differ from `rank` along `axes` only, ascending; `rank` is among them.
/// Throws Error(internal) when `axes` mix an expert axis with one that it is folded into.
std::vector<std::int64_t> members(const Degrees& degrees, AxisSet axes, std::int64_t rank);

/// Returns a table of all ranks: their coordinates along the axes that have more than one rank, and
/// their host, `ranks_per_host` consecutive ranks each.
std::string rank_table(const Degrees& degrees, std::int64_t ranks_per_host);

/// Returns the divisors of `count` that are nearest to `value`, one below and one above it where
/// there are such: "2 or 4". Errors propose them instead of a degree that does not divide.
std::string nearest_divisors(std::int64_t count, std::int64_t value);

}  // namespace shoal::plan
