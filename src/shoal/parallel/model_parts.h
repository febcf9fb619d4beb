#pragma once

#include <string>

#include "shoal/base/check.h"
#include "shoal/mesh/mesh.h"
#include "shoal/nn/module.h"

namespace shoal::parallel {

/// Returns the module at `path` as an M, for a technique that replaces or divides it. Throws
/// Error(usage), in the name of `technique`, when there is none, when it is no M, and when it has
/// hooks already, which would be lost with it.
template <class M>
M& module_at(nn::Model& model, const std::string& path, const char* technique) {
  auto* found = dynamic_cast<M*>(model.find_module(path));
  SHOAL_USER_CHECK(found != nullptr && found->plain(), technique,
                   "{} is not what the model's kind has there, or has hooks already", path);
  return *found;
}

/// Sets how `parameter` lies along `axis`, and with that the box of it that this rank holds. The
/// parameter must be on the meta device.
void cut_parameter(nn::Parameter& parameter, const mesh::Mesh& mesh, mesh::Axis axis,
                   mesh::Placement placement);

}  // namespace shoal::parallel
