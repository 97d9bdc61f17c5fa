#include "models/hf/llama_form.h"

namespace memest::hf {

DecoderForm llama_form(const std::string& prefix,
                       std::function<MixerPtr(const DecoderConfig& c, I layer, const std::string& type)> attention,
                       std::function<UnaryPtr(const DecoderConfig& c, I layer)> mlp) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  f.layer = [prefix, attention, mlp](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = prefix + "DecoderLayer";
    form.norm_type = prefix + "RMSNorm";
    MixerPtr self_attn = attention(c, i, prefix + "Attention");
    return make_layer(c, form, self_attn, mlp(c, i));
  };
  f.rotary = [prefix](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, c.head_dim); };
  return f;
}

}  // namespace memest::hf
