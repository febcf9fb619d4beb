#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "shoal/collective/shared_memory/host_communicator.h"
#include "tests/collective/kind_check.h"

namespace shoal::collective {

/// Float32 from wherever a test takes it.
using Take = std::function<float*(std::size_t count)>;

/// One call on float32, the same on every rank but for its priority.
struct HostCall {
  Kind kind = Kind::kAllReduce;
  std::size_t count = 0;  ///< as Buffer counts
  int root = 0;
  int priority = 0;
  int salt = 0;          ///< tells its values from those of another
  bool counted = false;  ///< an all_to_all that names its counts, which are equal: it is staged,
                         ///< wherever its memory lies
  Duration timeout{};
};

/// An operation under way.
struct Started {
  HostCall call;
  std::size_t out_count;
  const float* out;
  Handle handle;
};

/// What rank `r` puts at element `i`.
inline float value(const HostCall& call, int r, std::size_t i) {
  return static_cast<float>(r + 1) + static_cast<float>(i % 13) + static_cast<float>(call.salt);
}

inline Started begin(HostCommunicator& c, const HostCall& call, const Take& take) {
  const int me = c.rank();
  const auto n = static_cast<std::size_t>(c.size());
  const bool packed = call.kind == Kind::kReduceScatter || call.kind == Kind::kAllToAll ||
                      call.kind == Kind::kScatter;
  const bool wide =
      call.kind == Kind::kAllGather || call.kind == Kind::kGather || call.kind == Kind::kAllToAll;
  const std::size_t in_count = call.count * (packed ? n : 1);
  const std::size_t out_count = call.count * (wide ? n : 1);
  float* in = take(in_count + 1);
  float* out = take(out_count + 1);
  for (std::size_t i = 0; i < in_count; ++i) in[i] = value(call, me, i);
  for (std::size_t i = 0; i < out_count; ++i) out[i] = -1;
  const std::vector<std::size_t> counts(call.counted ? n : 0, call.count);
  return {call, out_count, out,
          c.start({.kind = call.kind,
                   .type = ElementType::kF32,
                   .buffer = {in, out, call.counted ? 0 : call.count},
                   .send_counts = counts,
                   .receive_counts = counts,
                   .peer = call.root,
                   .priority = call.priority,
                   .timeout = call.timeout})};
}

/// Compares every output of a complete operation with the definition. Returns an empty string, or
/// what is wrong.
inline std::string compare(const HostCommunicator& c, const Started& o) {
  const auto& [call, out_count, out, handle] = o;
  const int n = c.size();
  const int me = c.rank();
  const std::size_t count = call.count;
  for (std::size_t i = 0; i < out_count; ++i) {
    float want = 0;
    const std::size_t from = count > 0 ? i / count : 0;
    const std::size_t at = count > 0 ? i % count : 0;
    switch (call.kind) {
      case Kind::kReduce:
        if (me != call.root) {
          want = -1;
          break;
        }
        [[fallthrough]];
      case Kind::kAllReduce:
        for (int r = 0; r < n; ++r) want += value(call, r, i);
        break;
      case Kind::kReduceScatter:
        for (int r = 0; r < n; ++r)
          want += value(call, r, static_cast<std::size_t>(me) * count + i);
        break;
      case Kind::kBroadcast:
        want = value(call, call.root, i);
        break;
      case Kind::kScatter:
        want = value(call, call.root, static_cast<std::size_t>(me) * count + i);
        break;
      case Kind::kGather:
        want = me == call.root ? value(call, static_cast<int>(from), at) : -1;
        break;
      case Kind::kAllGather:
        want = value(call, static_cast<int>(from), at);
        break;
      case Kind::kAllToAll:
        want = value(call, static_cast<int>(from), static_cast<std::size_t>(me) * count + at);
        break;
      default:
        break;
    }
    if (out[i] != want) {
      return fmt::format("{} #{}: rank {} of {}, element {} of {} is {}, not {}", name(call.kind),
                         handle, me, n, i, out_count, out[i], want);
    }
  }
  return {};
}

/// Runs one operation: the two of them.
inline std::string check(HostCommunicator& c, const HostCall& call, const Take& take) {
  const Started one = begin(c, call, take);
  c.wait(one.handle);
  return compare(c, one);
}

}  // namespace shoal::collective
