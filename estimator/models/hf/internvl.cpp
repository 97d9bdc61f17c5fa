// models/internvl/modeling_internvl.py (transformers 5.24).
#include <algorithm>
#include <cmath>

#include "models/hf/clip_encoder.h"
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

UnaryPtr make_internvl_norm(const ClipVisionConfig& c) {
  const std::string type = c.file.text_or("norm_type", "layer_norm");
  if (type == "layer_norm") return make_norm(Norm::layer_norm, c.hidden, "LayerNorm");
  if (type == "rms_norm") return make_norm(Norm::llama, c.hidden, "InternVLVisionRMSNorm");
  throw c.file.error("norm_type", "expected 'layer_norm' or 'rms_norm', found '" + type.substr(0, 60) + "'");
}

class InternVLVisionAttention final : public Mixer {
 public:
  explicit InternVLVisionAttention(const ClipVisionConfig& c)
      : Mixer("InternVLVisionAttention"),
        options_(c.options),
        heads_(c.heads),
        head_dim_(c.hidden / c.heads),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden, c.file.boolean_or("attention_bias", false))),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden, c.file.boolean_or("attention_bias", false))),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden, c.file.boolean_or("attention_bias", false))),
        projection_layer(child<Linear>("projection_layer", c.hidden, c.hidden)) {
    if (const double p = c.file.number_or("projection_dropout", 0.0); p > 0) projection_dropout = &child<Dropout>("projection_dropout", p);
    if (!c.file.boolean_or("use_qk_norm", false)) return;
    q_norm = register_module("q_norm", make_norm(Norm::llama, c.hidden, "InternVLVisionRMSNorm"));
    k_norm = register_module("k_norm", make_norm(Norm::llama, c.hidden, "InternVLVisionRMSNorm"));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall&) override {
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1);
    X query_states = q_proj(hidden_states);
    X key_states = k_proj(hidden_states);
    X value_states = v_proj(hidden_states);
    if (q_norm) query_states = (*q_norm)(query_states);
    if (k_norm) key_states = (*k_norm)(key_states);
    for (X* states : {&query_states, &key_states, &value_states})
      *states = states->reshape({batch_size, seq_len, heads_, head_dim_}).transpose(1, 2);
    const AttentionCall call{.dropout = training ? dropout_ : 0.0, .training = training, .causal = false};
    auto [attn_output, attn_weights] = options_.attention == Attention::eager
                                           ? bert_eager_attention_forward(query_states, key_states, value_states, call)
                                           : attention_interface(options_, query_states, key_states, value_states, call);
    attn_output = attn_output.reshape({batch_size, seq_len, heads_ * head_dim_});
    X output = projection_layer(attn_output);
    if (projection_dropout) output = (*projection_dropout)(output);
    for (X* states : {&query_states, &key_states, &value_states}) states->reset();
    return {output, attn_weights};
  }

 private:
  const Options options_;
  I heads_, head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &projection_layer;
  Dropout* projection_dropout = nullptr;
  UnaryPtr q_norm, k_norm;
};

class InternVLVisionLayer final : public DecoderLayer {
 public:
  explicit InternVLVisionLayer(const ClipVisionConfig& c)
      : DecoderLayer("InternVLVisionLayer", c.options),
        attention(register_module("attention", std::make_shared<InternVLVisionAttention>(c))),
        mlp(register_module("mlp", make_clip_mlp("InternVLVisionMLP", c.hidden, c.intermediate, c.act))),
        layernorm_before(register_module("layernorm_before", make_internvl_norm(c))),
        layernorm_after(register_module("layernorm_after", make_internvl_norm(c))),
        dropout(child<Dropout>("dropout", c.file.number_or("hidden_dropout_prob", 0.0))) {
    for (const char* name : {"lambda_1", "lambda_2"}) new_parameter(name, {c.hidden});
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, weights] = (*attention)((*layernorm_before)(hidden_states), call);
    attention_output = X(parameter(0)).mul(attention_output);
    hidden_states = attention_output.add(hidden_states);
    X layer_output = (*layernorm_after)(hidden_states);
    layer_output = (*mlp)(layer_output);
    layer_output = dropout(layer_output);
    layer_output = X(parameter(1)).mul(layer_output);
    layer_output = layer_output.add(hidden_states);
    return layer_output;
  }

 private:
  MixerPtr attention;
  UnaryPtr mlp, layernorm_before, layernorm_after;
  Dropout& dropout;
};

class InternVLVisionEncoder final : public Base {
 public:
  explicit InternVLVisionEncoder(const ClipVisionConfig& c)
      : Base("InternVLVisionEncoder"), layer_(*this, "layer", c.layers, [&](I) { return std::make_shared<InternVLVisionLayer>(c); }) {}
  /// `keep` gets the layers' inputs and the last one's output.
  template <class F>
  X operator()(X hidden_states, F keep) {
    Entered scope(*this);
    keep(hidden_states);
    for (auto& layer_module : layer_) {
      hidden_states = (*layer_module)(hidden_states, {});
      keep(hidden_states);
    }
    return hidden_states;
  }

 private:
  Layers<InternVLVisionLayer> layer_;
};

class PatchEmbeddings final : public Unary, public nn::InputEmbedding {
 public:
  explicit PatchEmbeddings(const ClipVisionConfig& c)
      : Unary("InternVLVisionPatchEmbeddings"), projection(child<PatchConvolution>("projection", c.channels, c.hidden, c.patch, true)) {}

 protected:
  X forward(X pixel_values) override {
    X embeddings = projection(pixel_values.to(projection.dtype()));
    embeddings = embeddings.flatten(2).transpose(1, 2);
    return hooked(embeddings);
  }

 private:
  PatchConvolution& projection;
};

class InternVLVisionEmbeddings final : public Unary {
 public:
  explicit InternVLVisionEmbeddings(const ClipVisionConfig& c) : Unary("InternVLVisionEmbeddings") {
    new_parameter("cls_token", {1, 1, c.hidden});
    new_parameter("mask_token", {1, 1, c.hidden}, c.file.boolean_or("use_mask_token", false));
    new_parameter("position_embeddings", {1, c.patches() + 1, c.hidden}, c.file.boolean_or("use_absolute_position_embeddings", true));
    patch_embeddings = &child<PatchEmbeddings>("patch_embeddings", c);
    dropout = &child<Dropout>("dropout", c.file.number_or("hidden_dropout_prob", 0.0));
  }

 protected:
  X forward(X pixel_values) override {
    X embeddings = (*patch_embeddings)(pixel_values);
    X cls_tokens = X(parameter(0)).expand({embeddings.size(0), -1, -1});
    embeddings = cat({cls_tokens, embeddings}, 1);
    if (const X positions = X(parameter(2))) embeddings = embeddings.add(positions);
    embeddings = (*dropout)(embeddings);
    return embeddings;
  }

 private:
  PatchEmbeddings* patch_embeddings;
  Dropout* dropout;
};

class InternVLVisionModel final : public VisionTower {
 public:
  explicit InternVLVisionModel(const ClipVisionConfig& c)
      : VisionTower("InternVLVisionModel", {c.patches() + 1, c.hidden, c.layers, c.channels, c.image}),
        embeddings(child<InternVLVisionEmbeddings>("embeddings", c)),
        encoder(child<InternVLVisionEncoder>("encoder", c)) {
    if (!c.file.boolean_or("use_mean_pooling", true)) layernorm = &child<LayerNorm>("layernorm", c.hidden);
  }
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.patch_embeddings"); }

 protected:
  VisionOutput forward(X pixel_values, const std::vector<I>& selected) override {
    VisionOutput output;
    X embedding_output = embeddings(pixel_values);
    I index = 0;
    X encoder_outputs = encoder(embedding_output, [&](const X& x) {
      if (std::find(selected.begin(), selected.end(), index++) != selected.end()) output.hidden_states.push_back(x);
    });
    X sequence_output = encoder_outputs;
    if (layernorm) sequence_output = (*layernorm)(sequence_output);
    output.last_hidden_state = sequence_output;
    embedding_output.reset();
    encoder_outputs.reset();
    return output;
  }

 private:
  InternVLVisionEmbeddings& embeddings;
  InternVLVisionEncoder& encoder;
  LayerNorm* layernorm = nullptr;
};

class InternVLMultiModalProjector final : public Unary {
 public:
  InternVLMultiModalProjector(const Config& c, I in, I hidden)
      : Unary("InternVLMultiModalProjector"),
        layer_norm(child<LayerNorm>("layer_norm", in)),
        linear_1(child<Linear>("linear_1", in, hidden)),
        act(child<Activation>("act", c.text("projector_hidden_act"))),
        linear_2(child<Linear>("linear_2", hidden, hidden)) {}

 protected:
  X forward(X image_features) override {
    X hidden_states = layer_norm(image_features);
    hidden_states = linear_1(hidden_states);
    hidden_states = act(hidden_states);
    hidden_states = linear_2(hidden_states);
    return hidden_states;
  }

 private:
  LayerNorm& layer_norm;
  Linear& linear_1;
  Activation& act;
  Linear& linear_2;
};

/// image_processing_got_ocr2.py get_optimal_tiled_canvas of 1 to 12 tiles, and a smaller copy of the entire image after more than one.
I tiles_of(I height, I width, I side) {
  constexpr I kMostTiles = 12;
  const double aspect_ratio = double(width) / double(height), area = double(width) * double(height);
  double best_ratio_diff = HUGE_VAL;
  I best = 1;
  for (I tiles = 1; tiles <= kMostTiles; ++tiles)
    for (I columns = 1; columns <= tiles; ++columns) {
      if (tiles % columns != 0) continue;
      const double ratio_diff = std::abs(aspect_ratio - double(columns) / double(tiles / columns));
      if (ratio_diff < best_ratio_diff || (ratio_diff == best_ratio_diff && area > 0.5 * double(side) * double(side) * double(tiles)))
        best = tiles;
      best_ratio_diff = std::min(best_ratio_diff, ratio_diff);
    }
  return best > 1 ? best + 1 : 1;
}

class InternVLModel final : public ImageTextModel {
 public:
  InternVLModel(const Config& c, const Options& o) : ImageTextModel("InternVLModel", o), ratio_(c.number_or("downsample_ratio", 0.5)) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    text = text_decoder(c.section("text_config"), o);
    const VisionTower::Shape& shape = vision_tower_->shape;
    const I layer = c.integer_or("vision_feature_layer", -1), states = shape.layers + 1;
    if (layer < -states || layer >= states)
      throw c.error("vision_feature_layer",
                    "the vision model has " + std::to_string(states) + " hidden states, found " + std::to_string(layer));
    last_ = layer == -1;
    layer_ = (layer + states) % states;
    crops_ = c.text_or("vision_feature_select_strategy", "default") == "default";
    side_ = I(std::sqrt(double(shape.positions - (crops_ ? 1 : 0))));
    const I merged = ratio_ > 0 ? I(1 / ratio_) : 0;
    if (merged < 1 || double(merged) * ratio_ != 1 || side_ % merged != 0)
      throw c.error("downsample_ratio", "expected a part of 1 that divides the " + std::to_string(side_) + " patches of a side");
    tiles_ = tiles_of(c.integer_or("image_height", shape.image), c.integer_or("image_width", shape.image), shape.image);
    multi_modal_projector =
        &child<InternVLMultiModalProjector>("multi_modal_projector", c, checked_mul(shape.hidden, merged * merged), text.config->hidden);
    language_model_ = register_module("language_model", make_decoder_body(text));
  }
  Images images() const override {
    const I side = I(double(side_) * ratio_);
    return {checked_add(checked_mul(tiles_, side * side), 2), vision_tower_->shape.channels, vision_tower_->shape.image};
  }
  std::vector<nn::InputSpec> image_inputs() const override {
    const nn::SizeExpression side(std::to_string(vision_tower_->shape.image)), channels(std::to_string(vision_tower_->shape.channels));
    return {{"pixel_values", {nn::SizeExpression("batch * images * " + std::to_string(tiles_)), channels, side, side}, DType::float32}};
  }

  DecoderBody* generating_decoder() const override { return language_model_.get(); }
  ImageFeatures get_image_features(const Batch& batch) override {
    X pixel_values = batch.pixel_values.to(vision_tower_->find("embeddings")->own_parameters()[0].second.dtype());  // self.dtype
    VisionOutput vision_outputs = (*vision_tower_)(pixel_values, {layer_});
    X vision_features = last_ ? vision_outputs.last_hidden_state : vision_outputs.hidden_states[0];
    if (crops_) vision_features = vision_features.whole_slices(1).slice(1, 1, std::nullopt).whole_slices(1);
    const I batch_size = vision_features.size(0);
    vision_features = vision_features.reshape({batch_size, side_, side_, vision_features.size(-1)});
    vision_features = pixel_shuffle(vision_features, ratio_);
    vision_features = vision_features.reshape({batch_size, -1, vision_features.size(-1)});
    vision_features = (*multi_modal_projector)(vision_features);
    return {vision_outputs, {vision_features}};
  }

 protected:
  Output forward(const Batch& batch) override {
    return run_merged(*language_model_, batch, [](const ImageFeatures& image) { return image.pooled[0]; });
  }

 private:
  double ratio_;
  VisionTowerPtr vision_tower_;
  bool last_ = true, crops_ = true;
  I layer_ = 0, side_ = 0, tiles_ = 1;
  InternVLMultiModalProjector* multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
};

NetworkPtr internvl(const Config& config, const Options& o) {
  return make_image_text(config, o, {.prefix = "InternVL", .tied = config.boolean_or("tie_word_embeddings", true)},
                         std::make_shared<InternVLModel>(config, o));
}
const Family internvl_family{{"internvl"}, image_text_classes("InternVL", internvl, false)};
const VisionModel internvl_tower{"internvl_vision", [](const Config& config, const Options& o) -> VisionTowerPtr {
                                   return std::make_shared<InternVLVisionModel>(ClipVisionConfig(config, o));
                                 }};

}  // namespace
}  // namespace memest::hf
