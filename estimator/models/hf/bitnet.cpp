// models/bitnet: llama with a norm before each output projection.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class BitNetAttention final : public DecoderAttention {
 public:
  BitNetAttention(const DecoderConfig& c, I layer, Biases biases) : DecoderAttention(c, layer, "BitNetAttention", biases) {
    attn_sub_norm_ = register_module("attn_sub_norm", make_norm(Norm::llama, c.hidden, "BitNetRMSNorm"));
  }

 protected:
  X output(X attn_output) override {
    attn_output = (*attn_sub_norm_)(attn_output);
    attn_output = (*o_proj_)(attn_output);
    return attn_output;
  }

 private:
  UnaryPtr attn_sub_norm_;
};

class BitNetMLP final : public Unary {
 public:
  explicit BitNetMLP(const DecoderConfig& c)
      : Unary("BitNetMLP"),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate, false)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, false)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, false)),
        act_fn(child<Activation>("act_fn", c.act)),
        ffn_sub_norm_(register_module("ffn_sub_norm", make_norm(Norm::llama, c.intermediate, "BitNetRMSNorm"))) {}

 protected:
  X forward(X x) override {
    X gate = act_fn(gate_proj(x));
    X gated = std::move(gate).mul(up_proj(x));
    return down_proj((*ffn_sub_norm_)(std::move(gated)));
  }

 private:
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
  UnaryPtr ffn_sub_norm_;
};

NetworkPtr bitnet(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "BitNet";
  f.norm_type = "BitNetRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    if (c.heads * c.head_dim != c.hidden)
      throw c.file.error("head_dim",
                         "the norm of the attention's output has hidden_size weights: it must be num_attention_heads * head_dim");
    LayerForm form;
    form.type = "BitNetDecoderLayer";
    form.norm_type = "BitNetRMSNorm";
    const bool b = c.attention_bias;
    return make_layer(c, form, std::make_shared<BitNetAttention>(c, i, Biases{b, b, b, b}), std::make_shared<BitNetMLP>(c));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("BitNetRotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family bitnet_family{{"bitnet"}, {{Task::causal_lm, "BitNetForCausalLM", bitnet}, {Task::base, "BitNetModel", bitnet}}};

}  // namespace
}  // namespace memest::hf
