// models/vit/modeling_vit.py, and the copies of it: deit, vit_msn and ijepa.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "models/hf/masked_image.h"
#include "models/hf/vision.h"

namespace memest::hf {
namespace {

struct VitForm {
  std::string prefix, base;
  bool distills = false;  ///< a distillation token
  bool pools = true;      ///< the model alone has a pooler
  bool averages = false;  ///< no class token: the classifier takes the mean of all patches
};

class VitEmbeddings final : public Base {
 public:
  VitEmbeddings(const VisionConfig& c, const VitForm& form)
      : Base(form.prefix + "Embeddings"), distills_(form.distills), averages_(form.averages) {
    new_parameter("cls_token", {1, 1, c.hidden}, !averages_);
    new_parameter("mask_token", {1, 1, c.hidden}, c.options.task == Task::masked_image);
    new_parameter("position_embeddings", {1, c.patches() + (averages_ ? 0 : distills_ ? 2 : 1), c.hidden});
    new_parameter("distillation_token", {1, 1, c.hidden}, distills_);
    patch_embeddings_ = register_module("patch_embeddings", make_patch_embeddings(form.prefix + "PatchEmbeddings", c));
    dropout_ = &child<Dropout>("dropout", c.hidden_dropout);
  }
  X operator()(const X& pixel_values, const X& bool_masked_pos) {
    Entered scope(*this);
    const I batch_size = pixel_values.size(0);
    X embeddings = (*patch_embeddings_)(pixel_values);
    X cls_tokens, distillation_tokens;
    if (bool_masked_pos) embeddings = mask_patches(embeddings, X(parameter(1)), bool_masked_pos);
    if (!averages_) cls_tokens = X(parameter(0)).expand({batch_size, -1, -1});
    if (distills_) {
      distillation_tokens = X(parameter(3)).expand({batch_size, -1, -1});
      embeddings = cat({cls_tokens, distillation_tokens, embeddings}, 1);
    } else if (!averages_) {
      embeddings = cat({cls_tokens, embeddings}, 1);
    }
    embeddings = embeddings.add(X(parameter(2)));
    embeddings = (*dropout_)(embeddings);
    return embeddings;
  }

 private:
  bool distills_, averages_;
  UnaryPtr patch_embeddings_;
  Dropout* dropout_;
};

class VitLayer final : public DecoderLayer {
 public:
  VitLayer(const VisionConfig& c, const std::string& prefix) : DecoderLayer(prefix + "Layer", c.options) {
    attention_ = register_module("attention", make_vision_attention(prefix + "Attention", c, eager_attention_forward));
    layernorm_before = &child<LayerNorm>("layernorm_before", c.hidden);
    layernorm_after = &child<LayerNorm>("layernorm_after", c.hidden);
    mlp_ = register_module("mlp", make_plain_mlp(prefix + "MLP", "fc1", "fc2", c.hidden, c.file.size("intermediate_size"), true, c.act));
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*layernorm_before)(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*attention_)(hidden_states, call);
    hidden_states = (*dropout)(hidden_states);
    hidden_states = hidden_states.add(residual);
    residual = hidden_states;
    hidden_states = (*layernorm_after)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = (*dropout)(hidden_states);
    hidden_states = hidden_states.add(residual);
    return hidden_states;
  }

 private:
  MixerPtr attention_;
  LayerNorm *layernorm_before, *layernorm_after;
  UnaryPtr mlp_;
  Dropout* dropout;
};

class VitModel final : public Base {
 public:
  VitModel(const VisionConfig& c, const VitForm& form, bool pools)
      : Base(form.prefix + "Model"),
        embeddings_(register_module("embeddings", std::make_shared<VitEmbeddings>(c, form))),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<VitLayer>(c, form.prefix); }),
        layernorm(child<LayerNorm>("layernorm", c.hidden)) {
    if (pools && form.pools)
      pooler_ = register_module("pooler", make_pooler(form.prefix + "Pooler", c.hidden, c.file.size_or("pooler_output_size", c.hidden),
                                                      c.file.text_or("pooler_act", "tanh")));
  }
  /// last_hidden_state and pooler_output.
  Pair operator()(X pixel_values, const X& bool_masked_pos = {}) {
    Entered scope(*this);
    X embedding_output = (*embeddings_)(pixel_values, bool_masked_pos);
    X hidden_states = embedding_output;
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{});
    X sequence_output = layernorm(hidden_states);
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return {sequence_output, pooled_output};
  }

 private:
  std::shared_ptr<VitEmbeddings> embeddings_;
  Layers<VitLayer> layers_;
  LayerNorm& layernorm;
  UnaryPtr pooler_;
};

class VitNetwork final : public VisionNetwork {
 public:
  VitNetwork(const VisionConfig& c, const VitForm& form)
      : VisionNetwork(form.prefix + (c.options.task == Task::base ? "Model" : "ForImageClassification"), c),
        averages_(form.averages),
        model_(register_module(form.base, std::make_shared<VitModel>(c, form, c.options.task == Task::base))) {
    if (c.options.task != Task::base) classifier_ = &child<Linear>("classifier", c.hidden, num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    check_size(batch.input);
    auto [sequence_output, pooler_output] = (*model_)(batch.input);
    if (!classifier_) return {model_output({sequence_output, pooler_output}), {}};
    X pooled_output = averages_ ? sequence_output.mean(1) : sequence_output.whole_slices(1).select(1, 0);
    if (!averages_ && runtime().settings.torch.full_slice_records_node())
      pooled_output = pooled_output.slice(1, std::nullopt, std::nullopt);
    X logits = (*classifier_)(pooled_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(c_.file));
    return {model_output({loss, logits}), loss};
  }

 private:
  bool averages_;
  std::shared_ptr<VitModel> model_;
  Linear* classifier_ = nullptr;
};

class VitForMaskedImageModeling final : public VisionNetwork {
 public:
  VitForMaskedImageModeling(const VisionConfig& c, const VitForm& form)
      : VisionNetwork(form.prefix + "ForMaskedImageModeling", c),
        first_patch_(form.distills ? 2 : 1),
        model_(child<VitModel>(form.base, c, form, false)),
        decoder(child<PixelDecoder>("decoder", c.file, c.hidden, c.channels, c.image, c.patch)) {}
  std::vector<nn::InputSpec> inputs() const override {
    auto list = VisionNetwork::inputs();
    if (options_.labels) list.back() = masked_positions(c_.patches());
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    check_size(batch.input);
    const X last_hidden_state = model_(batch.input, batch.labels).first;
    X sequence_output = last_hidden_state.whole_slices(1).slice(1, first_patch_, std::nullopt).permute({0, 2, 1});
    return decoder.reconstruct(batch.input, std::move(sequence_output), batch.labels);
  }

 private:
  I first_patch_;
  VitModel& model_;
  PixelDecoder& decoder;
};

NetworkPtr make_vit(const Config& config, const Options& o, const VitForm& form) {
  const VisionConfig c(config, o);
  if (o.task == Task::masked_image) return std::make_shared<VitForMaskedImageModeling>(c, form);
  return std::make_shared<VitNetwork>(c, form);
}
NetworkPtr vit(const Config& config, const Options& o) { return make_vit(config, o, {.prefix = "ViT", .base = "vit"}); }
NetworkPtr deit(const Config& config, const Options& o) {
  return make_vit(config, o, {.prefix = "DeiT", .base = "deit", .distills = true});
}
NetworkPtr vit_msn(const Config& config, const Options& o) {
  return std::make_shared<VitNetwork>(VisionConfig(config, o), VitForm{.prefix = "ViTMSN", .base = "vit", .pools = false});
}
NetworkPtr ijepa(const Config& config, const Options& o) {
  return std::make_shared<VitNetwork>(VisionConfig(config, o),
                                      VitForm{.prefix = "IJepa", .base = "ijepa", .pools = false, .averages = true});
}
const Family vit_family{{"vit"},
                        {{Task::image_cls, "ViTForImageClassification", vit},
                         {Task::masked_image, "ViTForMaskedImageModeling", vit},
                         {Task::base, "ViTModel", vit}}};
const Family deit_family{{"deit"},
                         {{Task::image_cls, "DeiTForImageClassification", deit},
                          {Task::masked_image, "DeiTForMaskedImageModeling", deit},
                          {Task::base, "DeiTModel", deit}}};
const Family ijepa_family{{"ijepa"}, {{Task::image_cls, "IJepaForImageClassification", ijepa}, {Task::base, "IJepaModel", ijepa}}};
const Family vit_msn_family{{"vit_msn"},
                            {{Task::image_cls, "ViTMSNForImageClassification", vit_msn}, {Task::base, "ViTMSNModel", vit_msn}}};

}  // namespace
}  // namespace memest::hf
