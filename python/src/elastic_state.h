#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective/membership/member.h"

namespace shoal::python {

/// The tensors that a step of an elastic group changes, by name. They lie in host memory, without
/// gaps, and stay where they are.
class ElasticState {
 public:
  using Named = std::map<std::string, at::Tensor>;

  /// Throws Error(usage) for a tensor that is not such a one.
  explicit ElasticState(Named tensors);

  /// Names, types and shapes, a line each, then the bytes of all tensors.
  std::vector<std::byte> bytes() const;
  /// SHA-256 of `bytes()`, without a copy of them.
  collective::membership::Digest digest() const;
  /// Takes over the tensors of another state. Throws Error(mismatch) that names the first tensor of
  /// another name, type or shape, Error(data) where bytes are missing or left over.
  void read(std::span<const std::byte> bytes);
  void copy_from(const ElasticState& other);
  /// Throws Error(usage) where `other` has other names, types or shapes.
  void check_same_shape(const ElasticState& other) const;

 private:
  std::size_t nbytes() const;  ///< of all tensors

  Named tensors_;
  std::string header_;
};

}  // namespace shoal::python
