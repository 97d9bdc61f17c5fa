// What the parameters of a model of transformers are for.
#pragma once
#include "nn/model.h"

namespace memest::hf {

/// By the modules that hold them; `head`: the path of the layer that gives logits over the vocabulary, empty where there is none.
nn::ParameterParts parameter_parts(const nn::Module& root, const std::string& head);

}  // namespace memest::hf
