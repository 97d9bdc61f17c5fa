// models/idefics3/modeling_idefics3.py and models/smolvlm/modeling_smolvlm.py (transformers 5.24): SigLIP's layers over tiles of an image,
// with a mask of the pixels that are none.
#include <cmath>

#include "models/hf/clip_encoder.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

class VisionEmbeddings final : public Module<VisionEmbeddings>, public nn::InputEmbedding {
 public:
  VisionEmbeddings(const std::string& prefix, const ClipVisionConfig& c)
      : Module(prefix + "VisionEmbeddings"),
        side_(c.image / c.patch),
        patch_embedding(child<PatchConvolution>("patch_embedding", c.channels, c.hidden, c.patch, true)),
        position_embedding(child<Embedding>("position_embedding", c.patches(), c.hidden)) {}
  DType dtype() const { return patch_embedding.dtype(); }
  X forward(const X& pixel_values, const X& patch_attention_mask) {
    const I batch_size = pixel_values.size(0), rows = patch_attention_mask.size(1), columns = patch_attention_mask.size(2);
    X patch_embeds = patch_embedding(pixel_values);
    X embeddings = patch_embeds.flatten(2).transpose(1, 2);
    const double step = 1.0 / double(side_);
    X boundaries = arange(I(std::ceil((1.0 - step) / step)), DType::float32);
    X position_ids = full({batch_size, rows * columns}, I{0}, DType::int64);
    X nb_patches_h = patch_attention_mask.whole_slices(2).select(2, 0).sum(1);
    X nb_patches_w = patch_attention_mask.whole_slices(1).select(1, 0).whole_slices(1).sum(1);
    X step_h = reciprocal(nb_patches_h).mul(1.0);
    X step_w = reciprocal(nb_patches_w).mul(1.0);
    X h_indices = arange(rows, DType::float32);
    X w_indices = arange(columns, DType::float32);
    X fractional_coords_h = h_indices.unsqueeze(0).mul(X(step_h.unsqueeze(1)));
    X fractional_coords_w = w_indices.unsqueeze(0).mul(X(step_w.unsqueeze(1)));
    fractional_coords_h = aten("clamp_max", {Tensor(fractional_coords_h), 1.0 - 1e-6});
    fractional_coords_w = aten("clamp_max", {Tensor(fractional_coords_w), 1.0 - 1e-6});
    X bucket_coords_h = aten("bucketize", {Tensor(fractional_coords_h), Tensor(boundaries)});
    X bucket_coords_w = aten("bucketize", {Tensor(fractional_coords_w), Tensor(boundaries)});
    X pos_ids = bucket_coords_h.unsqueeze(2).mul(side_).add(X(bucket_coords_w.unsqueeze(1)));
    pos_ids = pos_ids.reshape({batch_size, -1});
    position_ids = where(patch_attention_mask.view({batch_size, -1}), pos_ids, position_ids);
    embeddings = embeddings.add(position_embedding(position_ids));
    for (X* local : {&patch_embeds, &boundaries, &position_ids, &nb_patches_h, &nb_patches_w, &step_h, &step_w, &h_indices, &w_indices,
                     &fractional_coords_h, &fractional_coords_w, &bucket_coords_h, &bucket_coords_w, &pos_ids})
      local->reset();
    return hooked(embeddings);
  }

 private:
  static X reciprocal(const X& x) { return aten("reciprocal", {Tensor(x)}); }
  I side_;
  PatchConvolution& patch_embedding;
  Embedding& position_embedding;
};

class VisionAttention final : public Mixer {
 public:
  VisionAttention(const std::string& prefix, const ClipVisionConfig& c)
      : Mixer(prefix + "VisionAttention"),
        options_(c.options),
        head_dim_(c.hidden / c.heads),
        dropout_(c.attention_dropout),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    if (options_.attention == Attention::flash)
      throw Error("--attn flash: memest has no flash attention over tiles with a mask of their pixels", "use --attn sdpa or eager");
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X queries = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X keys = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X values = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] = attention_interface(
        options_, queries, keys, values, {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

class EncoderLayer final : public DecoderLayer {
 public:
  EncoderLayer(const std::string& prefix, const ClipVisionConfig& c)
      : DecoderLayer(prefix + "EncoderLayer", c.options),
        self_attn(register_module("self_attn", std::make_shared<VisionAttention>(prefix, c))),
        layer_norm1(child<LayerNorm>("layer_norm1", c.hidden)),
        mlp(register_module("mlp", make_clip_mlp(prefix + "VisionMLP", c.hidden, c.intermediate, c.act))),
        layer_norm2(child<LayerNorm>("layer_norm2", c.hidden)) {}

 protected:
  bool mask_by_position() const override { return true; }
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = layer_norm1(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = layer_norm2(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  MixerPtr self_attn;
  LayerNorm& layer_norm1;
  UnaryPtr mlp;
  LayerNorm& layer_norm2;
};

class Encoder final : public Module<Encoder> {
 public:
  Encoder(const std::string& prefix, const ClipVisionConfig& c)
      : Module(prefix + "Encoder"), layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<EncoderLayer>(prefix, c); }) {}
  X forward(const X& inputs_embeds, const X& attention_mask) {
    X hidden_states = inputs_embeds;
    for (auto& layer : layers_) {
      LayerCall call;
      call.mask = attention_mask;
      hidden_states = (*layer)(hidden_states, call);
    }
    return hidden_states;
  }

 private:
  Layers<EncoderLayer> layers_;
};

class VisionTransformer final : public Module<VisionTransformer>, public nn::EmbeddedModel {
 public:
  VisionTransformer(const std::string& prefix, const ClipVisionConfig& c)
      : Module(prefix + "VisionTransformer"),
        options_(c.options),
        embeddings(child<VisionEmbeddings>("embeddings", prefix, c)),
        encoder(child<Encoder>("encoder", prefix, c)),
        post_layernorm(child<LayerNorm>("post_layernorm", c.hidden)) {}
  nn::InputEmbedding* input_embedding() override { return &embeddings; }
  DType dtype() const { return embeddings.dtype(); }
  X forward(const X& pixel_values, X patch_attention_mask) {
    const I batch_size = pixel_values.size(0);
    X hidden_states = embeddings(pixel_values, patch_attention_mask);
    patch_attention_mask = patch_attention_mask.view({batch_size, -1});
    MaskArguments arguments{options_, hidden_states};
    arguments.attention_mask = patch_attention_mask;
    patch_attention_mask = create_bidirectional_mask(arguments);
    arguments.attention_mask.reset();
    X encoder_outputs = encoder(hidden_states, patch_attention_mask);
    X last_hidden_state = encoder_outputs;
    last_hidden_state = post_layernorm(last_hidden_state);
    return leave(std::move(last_hidden_state), hidden_states, encoder_outputs);
  }

 private:
  const Options options_;
  VisionEmbeddings& embeddings;
  Encoder& encoder;
  LayerNorm& post_layernorm;
};

class SimpleMLP final : public Unary {
 public:
  SimpleMLP(std::string type, I in, I out) : Unary(std::move(type)), proj(child<Linear>("proj", in, out, false)) {}

 protected:
  X forward(X x) override { return proj(x); }

 private:
  Linear& proj;
};

class Connector final : public Unary {
 public:
  Connector(const std::string& prefix, I factor, I in, I out)
      : Unary(prefix + "Connector"),
        factor_(factor),
        modality_projection(child<SimpleMLP>("modality_projection", prefix + "SimpleMLP", checked_mul(in, factor * factor), out)) {}

 protected:
  X forward(X image_hidden_states) override {
    image_hidden_states = shuffled(image_hidden_states);
    image_hidden_states = modality_projection(image_hidden_states);
    return image_hidden_states;
  }

 private:
  /// pixel_shuffle of this file: its copies come with reshape.
  X shuffled(X x) const {
    const I bsz = x.size(0), seq = x.size(1), embed_dim = x.size(2), side = I(std::sqrt(double(seq)));
    x = x.view({bsz, side, side, embed_dim});
    x = x.view({bsz, side, side / factor_, embed_dim * factor_});
    x = x.permute({0, 2, 1, 3});
    x = x.reshape({bsz, side / factor_, side / factor_, embed_dim * factor_ * factor_});
    x = x.permute({0, 2, 1, 3});
    x = x.reshape({bsz, seq / (factor_ * factor_), embed_dim * factor_ * factor_});
    return x;
  }
  I factor_;
  SimpleMLP& modality_projection;
};

/// image_processing_smolvlm.py and _idefics3.py: the longer side becomes four tiles, as their size and max_image_size have it, and the
/// whole image comes after them.
struct Tiles {
  static constexpr I kLongest = 4;
  Tiles(I height, I width, I side) {
    const bool wide = width >= height;
    const I longest = kLongest * side,
            shorter = std::max<I>(1, I(double(longest) * double(wide ? height : width) / double(wide ? width : height)));
    (wide ? columns : rows) = kLongest;
    (wide ? rows : columns) = ceil_div(shorter, side);
  }
  I count() const { return rows * columns + 1; }
  /// Of one image: the tiles' own, two before each, one after each row, four around the whole.
  I tokens(I of_tile) const { return checked_add(checked_mul(count(), of_tile), 2 * rows * columns + rows + 4); }
  I rows = 1, columns = 1;
};

class Idefics3Model final : public ImageTextModel {
 public:
  Idefics3Model(const std::string& prefix, const Config& c, const Options& o, const ClipVisionConfig& vision)
      : ImageTextModel(prefix + "Model", o),
        smol_(prefix == "SmolVLM"),
        vision_(vision),
        factor_(c.size("scale_factor")),
        tiles_(c.integer_or("image_height", vision.image), c.integer_or("image_width", vision.image), vision.image) {
    if (vision.image % vision.patch != 0 || vision.image / vision.patch % factor_ != 0)
      throw c.error("scale_factor", "expected a divisor of the " + std::to_string(vision.image / vision.patch) +
                                        " patches of a tile's side, found " + std::to_string(factor_));
    vision_model = &child<VisionTransformer>("vision_model", prefix, vision);
    text = text_decoder(c.section("text_config"), o);
    connector = &child<Connector>("connector", prefix, factor_, vision.hidden, text.config->hidden);
    text_model_ = register_module("text_model", make_decoder_body(text));
  }
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "text_model." + std::string(text.form->embedding_name)); }
  Images images() const override { return {tiles_.tokens(vision_.patches() / (factor_ * factor_)), vision_.channels, vision_.image}; }
  std::vector<nn::InputSpec> image_inputs() const override {
    const nn::SizeExpression batch("batch"), tiles("images * " + std::to_string(tiles_.count())), side(std::to_string(vision_.image)),
        channels(std::to_string(vision_.channels));
    return {{"pixel_values", {batch, tiles, channels, side, side}, DType::float32},
            {"pixel_attention_mask", {batch, tiles, side, side}, DType::int64}};
  }
  ImageFeatures get_image_features(const Batch& batch) override {
    const I batch_size = batch.pixel_values.size(0), num_images = batch.pixel_values.size(1), all = batch_size * num_images;
    const ops::AssumedSelection each_is_one(all);
    X pixel_values = batch.pixel_values.to(vision_model->dtype());  // self.dtype
    pixel_values = pixel_values.view({all, vision_.channels, vision_.image, vision_.image});
    X empty_values = aten("eq", {Tensor(pixel_values), 0.0});
    X counts = aten("sum", {Tensor(empty_values), list_of(Dims{-1, -2, -3}), false});
    empty_values.reset();
    X real_images_inds = aten("ne", {Tensor(counts), pixel_values.numel() / all});
    counts.reset();
    if (smol_) {
      X any = aten("any", {Tensor(real_images_inds)});
      X none = aten("bitwise_not", {Tensor(any)});
    }
    X num_real_images_per_batch = real_images_inds.view({batch_size, num_images}).sum(1);
    auto chosen = [&](const X& x) { return aten("index", {Tensor(x), make_list({Tensor(real_images_inds)})}).contiguous(); };
    pixel_values = chosen(pixel_values);
    X pixel_attention_mask = argument(batch, "pixel_attention_mask").view({all, vision_.image, vision_.image});
    pixel_attention_mask = chosen(pixel_attention_mask);
    X patches_subgrid = aten("unfold", {Tensor(pixel_attention_mask), I{1}, vision_.patch, vision_.patch});
    patches_subgrid = aten("unfold", {Tensor(patches_subgrid), I{2}, vision_.patch, vision_.patch});
    X patch_attention_mask = aten("sum", {Tensor(patches_subgrid), list_of(Dims{-1, -2}), false});
    patch_attention_mask = aten("gt", {Tensor(patch_attention_mask), I{0}});
    VisionOutput image_outputs;
    image_outputs.last_hidden_state = (*vision_model)(pixel_values, patch_attention_mask);
    X image_features = (*connector)(image_outputs.last_hidden_state);
    std::vector<X> pooled;
    for (auto& f : image_features.split(num_images, 0)) pooled.push_back(f.reshape({-1, f.size(-1)}));
    return {image_outputs, pooled};
  }

 protected:
  Output forward(const Batch& batch) override {
    X inputs_embeds = text_model_->embed(batch.input);
    ImageFeatures image = image_features_of(batch);
    X image_hidden_states, special_image_mask;
    if (image) {
      image_hidden_states = cat(image.pooled, 0);
      image_hidden_states = image_hidden_states.to(vision_model->dtype());
      special_image_mask = placeholder_mask(batch.input, inputs_embeds, image_hidden_states);
      X source = smol_ ? image_hidden_states : image_hidden_states.to(inputs_embeds.dtype());
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(source)});
      if (!smol_) special_image_mask.reset();  // inputs_merger's own
    }
    auto [last_hidden_state, cache] = (*text_model_)(inputs_embeds, batch.position_ids, batch.cache);
    Output output{last_hidden_state, cache, {}};
    if (image) image.collect(output.image_outputs);
    inputs_embeds.reset();
    image_hidden_states.reset();
    special_image_mask.reset();
    return output;
  }

 private:
  const bool smol_;
  const ClipVisionConfig vision_;
  const I factor_;
  const Tiles tiles_;
  VisionTransformer* vision_model;
  Connector* connector;
  std::shared_ptr<DecoderBody> text_model_;
};

NetworkPtr make_idefics3(const std::string& prefix, const Config& config, const Options& o) {
  const ClipVisionConfig vision(config.section("vision_config"), o);
  ImageTextForm form;
  form.prefix = prefix;
  form.tied = config.boolean_or("tie_word_embeddings", false);
  form.text_name = "text_model";
  return make_image_text(config, o, form, std::make_shared<Idefics3Model>(prefix, config, o, vision));
}
NetworkPtr idefics3(const Config& config, const Options& o) { return make_idefics3("Idefics3", config, o); }
NetworkPtr smolvlm(const Config& config, const Options& o) { return make_idefics3("SmolVLM", config, o); }
const Family idefics3_family{{"idefics3"}, image_text_classes("Idefics3", idefics3, false)};
const Family smolvlm_family{{"smolvlm"}, image_text_classes("SmolVLM", smolvlm, false)};

}  // namespace
}  // namespace memest::hf
