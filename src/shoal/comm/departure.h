#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "shoal/collective/fabric.h"

namespace shoal::comm {

/// Tells the other ranks, when the last group of this rank is gone, that its end is no failure:
/// groups without it go on. A rank that ends by an exception says nothing. `kept` lives as long.
class Departure {
 public:
  explicit Departure(std::shared_ptr<collective::Fabric> fabric, std::shared_ptr<void> kept = {})
      : fabric_(std::move(fabric)), kept_(std::move(kept)) {}
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;
  ~Departure() {
    if (std::uncaught_exceptions() == 0) fabric_->leave();
  }

 private:
  std::shared_ptr<collective::Fabric> fabric_;
  std::shared_ptr<void> kept_;
};

}  // namespace shoal::comm
