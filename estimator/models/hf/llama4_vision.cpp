// models/llama4/modeling_llama4.py (transformers 5.24), the model of images and text; its text model stands in llama4.cpp.
#include <cmath>

#include "models/hf/checkpointed.h"
#include "models/hf/clip_encoder.h"
#include "models/hf/encoder.h"
#include "models/hf/llama4.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// vision_apply_rotary_emb: heads stand before the transpose.
Pair vision_apply_rotary_emb(const X& query, const X& key, X freqs_ci) {
  auto paired = [](const X& x) {
    return aten("view_as_complex", {Tensor(x.to_float().reshape(x.sizes().slice(0, x.dim() - 1) + Dims{-1, 2}))});
  };
  X query_ = paired(query), key_ = paired(key);
  freqs_ci = freqs_ci.view({1, query_.size(1), 1, query_.size(3)});
  auto rotated = [&](const X& x) { return aten("view_as_real", {Tensor(x.mul(freqs_ci))}).flatten(3); };
  X query_out = rotated(query_), key_out = rotated(key_);
  X q = query_out.to(query.dtype());
  X k = key_out.to(key.dtype());
  return leave(Pair(q, k), freqs_ci, query_, key_, query_out, key_out);
}

class Llama4VisionAttention final : public Module<Llama4VisionAttention> {
 public:
  explicit Llama4VisionAttention(const ClipVisionConfig& c)
      : Module("Llama4VisionAttention"),
        options_(c.options),
        head_dim_(c.hidden / c.heads),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden)),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden)),
        o_proj(child<Linear>("o_proj", c.hidden, c.hidden)) {}
  X forward(X hidden_states, const X& freqs_ci) {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape);
    X key_states = k_proj(hidden_states).view(hidden_shape);
    X value_states = v_proj(hidden_states).view(hidden_shape);
    std::tie(query_states, key_states) = vision_apply_rotary_emb(query_states, key_states, freqs_ci);
    for (X* states : {&query_states, &key_states, &value_states}) *states = states->transpose(1, 2);
    const auto attend = options_.attention == Attention::eager ? bert_eager_attention_forward : sdpa_attention_forward;
    auto [attn_output, attn_weights] =
        attend(query_states, key_states, value_states, {.dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(std::move(attn_output), query_states, key_states, value_states, attn_weights);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
};

/// A GradientCheckpointingLayer that is called with keyword arguments: a reentrant checkpoint of it has no inputs, and no gradients.
class Llama4VisionEncoderLayer final : public Base {
 public:
  explicit Llama4VisionEncoderLayer(const ClipVisionConfig& c)
      : Base("Llama4VisionEncoderLayer"),
        options_(c.options),
        self_attn(child<Llama4VisionAttention>("self_attn", c)),
        mlp(register_module("mlp", make_clip_mlp("Llama4VisionMLP", c.hidden, c.intermediate, "gelu"))),
        input_layernorm(child<LayerNorm>("input_layernorm", c.hidden)),
        post_attention_layernorm(child<LayerNorm>("post_attention_layernorm", c.hidden)) {}
  X operator()(X hidden_state, X freqs_ci) {
    Entered scope(*this);
    if (checkpoints(options_, training))
      return checkpointed(options_, [this, hidden_state, freqs_ci](const Tensors&) { return Tensors{forward(hidden_state, freqs_ci)}; },
                          {});
    X result = forward(hidden_state, freqs_ci);
    hidden_state.reset();
    return result;
  }

 private:
  X forward(X hidden_state, const X& freqs_ci) {
    X residual = hidden_state;
    hidden_state = input_layernorm(hidden_state);
    hidden_state = self_attn(hidden_state, freqs_ci);
    hidden_state = residual.add(hidden_state);
    residual = hidden_state;
    hidden_state = post_attention_layernorm(hidden_state);
    hidden_state = (*mlp)(hidden_state);
    hidden_state = residual.add(hidden_state);
    return hidden_state;
  }
  using Base::forward;

  const Options options_;
  Llama4VisionAttention& self_attn;
  UnaryPtr mlp;
  LayerNorm &input_layernorm, &post_attention_layernorm;
};

class Llama4VisionEncoder final : public Module<Llama4VisionEncoder> {
 public:
  explicit Llama4VisionEncoder(const ClipVisionConfig& c)
      : Module("Llama4VisionEncoder"),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<Llama4VisionEncoderLayer>(c); }) {}
  X forward(X hidden_states, const X& freqs_ci) {
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, freqs_ci);
    return hidden_states;
  }

 private:
  Layers<Llama4VisionEncoderLayer> layers_;
};

/// nn.Unfold, its stride its kernel.
class Unfold final : public Module<Unfold> {
 public:
  explicit Unfold(I kernel) : Module("Unfold"), kernel_(kernel) {}
  X forward(const X& input) {
    const Dims kernel{kernel_, kernel_}, one{1, 1}, none{0, 0};
    return aten("im2col", {Tensor(input), list_of(kernel), list_of(one), list_of(none), list_of(kernel)});
  }

 private:
  I kernel_;
};

class Llama4UnfoldConvolution final : public Unary, public nn::InputEmbedding {
 public:
  explicit Llama4UnfoldConvolution(const ClipVisionConfig& c) : Unary("Llama4UnfoldConvolution") {
    unfold_ = &child<Unfold>("unfold", c.patch);
    linear_ = &child<Linear>("linear", checked_mul(c.channels, checked_mul(c.patch, c.patch)), c.hidden, false);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*unfold_)(hidden_states);
    hidden_states = hidden_states.permute({0, 2, 1});
    hidden_states = (*linear_)(hidden_states);
    return hooked(hidden_states);
  }

 private:
  Unfold* unfold_;
  Linear* linear_;
};

class Llama4VisionMLP2 final : public Unary {
 public:
  explicit Llama4VisionMLP2(const Config& c)
      : Unary("Llama4VisionMLP2"),
        dropout_(c.number_or("projector_dropout", 0.0)),
        fc1(child<Linear>("fc1", c.size("intermediate_size"), c.size("projector_input_dim"), false)),
        fc2(child<Linear>("fc2", c.size("projector_output_dim"), c.size("projector_output_dim"), false)),
        activation_fn(child<Activation>("activation_fn", "gelu")) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = fc1(hidden_states);
    hidden_states = activation_fn(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    return activation_fn(fc2(hidden_states));
  }

 private:
  double dropout_;
  Linear &fc1, &fc2;
  Activation& activation_fn;
};

class Llama4VisionPixelShuffleMLP final : public Unary {
 public:
  Llama4VisionPixelShuffleMLP(const Config& c, double ratio)
      : Unary("Llama4VisionPixelShuffleMLP"), ratio_(ratio), mlp(child<Llama4VisionMLP2>("mlp", c)) {}

 protected:
  X forward(X encoded_patches) override {
    const I patch_size = I(std::sqrt(double(encoded_patches.size(1))));
    X shuffled = pixel_shuffle(encoded_patches.view({encoded_patches.size(0), patch_size, patch_size, -1}), ratio_);
    encoded_patches = shuffled.view({encoded_patches.size(0), -1, shuffled.size(-1)});
    shuffled.reset();
    return mlp(encoded_patches);
  }

 private:
  double ratio_;
  Llama4VisionMLP2& mlp;
};

class Llama4VisionRotaryEmbedding final : public Base {
 public:
  explicit Llama4VisionRotaryEmbedding(const ClipVisionConfig& c) : Base("Llama4VisionRotaryEmbedding") {
    const I freq_dim = c.hidden / c.heads / 2;
    new_buffer("freqs_ci", {c.patches() + 1, 1, freq_dim / 2 * 2}, DType::complex64);
  }
  X freqs_ci() const { return buffer(0); }
};

class Llama4VisionModel final : public Module<Llama4VisionModel>, public nn::EmbeddedModel {
 public:
  explicit Llama4VisionModel(const ClipVisionConfig& c)
      : Module("Llama4VisionModel"), c_(c), ratio_(c.file.number_or("pixel_shuffle_ratio", 0.5)) {
    const double side = double(c.image / c.patch) * ratio_;
    if (!(ratio_ > 0 && ratio_ <= 1) || I(side) < 1 || double(I(side)) != side ||
        double(c.hidden) != std::floor(double(c.hidden) / ratio_) * ratio_)
      throw c.file.error("pixel_shuffle_ratio",
                         "expected a part of 1 that divides the " + std::to_string(c.image / c.patch) + " patches of a side");
    if (c.file.size("intermediate_size") != I(double(c.hidden) / (ratio_ * ratio_)))
      throw c.file.error("intermediate_size", "the adapter takes shuffled patches of hidden_size / pixel_shuffle_ratio^2 = " +
                                                  std::to_string(I(double(c.hidden) / (ratio_ * ratio_))) + " features");
    new_parameter("class_embedding", {c.hidden});
    new_parameter("positional_embedding_vlm", {c.patches() + 1, c.hidden});
    patch_embedding = &child<Llama4UnfoldConvolution>("patch_embedding", c);
    rotary_embedding = &child<Llama4VisionRotaryEmbedding>("rotary_embedding", c);
    layernorm_pre = &child<LayerNorm>("layernorm_pre", c.hidden);
    layernorm_post = &child<LayerNorm>("layernorm_post", c.hidden);
    model = &child<Llama4VisionEncoder>("model", c);
    vision_adapter = &child<Llama4VisionPixelShuffleMLP>("vision_adapter", c.file, ratio_);
  }
  nn::InputEmbedding* input_embedding() override { return patch_embedding; }
  /// Of one tile.
  I tokens() const {
    const I side = I(double(c_.image / c_.patch) * ratio_);
    return checked_mul(side, side);
  }
  const ClipVisionConfig& config() const { return c_; }
  /// last_hidden_state
  X forward(const X& pixel_values) {
    const I tiles = pixel_values.size(0);
    X hidden_state = (*patch_embedding)(pixel_values);
    I num_patches = hidden_state.size(1);
    const I hidden_dim = hidden_state.size(2);
    hidden_state = hidden_state.reshape({tiles, num_patches, hidden_dim});
    X class_embedding = X(parameter(0)).expand({tiles, 1, hidden_dim});
    hidden_state = cat({hidden_state, class_embedding}, 1);
    num_patches += 1;
    hidden_state = hidden_state.reshape({tiles, 1, num_patches, hidden_dim});
    X positional_embedding = X(parameter(1)).to(hidden_state.dtype());
    hidden_state = hidden_state.add(positional_embedding);
    hidden_state = (*layernorm_pre)(hidden_state);
    hidden_state = hidden_state.view({tiles, -1, hidden_dim});
    X freqs_ci = rotary_embedding->freqs_ci();
    X output = (*model)(hidden_state, freqs_ci);
    hidden_state = output;
    hidden_state = (*layernorm_post)(hidden_state);
    hidden_state = hidden_state.whole_slices(1).slice(1, std::nullopt, -1).whole_slices(1);
    hidden_state = (*vision_adapter)(hidden_state);
    return leave(std::move(hidden_state), class_embedding, positional_embedding, freqs_ci, output);
  }

 private:
  const ClipVisionConfig c_;
  double ratio_;
  Llama4UnfoldConvolution* patch_embedding;
  Llama4VisionRotaryEmbedding* rotary_embedding;
  LayerNorm *layernorm_pre, *layernorm_post;
  Llama4VisionEncoder* model;
  Llama4VisionPixelShuffleMLP* vision_adapter;
};

class Llama4MultiModalProjector final : public Unary {
 public:
  Llama4MultiModalProjector(I in, I out) : Unary("Llama4MultiModalProjector"), linear_1(child<Linear>("linear_1", in, out, false)) {}

 protected:
  X forward(X image_features) override {
    X hidden_states = linear_1(image_features);
    return hidden_states;
  }

 private:
  Linear& linear_1;
};

/// Llama4ForCausalLM as a part: inputs_embeds to logits.
class LanguageModel final : public Base, public nn::EmbeddedModel {
 public:
  LanguageModel(const DecoderParts& text, std::optional<I> logits_to_keep)
      : Base("Llama4ForCausalLM"),
        logits_to_keep_(logits_to_keep),
        model_(register_module("model", make_decoder_body(text))),
        lm_head(child<Linear>("lm_head", text.config->hidden, text.config->vocab, false)) {
    if (text.config->tie) tie("lm_head.weight", "model.embed_tokens.weight");
  }
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "model.embed_tokens"); }
  X embed(const X& input_ids) { return model_->embed(input_ids); }
  std::pair<X, CachePtr> operator()(X inputs_embeds) {
    Entered scope(*this);
    auto [hidden_states, cache] = (*model_)(inputs_embeds);
    hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep_);
    X logits = lm_head(hidden_states);
    return {logits, cache};
  }

 private:
  std::optional<I> logits_to_keep_;
  std::shared_ptr<DecoderBody> model_;
  Linear& lm_head;
};

/// Tiles of an image of that size, rows and columns: image_processing_llama4.py get_best_fit of find_supported_resolutions.
struct Tiles {
  I rows = 1, columns = 1;
  I whole() const { return checked_mul(rows, columns) > 1 ? 1 : 0; }  ///< a smaller copy of the entire image, after its tiles
  I count() const { return checked_add(checked_mul(rows, columns), whole()); }
};
Tiles tiles_of(I height, I width, I side) {
  constexpr I kMostTiles = 16;  // max_patches of Llama4ImageProcessor
  Tiles best;
  float best_scale = -1;
  I best_area = 0;
  for (I rows = 1; rows <= kMostTiles; ++rows)
    for (I columns = 1; rows * columns <= kMostTiles; ++columns) {
      const float scale = std::min(float(rows * side) / float(height), float(columns * side) / float(width));
      const bool enlarges = scale >= 1, best_enlarges = best_scale >= 1;
      const bool better = best_scale < 0 || (enlarges != best_enlarges ? enlarges : enlarges ? scale < best_scale : scale > best_scale);
      if (!better && (scale != best_scale || rows * columns >= best_area)) continue;
      best = {rows, columns};
      best_scale = scale;
      best_area = rows * columns;
    }
  return best;
}

class Llama4ForConditionalGeneration final : public Network, public nn::EmbeddedModel {
 public:
  Llama4ForConditionalGeneration(const Config& c, const Options& o, const ClipVisionConfig& vision, const DecoderParts& text)
      : Network("Llama4ForConditionalGeneration", o),
        vocab_(text.config->vocab),
        tiles_(tiles_of(c.integer_or("image_height", vision.image), c.integer_or("image_width", vision.image), vision.image)),
        vision_model(child<Llama4VisionModel>("vision_model", vision)),
        multi_modal_projector(
            child<Llama4MultiModalProjector>("multi_modal_projector", vision.file.size("vision_output_dim"), text.config->hidden)),
        language_model(child<LanguageModel>("language_model", text, o.logits_to_keep)) {}
  nn::InputEmbedding* input_embedding() override { return language_model.input_embedding(); }
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    if (options_.images == 0) return list;
    const nn::SizeExpression tiles("batch * images * " + std::to_string(tiles_.count())), side(std::to_string(vision_model.config().image)),
        channels(std::to_string(vision_model.config().channels));
    list.insert(list.begin() + 1, {"pixel_values", {tiles, channels, side, side}, DType::float32});
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return image_text_sizes(options_, images()); }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    if (batch.pixel_values) check_image_room(batch.input, options_, images());
    X inputs_embeds = language_model.embed(batch.input);
    X image_features, vision_flat, projected_vision_flat, special_image_mask;
    if (batch.pixel_values) {
      image_features = vision_model(batch.pixel_values);
      vision_flat = image_features.view({-1, image_features.size(-1)});
      projected_vision_flat = multi_modal_projector(vision_flat).to(inputs_embeds.dtype());
      special_image_mask = placeholder_mask(batch.input, inputs_embeds, projected_vision_flat);
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(projected_vision_flat)});
    }
    auto [logits, cache] = language_model(inputs_embeds);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, vocab_);
    Value out = model_output({loss, logits}, cache.get());
    for (X* local : {&inputs_embeds, &image_features, &vision_flat, &projected_vision_flat, &special_image_mask}) local->reset();
    return {out, loss};
  }

 private:
  /// processing_llama4.py _prompt_split_image: the tiles' patches, a token after each tile, three around and before the whole image.
  ImageTextModel::Images images() const {
    const I separators = 3 + (tiles_.count() - tiles_.whole()) * tiles_.whole();
    return {checked_add(checked_mul(tiles_.count(), vision_model.tokens()), separators), vision_model.config().channels,
            vision_model.config().image};
  }
  I vocab_;
  const Tiles tiles_;
  Llama4VisionModel& vision_model;
  Llama4MultiModalProjector& multi_modal_projector;
  LanguageModel& language_model;
};

NetworkPtr llama4(const Config& config, const Options& o) {
  runtime().diagnostics.add(
      {Diagnostic::Severity::note, "unfinished-forward",
       "Llama4ForConditionalGeneration.forward of transformers 5.24 raises an AttributeError at its end (outputs.image_outputs)", "",
       "the figures are those of a release without this mistake; --task causal-lm runs the text model alone"});
  return std::make_shared<Llama4ForConditionalGeneration>(config, o, ClipVisionConfig(config.section("vision_config"), o),
                                                          text_decoder(config.section("text_config"), o));
}
NetworkPtr llama4_causal(const Config& config, const Options& o) { return make_llama4_text(config.section("text_config"), o); }
const Family llama4_family{{"llama4"},
                           {{Task::image_text_to_text, "Llama4ForConditionalGeneration", llama4},
                            {Task::causal_lm, "Llama4ForCausalLM", llama4_causal},
                            {Task::base, "Llama4ForConditionalGeneration", llama4}}};

}  // namespace
}  // namespace memest::hf
