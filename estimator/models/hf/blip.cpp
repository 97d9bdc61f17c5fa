// models/blip/modeling_blip.py and modeling_blip_text.py (transformers 5.24): captions of images (a decoder after BERT that attends to the
// patches), and the contrastive model. Eager attention alone.
#include "models/hf/block.h"
#include "models/hf/clip_encoder.h"
#include "models/hf/git.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

// ---- the vision model ----------------------------------------------------------------------------------------------------------

class BlipVisionEmbeddings final : public Unary, public nn::InputEmbedding {
 public:
  explicit BlipVisionEmbeddings(const ClipVisionConfig& c) : Unary("BlipVisionEmbeddings") {
    new_parameter("class_embedding", {1, 1, c.hidden});
    new_parameter("position_embedding", {1, c.patches() + 1, c.hidden});
    patch_embedding = &child<PatchConvolution>("patch_embedding", c.channels, c.hidden, c.patch, true);
  }

 protected:
  X forward(X pixel_values) override {
    const DType target_dtype = patch_embedding->dtype();
    X patch_embeds = (*patch_embedding)(pixel_values.to(target_dtype));
    patch_embeds = patch_embeds.flatten(2).transpose(1, 2);
    X class_embeds = X(parameter(0)).expand({pixel_values.size(0), 1, -1}).to(target_dtype);
    X embeddings = cat({class_embeds, patch_embeds}, 1);
    X position_embedding = parameter(1);
    embeddings =
        embeddings.add(position_embedding.whole_slices(1).slice(1, std::nullopt, embeddings.size(1)).whole_slices(1).to(target_dtype));
    return hooked(leave(std::move(embeddings), patch_embeds, class_embeds, position_embedding));
  }

 private:
  PatchConvolution* patch_embedding;
};

class BlipAttention final : public Mixer {
 public:
  explicit BlipAttention(const ClipVisionConfig& c)
      : Mixer("BlipAttention"),
        heads_(c.heads),
        dropout(child<Dropout>("dropout", c.attention_dropout)),
        qkv(child<Linear>("qkv", c.hidden, checked_mul(3, c.hidden))),
        projection(child<Linear>("projection", c.hidden, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall&) override {
    const I bsz = hidden_states.size(0), tgt_len = hidden_states.size(1), embed_dim = hidden_states.size(2);
    X mixed_qkv = qkv(hidden_states).reshape({bsz, tgt_len, 3, heads_, embed_dim / heads_}).permute({2, 0, 3, 1, 4});
    X query_states = mixed_qkv.select(0, 0), key_states = mixed_qkv.select(0, 1), value_states = mixed_qkv.select(0, 2);
    X attention_scores = query_states.matmul(key_states.transpose(-1, -2));
    attention_scores = attention_scores.mul(0.125);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_states).permute({0, 2, 1, 3});
    context_layer = context_layer.reshape({bsz, tgt_len, embed_dim});
    X output = projection(context_layer);
    return leave(Pair(output, attention_probs), mixed_qkv, query_states, key_states, value_states, attention_scores, context_layer);
  }

 private:
  I heads_;
  Dropout& dropout;
  Linear &qkv, &projection;
};

class BlipEncoderLayer final : public DecoderLayer {
 public:
  explicit BlipEncoderLayer(const ClipVisionConfig& c)
      : DecoderLayer("BlipEncoderLayer", c.options),
        self_attn(register_module("self_attn", std::make_shared<BlipAttention>(c))),
        layer_norm1(child<LayerNorm>("layer_norm1", c.hidden)),
        mlp(register_module("mlp", make_clip_mlp("BlipMLP", c.hidden, c.intermediate, c.act))),
        layer_norm2(child<LayerNorm>("layer_norm2", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = layer_norm1(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    hidden_states = hidden_states.add(residual);
    residual = hidden_states;
    hidden_states = layer_norm2(hidden_states);
    hidden_states = (*mlp)(hidden_states);
    hidden_states = hidden_states.add(residual);
    return hidden_states;
  }

 private:
  MixerPtr self_attn;
  LayerNorm& layer_norm1;
  UnaryPtr mlp;
  LayerNorm& layer_norm2;
};

class BlipEncoder final : public Unary {
 public:
  explicit BlipEncoder(const ClipVisionConfig& c)
      : Unary("BlipEncoder"), layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<BlipEncoderLayer>(c); }) {}

 protected:
  X forward(X inputs_embeds) override {
    X hidden_states = inputs_embeds;
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{});
    return hidden_states;
  }

 private:
  Layers<BlipEncoderLayer> layers_;
};

class BlipVisionModel final : public VisionTower {
 public:
  explicit BlipVisionModel(const ClipVisionConfig& c)
      : VisionTower("BlipVisionModel", {c.patches() + 1, c.hidden, c.layers, c.channels, c.image}),
        embeddings(child<BlipVisionEmbeddings>("embeddings", c)),
        encoder(child<BlipEncoder>("encoder", c)),
        post_layernorm(child<LayerNorm>("post_layernorm", c.hidden)) {}
  nn::InputEmbedding* input_embedding() override { return &embeddings; }

 protected:
  VisionOutput forward(X pixel_values, const std::vector<I>&) override {
    if (pixel_values.size(2) != shape.image || pixel_values.size(3) != shape.image)
      throw Error("memest does not build the interpolation of position embeddings",
                  "images of " + std::to_string(shape.image) + "x" + std::to_string(shape.image) + " need none");
    X hidden_states = embeddings(pixel_values);
    X encoder_outputs = encoder(hidden_states);
    X last_hidden_state = post_layernorm(encoder_outputs);
    X pooled_output = last_hidden_state.whole_slices(1).select(1, 0).whole_slices(1);
    pooled_output = post_layernorm(pooled_output);
    hidden_states.reset();
    encoder_outputs.reset();
    return {last_hidden_state, pooled_output};
  }

 private:
  BlipVisionEmbeddings& embeddings;
  BlipEncoder& encoder;
  LayerNorm& post_layernorm;
};

// ---- the text model ------------------------------------------------------------------------------------------------------------

class BlipTextSelfAttention final : public Base {
 public:
  BlipTextSelfAttention(const EncoderConfig& c, I layer, I key_width)
      : Base("BlipTextSelfAttention"),
        layer_(layer),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", key_width, c.hidden)),
        value(child<Linear>("value", key_width, c.hidden)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}
  Pair operator()(const X& hidden_states, const X& current_states, const X& attention_mask, Cache* cache) {
    Entered scope(*this);
    const I batch = hidden_states.size(0);
    X query_layer = query(hidden_states).view({batch, hidden_states.size(1), -1, head_dim_}).transpose(1, 2);
    const Dims kv_shape{batch, current_states.size(1), -1, head_dim_};
    X key_layer = key(current_states).view(kv_shape).transpose(1, 2);
    X value_layer = value(current_states).view(kv_shape).transpose(1, 2);
    if (cache) std::tie(key_layer, value_layer) = cache->update(key_layer, value_layer, layer_);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(8.0);
    if (attention_mask) attention_scores = attention_scores.add(attention_mask);
    X attention_probs = attention_scores.softmax(-1);
    X attention_probs_dropped = dropout(attention_probs);
    X context_layer = attention_probs_dropped.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({batch, hidden_states.size(1), -1});
    return leave(Pair(context_layer, attention_probs), query_layer, key_layer, value_layer, attention_scores, attention_probs_dropped);
  }

 private:
  I layer_, head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

class BlipTextAttention final : public Base {
 public:
  BlipTextAttention(const EncoderConfig& c, I layer, I key_width)
      : Base("BlipTextAttention"),
        self(child<BlipTextSelfAttention>("self", c, layer, key_width)),
        output(register_module("output", make_residual_output("BlipTextSelfOutput", c, c.hidden))) {}
  Pair operator()(const X& hidden_states, const X& current_states, const X& attention_mask, Cache* cache) {
    Entered scope(*this);
    auto [context_layer, attention_probs] = self(hidden_states, current_states, attention_mask, cache);
    X attention_output = (*output)(context_layer, hidden_states);
    return {attention_output, attention_probs};
  }

 private:
  BlipTextSelfAttention& self;
  JointPtr output;
};

class BlipTextLayer final : public DecoderLayer {
 public:
  BlipTextLayer(const EncoderConfig& c, I layer) : DecoderLayer("BlipTextLayer", c.options) {
    attention = &child<BlipTextAttention>("attention", c, layer, c.hidden);
    if (c.is_decoder) crossattention = &child<BlipTextAttention>("crossattention", c, layer, c.file.size("encoder_hidden_size"));
    intermediate = register_module("intermediate", make_intermediate("BlipTextIntermediate", c));
    output = register_module("output", make_residual_output("BlipTextOutput", c, c.intermediate));
  }
  /// Of the attention to the patches; null: none.
  Cache* cross_cache = nullptr;

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, weights] = (*attention)(hidden_states, hidden_states, call.mask, call.cache);
    if (call.cross_attention_states)
      std::tie(attention_output, weights) = (*crossattention)(attention_output, call.cross_attention_states, {}, cross_cache);
    X intermediate_output = (*intermediate)(attention_output);
    X layer_output = (*output)(intermediate_output, attention_output);
    intermediate_output.reset();
    return layer_output;
  }

 private:
  BlipTextAttention *attention, *crossattention = nullptr;
  UnaryPtr intermediate;
  JointPtr output;
};

struct BlipTextOutput {
  X last_hidden_state, pooler_output;
  std::shared_ptr<EncoderDecoderCache> cache;
};

class BlipTextEncoder final : public Base {
 public:
  explicit BlipTextEncoder(const EncoderConfig& c)
      : Base("BlipTextEncoder"), layers_(*this, "layer", c.layers, [&](I i) { return std::make_shared<BlipTextLayer>(c, i); }) {}
  BlipTextOutput operator()(X hidden_states, const X& attention_mask, const X& encoder_hidden_states, bool use_cache) {
    Entered scope(*this);
    std::shared_ptr<EncoderDecoderCache> cache;
    if (use_cache) cache = std::make_shared<EncoderDecoderCache>();
    for (auto& layer : layers_) {
      layer->cross_cache = cache ? &cache->cross_attention : nullptr;
      LayerCall call;
      call.mask = attention_mask;
      call.cache = cache ? &cache->self_attention : nullptr;
      call.cross_attention_states = encoder_hidden_states;
      hidden_states = (*layer)(hidden_states, std::move(call));
      layer->cross_cache = nullptr;
    }
    return {hidden_states, {}, cache};
  }

 private:
  Layers<BlipTextLayer> layers_;
};

class BlipTextModel final : public Base, public nn::EmbeddedModel {
 public:
  BlipTextModel(const EncoderConfig& c, bool add_pooling_layer)
      : Base("BlipTextModel"),
        c_(c),
        embeddings(register_module("embeddings", make_added_embeddings("BlipTextEmbeddings", c, true))),
        encoder(child<BlipTextEncoder>("encoder", c)) {
    if (add_pooling_layer) pooler = register_module("pooler", make_pooler("BlipTextPooler", c.hidden, c.hidden, "tanh"));
  }
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.word_embeddings"); }
  BlipTextOutput operator()(X input_ids, const X& encoder_hidden_states, bool is_decoder, bool use_cache) {
    Entered scope(*this);
    X embedding_output = (*embeddings)(input_ids);
    X attention_mask;
    if (is_decoder) attention_mask = create_causal_mask({c_.options, embedding_output});
    BlipTextOutput output = encoder(embedding_output, attention_mask, encoder_hidden_states, is_decoder && use_cache);
    if (pooler) output.pooler_output = (*pooler)(output.last_hidden_state);
    attention_mask.reset();
    embedding_output.reset();
    return output;
  }

 private:
  const EncoderConfig c_;
  UnaryPtr embeddings;
  BlipTextEncoder& encoder;
  UnaryPtr pooler;
};

class BlipTextLMHeadModel final : public Base {
 public:
  explicit BlipTextLMHeadModel(const EncoderConfig& c)
      : Base("BlipTextLMHeadModel"),
        vocab_(c.vocab),
        label_smoothing_(c.file.number_or("label_smoothing", 0.0)),
        bert(child<BlipTextModel>("bert", c, false)),
        cls(register_module("cls", make_mlm_head(c, "BlipText"))) {}
  struct Output {
    X loss, logits;
    std::shared_ptr<EncoderDecoderCache> cache;
  };
  Output operator()(X input_ids, const X& encoder_hidden_states, X labels, const Options& o) {
    Entered scope(*this);
    BlipTextOutput outputs = bert(input_ids, encoder_hidden_states, true, o.use_cache && !labels);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, o.logits_to_keep);
    X prediction_scores = (*cls)(hidden_states);
    X lm_loss;
    if (labels) lm_loss = shifted_loss(prediction_scores, labels);
    outputs.last_hidden_state.reset();
    hidden_states.reset();
    return {lm_loss, prediction_scores, outputs.cache};
  }

 private:
  X shifted_loss(const X& prediction_scores, const X& labels) const {
    X shifted_prediction_scores = prediction_scores.whole_slices(1).slice(1, std::nullopt, -1).whole_slices(1).contiguous();
    X shift_labels = labels.whole_slices(1).slice(1, 1, std::nullopt).contiguous();
    X loss =
        ops::cross_entropy_loss(shifted_prediction_scores.view({-1, vocab_}), shift_labels.view({-1}), Tensor(), 1, -100, label_smoothing_);
    return leave(std::move(loss), shifted_prediction_scores, shift_labels);
  }

  I vocab_;
  double label_smoothing_;
  BlipTextModel& bert;
  UnaryPtr cls;
};

// ---- both ----------------------------------------------------------------------------------------------------------------------

class BlipForConditionalGeneration final : public ContrastiveNetwork {
 public:
  BlipForConditionalGeneration(const Options& o, const EncoderConfig& text, const ClipVisionConfig& vision)
      : ContrastiveNetwork("BlipForConditionalGeneration", o, text.positions, vision),
        vision_model(child<BlipVisionModel>("vision_model", vision)),
        text_decoder_(child<BlipTextLMHeadModel>("text_decoder", text)) {
    tie("text_decoder.cls.predictions.decoder.bias", "text_decoder.cls.predictions.bias");
    if (text.tie) tie("text_decoder.cls.predictions.decoder.weight", "text_decoder.bert.embeddings.word_embeddings.weight");
  }
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = ContrastiveNetwork::inputs();
    if (options_.labels) list.push_back({"labels", {nn::SizeExpression("batch"), nn::SizeExpression("seq")}, DType::int64});
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput vision_outputs = vision_model(batch.pixel_values);
    auto [loss, logits, cache] = text_decoder_(batch.input, vision_outputs.last_hidden_state, batch.labels, options_);
    return {model_output({loss, logits, vision_outputs.last_hidden_state}), loss};
  }

 private:
  BlipVisionModel& vision_model;
  BlipTextLMHeadModel& text_decoder_;
};

class BlipModel final : public ContrastiveNetwork {
 public:
  BlipModel(const Config& config, const Options& o, const EncoderConfig& text, const ClipVisionConfig& vision)
      : ContrastiveNetwork("BlipModel", o, text.positions, vision) {
    new_parameter("logit_scale", {});
    text_model = &child<BlipTextModel>("text_model", text, true);
    vision_model = &child<BlipVisionModel>("vision_model", vision);
    visual_projection = &child<Linear>("visual_projection", vision.hidden, config.size("projection_dim"), false);
    text_projection = &child<Linear>("text_projection", text.hidden, config.size("projection_dim"), false);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput vision_outputs = (*vision_model)(batch.pixel_values);
    BlipTextOutput text_outputs = (*text_model)(batch.input, {}, false, false);
    X image_embeds = (*visual_projection)(vision_outputs.pooler_output);
    X text_embeds = (*text_projection)(text_outputs.pooler_output);
    image_embeds = normalized(image_embeds);
    text_embeds = normalized(text_embeds);
    X logit_scale = X(parameter(0)).exp();
    X logits_per_text = text_embeds.matmul(image_embeds.t()).mul(logit_scale);
    X logits_per_image = logits_per_text.t();
    X loss;
    if (options_.labels) loss = image_text_contrastive_loss(logits_per_text);
    return {contrastive_output({loss, logits_per_image, logits_per_text, text_embeds, image_embeds},
                               {text_outputs.last_hidden_state, text_outputs.pooler_output}, vision_outputs),
            loss};
  }

 private:
  BlipTextModel* text_model;
  BlipVisionModel* vision_model;
  Linear *visual_projection, *text_projection;
};

NetworkPtr blip(const Config& config, const Options& o) {
  const Options own = eager_only(o);
  Config text = config.section("text_config");
  const ClipVisionConfig vision(config.section("vision_config"), own);
  text.set("encoder_hidden_size", ConfigValue{vision.hidden});
  const EncoderConfig c(text, own);
  if (o.task == Task::image_text_to_text) {
    if (o.images != 1) throw Error("BLIP takes one image a sample", "leave out --images");
    return std::make_shared<BlipForConditionalGeneration>(own, c, vision);
  }
  return std::make_shared<BlipModel>(config, own, c, vision);
}
const Family blip_family{{"blip"},
                         {{Task::image_text_to_text, "BlipForConditionalGeneration", blip},
                          {Task::zero_shot_image_cls, "BlipModel", blip},
                          {Task::base, "BlipModel", blip}}};

}  // namespace
}  // namespace memest::hf
