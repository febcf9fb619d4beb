#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "shoal/parallel/data/used_parameters.h"
#include "shoal/parallel/ownership.h"
#include "shoal/parallel/shard/flat_unit.h"
#include "shoal/parallel/shard/sharding.h"

namespace shoal::parallel {
namespace {

/// One unit for the whole model; every rank has memory for everything, but of what others own it
/// uses only what the stage allows.
class ShardingByHand final : public Sharding {
 public:
  ShardingByHand(nn::Module& model, const mesh::Mesh& mesh, const ShardingOptions& options)
      : model_(model),
        stage_(options.stage),
        holders_(common_holders(model.parameters(), mesh)),
        all_(mesh.along(holders_.axes)),
        shard_(holders_.shard) {
    for (const auto& parameter : model.parameters()) {
      unit_.members.push_back({parameter, size_, parameter->tensor().numel()});
      size_ += (parameter->tensor().numel() + 15) / 16 * 16;
    }
    unit_.ranks = shard_.size();
    unit_.shard = (size_ + shard_.size() - 1) / shard_.size();
    full_ = at::zeros({unit_.size()}, at::kFloat);
    for (const FlatUnit::Member& member : unit_.members) {
      member.parameter->set_tensor(
          full_.narrow(0, member.offset, member.count).view(member.parameter->tensor().sizes()));
      const auto [begin, end] = unit_.range(member, shard_.rank());
      owned_.push_back({member.parameter, begin, end,
                        full_.narrow(0, member.offset + begin, end - begin), holders_.copies.rank(),
                        holders_.copies.size()});
    }
  }

  void begin(std::int64_t index, std::int64_t) override {
    if (stage_ == ShardStage::kParameters && index == 0) gather();
  }

  void finish() override {
    std::vector<std::shared_ptr<nn::Parameter>> trained;
    for (const OwnedRange& range : owned_)
      if (range.parameter->requires_grad()) trained.push_back(range.parameter);
    // Whole gradients are reduced and cut afterwards: simple enough to be obviously right, which is
    // what a reference is for.
    const std::vector<bool> used = agree_on_used(trained, all_);
    gradients_.clear();
    std::size_t i = 0;
    for (const OwnedRange& range : owned_) {
      if (!range.parameter->requires_grad()) continue;
      gradients_.emplace_back();
      if (!used[i++]) continue;
      const at::Tensor whole = range.parameter->gradient().contiguous().view({-1});
      all_.all_reduce(whole);
      gradients_.back() = whole.slice(0, range.begin, range.end).clone();
      if (stage_ != ShardStage::kOptimizer) range.parameter->clear_gradient();
    }
    if (stage_ == ShardStage::kParameters) release();
  }

  const std::vector<OwnedRange>& owned() const override { return owned_; }
  std::vector<at::Tensor> gradients() const override { return gradients_; }
  void end_update() override {
    if (stage_ != ShardStage::kParameters) gather();
  }

  void reset_parameters(Key key) override {
    model_.reset_parameters(key);
    if (stage_ == ShardStage::kParameters) release();
  }
  void unshard() override { gather(); }
  void reshard() override {
    if (stage_ == ShardStage::kParameters) release();
  }
  bool gathers() const override { return stage_ == ShardStage::kParameters; }
  void begin_inference() override { unshard(); }
  void end_inference() override { reshard(); }
  // All is there from begin to finish.
  void gather(const Parameters&) override {}
  void wait_for(const Parameters&) override {}
  void release(const Parameters&) override {}
  const std::vector<schedule::ShardAction>& table() const override { return table_; }

 private:
  at::Tensor shard_of(int rank) const { return full_.narrow(0, rank * unit_.shard, unit_.shard); }
  void gather() {
    for (int rank = 0; rank < shard_.size(); ++rank) shard_.broadcast(shard_of(rank), rank);
  }
  // A computation that reads a shard which the rank should not have shows as NaN.
  void release() {
    for (int rank = 0; rank < shard_.size(); ++rank)
      if (rank != shard_.rank()) shard_of(rank).fill_(std::numeric_limits<double>::quiet_NaN());
  }

  nn::Module& model_;
  ShardStage stage_;
  Holders holders_;
  comm::Group all_;
  comm::Group shard_;
  FlatUnit unit_;
  std::int64_t size_ = 0;
  at::Tensor full_;
  std::vector<OwnedRange> owned_;
  std::vector<at::Tensor> gradients_;
  std::vector<schedule::ShardAction> table_;
};

}  // namespace

std::unique_ptr<Sharding> sharding_by_hand(nn::Module& model, const mesh::Mesh& mesh,
                                           const ShardingOptions& options) {
  return std::make_unique<ShardingByHand>(model, mesh, options);
}

}  // namespace shoal::parallel
