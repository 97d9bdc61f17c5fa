// models/opt/modeling_opt.py.
#include "models/hf/decoder.h"
#include "models/hf/release.h"

namespace memest::hf {
namespace {

/// OPTLearnedPositionalEmbedding: an embedding with two rows more, which skips the first two.
class OPTLearnedPositionalEmbedding final : public Module<OPTLearnedPositionalEmbedding> {
 public:
  OPTLearnedPositionalEmbedding(I count, I width) : Module("OPTLearnedPositionalEmbedding") {
    new_parameter("weight", {count + kOffset, width});
  }
  X forward(const X& position_ids) { return ops::embedding(parameter(0), position_ids.add(kOffset), -1, false, false); }

 private:
  static constexpr I kOffset = 2;
};

class OPTAttention final : public DecoderAttention {
 public:
  OPTAttention(const DecoderConfig& c, I layer, bool bias) : DecoderAttention(c, layer, "OPTAttention") {
    k_proj_ = &child<Linear>("k_proj", c.hidden, c.hidden, bias);
    v_proj_ = &child<Linear>("v_proj", c.hidden, c.hidden, bias);
    q_proj_ = &child<Linear>("q_proj", c.hidden, c.hidden, bias);
    o_proj_ = &child<Linear>("out_proj", c.hidden, c.hidden, bias);
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states);
    if (!has_own_sdpa()) f.query = std::move(f.query).mul(0.125);
    f.query = f.query.view(f.hidden_shape).transpose(1, 2);
    f.key = (*k_proj_)(f.hidden_states);
    f.value = (*v_proj_)(f.hidden_states);
    f.key = f.key.view(f.hidden_shape).transpose(1, 2);
    f.value = f.value.view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame&, const LayerCall&) override {}
  Pair attend(Frame& f, AttentionCall call) override {
    if (!has_own_sdpa()) return DecoderAttention::attend(f, std::move(call));
    X attn_output = aten("scaled_dot_product_attention",
                         {Tensor(f.query), Tensor(f.key), Tensor(f.value), to_value(Tensor(call.mask)), call.dropout, !call.mask});
    attn_output = attn_output.transpose(1, 2).contiguous();
    return {attn_output, {}};
  }

 private:
  /// OPTSdpaAttention, which leaves the scale to the kernel.
  bool has_own_sdpa() const { return options_.attention == Attention::sdpa && release().opt_has_own_sdpa(); }
};

class OPTDecoderLayer final : public DecoderLayer {
 public:
  OPTDecoderLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("OPTDecoderLayer", c.options),
        before_(c.file.boolean_or("do_layer_norm_before", true)),
        dropout_(c.file.number_or("dropout", 0.1)) {
    const bool bias = c.file.boolean_or("enable_bias", true), affine = c.file.boolean_or("layer_norm_elementwise_affine", true);
    const I width = c.file.size("ffn_dim");
    self_attn_ = register_module("self_attn", std::make_shared<OPTAttention>(c, layer, bias));
    activation_fn = &child<Activation>("activation_fn", c.file.text_or("activation_function", "relu"));
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.hidden, 1e-5, affine);
    fc1 = &child<Linear>("fc1", c.hidden, width, bias);
    fc2 = &child<Linear>("fc2", width, c.hidden, bias);
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c.hidden, 1e-5, affine);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    if (before_) hidden_states = (*self_attn_layer_norm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    if (!before_) hidden_states = (*self_attn_layer_norm)(hidden_states);
    const Dims hidden_states_shape = hidden_states.sizes();
    hidden_states = hidden_states.reshape({-1, hidden_states.size(-1)});
    residual = hidden_states;
    if (before_) hidden_states = (*final_layer_norm)(hidden_states);
    hidden_states = (*fc1)(hidden_states);
    hidden_states = (*activation_fn)(hidden_states);
    hidden_states = (*fc2)(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states).view(hidden_states_shape);
    if (!before_) hidden_states = (*final_layer_norm)(hidden_states);
    return leave(hidden_states, residual, weights);
  }

 private:
  bool before_;
  double dropout_;
  MixerPtr self_attn_;
  Activation* activation_fn;
  LayerNorm *self_attn_layer_norm, *final_layer_norm;
  Linear *fc1, *fc2;
};

/// A body whose forward makes positions of its own where the call gives none.
class OwnPositions : public DecoderBody {
 public:
  using DecoderBody::DecoderBody;

 protected:
  /// The call's position_ids; undefined where it has none: those of a text without tokens have no length.
  X given_position_ids() const {
    X position_ids = default_position_ids(X(empty({1, 0, 0}, DType::float32)));
    return position_ids.size(-1) > 0 ? position_ids : X();
  }
};

class OPTDecoder final : public OwnPositions {
 public:
  explicit OPTDecoder(std::shared_ptr<const DecoderConfig> config) : OwnPositions("OPTDecoder"), c_(std::move(config)) {
    const I width = c_->file.size_or("word_embed_proj_dim", c_->hidden);
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, width, c_->file.integer_if("pad_token_id"));
    embed_positions = &child<OPTLearnedPositionalEmbedding>("embed_positions", c_->file.size("max_position_embeddings"), c_->hidden);
    if (width != c_->hidden) {
      project_out = &child<Linear>("project_out", c_->hidden, width, false);
      project_in = &child<Linear>("project_in", width, c_->hidden, false);
    }
    if (c_->file.boolean_or("do_layer_norm_before", true) && !c_->file.boolean_or("_remove_final_layer_norm", false))
      final_layer_norm =
          &child<LayerNorm>("final_layer_norm", c_->hidden, 1e-5, c_->file.boolean_or("layer_norm_elementwise_affine", true));
    layers_ = add_layers("layers", c_->layers, [this](I i) { return std::make_shared<OPTDecoderLayer>(*c_, i); });
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    const I past_seen_tokens = cache ? cache->seen() : 0;
    X position_attention_mask;
    if (const bool given = cache && cache->prepared.full && *cache->prepared.full; !given)
      position_attention_mask = ones({inputs_embeds.size(0), past_seen_tokens + inputs_embeds.size(1)}, DType::float32);
    X position_ids = given_position_ids();
    if (!position_ids) {
      position_ids = aten("cumsum", {Tensor(position_attention_mask), I{1}});
      position_ids = position_ids.mul(position_attention_mask).sub(1).to(DType::int64);
      position_ids = position_ids.slice(1, past_seen_tokens, std::nullopt);
    }
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get()});
    X pos_embeds = (*embed_positions)(position_ids);
    if (project_in) inputs_embeds = (*project_in)(inputs_embeds);
    X hidden_states = inputs_embeds.add(pos_embeds);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
    if (final_layer_norm) hidden_states = (*final_layer_norm)(hidden_states);
    if (project_out) hidden_states = (*project_out)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  OPTLearnedPositionalEmbedding* embed_positions;
  Linear *project_in = nullptr, *project_out = nullptr;
  LayerNorm* final_layer_norm = nullptr;
  std::vector<DecoderLayerPtr> layers_;
};

class OPTModel final : public OwnPositions {
 public:
  explicit OPTModel(const std::shared_ptr<const DecoderConfig>& c)
      : OwnPositions("OPTModel"), c_(c), decoder_(register_module("decoder", std::make_shared<OPTDecoder>(c))) {
    if (c->hidden % c->heads != 0)
      throw c->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    return (*decoder_)(std::move(input_ids), given_position_ids(), new_cache(*c_, training));
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<OPTDecoder> decoder_;
};

NetworkPtr opt(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "OPT";
  f.embedding_name = "decoder.embed_tokens";
  f.head_width = [](const DecoderConfig& c) { return c.file.size_or("word_embed_proj_dim", c.hidden); };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) { return std::make_shared<OPTModel>(c); };
  return make_decoder(config, o, std::move(f));
}
const Family opt_family{{"opt"}, decoder_classes("OPT", opt, {Task::question_answering})};

}  // namespace
}  // namespace memest::hf
