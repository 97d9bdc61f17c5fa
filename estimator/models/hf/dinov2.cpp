// models/dinov2 and models/dinov2_with_registers.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "models/hf/vision.h"

namespace memest::hf {
namespace {

struct DinoForm {
  std::string prefix, base;
  I registers = 0;
};

class DinoEmbeddings final : public Unary {
 public:
  DinoEmbeddings(const VisionConfig& c, const DinoForm& form) : Unary(form.prefix + "Embeddings"), registers_(form.registers) {
    new_parameter("cls_token", {1, 1, c.hidden});
    new_parameter("mask_token", {1, c.hidden}, registers_ > 0 || c.file.boolean_or("use_mask_token", true));
    new_parameter("position_embeddings", {1, c.patches() + 1, c.hidden});
    new_parameter("register_tokens", {1, registers_, c.hidden}, registers_ > 0);
    patch_embeddings_ = register_module("patch_embeddings", make_patch_embeddings(form.prefix + "PatchEmbeddings", c));
    dropout_ = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X pixel_values) override {
    const I batch_size = pixel_values.size(0);
    X embeddings = (*patch_embeddings_)(pixel_values);
    X cls_tokens = X(parameter(0)).expand({batch_size, -1, -1});
    embeddings = cat({cls_tokens, embeddings}, 1);
    embeddings = embeddings.add(X(parameter(2)));
    if (registers_) {
      X first = embeddings.whole_slices(1).slice(1, std::nullopt, 1);
      X register_tokens = X(parameter(3)).expand({batch_size, -1, -1});
      X rest = embeddings.whole_slices(1).slice(1, 1, std::nullopt);
      embeddings = cat({std::move(first), std::move(register_tokens), std::move(rest)}, 1);
    }
    embeddings = (*dropout_)(embeddings);
    return embeddings;
  }

 private:
  I registers_;
  UnaryPtr patch_embeddings_;
  Dropout* dropout_;
};

class LayerScale final : public Unary {
 public:
  LayerScale(const std::string& prefix, I width) : Unary(prefix + "LayerScale") { new_parameter("lambda1", {width}); }

 protected:
  X forward(X hidden_state) override { return hidden_state.mul(X(parameter(0))); }
};

class DropPath final : public Unary {
 public:
  DropPath(const std::string& prefix, double drop_prob) : Unary(drop_prob > 0 ? prefix + "DropPath" : "Identity"), drop_prob_(drop_prob) {}

 protected:
  X forward(X hidden_states) override {
    if (drop_prob_ == 0 || !training) return hidden_states;
    X random_tensor = aten("rand", {list_of(Dims{hidden_states.size(0), 1, 1})}, {{"dtype", hidden_states.dtype()}});
    random_tensor = aten("floor", {Tensor(random_tensor.add(1 - drop_prob_))});
    return hidden_states.div(1 - drop_prob_).mul(random_tensor);
  }

 private:
  double drop_prob_;
};

UnaryPtr make_dino_mlp(const VisionConfig& c, const std::string& prefix) {
  const I width = I(double(c.hidden) * c.file.number_or("mlp_ratio", 4));
  if (!c.file.boolean_or("use_swiglu_ffn", false)) return make_plain_mlp(prefix + "MLP", "fc1", "fc2", c.hidden, width, true, c.act);
  return make_gated_mlp(prefix + "SwiGLUFFN", c.hidden, (I(double(width) * 2 / 3) + 7) / 8 * 8, true, "silu");
}

class DinoLayer final : public DecoderLayer {
 public:
  DinoLayer(const VisionConfig& c, const std::string& prefix) : DecoderLayer(prefix + "Layer", c.options) {
    norm1 = &child<LayerNorm>("norm1", c.hidden);
    attention_ = register_module("attention", make_vision_attention(prefix + "Attention", c, bert_eager_attention_forward));
    layer_scale1 = &child<LayerScale>("layer_scale1", prefix, c.hidden);
    drop_path = &child<DropPath>("drop_path", prefix, c.file.number_or("drop_path_rate", 0.0));
    norm2 = &child<LayerNorm>("norm2", c.hidden);
    mlp_ = register_module("mlp", make_dino_mlp(c, prefix));
    layer_scale2 = &child<LayerScale>("layer_scale2", prefix, c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*norm1)(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*attention_)(hidden_states, call);
    hidden_states = (*layer_scale1)(hidden_states);
    hidden_states = (*drop_path)(hidden_states).add(residual);
    residual = hidden_states;
    hidden_states = (*norm2)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = (*layer_scale2)(hidden_states);
    hidden_states = (*drop_path)(hidden_states).add(residual);
    return hidden_states;
  }

 private:
  LayerNorm *norm1, *norm2;
  MixerPtr attention_;
  LayerScale *layer_scale1, *layer_scale2;
  DropPath* drop_path;
  UnaryPtr mlp_;
};

class DinoEncoder final : public Base {
 public:
  DinoEncoder(const VisionConfig& c, const std::string& prefix)
      : Base(prefix + "Encoder"), layers_(*this, "layer", c.layers, [&](I) { return std::make_shared<DinoLayer>(c, prefix); }) {}
  X operator()(X hidden_states) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{});
    return hidden_states;
  }

 private:
  Layers<DinoLayer> layers_;
};

class DinoModel final : public Base {
 public:
  DinoModel(const VisionConfig& c, const DinoForm& form)
      : Base(form.prefix + "Model"),
        embeddings_(register_module("embeddings", std::make_shared<DinoEmbeddings>(c, form))),
        encoder_(register_module("encoder", std::make_shared<DinoEncoder>(c, form.prefix))),
        layernorm(child<LayerNorm>("layernorm", c.hidden)) {}
  Pair operator()(X pixel_values) {
    Entered scope(*this);
    X embedding_output = (*embeddings_)(pixel_values);
    X encoder_output = (*encoder_)(embedding_output);
    X sequence_output = layernorm(encoder_output);
    X pooled_output = sequence_output.whole_slices(1).select(1, 0);
    return {sequence_output, pooled_output};
  }

 private:
  UnaryPtr embeddings_;
  std::shared_ptr<DinoEncoder> encoder_;
  LayerNorm& layernorm;
};

class DinoNetwork final : public VisionNetwork {
 public:
  DinoNetwork(const VisionConfig& c, const DinoForm& form)
      : VisionNetwork(form.prefix + (c.options.task == Task::base ? "Model" : "ForImageClassification"), c),
        registers_(form.registers),
        model_(register_module(form.base, std::make_shared<DinoModel>(c, form))) {
    if (c.options.task != Task::base) classifier_ = &child<Linear>("classifier", 2 * c.hidden, num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    if (batch.input.size(2) != c_.image || batch.input.size(3) != c_.image)
      throw Error("memest does not build the interpolation of position embeddings",
                  "images of " + std::to_string(c_.image) + "x" + std::to_string(c_.image) + " need none");
    auto [sequence_output, pooler_output] = (*model_)(batch.input);
    if (!classifier_) return {model_output({sequence_output, pooler_output}), {}};
    X cls_token = sequence_output.whole_slices(1).select(1, 0);
    X patch_tokens = sequence_output.whole_slices(1).slice(1, 1 + registers_, std::nullopt);
    X linear_input = cat({cls_token, patch_tokens.mean(1)}, 1);
    X logits = (*classifier_)(linear_input);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(c_.file));
    return {model_output({loss, logits}), loss};
  }

 private:
  I registers_;
  std::shared_ptr<DinoModel> model_;
  Linear* classifier_ = nullptr;
};

NetworkPtr dinov2(const Config& config, const Options& o) {
  return std::make_shared<DinoNetwork>(VisionConfig(config, o), DinoForm{.prefix = "Dinov2", .base = "dinov2"});
}
NetworkPtr dinov2_with_registers(const Config& config, const Options& o) {
  const I registers = config.size_or("num_register_tokens", 4);
  return std::make_shared<DinoNetwork>(VisionConfig(config, o), DinoForm{"Dinov2WithRegisters", "dinov2_with_registers", registers});
}
const Family dinov2_family{{"dinov2"}, {{Task::image_cls, "Dinov2ForImageClassification", dinov2}, {Task::base, "Dinov2Model", dinov2}}};
const Family dinov2_with_registers_family{{"dinov2_with_registers"},
                                          {{Task::image_cls, "Dinov2WithRegistersForImageClassification", dinov2_with_registers},
                                           {Task::base, "Dinov2WithRegistersModel", dinov2_with_registers}}};

}  // namespace
}  // namespace memest::hf
