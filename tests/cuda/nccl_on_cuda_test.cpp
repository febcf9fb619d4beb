// The real NCCL, as far as one GPU goes: a communicator of one rank. Every operation is called with
// its types; what several ranks do together is tested with a stand-in (nccl_communicator_test).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "shoal/comm/nccl_communicator.h"
#include "tests/support/fake_communicator.h"

namespace shoal::comm::nccl_on_cuda_test {
namespace {

using collective::Kind;
using collective::Operation;

const at::Device kGpu(at::kCUDA, 0);

class NcclOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    nccl_ = std::make_unique<NcclCommunicator>(NcclLibrary::load(),
                                               std::make_shared<collective::FakeCommunicator>(0, 1),
                                               device_queue(kGpu), std::chrono::seconds(30));
  }

  /// What an operation of one rank makes of `input`.
  at::Tensor result(Kind kind, const at::Tensor& input, Reduction reduction = Reduction::kSum,
                    double scale = 1) {
    const at::Tensor output = at::zeros(input.sizes(), input.options());
    // Both are still being filled, in the queue of the operators.
    nccl_->run({.kind = kind,
                .type = element_type(input.scalar_type()),
                .reduction = reduction,
                .memory = collective::MemoryKind::kDevice,
                .buffer = {input.const_data_ptr(), output.data_ptr(),
                           static_cast<std::size_t>(input.numel())},
                .peer = collective::has_root(kind) ? 0 : -1,
                .scale = scale},
               Deadline::in(std::chrono::seconds(30)));
    return output;
  }

  std::unique_ptr<NcclCommunicator> nccl_;
};

TEST_F(NcclOnCuda, EveryOperationOfOneRankIsACopy) {
  const at::Tensor x = at::arange(1 << 20, at::TensorOptions(at::kFloat).device(kGpu)).add(0.5);
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                          Kind::kReduceScatter, Kind::kAllToAll, Kind::kGather, Kind::kScatter})
    EXPECT_TRUE(result(kind, x).equal(x)) << collective::name(kind);
  EXPECT_TRUE(nccl_->idle());
}

TEST_F(NcclOnCuda, EveryTypeAndReduction) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt,
                                    at::kLong, at::kChar, at::kByte}) {
    const at::Tensor x = at::arange(100, at::TensorOptions(type).device(kGpu));
    for (const Reduction reduction : {Reduction::kSum, Reduction::kProduct, Reduction::kMin,
                                      Reduction::kMax, Reduction::kAverage}) {
      if (!nccl_->carries_device_memory(Kind::kAllReduce, element_type(type), reduction)) continue;
      EXPECT_TRUE(result(Kind::kAllReduce, x, reduction).equal(x))
          << c10::toString(type) << " " << collective::name(reduction);
    }
  }
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor x = at::arange(100, at::TensorOptions(type).device(kGpu));
    EXPECT_TRUE(result(Kind::kAllReduce, x, Reduction::kPremulSum, 0.5).equal(x * 0.5))
        << c10::toString(type);
  }
}

}  // namespace
}  // namespace shoal::comm::nccl_on_cuda_test
