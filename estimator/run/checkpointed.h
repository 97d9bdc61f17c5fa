// The model's forward with parts of it checkpointed.
#pragma once
#include "nn/model.h"
#include "run/options.h"

namespace memest::run {

/// Wraps the modules that modules=GLOB names or every=K means, as torch's CheckpointWrapper does. Call once, before the first forward.
/// Throws Error where the model has no such parts.
void wrap_checkpointed(nn::Model& model, const Checkpointing& checkpointing);
/// Throws Error where the model has no parts that the option could mean.
nn::Outcome run_checkpointed(nn::Model& model, const Checkpointing& checkpointing, const Tensors& batch);

}  // namespace memest::run
