// models/esmc/modeling_esmc.py.
#include "models/hf/loss.h"
#include "models/hf/rotary_encoder.h"

namespace memest::hf {
namespace {

/// EsmcLayerNorm: gives back its input's type.
class EsmcLayerNorm final : public Unary {
 public:
  explicit EsmcLayerNorm(I width, bool bias = true) : Unary("EsmcLayerNorm"), width_(width) {
    new_parameter("weight", {width});
    new_parameter("bias", {width}, bias);
    has_bias_ = bias;
  }

 protected:
  X forward(X hidden_states) override {
    const Tensor bias = has_bias_ ? Tensor(parameter(1)) : Tensor();
    return X(ops::layer_norm(hidden_states, Dims{width_}, parameter(0), bias, 1e-5, true)).to(hidden_states.dtype());
  }

 private:
  I width_;
  bool has_bias_;
};

class EsmcAttention final : public Mixer {
 public:
  explicit EsmcAttention(const EncoderConfig& c)
      : Mixer("EsmcAttention"),
        attend_(c.options.attention == Attention::eager ? bert_eager_attention_forward : sdpa_attention_forward),
        head_dim_(c.file.size_or("head_dim", c.head_dim)),
        dropout_(c.attention_dropout) {
    const I kv_heads = c.file.size_or("num_key_value_heads", c.heads);
    if (kv_heads != c.heads) throw c.file.error("num_key_value_heads", "expected the " + std::to_string(c.heads) + " attention heads");
    const bool bias = c.file.boolean_or("attention_bias", false);
    q_proj = &child<Linear>("q_proj", c.hidden, c.heads * head_dim_, bias);
    k_proj = &child<Linear>("k_proj", c.hidden, c.heads * head_dim_, bias);
    v_proj = &child<Linear>("v_proj", c.hidden, c.heads * head_dim_, bias);
    o_proj = &child<Linear>("o_proj", c.heads * head_dim_, c.hidden, bias);
    q_norm = &child<EsmcLayerNorm>("q_norm", c.hidden, false);
    k_norm = &child<EsmcLayerNorm>("k_norm", c.hidden, false);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = (*q_norm)((*q_proj)(hidden_states)).to(hidden_states.dtype());
    X key_states = (*k_norm)((*k_proj)(hidden_states)).to(hidden_states.dtype());
    X value_states = (*v_proj)(hidden_states);
    query_states = query_states.view(hidden_shape).transpose(1, 2);
    key_states = key_states.view(hidden_shape).transpose(1, 2);
    value_states = value_states.view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    auto [attn_output, attn_weights] =
        attend_(query_states, key_states, value_states, {.dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    X result = (*o_proj)(attn_output);
    return leave(Pair(result, attn_weights), query_states, key_states, value_states, attn_output);
  }

 private:
  Pair (*attend_)(X, X, X, AttentionCall);
  I head_dim_;
  double dropout_;
  Linear *q_proj, *k_proj, *v_proj, *o_proj;
  EsmcLayerNorm *q_norm, *k_norm;
};

class EsmcLayer final : public DecoderLayer {
 public:
  explicit EsmcLayer(const EncoderConfig& c)
      : DecoderLayer("EsmcLayer", c.options),
        self_attn(child<EsmcAttention>("self_attn", c)),
        mlp_(register_module("mlp", make_gated_mlp("EsmcMLP", c.hidden, c.intermediate, c.file.boolean_or("mlp_bias", false), c.act))),
        input_layernorm(child<EsmcLayerNorm>("input_layernorm", c.hidden)),
        post_attention_layernorm(child<EsmcLayerNorm>("post_attention_layernorm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    auto [attn_output, weights] = self_attn(input_layernorm(hidden_states), call);
    hidden_states = residual.add(attn_output.div(1.0));
    residual = hidden_states;
    hidden_states = residual.add((*mlp_)(post_attention_layernorm(hidden_states)).div(1.0));
    return leave(hidden_states, residual, attn_output, weights);
  }

 private:
  EsmcAttention& self_attn;
  UnaryPtr mlp_;
  EsmcLayerNorm &input_layernorm, &post_attention_layernorm;
};

class EsmcModel final : public EncoderBody {
 public:
  explicit EsmcModel(const EncoderConfig& c)
      : EncoderBody("EsmcModel"),
        embed_tokens(child<Embedding>("embed_tokens", c.vocab, c.hidden)),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", "EsmcRotaryEmbedding", c.file, c.file.size_or("head_dim", c.head_dim))),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<EsmcLayer>(c); }),
        norm(child<EsmcLayerNorm>("norm", c.hidden, false)) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X hidden_states = embed_tokens(input_ids);
    X position_ids = arange(hidden_states.size(1)).unsqueeze(0);
    Pair position_embeddings = rotary_emb(hidden_states, position_ids);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {{}, position_embeddings, {}});
    X output = norm(hidden_states);
    return {output, {}};
  }

 private:
  Embedding& embed_tokens;
  RotaryEmbedding& rotary_emb;
  Layers<EsmcLayer> layers_;
  EsmcLayerNorm& norm;
};

/// EsmcMaskedLMHead.
class EsmcHead final : public Unary {
 public:
  explicit EsmcHead(const EncoderConfig& c)
      : Unary("EsmcMaskedLMHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        layer_norm(child<LayerNorm>("layer_norm", c.hidden)),
        decoder(child<Linear>("decoder", c.hidden, c.vocab)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = X(ops::gelu(hidden_states, "none"));
    hidden_states = layer_norm(hidden_states);
    return decoder(hidden_states);
  }

 private:
  Linear& dense;
  LayerNorm& layer_norm;
  Linear& decoder;
};

NetworkPtr esmc(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "Esmc";
  f.base_prefix = "esmc";
  f.adjust = [](EncoderConfig& c) {
    c.act = c.file.text_or("hidden_act", "silu");
    c.attention_dropout = c.file.number_or("attention_dropout", 0.0);
    c.classifier_dropout = c.file.number_or("classifier_dropout", 0.1);
    c.is_decoder = false;
  };
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<EsmcModel>(c); };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", std::make_shared<EsmcHead>(c)}}; };
  f.language_loss = masked_lm_loss;
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("EsmcClassificationHead", c, "tanh")}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family esmc_family{
    {"esmc"},
    {{Task::masked_lm, "EsmcForMaskedLM", esmc}, {Task::seq_cls, "EsmcForSequenceClassification", esmc}, {Task::base, "EsmcModel", esmc}}};

}  // namespace
}  // namespace memest::hf
