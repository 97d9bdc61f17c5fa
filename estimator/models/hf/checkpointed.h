// GradientCheckpointingLayer (modeling_layers.py) of layers that are called in their own way.
#pragma once
#include "fake/checkpoint.h"
#include "models/hf/options.h"

namespace memest::hf {

inline bool checkpoints(const Options& options, bool training) { return options.checkpoint && training && runtime().grad_mode; }
/// `positional`: the tensors that are positional arguments. A reentrant checkpoint saves these; what comes by keyword lives as long as its
/// node does, and gets no gradients.
inline X checkpointed(const Options& options, Region region, const Tensors& positional) {
  return options.reentrant ? checkpoint_reentrant(std::move(region), positional)[0] : checkpoint(std::move(region), positional)[0];
}

}  // namespace memest::hf
