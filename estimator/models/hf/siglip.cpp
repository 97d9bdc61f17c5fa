// models/siglip/modeling_siglip.py (transformers 5.24).
#include "models/hf/clip_encoder.h"
#include "nn/layer.h"

namespace memest::hf {
namespace {

const ClipEncoder::Form kEncoder{.prefix = "Siglip", .norms_first = true};

class SiglipTextModel final : public Base, public nn::EmbeddedModel {
 public:
  explicit SiglipTextModel(const ClipConfig& c)
      : Base("SiglipTextModel"),
        embeddings_(register_module("embeddings", make_clip_text_embeddings("Siglip", c))),
        encoder(child<ClipEncoder>("encoder", c, kEncoder)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)),
        head(child<Linear>("head", c.hidden, c.file.size_or("projection_size", c.hidden))) {}
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.token_embedding"); }
  ClipTextOutput operator()(X input_ids) {
    Entered scope(*this);
    input_ids = input_ids.view({-1, input_ids.size(-1)});
    X hidden_states = (*embeddings_)(input_ids);
    X encoder_outputs = encoder(hidden_states, {});
    X last_hidden_state = encoder_outputs;
    last_hidden_state = final_layer_norm(last_hidden_state);
    X pooled_output = last_hidden_state.whole_slices(1).select(1, -1).whole_slices(1);
    pooled_output = head(pooled_output);
    ClipTextOutput output{last_hidden_state, pooled_output};
    hidden_states.reset();
    encoder_outputs.reset();
    return output;
  }

 private:
  UnaryPtr embeddings_;
  ClipEncoder& encoder;
  LayerNorm& final_layer_norm;
  Linear& head;
};

class PoolingHead final : public Unary {
 public:
  explicit PoolingHead(const ClipVisionConfig& c) : Unary("SiglipMultiheadAttentionPoolingHead") {
    new_parameter("probe", {1, 1, c.hidden});
    attention_ = register_module(
        "attention", nn::make_layer("MultiheadAttention", {{"embed_dim", c.hidden}, {"num_heads", c.heads}, {"batch_first", true}}));
    layernorm = &child<LayerNorm>("layernorm", c.hidden);
    mlp = register_module("mlp", make_clip_mlp("SiglipMLP", c.hidden, c.intermediate, c.act));
  }

 protected:
  X forward(X hidden_state) override {
    const I batch_size = hidden_state.size(0);
    X probe = aten("repeat", {parameter(0), list_of(Dims{batch_size, 1, 1})});
    hidden_state = attended(probe, hidden_state);
    X residual = hidden_state;
    hidden_state = (*layernorm)(hidden_state);
    hidden_state = residual.add((*mlp)(hidden_state));
    return leave(hidden_state.whole_slices(1).select(1, 0), probe, residual);
  }

 private:
  /// self.attention(probe, hidden_state, hidden_state)[0]
  X attended(const X& probe, const X& hidden_state) {
    const Value outputs = attention_->call({Tensor(probe), Tensor(hidden_state), Tensor(hidden_state)});
    return std::get<Tensor>(std::get<std::shared_ptr<List>>(outputs)->items[0]);
  }

  nn::ModulePtr attention_;
  LayerNorm* layernorm;
  UnaryPtr mlp;
};

class SiglipVisionModel final : public VisionTower {
 public:
  explicit SiglipVisionModel(const ClipVisionConfig& c)
      : VisionTower("SiglipVisionModel", {c.patches(), c.hidden, c.layers, c.channels, c.image}),
        embeddings_(register_module("embeddings", make_clip_vision_embeddings("Siglip", c, false))),
        encoder(child<ClipEncoder>("encoder", c, kEncoder)),
        post_layernorm(child<LayerNorm>("post_layernorm", c.hidden)) {
    if (c.file.boolean_or("vision_use_head", true)) head = &child<PoolingHead>("head", c);
  }

 protected:
  VisionOutput forward(X pixel_values, const std::vector<I>& selected) override {
    VisionOutput output;
    X hidden_states = (*embeddings_)(pixel_values);
    X encoder_outputs = encoder(hidden_states, {}, selected, output.hidden_states);
    X last_hidden_state = post_layernorm(encoder_outputs);
    output.last_hidden_state = last_hidden_state;
    if (head) output.pooler_output = (*head)(last_hidden_state);
    hidden_states.reset();
    encoder_outputs.reset();
    return output;
  }

 private:
  UnaryPtr embeddings_;
  ClipEncoder& encoder;
  LayerNorm& post_layernorm;
  PoolingHead* head = nullptr;
};

class SiglipModel final : public ContrastiveNetwork {
 public:
  SiglipModel(const Options& o, const ClipConfig& text, const ClipVisionConfig& vision)
      : ContrastiveNetwork("SiglipModel", o, text.file.size("max_position_embeddings"), vision) {
    new_parameter("logit_scale", {1});
    new_parameter("logit_bias", {1});
    text_model = &child<SiglipTextModel>("text_model", text);
    vision_model = &child<SiglipVisionModel>("vision_model", vision);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    VisionOutput vision_outputs = (*vision_model)(batch.pixel_values);
    ClipTextOutput text_outputs = (*text_model)(batch.input);
    X image_embeds = normalized(vision_outputs.pooler_output);
    X text_embeds = normalized(text_outputs.pooler_output);
    X logits_per_text = text_embeds.matmul(image_embeds.t());
    logits_per_text = logits_per_text.mul(X(parameter(0)).exp()).add(X(parameter(1)));
    X logits_per_image = logits_per_text.t();
    X loss;
    if (options_.labels) loss = sigmoid_loss(logits_per_text);
    return {contrastive_output({loss, logits_per_image, logits_per_text, text_embeds, image_embeds}, text_outputs, vision_outputs), loss};
  }

 private:
  static X normalized(const X& embeds) { return embeds.div(aten("linalg_vector_norm", {Tensor(embeds), 2.0, list_of(Dims{-1}), true})); }
  static X sigmoid_loss(const X& logits_per_text) {
    X eye = aten("eye", {logits_per_text.size(0)}, {{"dtype", DType::float32}});
    X m1_diag1 = aten("ones_like", {Tensor(logits_per_text)}).neg();
    m1_diag1 = std::move(m1_diag1).add(eye.mul(2.0));
    X loglik = aten("log_sigmoid", {Tensor(m1_diag1.mul(logits_per_text))});
    X nll = loglik.sum(-1).neg();
    X loss = aten("mean", {Tensor(nll)});
    return leave(std::move(loss), eye, m1_diag1, loglik, nll);
  }

  SiglipTextModel* text_model;
  SiglipVisionModel* vision_model;
};

class SiglipText final : public ClipTextNetwork {
 public:
  SiglipText(const Config& config, const Options& o)
      : ClipTextNetwork("SiglipTextModel", o, config.size("max_position_embeddings")),
        model_(child<SiglipTextModel>("text_model", ClipConfig(config, o))) {}
  nn::Outcome run(Batch batch) override {
    ClipTextOutput output = model_(batch.input);
    return {model_output({output.last_hidden_state, output.pooler_output}), {}};
  }

 private:
  SiglipTextModel& model_;
};

class SiglipVision final : public ClipVisionNetwork {
 public:
  SiglipVision(const Options& o, const ClipVisionConfig& c)
      : ClipVisionNetwork("SiglipVisionModel", o, c), model_(child<SiglipVisionModel>("vision_model", c)) {}
  nn::Outcome run(Batch batch) override {
    Values items;
    model_(batch.input).collect(items);
    return {make_tuple(std::move(items)), {}};
  }

 private:
  SiglipVisionModel& model_;
};

NetworkPtr siglip(const Config& config, const Options& o) {
  return std::make_shared<SiglipModel>(o, ClipConfig(config.section("text_config"), o),
                                       ClipVisionConfig(config.section("vision_config"), o));
}
NetworkPtr siglip_classifier(const Config& config, const Options& o) {
  const ClipVisionConfig c(config.section("vision_config"), o);
  return make_clip_image_classifier("Siglip", config, o, c, std::make_shared<SiglipVisionModel>(c), false);
}
NetworkPtr siglip_vision(const Config& config, const Options& o) { return std::make_shared<SiglipVision>(o, ClipVisionConfig(config, o)); }

const Family siglip_family{{"siglip"},
                           {{Task::zero_shot_image_cls, "SiglipModel", siglip},
                            {Task::image_cls, "SiglipForImageClassification", siglip_classifier},
                            {Task::base, "SiglipModel", siglip}}};
const Family siglip_text_family{{"siglip_text_model"}, {{Task::base, "SiglipTextModel", make_class<SiglipText>}}};
const Family siglip_vision_family{{"siglip_vision_model"}, {{Task::base, "SiglipVisionModel", siglip_vision}}};
const VisionModel siglip_tower{"siglip_vision_model", [](const Config& config, const Options& o) -> VisionTowerPtr {
                                 return std::make_shared<SiglipVisionModel>(ClipVisionConfig(config, o));
                               }};

}  // namespace
}  // namespace memest::hf
