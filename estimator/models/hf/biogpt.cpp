// models/biogpt/modeling_biogpt.py.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// BioGptScaledWordEmbedding.
class ScaledEmbedding final : public Module<ScaledEmbedding>, public nn::InputEmbedding {
 public:
  ScaledEmbedding(I count, I width, std::optional<I> padding_idx)
      : Module("BioGptScaledWordEmbedding"), padding_idx_(padding_idx.value_or(-1)) {
    new_parameter("weight", {count, width});
  }
  X forward(const X& input_ids) {
    X embedded = ops::embedding(parameter(0), input_ids, padding_idx_, false, false);
    return hooked(std::move(embedded).mul(1.0));
  }

 private:
  I padding_idx_;
};

class BioGptLearnedPositionalEmbedding final : public Module<BioGptLearnedPositionalEmbedding> {
 public:
  BioGptLearnedPositionalEmbedding(I count, I width) : Module("BioGptLearnedPositionalEmbedding") {
    new_parameter("weight", {count + kOffset, width});
  }
  X forward(const X& position_ids) { return ops::embedding(parameter(0), position_ids.add(kOffset), -1, false, false); }

 private:
  static constexpr I kOffset = 2;
};

/// eager_attention_forward of biogpt: the softmax keeps the scores' type.
Pair biogpt_eager_attention_forward(const X& query, const X& key, const X& value, const AttentionCall& call) {
  X attn_weights = query.matmul(key.transpose(2, 3)).mul(1.0);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}

class BioGptAttention final : public DecoderAttention {
 public:
  BioGptAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "BioGptAttention") {
    dropout_ = c.file.number_or("attention_probs_dropout_prob", 0.1);
    k_proj_ = &child<Linear>("k_proj", c.hidden, c.hidden);
    v_proj_ = &child<Linear>("v_proj", c.hidden, c.hidden);
    q_proj_ = &child<Linear>("q_proj", c.hidden, c.hidden);
    o_proj_ = &child<Linear>("out_proj", c.hidden, c.hidden);
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
    f.key = (*k_proj_)(f.hidden_states);
    f.value = (*v_proj_)(f.hidden_states);
    f.key = f.key.view(f.hidden_shape).transpose(1, 2);
    f.value = f.value.view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame&, const LayerCall&) override {}
  Pair attend(Frame& f, AttentionCall call) override {
    return options_.attention == Attention::sdpa ? sdpa_attention_forward(f.query, f.key, f.value, std::move(call))
                                                 : biogpt_eager_attention_forward(f.query, f.key, f.value, call);
  }
};

class BioGptDecoderLayer final : public DecoderLayer {
 public:
  BioGptDecoderLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("BioGptDecoderLayer", c.options),
        dropout_(c.file.number_or("hidden_dropout_prob", 0.1)),
        activation_dropout_(c.file.number_or("activation_dropout", 0.0)) {
    self_attn_ = register_module("self_attn", std::make_shared<BioGptAttention>(c, layer));
    activation_fn = &child<Activation>("activation_fn", c.file.text_or("hidden_act", "gelu"));
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.hidden);
    fc1 = &child<Linear>("fc1", c.hidden, c.file.size("intermediate_size"));
    fc2 = &child<Linear>("fc2", c.intermediate, c.hidden);
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*self_attn_layer_norm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*final_layer_norm)(hidden_states);
    hidden_states = (*fc1)(hidden_states);
    hidden_states = (*activation_fn)(hidden_states);
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = (*fc2)(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    return leave(hidden_states, residual, weights);
  }

 private:
  double dropout_, activation_dropout_;
  MixerPtr self_attn_;
  Activation* activation_fn;
  LayerNorm *self_attn_layer_norm, *final_layer_norm;
  Linear *fc1, *fc2;
};

class BioGptModel final : public DecoderBody {
 public:
  explicit BioGptModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("BioGptModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    embed_tokens = &child<ScaledEmbedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    embed_positions = &child<BioGptLearnedPositionalEmbedding>("embed_positions", c_->file.size("max_position_embeddings"), c_->hidden);
    layers_ = add_layers("layers", c_->layers, [this](I i) { return std::make_shared<BioGptDecoderLayer>(*c_, i); });
    layer_norm = &child<LayerNorm>("layer_norm", c_->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X attention_mask = ones({inputs_embeds.size(0), inputs_embeds.size(1)}, DType::float32);
    X causal_mask = create_causal_mask(
        {.options = c_->options, .inputs_embeds = inputs_embeds, .cache = cache.get(), .attention_mask = attention_mask});
    X position_ids = default_position_ids(inputs_embeds);
    X positions = (*embed_positions)(position_ids);
    X hidden_states = inputs_embeds.add(positions);
    hidden_states = ops::dropout(hidden_states, c_->file.number_or("hidden_dropout_prob", 0.1), training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
    hidden_states = (*layer_norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  ScaledEmbedding* embed_tokens;
  BioGptLearnedPositionalEmbedding* embed_positions;
  std::vector<DecoderLayerPtr> layers_;
  LayerNorm* layer_norm;
};

NetworkPtr biogpt(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "BioGpt";
  f.base_prefix = "biogpt";
  f.head_name = "output_projection";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<BioGptModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family biogpt_family{{"biogpt"}, decoder_classes("BioGpt", biogpt)};

}  // namespace
}  // namespace memest::hf
