// models/mamba: MambaModel and MambaForCausalLM, which falcon_mamba and mamba2 share.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// The class of that task: layers of a norm and a mixer. Its cache is for inference only (use_cache is false in training unless asked for).
NetworkPtr make_mamba_model(Config config, Options options, const std::string& prefix,
                            std::function<MixerPtr(const DecoderConfig& c, I layer)> mixer);

}  // namespace memest::hf
