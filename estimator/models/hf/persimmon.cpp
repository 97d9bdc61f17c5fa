// models/persimmon.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class PersimmonAttention final : public DecoderAttention {
 public:
  PersimmonAttention(const DecoderConfig& c, I layer, I rotary_ndims)
      : DecoderAttention(c, layer, "PersimmonAttention"), rotary_ndims_(rotary_ndims) {
    query_key_value = &child<Linear>("query_key_value", c.hidden, checked_mul(c.hidden, 3));
    dense = &child<Linear>("dense", c.hidden, c.hidden);
    if (c.file.boolean_or("qk_layernorm", true)) {
      q_layernorm = &child<LayerNorm>("q_layernorm", head_dim_);
      k_layernorm = &child<LayerNorm>("k_layernorm", head_dim_);
    }
    child<Dropout>("attention_dropout", c.attention_dropout);
  }

 protected:
  void project(Frame& f) override {
    X fused_qkv = (*query_key_value)(f.hidden_states);
    {
      X split = fused_qkv.view(f.input_shape + Dims{heads_, 3, head_dim_});
      f.query = split.select(-2, 0);
      f.key = split.select(-2, 1);
      f.value = split.select(-2, 2);
    }
    if (q_layernorm) {
      f.query = (*q_layernorm)(f.query);
      f.key = (*k_layernorm)(f.key);
    }
    f.query = f.query.transpose(1, 2);
    f.value = f.value.transpose(1, 2);
    f.key = f.key.transpose(1, 2);
    f.locals = {fused_qkv};
  }
  void rotate(Frame& f, const LayerCall& call) override {
    X query_rot = leading(f.query, rotary_ndims_), query_pass = f.query.slice(-1, rotary_ndims_, std::nullopt);
    X key_rot = leading(f.key, rotary_ndims_), key_pass = f.key.slice(-1, rotary_ndims_, std::nullopt);
    std::tie(query_rot, key_rot) =
        apply_rotary_pos_emb(query_rot, key_rot, call.position_embeddings.first, call.position_embeddings.second);
    f.query = cat({query_rot, query_pass}, -1);
    f.key = cat({key_rot, key_pass}, -1);
    for (X* name : {&query_rot, &query_pass, &key_rot, &key_pass}) f.locals.push_back(std::move(*name));
  }
  X output(X attn_output) override { return (*dense)(attn_output); }

 private:
  I rotary_ndims_;
  Linear *query_key_value, *dense;
  LayerNorm *q_layernorm = nullptr, *k_layernorm = nullptr;
};

class PersimmonDecoderLayer final : public DecoderLayer {
 public:
  PersimmonDecoderLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("PersimmonDecoderLayer", c.options),
        self_attn(child<PersimmonAttention>("self_attn", c, layer, rotary_width(c.file, c.head_dim, 0.5))),
        mlp(register_module("mlp",
                            make_plain_mlp("PersimmonMLP", "dense_h_to_4h", "dense_4h_to_h", c.hidden, c.intermediate, true, c.act))),
        input_layernorm(child<LayerNorm>("input_layernorm", c.hidden)),
        post_attention_layernorm(child<LayerNorm>("post_attention_layernorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.file.number_or("hidden_dropout", 0.0))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = input_layernorm(hidden_states);
    std::tie(hidden_states, weights) = self_attn(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = post_attention_layernorm(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    hidden_states = dropout(hidden_states);
    hidden_states = hidden_states.add(residual);
    return hidden_states;
  }

 private:
  PersimmonAttention& self_attn;
  UnaryPtr mlp;
  LayerNorm &input_layernorm, &post_attention_layernorm;
  Dropout& dropout;
};

NetworkPtr persimmon(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Persimmon";
  f.norm = Norm::layer_norm;
  f.norm_type = "LayerNorm";
  f.norm_name = "final_layernorm";
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
    if (c.kv_heads != c.heads || c.heads * c.head_dim != c.hidden)
      throw c.file.error("num_attention_heads", "expected equal heads that make the hidden size");
    return std::make_shared<PersimmonDecoderLayer>(c, i);
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("PersimmonRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5));
  };
  return make_decoder(config, o, std::move(f));
}
const Family persimmon_family{{"persimmon"}, decoder_classes("Persimmon", persimmon, {Task::token_cls})};

}  // namespace
}  // namespace memest::hf
