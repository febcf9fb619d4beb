#include "shoal/collective/operation.h"

namespace shoal::collective {

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kReduce:
      return "reduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kGather:
      return "gather";
    case Kind::kScatter:
      return "scatter";
    case Kind::kSend:
      return "send";
    case Kind::kReceive:
      return "recv";
    case Kind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

const char* name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kAverage:
      return "avg";
    case Reduction::kBitAnd:
      return "bitwise_and";
    case Reduction::kBitOr:
      return "bitwise_or";
    case Reduction::kBitXor:
      return "bitwise_xor";
    case Reduction::kPremulSum:
      return "premul_sum";
  }
  return "unknown";
}

}  // namespace shoal::collective
