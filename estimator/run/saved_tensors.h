// Saved tensors that hooks put elsewhere or make smaller (torch.autograd.graph.saved_tensors_hooks around the model's forward).
#pragma once
#include "fake/autograd.h"
#include "run/options.h"

namespace memest::run {

/// Bytes that hooks put on the host, now and at most.
struct HostBytes {
  Bytes now = 0, peak = 0;
};

/// The hooks of --saved-tensors; none for `kept`. `host` must outlive them and all that they packed.
Ref<SavedTensorHooks> saved_tensor_hooks(SavedTensors where, HostBytes& host);

}  // namespace memest::run
