#include "models/hf/clip_encoder.h"

#include <algorithm>

#include "models/hf/loss.h"

namespace memest::hf {

ClipConfig::ClipConfig(const Config& f, const Options& o) : file(f), options(o) {
  hidden = f.size("hidden_size");
  intermediate = f.size("intermediate_size");
  layers = layer_count(f);
  heads = f.size("num_attention_heads");
  if (hidden % heads != 0)
    throw f.error("num_attention_heads",
                  "expected a divisor of the hidden_size " + std::to_string(hidden) + ", found " + std::to_string(heads));
  act = f.text("hidden_act");
  attention_dropout = f.number_or("attention_dropout", 0.0);
}
ClipVisionConfig::ClipVisionConfig(const Config& f, const Options& o) : ClipConfig(f, o) {
  channels = f.size("num_channels");
  image = square_size(f, "image_size");
  patch = square_size(f, "patch_size");
  if (patch > image)
    throw f.error("patch_size", "expected at most the image_size " + std::to_string(image) + ", found " + std::to_string(patch));
}

namespace {

class ClipAttention final : public Mixer {
 public:
  ClipAttention(const ClipConfig& c, const ClipEncoder::Form& form)
      : Mixer(form.prefix + "Attention"),
        options_(c.options),
        causal_(form.causal),
        views_last_(form.views_last),
        head_dim_(c.hidden / c.heads),
        dropout_(c.attention_dropout),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    auto heads = [&](const X& x) { return x.view(hidden_shape).transpose(1, 2); };
    X queries = q_proj(hidden_states);
    if (!views_last_) queries = heads(queries);
    X keys = k_proj(hidden_states);
    if (!views_last_) keys = heads(keys);
    X values = v_proj(hidden_states);
    if (!views_last_) values = heads(values);
    if (views_last_)
      for (X* x : {&queries, &keys, &values}) *x = heads(*x);
    auto [attn_output, attn_weights] =
        attention_interface(options_, queries, keys, values,
                            {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  bool causal_, views_last_;
  I head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

class ClipMlp final : public Unary {
 public:
  ClipMlp(std::string type, I hidden, I intermediate, const std::string& act)
      : Unary(std::move(type)),
        activation_fn(child<Activation>("activation_fn", act)),
        fc1(child<Linear>("fc1", hidden, intermediate)),
        fc2(child<Linear>("fc2", intermediate, hidden)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = fc1(hidden_states);
    hidden_states = activation_fn(hidden_states);
    hidden_states = fc2(hidden_states);
    return hidden_states;
  }

 private:
  Activation& activation_fn;
  Linear &fc1, &fc2;
};

class ClipLayer final : public DecoderLayer {
 public:
  ClipLayer(const ClipConfig& c, const ClipEncoder::Form& form) : DecoderLayer(form.prefix + "EncoderLayer", c.options) {
    if (form.norms_first) layer_norm1 = &child<LayerNorm>("layer_norm1", c.hidden);
    self_attn = register_module("self_attn", std::make_shared<ClipAttention>(c, form));
    (form.norms_first ? layer_norm2 : layer_norm1) = &child<LayerNorm>(form.norms_first ? "layer_norm2" : "layer_norm1", c.hidden);
    mlp = register_module("mlp", make_clip_mlp(form.prefix + "MLP", c.hidden, c.intermediate, c.act));
    if (!form.norms_first) layer_norm2 = &child<LayerNorm>("layer_norm2", c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*layer_norm1)(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*layer_norm2)(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  LayerNorm *layer_norm1 = nullptr, *layer_norm2 = nullptr;
  MixerPtr self_attn;
  UnaryPtr mlp;
};

class TextEmbeddings final : public Unary {
 public:
  TextEmbeddings(std::string type, const ClipConfig& c)
      : Unary(std::move(type)),
        positions_(c.file.size("max_position_embeddings")),
        token_embedding(child<Embedding>("token_embedding", c.file.size("vocab_size"), c.hidden)),
        position_embedding(child<Embedding>("position_embedding", positions_, c.hidden)) {
    new_buffer("position_ids", {1, positions_}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    const I seq_length = input_ids.size(-1);
    if (seq_length > positions_)
      throw Error("Sequence length must be less than max_position_embeddings (got `sequence length`: " + std::to_string(seq_length) +
                      " and max_position_embeddings: " + std::to_string(positions_),
                  "give a smaller --seq");
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, std::nullopt, seq_length);
    X inputs_embeds = token_embedding(input_ids);
    X position_embeddings = position_embedding(position_ids);
    X embeddings = inputs_embeds.add(position_embeddings);
    return leave(std::move(embeddings), position_ids, inputs_embeds, position_embeddings);
  }

 private:
  I positions_;
  Embedding &token_embedding, &position_embedding;
};

class VisionEmbeddings final : public Unary {
 public:
  VisionEmbeddings(std::string type, const ClipVisionConfig& c, bool class_token)
      : Unary(std::move(type)), image_(c.image), class_token_(class_token) {
    const I positions = c.patches() + (class_token ? 1 : 0);
    new_parameter("class_embedding", {c.hidden}, class_token);
    patch_embedding = &child<PatchConvolution>("patch_embedding", c.channels, c.hidden, c.patch, !class_token);
    position_embedding = &child<Embedding>("position_embedding", positions, c.hidden);
    new_buffer("position_ids", {1, positions}, DType::int64);
  }

 protected:
  X forward(X pixel_values) override {
    const I batch_size = pixel_values.size(0), height = pixel_values.size(2), width = pixel_values.size(3);
    if (height != image_ || width != image_)
      throw Error("Input image size (" + std::to_string(height) + "*" + std::to_string(width) + ") doesn't match model (" +
                      std::to_string(image_) + "*" + std::to_string(image_) + ").",
                  "the config's image_size is " + std::to_string(image_));
    X patch_embeds, embeddings, class_embeds;
    patch_embeds = (*patch_embedding)(pixel_values.to(patch_embedding->dtype()));
    if (class_token_) {
      patch_embeds = patch_embeds.flatten(2).transpose(1, 2);
      class_embeds = X(parameter(0)).expand({batch_size, 1, -1});
      embeddings = cat({class_embeds, patch_embeds}, 1);
    } else {
      embeddings = patch_embeds.flatten(2).transpose(1, 2);
    }
    embeddings = embeddings.add((*position_embedding)(buffer(0)));
    return leave(std::move(embeddings), patch_embeds, class_embeds);
  }

 private:
  I image_;
  bool class_token_;
  PatchConvolution* patch_embedding;
  Embedding* position_embedding;
};

class ImageClassifier final : public ClipVisionNetwork {
 public:
  ImageClassifier(std::string type, const Config& config, const Options& options, const ClipVisionConfig& c, VisionTowerPtr vision_model,
                  bool class_token)
      : ClipVisionNetwork(std::move(type), options, c),
        labels_(num_labels(config)),
        class_token_(class_token),
        vision_model_(register_module("vision_model", std::move(vision_model))),
        classifier(child<Linear>("classifier", c.hidden, labels_)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput outputs = (*vision_model_)(batch.input);
    X sequence_output = outputs.last_hidden_state;
    if (class_token_) sequence_output = sequence_output.whole_slices(1).slice(1, 1, std::nullopt).whole_slices(1);
    sequence_output = sequence_output.mean(1);
    X logits = classifier(sequence_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    Value out = model_output({loss, logits});
    outputs = {};
    sequence_output.reset();
    return {out, loss};
  }

 private:
  I labels_;
  bool class_token_;
  VisionTowerPtr vision_model_;
  Linear& classifier;
};

nn::InputSpec pixel_values(I channels) {
  const nn::SizeExpression image("image");
  return {"pixel_values", {nn::SizeExpression("batch"), nn::SizeExpression(std::to_string(channels)), image, image}, DType::float32};
}

}  // namespace

UnaryPtr make_clip_mlp(std::string type, I hidden, I intermediate, const std::string& act) {
  return std::make_shared<ClipMlp>(std::move(type), hidden, intermediate, act);
}
UnaryPtr make_clip_text_embeddings(const std::string& prefix, const ClipConfig& c) {
  return std::make_shared<TextEmbeddings>(prefix + "TextEmbeddings", c);
}
UnaryPtr make_clip_vision_embeddings(const std::string& prefix, const ClipVisionConfig& c, bool class_token) {
  return std::make_shared<VisionEmbeddings>(prefix + "VisionEmbeddings", c, class_token);
}
NetworkPtr make_clip_image_classifier(const std::string& prefix, const Config& config, const Options& options, const ClipVisionConfig& c,
                                      VisionTowerPtr vision_model, bool class_token) {
  return std::make_shared<ImageClassifier>(prefix + "ForImageClassification", config, options, c, std::move(vision_model), class_token);
}

ClipEncoder::ClipEncoder(const ClipConfig& c, const Form& form) : Base(form.prefix + "Encoder") {
  auto list = register_module("layers", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  for (I i = 0; i < c.layers; ++i) {
    layers_.push_back(std::make_shared<ClipLayer>(c, form));
    list->append(layers_.back());
  }
}
X ClipEncoder::operator()(X inputs_embeds, X attention_mask, const std::vector<I>& selected, std::vector<X>& hidden_states) {
  Entered scope(*this);
  I index = 0;
  auto keep = [&](const X& x) {
    if (std::find(selected.begin(), selected.end(), index++) != selected.end()) hidden_states.push_back(x);
  };
  X hidden = inputs_embeds;
  keep(hidden);
  for (auto& layer : layers_) {
    LayerCall call;
    call.mask = attention_mask;
    hidden = (*layer)(hidden, call);
    keep(hidden);
  }
  return hidden;
}

std::vector<nn::InputSpec> ContrastiveNetwork::inputs() const {
  return {{"input_ids", {nn::SizeExpression("batch"), nn::SizeExpression("seq")}, DType::int64}, pixel_values(channels_)};
}
std::vector<nn::InputSpec> ClipVisionNetwork::inputs() const {
  std::vector<nn::InputSpec> list{pixel_values(channels_)};
  if (options_.labels) list.push_back({"labels", {nn::SizeExpression("batch")}, DType::int64});
  return list;
}

Value contrastive_output(std::initializer_list<X> own, const ClipTextOutput& text, const VisionOutput& vision) {
  Values items;
  for (auto& x : own)
    if (x) items.emplace_back(Tensor(x));
  for (auto* x : {&text.last_hidden_state, &text.pooler_output}) items.emplace_back(Tensor(*x));
  vision.collect(items);
  return make_tuple(std::move(items));
}

}  // namespace memest::hf
