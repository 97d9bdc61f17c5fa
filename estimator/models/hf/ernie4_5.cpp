// models/ernie4_5: llama with the rotary embedding in fp32, neighbours rotated.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

X rotated(const X& x, const X& cos, const X& sin) {
  X straight = x.to_float().mul(cos);
  X turned = rotate_half_interleaved(x).to_float().mul(sin);
  return std::move(straight).add(std::move(turned));
}
Pair apply_rotary_pos_emb_fp32(X q, X k, X cos, X sin) {
  const DType original_dtype = q.dtype();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  cos = aten("repeat_interleave", {Tensor(cos.slice(-1, std::nullopt, cos.size(-1) / 2)), I{2}, I{-1}});
  sin = aten("repeat_interleave", {Tensor(sin.slice(-1, std::nullopt, sin.size(-1) / 2)), I{2}, I{-1}});
  X q_embed = rotated(q, cos, sin);
  X k_embed = rotated(k, cos, sin);
  X q_cast = q_embed.to(original_dtype);
  X k_cast = k_embed.to(original_dtype);
  return leave(Pair{q_cast, k_cast}, q, k, cos, sin, q_embed, k_embed);
}

class Ernie45Attention final : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_pos_emb_fp32(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};

NetworkPtr ernie4_5(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Ernie4_5";
  f.norm_type = "Ernie4_5RMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Ernie4_5DecoderLayer";
    form.norm_type = "Ernie4_5RMSNorm";
    const bool b = c.file.boolean_or("use_bias", false);
    auto attention = std::make_shared<Ernie45Attention>(c, i, "Ernie4_5Attention", Biases{b, b, b, b});
    return make_layer(c, form, attention, make_gated_mlp("Ernie4_5MLP", c.hidden, c.intermediate, b, c.act));
  };
  f.rotary = [](const DecoderConfig& c) {
    RotaryEmbedding::Form form;
    form.cast = false;
    return std::make_shared<RotaryEmbedding>("Ernie4_5RotaryEmbedding", c.file, c.head_dim, form);
  };
  return make_decoder(config, o, std::move(f));
}
const Family ernie4_5_family{{"ernie4_5"}, {{Task::causal_lm, "Ernie4_5ForCausalLM", ernie4_5}, {Task::base, "Ernie4_5Model", ernie4_5}}};

}  // namespace
}  // namespace memest::hf
