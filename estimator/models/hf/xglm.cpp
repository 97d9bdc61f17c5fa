// models/xglm/modeling_xglm.py, without cross-attention's inputs.
#include "fake/checkpoint.h"
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// XGLMScaledWordEmbedding.
class ScaledEmbedding final : public Module<ScaledEmbedding>, public nn::InputEmbedding {
 public:
  ScaledEmbedding(I count, I width, std::optional<I> padding_idx)
      : Module("XGLMScaledWordEmbedding"), padding_idx_(padding_idx.value_or(-1)) {
    new_parameter("weight", {count, width});
  }
  X forward(const X& input_ids) {
    X embedded = ops::embedding(parameter(0), input_ids, padding_idx_, false, false);
    return hooked(std::move(embedded).mul(1.0));
  }

 private:
  I padding_idx_;
};

class XGLMSinusoidalPositionalEmbedding final : public Module<XGLMSinusoidalPositionalEmbedding> {
 public:
  XGLMSinusoidalPositionalEmbedding(I positions, I width) : Module("XGLMSinusoidalPositionalEmbedding"), width_(width) {
    new_buffer("weights", {positions + kOffset, width}, runtime().default_dtype);
  }
  X forward(const X& given) {
    const I batch = given.size(0), length = given.size(1);
    if (length + kOffset > buffer(0).size(0))
      throw Error("--seq: " + std::to_string(length) + " is above max_position_embeddings",
                  "at most " + std::to_string(buffer(0).size(0) - kOffset));
    X position_ids = given.add(kOffset);
    X rows = aten("index_select", {Tensor(buffer(0)), I{0}, Tensor(position_ids.view({-1}))});
    return std::move(rows).view({batch, length, width_}).detach();
  }

 private:
  static constexpr I kOffset = 2;
  I width_;
};

class XGLMAttention final : public Mixer {
 public:
  XGLMAttention(const DecoderConfig& c, I layer) : Mixer("XGLMAttention"), layer_(layer), heads_(c.heads), width_(c.hidden) {
    dropout_ = c.file.number_or("attention_dropout", 0.1);
    k_proj = &child<Linear>("k_proj", width_, width_);
    v_proj = &child<Linear>("v_proj", width_, width_);
    q_proj = &child<Linear>("q_proj", width_, width_);
    out_proj = &child<Linear>("out_proj", width_, width_);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I bsz = hidden_states.size(0), tgt_len = hidden_states.size(1), head_dim = width_ / heads_;
    X query_states = (*q_proj)(hidden_states).mul(0.125);
    X key_states = (*k_proj)(hidden_states);
    X value_states = (*v_proj)(hidden_states);
    key_states = key_states.view({bsz, tgt_len, -1, head_dim}).transpose(1, 2);
    value_states = value_states.view({bsz, tgt_len, -1, head_dim}).transpose(1, 2);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    const Dims proj_shape{bsz * heads_, -1, head_dim};
    query_states = query_states.view({bsz, tgt_len, heads_, head_dim}).transpose(1, 2);
    query_states = query_states.reshape(proj_shape);
    key_states = key_states.reshape(proj_shape);
    value_states = value_states.reshape(proj_shape);
    const I src_len = key_states.size(1);
    X attn_weights = query_states.bmm(key_states.transpose(1, 2));
    if (call.mask) {
      attn_weights = attn_weights.view({bsz, heads_, tgt_len, src_len}).add(call.mask);
      X lowest = full({}, -1e30, DType::float32);
      attn_weights = aten("maximum", {Tensor(attn_weights), Tensor(std::move(lowest))});
      attn_weights = attn_weights.view({bsz * heads_, tgt_len, src_len});
    }
    if (attn_weights.dtype() == DType::float16)
      attn_weights = attn_weights.softmax(-1, DType::float32).to(DType::float16);
    else
      attn_weights = attn_weights.softmax(-1);
    X attn_weights_reshaped = attn_weights.view({bsz, heads_, tgt_len, src_len});
    attn_weights = attn_weights_reshaped.view({bsz * heads_, tgt_len, src_len});
    X attn_probs = ops::dropout(attn_weights, dropout_, training);
    X attn_output = attn_probs.bmm(value_states);
    attn_output = attn_output.view({bsz, heads_, tgt_len, head_dim});
    attn_output = attn_output.transpose(1, 2);
    attn_output = attn_output.reshape({bsz, tgt_len, width_});
    attn_output = (*out_proj)(attn_output);
    return {attn_output, attn_weights_reshaped};
  }

 private:
  I layer_, heads_, width_;
  double dropout_;
  Linear *k_proj, *v_proj, *q_proj, *out_proj;
};

/// GradientCheckpointingLayer; the mask is a positional argument, which a reentrant checkpoint saves with the hidden states.
class XGLMDecoderLayer final : public Base {
 public:
  XGLMDecoderLayer(const DecoderConfig& c, I layer)
      : Base("XGLMDecoderLayer"),
        options_(c.options),
        dropout_(c.file.number_or("dropout", 0.1)),
        activation_dropout_(c.file.number_or("activation_dropout", 0.0)) {
    const I width = c.file.size("ffn_dim");
    self_attn_ = register_module("self_attn", std::make_shared<XGLMAttention>(c, layer));
    activation_fn = &child<Activation>("activation_fn", c.file.text_or("activation_function", "gelu"));
    if (c.file.boolean_or("add_cross_attention", false)) {
      child<XGLMAttention>("encoder_attn", c, layer);
      child<LayerNorm>("encoder_attn_layer_norm", c.hidden);
    }
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.hidden);
    fc1 = &child<Linear>("fc1", c.hidden, width);
    fc2 = &child<Linear>("fc2", width, c.hidden);
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c.hidden);
  }

  X operator()(X hidden_states, X attention_mask, Cache* cache) {
    Entered scope(*this);
    if (options_.checkpoint && training && runtime().grad_mode) {
      Region region = [this](const Tensors& inputs) { return Tensors{forward(X(inputs[0]), X(inputs[1]), nullptr)}; };
      const Tensors inputs{hidden_states, attention_mask};
      return options_.reentrant ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
    }
    X result = forward(hidden_states, attention_mask, cache);
    hidden_states.reset(), attention_mask.reset();
    return result;
  }

 private:
  using Base::forward;
  X forward(X hidden_states, const X& attention_mask, Cache* cache) {
    X residual = hidden_states, weights;
    hidden_states = (*self_attn_layer_norm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, {attention_mask, {}, {}, cache});
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*final_layer_norm)(hidden_states);
    hidden_states = (*activation_fn)((*fc1)(hidden_states));
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = (*fc2)(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    return leave(hidden_states, residual, weights);
  }

  const Options options_;
  double dropout_, activation_dropout_;
  MixerPtr self_attn_;
  Activation* activation_fn;
  LayerNorm *self_attn_layer_norm, *final_layer_norm;
  Linear *fc1, *fc2;
};

class XGLMModel final : public DecoderBody {
 public:
  explicit XGLMModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("XGLMModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("attention_heads", "the hidden size is not a multiple of the number of attention heads");
    embed_tokens = &child<ScaledEmbedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    embed_positions = &child<XGLMSinusoidalPositionalEmbedding>("embed_positions", c_->file.size("max_position_embeddings"), c_->hidden);
    layers_ = std::make_unique<Layers<XGLMDecoderLayer>>(*this, "layers", c_->layers,
                                                         [this](I i) { return std::make_shared<XGLMDecoderLayer>(*c_, i); });
    layer_norm = &child<LayerNorm>("layer_norm", c_->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X attention_mask = create_causal_mask({c_->options, inputs_embeds, cache.get()});
    X position_ids = arange(inputs_embeds.size(1));
    position_ids = position_ids.unsqueeze(0);
    X hidden_states = inputs_embeds.add((*embed_positions)(position_ids));
    hidden_states = ops::dropout(hidden_states, c_->file.number_or("dropout", 0.1), training);
    for (auto& layer : *layers_) hidden_states = (*layer)(hidden_states, attention_mask, cache.get());
    hidden_states = (*layer_norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  ScaledEmbedding* embed_tokens;
  XGLMSinusoidalPositionalEmbedding* embed_positions;
  std::unique_ptr<Layers<XGLMDecoderLayer>> layers_;
  LayerNorm* layer_norm;
};

NetworkPtr xglm(const Config& config, const Options& given) {
  Options o = given;
  o.attention = Attention::eager;  // the class has no sdpa
  DecoderForm f;
  f.prefix = "XGLM";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<XGLMModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family xglm_family{{"xglm"}, {{Task::causal_lm, "XGLMForCausalLM", xglm}, {Task::base, "XGLMModel", xglm}}};

}  // namespace
}  // namespace memest::hf
