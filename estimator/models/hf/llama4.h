// What Llama 4's model of images and text takes from its text model's file.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// Llama4ForCausalLM or Llama4TextModel of a text_config.
NetworkPtr make_llama4_text(const Config& config, const Options& options);

}  // namespace memest::hf
