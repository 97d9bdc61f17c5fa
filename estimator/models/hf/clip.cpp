// models/clip/modeling_clip.py (transformers 5.24).
#include "models/hf/clip_encoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

class CLIPTextModel final : public Base, public nn::EmbeddedModel {
 public:
  explicit CLIPTextModel(const ClipConfig& c)
      : Base("CLIPTextModel"),
        options_(c.options),
        first_eos_(c.file.integer_or("eos_token_id", 49407) != 2),
        embeddings_(register_module("embeddings", make_clip_text_embeddings("CLIP", c))),
        encoder(child<ClipEncoder>("encoder", c, ClipEncoder::Form{.prefix = "CLIP", .causal = true, .views_last = true})),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.token_embedding"); }
  ClipTextOutput operator()(X input_ids) {
    Entered scope(*this);
    input_ids = input_ids.view({-1, input_ids.size(-1)});
    X hidden_states = (*embeddings_)(input_ids);
    X attention_mask = create_causal_mask({options_, hidden_states});
    X encoder_outputs = encoder(hidden_states, attention_mask);
    X last_hidden_state = encoder_outputs;
    last_hidden_state = final_layer_norm(last_hidden_state);
    X pooled_output = at_end(last_hidden_state, input_ids);
    ClipTextOutput output{last_hidden_state, pooled_output};
    attention_mask.reset();
    hidden_states.reset();
    encoder_outputs.reset();
    return output;
  }

 private:
  /// The states at the end token: the greatest id (eos_token_id 2), or the first that is eos_token_id.
  X at_end(const X& last_hidden_state, const X& input_ids) const {
    X rows = arange(last_hidden_state.size(0));
    X ids = input_ids.to(DType::int32);
    if (first_eos_) {
      X equal = aten("eq", {Tensor(std::move(ids)), I{0}});
      ids = std::move(equal).to(DType::int32);
    }
    X ends = aten("argmax", {Tensor(std::move(ids)), I{-1}});
    return aten("index", {Tensor(last_hidden_state), make_list({Tensor(rows), Tensor(ends)})});
  }

  const Options options_;
  bool first_eos_;
  UnaryPtr embeddings_;
  ClipEncoder& encoder;
  LayerNorm& final_layer_norm;
};

class CLIPVisionModel final : public VisionTower {
 public:
  explicit CLIPVisionModel(const ClipVisionConfig& c)
      : VisionTower("CLIPVisionModel", {c.patches() + 1, c.hidden, c.layers, c.channels, c.image}),
        embeddings_(register_module("embeddings", make_clip_vision_embeddings("CLIP", c, true))),
        pre_layrnorm(child<LayerNorm>("pre_layrnorm", c.hidden)),
        encoder(child<ClipEncoder>("encoder", c, ClipEncoder::Form{.prefix = "CLIP", .views_last = true})),
        post_layernorm(child<LayerNorm>("post_layernorm", c.hidden)) {}

 protected:
  VisionOutput forward(X pixel_values, const std::vector<I>& selected) override {
    VisionOutput output;
    X hidden_states = (*embeddings_)(pixel_values);
    hidden_states = pre_layrnorm(hidden_states);
    output.last_hidden_state = encoder(hidden_states, {}, selected, output.hidden_states);
    X pooled_output = output.last_hidden_state.whole_slices(1).select(1, 0).whole_slices(1);
    pooled_output = post_layernorm(pooled_output);
    output.pooler_output = pooled_output;
    hidden_states.reset();
    return output;
  }

 private:
  UnaryPtr embeddings_;
  LayerNorm& pre_layrnorm;
  ClipEncoder& encoder;
  LayerNorm& post_layernorm;
};

class CLIPModel final : public ContrastiveNetwork {
 public:
  CLIPModel(const Config& config, const Options& o, const ClipConfig& text, const ClipVisionConfig& vision)
      : ContrastiveNetwork("CLIPModel", o, text.file.size("max_position_embeddings"), vision) {
    const I projection_dim = config.size("projection_dim");
    new_parameter("logit_scale", {});
    text_model = &child<CLIPTextModel>("text_model", text);
    vision_model = &child<CLIPVisionModel>("vision_model", vision);
    visual_projection = &child<Linear>("visual_projection", vision.hidden, projection_dim, false);
    text_projection = &child<Linear>("text_projection", text.hidden, projection_dim, false);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput vision_outputs = (*vision_model)(batch.pixel_values);
    vision_outputs.pooler_output = (*visual_projection)(vision_outputs.pooler_output);
    ClipTextOutput text_outputs = (*text_model)(batch.input);
    text_outputs.pooler_output = (*text_projection)(text_outputs.pooler_output);
    X image_embeds = normalized(vision_outputs.pooler_output);
    X text_embeds = normalized(text_outputs.pooler_output);
    X logits_per_text = text_embeds.matmul(image_embeds.t());
    logits_per_text = logits_per_text.mul(X(parameter(0)).exp());
    X logits_per_image = logits_per_text.t();
    X loss;
    if (options_.labels) loss = image_text_contrastive_loss(logits_per_text);
    return {contrastive_output({loss, logits_per_image, logits_per_text, text_embeds, image_embeds}, text_outputs, vision_outputs), loss};
  }

 private:
  /// embeds / _get_vector_norm(embeds)
  static X normalized(const X& embeds) {
    X square_tensor = embeds.pow(2);
    X sum_tensor = square_tensor.sum(-1, true);
    X normed_tensor = sum_tensor.pow(0.5);
    return embeds.div(leave(std::move(normed_tensor), square_tensor, sum_tensor));
  }
  static X contrastive_loss(const X& logits) { return cross_entropy(logits, arange(logits.size(0))); }
  static X image_text_contrastive_loss(const X& similarity) {
    X caption_loss = contrastive_loss(similarity);
    X image_loss = contrastive_loss(similarity.t());
    return leave(caption_loss.add(image_loss).div(2.0), caption_loss, image_loss);
  }

  CLIPTextModel* text_model;
  CLIPVisionModel* vision_model;
  Linear *visual_projection, *text_projection;
};

/// CLIPTextModel and CLIPTextModelWithProjection.
class CLIPText final : public ClipTextNetwork {
 public:
  CLIPText(const Config& config, const Options& o)
      : ClipTextNetwork(o.class_name, o, config.size("max_position_embeddings")),
        text_model(child<CLIPTextModel>("text_model", ClipConfig(config, o))) {
    if (o.class_name == "CLIPTextModelWithProjection")
      text_projection = &child<Linear>("text_projection", config.size("hidden_size"), config.size("projection_dim"), false);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    ClipTextOutput text_outputs = text_model(batch.input);
    if (!text_projection) return {model_output({text_outputs.last_hidden_state, text_outputs.pooler_output}), {}};
    X text_embeds = (*text_projection)(text_outputs.pooler_output);
    return {model_output({text_embeds, text_outputs.last_hidden_state}), {}};
  }

 private:
  CLIPTextModel& text_model;
  Linear* text_projection = nullptr;
};

/// CLIPVisionModel and CLIPVisionModelWithProjection.
class CLIPVision final : public ClipVisionNetwork {
 public:
  CLIPVision(const Options& o, const ClipVisionConfig& c)
      : ClipVisionNetwork(o.class_name, o, c), vision_model(child<CLIPVisionModel>("vision_model", c)) {
    if (o.class_name == "CLIPVisionModelWithProjection")
      visual_projection = &child<Linear>("visual_projection", c.hidden, c.file.size("projection_dim"), false);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput vision_outputs = vision_model(batch.input);
    if (!visual_projection) return {model_output({vision_outputs.last_hidden_state, vision_outputs.pooler_output}), {}};
    X image_embeds = (*visual_projection)(vision_outputs.pooler_output);
    return {model_output({image_embeds, vision_outputs.last_hidden_state}), {}};
  }

 private:
  CLIPVisionModel& vision_model;
  Linear* visual_projection = nullptr;
};

NetworkPtr clip(const Config& config, const Options& o) {
  return std::make_shared<CLIPModel>(config, o, ClipConfig(config.section("text_config"), o),
                                     ClipVisionConfig(config.section("vision_config"), o));
}
NetworkPtr clip_classifier(const Config& config, const Options& o) {
  const ClipVisionConfig c(config.section("vision_config"), o);
  return make_clip_image_classifier("CLIP", config, o, c, std::make_shared<CLIPVisionModel>(c), true);
}
NetworkPtr clip_vision(const Config& config, const Options& o) { return std::make_shared<CLIPVision>(o, ClipVisionConfig(config, o)); }

const Family clip_family{{"clip"},
                         {{Task::zero_shot_image_cls, "CLIPModel", clip},
                          {Task::image_cls, "CLIPForImageClassification", clip_classifier},
                          {Task::base, "CLIPModel", clip}}};
const Family clip_text_family{{"clip_text_model"},
                              {{Task::base, "CLIPTextModel", make_class<CLIPText>},
                               {Task::text_encoding, "CLIPTextModel", make_class<CLIPText>},
                               {Task::base, "CLIPTextModelWithProjection", make_class<CLIPText>}}};
const Family clip_vision_family{{"clip_vision_model"},
                                {{Task::base, "CLIPVisionModel", clip_vision}, {Task::base, "CLIPVisionModelWithProjection", clip_vision}}};
const VisionModel clip_tower{"clip_vision_model", [](const Config& config, const Options& o) -> VisionTowerPtr {
                               return std::make_shared<CLIPVisionModel>(ClipVisionConfig(config, o));
                             }};

}  // namespace
}  // namespace memest::hf
