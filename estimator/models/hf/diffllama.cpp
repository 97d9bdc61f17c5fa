// models/diffllama: two attentions with the halves of the values, the second subtracted.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class DiffLlamaAttention final : public Mixer {
 public:
  DiffLlamaAttention(const DecoderConfig& c, I layer)
      : Mixer("DiffLlamaAttention"), options_(c.options), layer_(layer), head_dim_(c.head_dim), groups_(c.heads / c.kv_heads) {
    if (c.attention_dropout > 0) throw c.file.error("attention_dropout", "DiffLlama does not support a dropout of its attention");
    if (c.kv_heads % 2 != 0)
      throw c.file.error("num_key_value_heads", "DiffLlama needs an even number, found " + std::to_string(c.kv_heads));
    const bool b = c.attention_bias;
    q_proj = &child<Linear>("q_proj", c.hidden, c.heads * head_dim_, b);
    k_proj = &child<Linear>("k_proj", c.hidden, c.kv_heads * head_dim_, b);
    v_proj = &child<Linear>("v_proj", c.hidden, c.kv_heads * head_dim_, b);
    o_proj = &child<Linear>("o_proj", c.heads * head_dim_, c.hidden, b);
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) new_parameter(name, {head_dim_});
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, 2), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = (*q_proj)(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = (*k_proj)(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = (*v_proj)(hidden_states).view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    X value_states1, value_states2;
    {
      std::vector<X> halves = value_states.chunk(2, 1);
      value_states1 = aten("repeat", {Tensor(halves[0]), list_of(Dims{1, 2, 1, 1})});
      value_states2 = aten("repeat", {Tensor(halves[1]), list_of(Dims{1, 2, 1, 1})});
    }
    const AttentionCall arguments{.mask = call.mask, .groups = groups_, .dropout = 0.0, .training = training};
    auto [attn_output1, attn_weights] = attention_interface(options_, query_states, key_states, value_states1, arguments);
    auto [attn_output2, other_weights] = attention_interface(options_, query_states, key_states, value_states2, arguments);
    X attn_output = cat({attn_output1, attn_output2}, -1);
    {
      std::vector<X> parts = attn_output.chunk(2, 2);
      attn_output1 = parts[0];
      attn_output2 = parts[1];
    }
    X lambda_1 = lambda(0, query_states.dtype());
    X lambda_2 = lambda(2, query_states.dtype());
    X lambda_full = lambda_1.sub(lambda_2).add(0.5);
    X scaled = lambda_full.mul(attn_output2);
    attn_output = attn_output1.sub(std::move(scaled));
    {
      Entered norm(*groupnorm_);
      scaled = aten("rms_norm", {Tensor(attn_output), list_of(Dims{2 * head_dim_})});
    }
    attn_output = std::move(scaled).mul(0.5);
    attn_output = attn_output.reshape(input_shape + Dims{-1});
    attn_output = (*o_proj)(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  /// torch.exp(torch.sum(q * k, dim=-1, dtype=torch.float32)).to(dtype)
  X lambda(std::size_t first, DType dtype) const {
    X product = X(parameter(first)).mul(X(parameter(first + 1)));
    X sum = ops::sum_dim(std::move(product), Dims{-1}, false, DType::float32);
    return std::move(sum).exp().to(dtype);
  }
  class GroupNorm final : public Base {
   public:
    GroupNorm() : Base("RMSNorm") {}
  };

  const Options options_;
  I layer_, head_dim_, groups_;
  Linear *q_proj, *k_proj, *v_proj, *o_proj;
  std::shared_ptr<GroupNorm> groupnorm_ = register_module("groupnorm", std::make_shared<GroupNorm>());
};

NetworkPtr diffllama(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "DiffLlama";
  f.norm_type = "DiffLlamaRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "DiffLlamaDecoderLayer";
    form.norm_type = "DiffLlamaRMSNorm";
    return make_layer(c, form, std::make_shared<DiffLlamaAttention>(c, i),
                      make_gated_mlp("DiffLlamaMLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("DiffLlamaRotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family diffllama_family{{"diffllama"}, decoder_classes("DiffLlama", diffllama)};

}  // namespace
}  // namespace memest::hf
