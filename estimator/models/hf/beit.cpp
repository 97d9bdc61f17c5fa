// models/beit/modeling_beit.py, and models/data2vec/modeling_data2vec_vision.py, which was made of its older form.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "models/hf/vision.h"
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct BeitForm {
  std::string prefix, base;
  bool older = false;  ///< data2vec
};

/// A table over relative positions, interpolated to the size of the image (also where it is the same), and looked up for each pair.
class RelativePositionBias final : public Base {
 public:
  RelativePositionBias(const VisionConfig& c, const std::string& prefix)
      : Base(prefix + "RelativePositionBias"), window_(c.image / c.patch) {
    new_parameter("relative_position_bias_table", {distances(), c.heads});
  }
  X operator()(I height, I width) {
    Entered scope(*this);
    const I old = 2 * window_ - 1, tokens = height * width + 1;
    X table = parameter(0);
    X old_sub_table = table.slice(0, 0, distances() - 3);
    old_sub_table = old_sub_table.reshape({1, old, old, -1}).permute({0, 3, 1, 2});
    X new_sub_table = aten("upsample_bilinear2d", {Tensor(old_sub_table), list_of(Dims{2 * height - 1, 2 * width - 1}), false, Value()});
    new_sub_table = new_sub_table.permute({0, 2, 3, 1}).reshape({(2 * height - 1) * (2 * width - 1), -1});
    X new_table = cat({new_sub_table, table.slice(0, distances() - 3, std::nullopt)}, 0);
    X relative_position_index = host_tensor({tokens * tokens}, DType::int64);
    X relative_position_bias = aten("index", {Tensor(new_table), make_list({Tensor(relative_position_index)})});
    relative_position_bias = relative_position_bias.view({tokens, tokens, -1});
    relative_position_bias = relative_position_bias.permute({2, 0, 1}).contiguous();
    return leave(relative_position_bias.unsqueeze(0), old_sub_table, new_sub_table, new_table, relative_position_bias);
  }

 private:
  I distances() const { return (2 * window_ - 1) * (2 * window_ - 1) + 3; }
  I window_;
};

class BeitEmbeddings final : public Unary {
 public:
  BeitEmbeddings(const VisionConfig& c, const BeitForm& form) : Unary(form.prefix + "Embeddings") {
    const bool positions = c.file.boolean_or("use_absolute_position_embeddings", false);
    new_parameter("cls_token", {1, 1, c.hidden});
    new_parameter("mask_token", {1, 1, c.hidden}, c.file.boolean_or("use_mask_token", false));
    new_parameter("position_embeddings", {1, c.patches() + 1, c.hidden}, positions);
    has_positions_ = positions;
    patch_embeddings_ = register_module("patch_embeddings", make_patch_embeddings(form.prefix + "PatchEmbeddings", c));
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X pixel_values) override {
    X embeddings = (*patch_embeddings_)(pixel_values);
    X cls_tokens = X(parameter(0)).expand({embeddings.size(0), -1, -1});
    embeddings = cat({cls_tokens, embeddings}, 1);
    if (has_positions_) embeddings = embeddings.add(X(parameter(2)));
    embeddings = (*dropout)(embeddings);
    return embeddings;
  }

 private:
  bool has_positions_;
  UnaryPtr patch_embeddings_;
  Dropout* dropout;
};

class BeitAttention final : public Mixer {
 public:
  explicit BeitAttention(const VisionConfig& c)
      : Mixer("BeitAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.heads * c.head_dim)),
        k_proj(child<Linear>("k_proj", c.hidden, c.heads * c.head_dim, false)),
        v_proj(child<Linear>("v_proj", c.hidden, c.heads * c.head_dim)),
        o_proj(child<Linear>("o_proj", c.heads * c.head_dim, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(Pair(attn_output, attn_weights), query_states, key_states, value_states);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
};

/// What the layers of both have.
class BeitLayerBase : public DecoderLayer {
 public:
  using DecoderLayer::DecoderLayer;
  /// The image in patches.
  void set_window(I height, I width) { height_ = height, width_ = width; }

 protected:
  void add_drop_path(const std::string& prefix, double rate) {
    if (rate > 0) drop_path_ = register_module("drop_path", std::make_shared<DropPath>(prefix + "DropPath", rate));
  }
  void add_scales(const VisionConfig& c) {
    scaled_ = c.file.number_or("layer_scale_init_value", 0.1) > 0;
    new_parameter("lambda_1", {c.hidden}, scaled_);
    new_parameter("lambda_2", {c.hidden}, scaled_);
  }
  X scale(I i, X x) const { return scaled_ ? X(parameter(std::size_t(i))).mul(x) : x; }
  X drop_path(X x) { return drop_path_ ? (*drop_path_)(std::move(x)) : x; }

  bool scaled_ = false;
  I height_ = 0, width_ = 0;
  UnaryPtr drop_path_;
};

class BeitLayer final : public BeitLayerBase {
 public:
  BeitLayer(const VisionConfig& c, double rate)
      : BeitLayerBase("BeitLayer", c.options),
        attention(child<BeitAttention>("attention", c)),
        layernorm_before(child<LayerNorm>("layernorm_before", c.hidden)),
        layernorm_after(child<LayerNorm>("layernorm_after", c.hidden)),
        mlp_(register_module("mlp", make_plain_mlp("BeitMLP", "fc1", "fc2", c.hidden, c.file.size("intermediate_size"), true, c.act))),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    add_drop_path("Beit", rate);
    add_scales(c);
    if (c.file.boolean_or("use_relative_position_bias", false)) bias = &child<RelativePositionBias>("relative_position_bias", c, "Beit");
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attention_mask = call.mask, relative_position_bias;
    if (bias) {
      relative_position_bias = (*bias)(height_, width_);
      attention_mask = attention_mask ? relative_position_bias.add(attention_mask) : relative_position_bias;
    }
    X residual = hidden_states, weights;
    hidden_states = layernorm_before(hidden_states);
    std::tie(hidden_states, weights) = attention(hidden_states, {attention_mask, {}, {}});
    hidden_states = dropout(hidden_states);
    hidden_states = scaled_ ? scale(0, hidden_states) : hidden_states.mul(1.0);
    hidden_states = drop_path(hidden_states).add(residual);
    residual = hidden_states;
    hidden_states = layernorm_after(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = dropout(hidden_states);
    hidden_states = scaled_ ? scale(1, hidden_states) : hidden_states.mul(1.0);
    hidden_states = drop_path(hidden_states).add(residual);
    return leave(hidden_states, attention_mask, relative_position_bias, residual, weights);
  }

 private:
  BeitAttention& attention;
  LayerNorm &layernorm_before, &layernorm_after;
  UnaryPtr mlp_;
  Dropout& dropout;
  RelativePositionBias* bias = nullptr;
};

/// Data2VecVisionSelfAttention and its form for scaled_dot_product_attention.
class OlderSelfAttention final : public Base {
 public:
  explicit OlderSelfAttention(const VisionConfig& c)
      : Base(c.options.attention == Attention::sdpa ? "Data2VecVisionSdpaSelfAttention" : "Data2VecVisionSelfAttention"),
        sdpa_(c.options.attention == Attention::sdpa),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden, false)),
        value(child<Linear>("value", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {
    if (c.file.boolean_or("use_relative_position_bias", false))
      bias = &child<RelativePositionBias>("relative_position_bias", c, "Data2VecVision");
  }
  X operator()(const X& hidden_states, const X& shared_bias, I height, I width) {
    Entered scope(*this);
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    X scores, probs, attn_bias, context_layer;
    if (sdpa_) {
      if (bias) attn_bias = (*bias)(height, width);
      if (shared_bias) attn_bias = attn_bias ? attn_bias.add_(shared_bias) : shared_bias;
      context_layer = aten("scaled_dot_product_attention", {Tensor(query_layer), Tensor(key_layer), Tensor(value_layer),
                                                            to_value(Tensor(attn_bias)), training ? dropout_ : 0.0, false});
    } else {
      scores = query_layer.matmul(key_layer.transpose(-1, -2));
      scores = scores.div(1.0);
      if (bias) scores = scores.add((*bias)(height, width));
      if (shared_bias) scores = scores.add(shared_bias);
      probs = scores.softmax(-1);
      probs = dropout(probs);
      context_layer = probs.matmul(value_layer);
    }
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, query_layer, key_layer, value_layer, scores, probs, attn_bias);
  }

 private:
  bool sdpa_;
  I head_dim_;
  double dropout_;
  Linear &query, &key, &value;
  Dropout& dropout;
  RelativePositionBias* bias = nullptr;
};

class OlderAttention final : public Base {
 public:
  explicit OlderAttention(const VisionConfig& c)
      : Base("Data2VecVisionAttention"),
        attention(child<OlderSelfAttention>("attention", c)),
        output(child<DenseDropout>("output", "Data2VecVisionSelfOutput", c.hidden, c.hidden, c.hidden_dropout)) {}
  X operator()(X hidden_states, const X& shared_bias, I height, I width) {
    Entered scope(*this);
    X self_outputs = attention(hidden_states, shared_bias, height, width);
    X attention_output = output(self_outputs);
    return leave(attention_output, hidden_states, self_outputs);
  }

 private:
  OlderSelfAttention& attention;
  DenseDropout& output;
};

class OlderIntermediate final : public Unary {
 public:
  explicit OlderIntermediate(const VisionConfig& c)
      : Unary("Data2VecVisionIntermediate"),
        dense(child<Linear>("dense", c.hidden, c.file.size("intermediate_size"))),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = intermediate_act_fn(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Activation& intermediate_act_fn;
};

class OlderLayer final : public BeitLayerBase {
 public:
  OlderLayer(const VisionConfig& c, double rate)
      : BeitLayerBase("Data2VecVisionLayer", c.options),
        attention(child<OlderAttention>("attention", c)),
        intermediate(child<OlderIntermediate>("intermediate", c)),
        output(child<DenseDropout>("output", "Data2VecVisionOutput", c.file.size("intermediate_size"), c.hidden, c.hidden_dropout)),
        layernorm_before(child<LayerNorm>("layernorm_before", c.hidden)) {
    add_drop_path("Data2VecVision", rate);
    layernorm_after = &child<LayerNorm>("layernorm_after", c.hidden);
    add_scales(c);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X self_attention_outputs = attention(layernorm_before(hidden_states), call.mask, height_, width_);
    X attention_output = scale(0, self_attention_outputs);
    hidden_states = drop_path(attention_output).add(hidden_states);
    X layer_output = (*layernorm_after)(hidden_states);
    layer_output = intermediate(layer_output);
    layer_output = output(layer_output);
    layer_output = scale(1, layer_output);
    layer_output = drop_path(layer_output).add(hidden_states);
    return leave(layer_output, hidden_states, self_attention_outputs, attention_output);
  }

 private:
  OlderAttention& attention;
  OlderIntermediate& intermediate;
  DenseDropout& output;
  LayerNorm &layernorm_before, *layernorm_after;
};

using BeitLayerPtr = std::shared_ptr<BeitLayerBase>;
std::vector<BeitLayerPtr> make_layers(nn::Module& owner, const char* name, const VisionConfig& c, bool older) {
  std::vector<BeitLayerPtr> layers;
  const double rate = c.file.number_or("drop_path_rate", 0.1);
  auto list = owner.register_module(name, std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  for (I i = 0; i < c.layers; ++i) {
    const double own = rate * double(i) / double(std::max<I>(c.layers - 1, 1));
    if (older)
      layers.push_back(std::make_shared<OlderLayer>(c, own));
    else
      layers.push_back(std::make_shared<BeitLayer>(c, own));
    list->append(layers.back());
  }
  return layers;
}

/// Data2VecVisionEncoder.
class OlderEncoder final : public Base {
 public:
  explicit OlderEncoder(const VisionConfig& c) : Base("Data2VecVisionEncoder") {
    if (c.file.boolean_or("use_shared_relative_position_bias", false))
      bias = &child<RelativePositionBias>("relative_position_bias", c, "Data2VecVision");
    layers_ = make_layers(*this, "layer", c, true);
  }
  X operator()(X hidden_states, I height, I width) {
    Entered scope(*this);
    X relative_position_bias;
    for (auto& layer : layers_) {
      if (bias) relative_position_bias = (*bias)(height, width);
      layer->set_window(height, width);
      hidden_states = (*layer)(hidden_states, {relative_position_bias, {}, {}});
    }
    return leave(hidden_states, relative_position_bias);
  }

 private:
  RelativePositionBias* bias = nullptr;
  std::vector<BeitLayerPtr> layers_;
};

class BeitPooler final : public Unary {
 public:
  BeitPooler(const VisionConfig& c, const std::string& prefix)
      : Unary(prefix + "Pooler"),
        layernorm(c.file.boolean_or("use_mean_pooling", true) ? &child<LayerNorm>("layernorm", c.hidden) : nullptr) {}

 protected:
  X forward(X hidden_states) override {
    if (!layernorm) return hidden_states.whole_slices(1).select(1, 0);
    return (*layernorm)(hidden_states.whole_slices(1).slice(1, 1, std::nullopt).mean(1));
  }

 private:
  LayerNorm* layernorm;
};

class BeitModel final : public Base {
 public:
  BeitModel(const VisionConfig& c, const BeitForm& form, bool pools)
      : Base(form.prefix + "Model"),
        patch_(c.patch),
        embeddings_(register_module("embeddings", std::make_shared<BeitEmbeddings>(c, form))) {
    if (form.older) {
      encoder_ = &child<OlderEncoder>("encoder", c);
    } else {
      if (c.file.boolean_or("use_shared_relative_position_bias", false))
        shared_ = &child<RelativePositionBias>("shared_position_bias", c, form.prefix);
      layers_ = make_layers(*this, "layers", c, false);
    }
    if (!c.file.boolean_or("use_mean_pooling", true)) layernorm = &child<LayerNorm>("layernorm", c.hidden);
    if (pools) pooler_ = register_module("pooler", std::make_shared<BeitPooler>(c, form.prefix));
  }
  /// last_hidden_state and pooler_output.
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    const I height = pixel_values.size(2) / patch_, width = pixel_values.size(3) / patch_;
    X hidden_states = (*embeddings_)(pixel_values);
    X embedding_output = hidden_states, attention_mask;
    if (shared_) attention_mask = (*shared_)(height, width);
    if (encoder_) hidden_states = (*encoder_)(hidden_states, height, width);
    for (auto& layer : layers_) {
      layer->set_window(height, width);
      hidden_states = (*layer)(hidden_states, {attention_mask, {}, {}});
    }
    X sequence_output = layernorm ? (*layernorm)(hidden_states) : hidden_states;
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return leave(Pair(sequence_output, pooled_output), embedding_output, attention_mask, hidden_states);
  }

 private:
  I patch_;
  UnaryPtr embeddings_;
  OlderEncoder* encoder_ = nullptr;
  RelativePositionBias* shared_ = nullptr;
  std::vector<BeitLayerPtr> layers_;
  LayerNorm* layernorm = nullptr;
  UnaryPtr pooler_;
};

class BeitNetwork final : public VisionNetwork {
 public:
  BeitNetwork(const VisionConfig& c, const BeitForm& form)
      : VisionNetwork(form.prefix + (c.options.task == Task::base ? "Model" : "ForImageClassification"), c) {
    const bool alone = c.options.task == Task::base;
    model = &child<BeitModel>(form.base, c, form, !alone || !form.older);
    if (!alone) classifier = &child<Linear>("classifier", c.hidden, num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    if (c_.file.boolean_or("use_absolute_position_embeddings", false)) check_size(batch.input);
    auto [sequence_output, pooled_output] = (*model)(batch.input);
    if (!classifier) return {model_output({sequence_output, pooled_output}), {}};
    X logits = (*classifier)(pooled_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(c_.file));
    return {model_output({loss, logits}), loss};
  }

 private:
  BeitModel* model;
  Linear* classifier = nullptr;
};

NetworkPtr beit(const Config& config, const Options& o) {
  return std::make_shared<BeitNetwork>(VisionConfig(config, o), BeitForm{.prefix = "Beit", .base = "beit"});
}
NetworkPtr data2vec_vision(const Config& config, const Options& o) {
  return std::make_shared<BeitNetwork>(VisionConfig(config, o),
                                       BeitForm{.prefix = "Data2VecVision", .base = "data2vec_vision", .older = true});
}
const Family beit_family{{"beit"}, image_classes("Beit", beit)};
const Family data2vec_vision_family{{"data2vec-vision"}, image_classes("Data2VecVision", data2vec_vision)};

}  // namespace
}  // namespace memest::hf
