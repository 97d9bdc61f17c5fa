// The model's forward with parts of it checkpointed.
#pragma once
#include "nn/model.h"
#include "run/options.h"

namespace memest::run {

/// Throws Error where the model has no parts that the option could mean.
nn::Outcome run_checkpointed(nn::Model& model, const Checkpointing& checkpointing, const Tensors& batch);

}  // namespace memest::run
