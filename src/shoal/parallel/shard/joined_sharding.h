#pragma once

#include <algorithm>
#include <vector>

#include "shoal/parallel/data/joined_reduction.h"
#include "shoal/parallel/shard/sharding.h"

namespace shoal::parallel {

/// Several shardings of one model as one.
class JoinedSharding final : public Joined<Sharding> {
 public:
  using Joined::Joined;

  void reset_parameters(Key key) override {
    for (const auto& part : parts()) part->reset_parameters(key);
  }
  void unshard() override {
    for (const auto& part : parts()) part->unshard();
  }
  void reshard() override {
    for (const auto& part : parts()) part->reshard();
  }
  bool gathers() const override {
    return std::any_of(parts().begin(), parts().end(),
                       [](const auto& part) { return part->gathers(); });
  }
  void begin_inference() override {
    for (const auto& part : parts()) part->begin_inference();
  }
  void end_inference() override {
    for (const auto& part : parts()) part->end_inference();
  }
  void gather(const Parameters& parameters) override {
    for (const auto& part : parts()) part->gather(parameters);
  }
  void wait_for(const Parameters& parameters) override {
    for (const auto& part : parts()) part->wait_for(parameters);
  }
  void release(const Parameters& parameters) override {
    for (const auto& part : parts()) part->release(parameters);
  }
  const std::vector<schedule::ShardAction>& table() const override {
    return parts().front()->table();
  }
};

}  // namespace shoal::parallel
