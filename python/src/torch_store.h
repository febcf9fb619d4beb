#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shoal/wire/key_values.h"

namespace shoal::python {

/// Lets Shoal's ranks have their rendezvous through PyTorch's store. For a TCPStore, with any
/// prefixes in front, it knows which address leads to the store's host.
class TorchStore final : public wire::KeyValues {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string wait(const std::string& key, Deadline deadline) override;
  std::vector<std::optional<std::string>> wait_all(const std::vector<std::string>& keys,
                                                   Deadline deadline,
                                                   const std::function<void()>& check) override;
  std::string address() override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace shoal::python
