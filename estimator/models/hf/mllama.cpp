// models/mllama/modeling_mllama.py (transformers 5.24): a decoder some of whose layers attend to the tiles of images instead of the text.
#include <algorithm>

#include "models/hf/clip_encoder.h"
#include "models/hf/loss.h"
#include "models/hf/release.h"

namespace memest::hf {
namespace {

// ---- the vision model ----------------------------------------------------------------------------------------------------------

struct MllamaVision {
  MllamaVision(const Config& c, const Options& o)
      : file(c),
        options(o),
        hidden(c.size("hidden_size")),
        intermediate(c.size("intermediate_size")),
        heads(c.size("attention_heads")),
        channels(c.size("num_channels")),
        image(square_size(c, "image_size")),
        patch(square_size(c, "patch_size")),
        tiles(c.size("max_num_tiles")),
        global_layers(c.size("num_global_layers")),
        ratios(8) {
    if (c.has("supported_aspect_ratios"))
      ratios = I(c.find("supported_aspect_ratios")->list() ? c.find("supported_aspect_ratios")->list()->size() : 0);
    indices = c.has("intermediate_layers_indices") ? c.integers("intermediate_layers_indices") : std::vector<I>{3, 7, 15, 23, 30};
    const I layers = layer_count(c);
    for (I i : indices)
      if (i < 0 || i >= layers)
        throw c.error("intermediate_layers_indices",
                      "expected indices of the " + std::to_string(layers) + " layers, found " + std::to_string(i));
    constexpr I kMost = 10'000;
    if (global_layers > kMost)
      throw c.error("num_global_layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(global_layers));
    if (hidden % heads != 0 || patch > image)
      throw c.error("hidden_size", "expected a multiple of attention_heads, and a patch_size of at most image_size");
  }
  Config file;
  Options options;
  I hidden, intermediate, heads, channels, image, patch, tiles, global_layers, ratios;
  std::vector<I> indices;
  I patches() const { return checked_add(checked_mul(image / patch, image / patch), 1); }
};

class MllamaVisionAttention final : public Base {
 public:
  explicit MllamaVisionAttention(const MllamaVision& v)
      : Base("MllamaVisionAttention"),
        options_(v.options),
        heads_(v.heads),
        head_dim_(v.hidden / v.heads),
        q_proj(child<Linear>("q_proj", v.hidden, v.hidden, false)),
        k_proj(child<Linear>("k_proj", v.hidden, v.hidden, false)),
        v_proj(child<Linear>("v_proj", v.hidden, v.hidden, false)),
        o_proj(child<Linear>("o_proj", v.hidden, v.hidden, false)) {}
  Pair operator()(X hidden_states, X attention_mask) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0), length = hidden_states.size(1);
    const Dims shape{batch_size, length, heads_, head_dim_};
    X query = q_proj(hidden_states);
    X key = k_proj(hidden_states);
    X value = v_proj(hidden_states);
    for (X* x : {&query, &key, &value}) *x = x->view(shape).transpose(1, 2);
    auto [attn_output, attn_weights] = attention_interface(options_, query, key, value, {.mask = attention_mask, .training = training});
    attn_output = attn_output.reshape({batch_size, length, -1}).contiguous();
    attn_output = o_proj(attn_output);
    hidden_states.reset();
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I heads_, head_dim_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
};

class MllamaVisionEncoderLayer final : public Base {
 public:
  MllamaVisionEncoderLayer(const MllamaVision& v, bool is_gated)
      : Base("MllamaVisionEncoderLayer"),
        is_gated_(is_gated),
        self_attn(child<MllamaVisionAttention>("self_attn", v)),
        mlp(register_module("mlp", make_clip_mlp("MllamaVisionMLP", v.hidden, v.intermediate, v.file.text("hidden_act")))),
        input_layernorm(child<LayerNorm>("input_layernorm", v.hidden)),
        post_attention_layernorm(child<LayerNorm>("post_attention_layernorm", v.hidden)) {
    new_parameter("gate_attn", {1}, is_gated);
    new_parameter("gate_ffn", {1}, is_gated);
  }
  X operator()(X hidden_states, const X& attention_mask) {
    Entered scope(*this);
    X residual = hidden_states;
    hidden_states = input_layernorm(hidden_states);
    X attn_weights;
    std::tie(hidden_states, attn_weights) = self_attn(hidden_states, attention_mask);
    if (is_gated_) hidden_states = X(parameter(0)).tanh().mul(hidden_states);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = post_attention_layernorm(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    if (is_gated_) hidden_states = X(parameter(1)).tanh().mul(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  bool is_gated_;
  MllamaVisionAttention& self_attn;
  UnaryPtr mlp;
  LayerNorm &input_layernorm, &post_attention_layernorm;
};

class MllamaVisionEncoder final : public Base {
 public:
  MllamaVisionEncoder(const MllamaVision& v, I num_layers, bool is_gated)
      : Base("MllamaVisionEncoder"),
        layers_(*this, "layers", num_layers, [&](I) { return std::make_shared<MllamaVisionEncoderLayer>(v, is_gated); }) {}
  /// The states after each layer.
  std::vector<X> operator()(X hidden_states, const X& attention_mask) {
    Entered scope(*this);
    std::vector<X> encoder_states;
    for (auto& layer : layers_) {
      hidden_states = (*layer)(hidden_states, attention_mask);
      encoder_states.push_back(hidden_states);
    }
    return encoder_states;
  }

 private:
  Layers<MllamaVisionEncoderLayer> layers_;
};

class AspectRatioEmbedding final : public Base {
 public:
  explicit AspectRatioEmbedding(const MllamaVision& v) : Base("MllamaPrecomputedAspectRatioEmbedding"), tiles_(v.tiles), hidden_(v.hidden) {
    embedding = &child<Embedding>("embedding", v.ratios + 1, checked_mul(v.tiles, v.hidden));
    new_parameter("gate", {1});
  }
  X operator()(X hidden_states, X aspect_ratio_ids) {
    Entered scope(*this);
    X embeddings = (*embedding)(aspect_ratio_ids);
    embeddings = embeddings.reshape({-1, tiles_, 1, hidden_});
    embeddings = embeddings.mul(X(parameter(0)).tanh());
    hidden_states = hidden_states.add(embeddings);
    return hidden_states;
  }

 private:
  I tiles_, hidden_;
  Embedding* embedding;
};

class PositionEmbedding final : public Base {
 public:
  explicit PositionEmbedding(const MllamaVision& v)
      : Base("MllamaPrecomputedPositionEmbedding"), tiles_(v.tiles), patches_(v.patches()), hidden_(v.hidden) {
    new_parameter("gate", {1});
    new_parameter("embedding", {patches_, hidden_});
    tile_embedding = &child<Embedding>("tile_embedding", v.ratios + 1, checked_mul(tiles_, checked_mul(patches_, hidden_)));
  }
  X operator()(X hidden_states, X aspect_ratio_ids) {
    Entered scope(*this);
    X gated_position_embedding = aten("rsub", {Tensor(X(parameter(0)).tanh()), I{1}});
    gated_position_embedding = std::move(gated_position_embedding).mul(X(parameter(1)));
    hidden_states = hidden_states.add(gated_position_embedding.view({1, 1, patches_, hidden_}));
    X tile_position_embedding = (*tile_embedding)(aspect_ratio_ids);
    tile_position_embedding = tile_position_embedding.reshape({hidden_states.size(0), tiles_, patches_, hidden_});
    X gated_tile_position_embedding = X(parameter(0)).tanh().mul(tile_position_embedding);
    hidden_states = hidden_states.add(gated_tile_position_embedding);
    return leave(std::move(hidden_states), gated_position_embedding, tile_position_embedding, gated_tile_position_embedding);
  }

 private:
  I tiles_, patches_, hidden_;
  Embedding* tile_embedding;
};

/// _prepare_aspect_ratio_attention_mask
X aspect_ratio_attention_mask(const X& aspect_ratio_mask, I target_length, DType dtype) {
  const I batch_size = aspect_ratio_mask.size(0), max_num_tiles = aspect_ratio_mask.size(1),
          length = checked_mul(max_num_tiles, target_length);
  X attention_mask = aspect_ratio_mask.view({batch_size, max_num_tiles, 1, 1}).to(dtype);
  attention_mask = aten("repeat", {Tensor(attention_mask), list_of(Dims{1, 1, target_length, 1})});
  attention_mask = aten("rsub", {Tensor(attention_mask), I{1}});
  attention_mask = attention_mask.reshape({batch_size, length, 1});
  attention_mask = attention_mask.matmul(attention_mask.transpose(-1, -2)).mul(-3e38);
  attention_mask = attention_mask.unsqueeze(1);
  return attention_mask;
}

class MllamaVisionModel final : public Base, public nn::EmbeddedModel {
 public:
  explicit MllamaVisionModel(const MllamaVision& v) : Base("MllamaVisionModel"), v_(v) {
    new_parameter("class_embedding", {v.hidden});
    patch_embedding = &child<PatchConvolution>("patch_embedding", v.channels, v.hidden, v.patch, false);
    gated_positional_embedding = &child<PositionEmbedding>("gated_positional_embedding", v);
    pre_tile_positional_embedding = &child<AspectRatioEmbedding>("pre_tile_positional_embedding", v);
    post_tile_positional_embedding = &child<AspectRatioEmbedding>("post_tile_positional_embedding", v);
    layernorm_pre = &child<LayerNorm>("layernorm_pre", v.hidden);
    layernorm_post = &child<LayerNorm>("layernorm_post", v.hidden);
    transformer = &child<MllamaVisionEncoder>("transformer", v, layer_count(v.file), false);
    global_transformer = &child<MllamaVisionEncoder>("global_transformer", v, v.global_layers, true);
  }
  nn::InputEmbedding* input_embedding() override { return patch_embedding; }
  X operator()(X pixel_values, X aspect_ratio_ids, X aspect_ratio_mask) {
    Entered scope(*this);
    const I batch_size = pixel_values.size(0), media = pixel_values.size(1), num_tiles = pixel_values.size(2), dim = v_.hidden;
    const I images = checked_mul(batch_size, media);
    pixel_values = pixel_values.reshape({images * num_tiles, v_.channels, pixel_values.size(4), pixel_values.size(5)});
    aspect_ratio_ids = aspect_ratio_ids.reshape({images, -1});
    const DType dtype = patch_embedding->dtype();
    X patch_embeds = (*patch_embedding)(pixel_values.to(dtype));
    X hidden_states = patch_embeds.flatten(2).transpose(1, 2);
    I num_patches = hidden_states.size(1);
    hidden_states = hidden_states.reshape({images, num_tiles, -1, dim});
    hidden_states = (*pre_tile_positional_embedding)(hidden_states, aspect_ratio_ids);
    hidden_states = hidden_states.reshape({images * num_tiles, num_patches, dim});
    hidden_states = with_class_embedding(hidden_states);
    num_patches += 1;
    hidden_states = hidden_states.reshape({images, num_tiles, num_patches, dim});
    hidden_states = (*gated_positional_embedding)(hidden_states, aspect_ratio_ids);
    hidden_states = (*layernorm_pre)(hidden_states);
    const I padding = (8 - num_patches % 8) % 8, length = num_patches + padding;
    hidden_states = aten("constant_pad_nd", {Tensor(hidden_states), list_of(Dims{0, 0, 0, padding}), I{0}});
    const std::optional<I> slice_index = padding > 0 ? std::optional<I>(-padding) : std::nullopt;
    X attention_mask = aspect_ratio_mask.reshape({images, -1});
    attention_mask = aspect_ratio_attention_mask(attention_mask, hidden_states.size(2), dtype);
    hidden_states = hidden_states.view({images, -1, dim});
    std::vector<X> output = (*transformer)(hidden_states, attention_mask);
    hidden_states = output.back();
    hidden_states = (*layernorm_post)(hidden_states);
    hidden_states = hidden_states.reshape({images, num_tiles, length, dim});
    hidden_states = (*post_tile_positional_embedding)(hidden_states, aspect_ratio_ids);
    hidden_states = hidden_states.reshape({images, num_tiles * length, dim});
    std::vector<X> global_output = (*global_transformer)(hidden_states, attention_mask);
    hidden_states = global_output.back();
    hidden_states = hidden_states.reshape({images, num_tiles, length, dim});
    hidden_states = hidden_states.whole_slices(2).slice(2, std::nullopt, slice_index);
    hidden_states = hidden_states.reshape({batch_size, media, num_tiles, num_patches, dim});
    std::vector<X> all_intermediate_hidden_states;
    for (I i : v_.indices) all_intermediate_hidden_states.push_back(output[std::size_t(i)]);
    X intermediate_hidden_states = stack(all_intermediate_hidden_states, -1);
    intermediate_hidden_states = intermediate_hidden_states.reshape({images, num_tiles, length, -1});
    intermediate_hidden_states = intermediate_hidden_states.whole_slices(2).slice(2, std::nullopt, slice_index);
    intermediate_hidden_states = intermediate_hidden_states.reshape({batch_size, media, num_tiles, num_patches, -1});
    hidden_states = cat({hidden_states, intermediate_hidden_states}, -1);
    return leave(std::move(hidden_states), pixel_values, aspect_ratio_ids, patch_embeds, attention_mask, intermediate_hidden_states);
  }

 private:
  X with_class_embedding(X hidden_states) {
    X class_embedding = X(parameter(0)).expand({hidden_states.size(0), 1, hidden_states.size(2)});
    hidden_states = cat({class_embedding, hidden_states}, 1);
    return hidden_states;
  }

  const MllamaVision v_;
  PatchConvolution* patch_embedding;
  PositionEmbedding* gated_positional_embedding;
  AspectRatioEmbedding *pre_tile_positional_embedding, *post_tile_positional_embedding;
  LayerNorm *layernorm_pre, *layernorm_post;
  MllamaVisionEncoder *transformer, *global_transformer;
};

// ---- the text model ------------------------------------------------------------------------------------------------------------

/// The three projections are made before their views.
class MllamaTextSelfAttention final : public DecoderAttention {
 public:
  MllamaTextSelfAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "MllamaTextSelfAttention", {}) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states);
    f.key = (*k_proj_)(f.hidden_states);
    f.value = (*v_proj_)(f.hidden_states);
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
  }
};

class MllamaTextCrossAttention final : public Mixer {
 public:
  MllamaTextCrossAttention(const DecoderConfig& c, I layer)
      : Mixer("MllamaTextCrossAttention"),
        options_(c.options),
        layer_(layer),
        heads_(c.heads),
        kv_heads_(c.kv_heads),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.heads * c.head_dim, false)),
        k_proj(child<Linear>("k_proj", c.hidden, c.kv_heads * c.head_dim, false)),
        v_proj(child<Linear>("v_proj", c.hidden, c.kv_heads * c.head_dim, false)),
        o_proj(child<Linear>("o_proj", c.heads * c.head_dim, c.hidden, false)),
        q_norm(register_module("q_norm", make_norm(Norm::llama, c.head_dim, "MllamaTextRMSNorm"))),
        k_norm(register_module("k_norm", make_norm(Norm::llama, c.head_dim, "MllamaTextRMSNorm"))) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I bsz = hidden_states.size(0), q_len = hidden_states.size(1);
    X query_states = q_proj(hidden_states);
    query_states = query_states.view({bsz, q_len, heads_, head_dim_}).transpose(1, 2);
    query_states = (*q_norm)(query_states);
    X key_states = k_proj(call.cross_attention_states);
    X value_states = v_proj(call.cross_attention_states);
    key_states = key_states.view({bsz, -1, kv_heads_, head_dim_}).transpose(1, 2);
    value_states = value_states.view({bsz, -1, kv_heads_, head_dim_}).transpose(1, 2);
    key_states = (*k_norm)(key_states);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] = attention_interface(
        options_, query_states, key_states, value_states,
        {.mask = call.cross_attention_mask, .groups = heads_ / kv_heads_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape({bsz, q_len, -1}).contiguous();
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, heads_, kv_heads_, head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  UnaryPtr q_norm, k_norm;
};

UnaryPtr make_text_mlp(const DecoderConfig& c) { return make_gated_mlp("MllamaTextMLP", c.hidden, c.intermediate, false, c.act); }

class MllamaCrossAttentionDecoderLayer final : public DecoderLayer {
 public:
  MllamaCrossAttentionDecoderLayer(const DecoderConfig& c, I layer) : DecoderLayer("MllamaCrossAttentionDecoderLayer", c.options) {
    cross_attn = register_module("cross_attn", std::make_shared<MllamaTextCrossAttention>(c, layer));
    input_layernorm = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "MllamaTextRMSNorm"));
    new_parameter("cross_attn_attn_gate", {1});
    mlp = register_module("mlp", make_text_mlp(c));
    post_attention_layernorm = register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, "MllamaTextRMSNorm"));
    new_parameter("cross_attn_mlp_gate", {1});
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm)(hidden_states);
    X attn_weights;
    std::tie(hidden_states, attn_weights) = (*cross_attn)(hidden_states, call);
    hidden_states = residual.add(X(parameter(0)).tanh().mul(hidden_states));
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm)(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    if (call.full_text_row_masked_out_mask)
      hidden_states = call.full_text_row_masked_out_mask.whole_slices(1).select(1, 0).mul(hidden_states);
    hidden_states = residual.add(X(parameter(1)).tanh().mul(hidden_states));
    return hidden_states;
  }

 private:
  MixerPtr cross_attn;
  UnaryPtr input_layernorm, mlp, post_attention_layernorm;
};

class MllamaRotaryEmbedding final : public Base {
 public:
  explicit MllamaRotaryEmbedding(I head_dim) : Base("MllamaRotaryEmbedding") {
    new_buffer("inv_freq", {head_dim / 2}, DType::float32);
    if (release().rotary_registers_original()) new_buffer("original_inv_freq", {head_dim / 2}, DType::float32);
  }
  Pair operator()(const X& x, const X& position_ids) {
    Entered scope(*this);
    X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
    X emb = cat({freqs, freqs}, -1);
    X cos = aten("cos", {Tensor(emb)}).mul(1.0);
    X sin = aten("sin", {Tensor(emb)}).mul(1.0);
    X cast_cos = cos.to(x.dtype());
    X cast_sin = sin.to(x.dtype());
    return leave(Pair(cast_cos, cast_sin), freqs, emb, cos, sin);
  }
};

/// What a call with images gives to the layers.
struct CrossAttention {
  X states, mask, row_mask;
};

class MllamaTextModel final : public DecoderBody {
 public:
  explicit MllamaTextModel(const std::shared_ptr<const DecoderConfig>& c)
      : DecoderBody("MllamaTextModel"),
        c_(c),
        cross_layers_(c->file.has("cross_attention_layers") ? c->file.integers("cross_attention_layers")
                                                            : std::vector<I>{3, 8, 13, 18, 23, 28, 33, 38}),
        embed_tokens(child<Embedding>("embed_tokens", checked_add(c->vocab, 8), c->hidden)) {
    layers_ = add_layers("layers", c->layers, [&](I i) { return make_text_layer(*c, i); });
    norm_ = register_module("norm", make_norm(Norm::llama, c->hidden, "MllamaTextRMSNorm"));
    rotary_emb = &child<MllamaRotaryEmbedding>("rotary_emb", c->head_dim);
  }
  X embed(const X& input_ids) override { return embed_tokens(input_ids); }
  CrossAttention cross;

 protected:
  std::pair<X, CachePtr> forward(X input) override {
    X inputs_embeds = embed(input);
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i) {
      if (attends_to_images(i) && !cross.states) continue;
      hidden_states = (*layers_[std::size_t(i)])(
          hidden_states, {causal_mask, position_embeddings, position_ids, cache.get(), cross.states, cross.mask, cross.row_mask});
    }
    hidden_states = (*norm_)(hidden_states);
    return {leave(std::move(hidden_states), position_ids, inputs_embeds, causal_mask), cache};
  }

 private:
  bool attends_to_images(I layer) const { return std::find(cross_layers_.begin(), cross_layers_.end(), layer) != cross_layers_.end(); }
  DecoderLayerPtr make_text_layer(const DecoderConfig& c, I layer) const {
    if (attends_to_images(layer)) return std::make_shared<MllamaCrossAttentionDecoderLayer>(c, layer);
    LayerForm form;
    form.type = "MllamaSelfAttentionDecoderLayer";
    form.norm_type = "MllamaTextRMSNorm";
    return make_layer(c, form, std::make_shared<MllamaTextSelfAttention>(c, layer), make_text_mlp(c));
  }

  std::shared_ptr<const DecoderConfig> c_;
  std::vector<I> cross_layers_;
  Embedding& embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  MllamaRotaryEmbedding* rotary_emb;
};

// ---- both ----------------------------------------------------------------------------------------------------------------------

class MllamaModel final : public ImageTextModel {
 public:
  MllamaModel(const Config& c, const Options& o) : ImageTextModel("MllamaModel", o), v_(c.section("vision_config"), o) {
    text = text_decoder(c.section("text_config"), o);
    vision_model = &child<MllamaVisionModel>("vision_model", v_);
    language_model = &child<MllamaTextModel>("language_model", text.config);
    multi_modal_projector = &child<Linear>("multi_modal_projector", v_.file.size("vision_output_dim"), text.config->hidden);
  }
  Images images() const override { return {1, v_.channels, v_.image}; }
  std::vector<nn::InputSpec> image_inputs() const override {
    auto sizes = [](std::initializer_list<const char*> list) { return std::vector<nn::SizeExpression>(list.begin(), list.end()); };
    const std::string tiles = std::to_string(v_.tiles), channels = std::to_string(v_.channels);
    return {{"pixel_values", sizes({"batch", "images", tiles.c_str(), channels.c_str(), "image", "image"}), DType::float32},
            {"aspect_ratio_ids", sizes({"batch", "images"}), DType::int64},
            {"aspect_ratio_mask", sizes({"batch", "images", tiles.c_str()}), DType::int64},
            {"cross_attention_mask", sizes({"batch", "seq", "images", tiles.c_str()}), DType::int64}};
  }

 protected:
  Output forward(const Batch& batch) override {
    X vision_outputs;
    CrossAttention cross;
    if (batch.pixel_values) {
      if (batch.pixel_values.size(4) != v_.image || batch.pixel_values.size(5) != v_.image)
        throw Error("images are cut into tiles of " + std::to_string(v_.image) + "x" + std::to_string(v_.image),
                    "--image is the size of a tile here, the config's image_size");
      vision_outputs = (*vision_model)(batch.pixel_values, argument(batch, "aspect_ratio_ids"), argument(batch, "aspect_ratio_mask"));
      cross.states = vision_outputs;
      cross.states = (*multi_modal_projector)(cross.states).reshape({-1, cross.states.size(-2), text.config->hidden});
      prepare_cross_attention_mask(cross, argument(batch, "cross_attention_mask"));
    }
    language_model->cross = cross;
    auto [last_hidden_state, cache] = (*language_model)(batch.input);
    language_model->cross = {};
    Output output{last_hidden_state, cache, {}};
    if (vision_outputs) output.image_outputs.emplace_back(Tensor(vision_outputs));
    return output;
  }

 private:
  /// _prepare_cross_attention_mask
  void prepare_cross_attention_mask(CrossAttention& cross, X cross_attention_mask) const {
    const I batch_size = cross_attention_mask.size(0), text_total_length = cross_attention_mask.size(1);
    const DType dtype = vision_model->own_parameters()[0].second.dtype();  // self.dtype: that of the first parameter
    cross_attention_mask = aten("repeat_interleave", {Tensor(cross_attention_mask), v_.patches(), I{3}});
    cross_attention_mask = cross_attention_mask.view({batch_size, text_total_length, -1});
    cross_attention_mask = cross_attention_mask.unsqueeze(1);
    X inverted_cross_attn_mask = aten("rsub", {Tensor(cross_attention_mask), 1.0});
    inverted_cross_attn_mask = std::move(inverted_cross_attn_mask).to(dtype);
    cross_attention_mask =
        aten("masked_fill", {Tensor(inverted_cross_attn_mask), Tensor(inverted_cross_attn_mask.to(DType::boolean)), -3e38});
    X some = aten("any", {Tensor(aten("ne", {Tensor(cross_attention_mask), -3e38})), I{-1}, false});
    cross.row_mask = some.to(cross_attention_mask.dtype()).unsqueeze(-1);
    some.reset();
    aten("mul_", {Tensor(cross_attention_mask), Tensor(cross.row_mask)});
    cross.mask = cross_attention_mask;
  }

  const MllamaVision v_;
  MllamaVisionModel* vision_model;
  MllamaTextModel* language_model;
  Linear* multi_modal_projector;
};

/// MllamaForCausalLM and MllamaTextModel.
NetworkPtr mllama_text(const Config& given, const Options& o) {
  Config config = given;
  config.set("attention_dropout", ConfigValue{config.number_or("dropout", 0.0)});
  config.set("tie_word_embeddings", ConfigValue{false});
  DecoderForm f;
  f.prefix = "Mllama";
  f.logits = [](X logits, const DecoderConfig&) { return std::move(logits).to_float(); };
  f.body = [](const std::shared_ptr<const DecoderConfig>& c, const std::shared_ptr<const DecoderForm>&) {
    return std::make_shared<MllamaTextModel>(c);
  };
  return make_decoder(config, o, std::move(f));
}
NetworkPtr mllama(const Config& config, const Options& o) {
  if (o.task == Task::causal_lm) return mllama_text(config.section("text_config"), o);
  return make_image_text(config, o, {.prefix = "Mllama", .tied = false}, std::make_shared<MllamaModel>(config, o));
}
const Family mllama_family{{"mllama"},
                           {{Task::image_text_to_text, "MllamaForConditionalGeneration", mllama},
                            {Task::causal_lm, "MllamaForCausalLM", mllama},
                            {Task::base, "MllamaModel", mllama}}};
const Family mllama_text_family{{"mllama_text_model"},
                                {{Task::causal_lm, "MllamaForCausalLM", mllama_text}, {Task::base, "MllamaTextModel", mllama_text}}};

}  // namespace
}  // namespace memest::hf
