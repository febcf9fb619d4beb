#include "shoal/model/tensor_division.h"

namespace shoal::model {

using enum Boundary;

double parts_at(Boundary boundary, double ranks) {
  return boundary == kStream || boundary == kFeatures ? ranks : 1;
}

DividedLinear DividedLinear::rows() { return {kReplicate, kReplicate, kFeatures, kFeatures}; }
DividedLinear DividedLinear::columns() { return {kFeatures, kFeatures, kPartial, kStream}; }

}  // namespace shoal::model
