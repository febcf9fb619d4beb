#pragma once

#include "shoal/plan/memory.h"
#include "shoal/plan/step_time.h"

namespace shoal::forecast {

// The forecast fills the planner's structs and names them on every other line.
using model::Family;
using model::Keep;
using model::MicroBatch;
using model::ModelSpec;
using model::Positions;
using plan::Cluster;
using plan::Degrees;
using plan::Device;
using plan::Efficiency;
using plan::KernelRate;
using plan::KernelWork;
using plan::Link;
using plan::MemoryPhase;
using plan::MemoryUse;
using plan::RankMemory;
using plan::Recompute;
using plan::Runtime;
using plan::StateBytes;
using plan::StepTime;
using plan::TimedKernel;
using plan::Training;

}  // namespace shoal::forecast
