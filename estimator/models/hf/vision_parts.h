// What vision families share beside the plain transformer's parts (vision.h): stochastic depth, and networks whose configuration has
// stages.
#pragma once
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {

/// DropPath: a random factor for each sample.
class DropPath final : public Unary {
 public:
  DropPath(std::string type, double drop_prob) : Unary(std::move(type)), drop_prob_(drop_prob) {}

 protected:
  X forward(X hidden_states) override;

 private:
  double drop_prob_;
};

/// A SelfOutput or Output of these families: dropout(dense(x)).
class DenseDropout final : public Unary {
 public:
  DenseDropout(std::string type, I in, I out, double p)
      : Unary(std::move(type)), dense(child<Linear>("dense", in, out)), dropout(child<Dropout>("dropout", p)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = dropout(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Dropout& dropout;
};

/// A network on pixel_values [batch, channels, image, image] with one label an image.
class ImageNetwork : public Network {
 public:
  ImageNetwork(std::string type, const Options& options, I channels, I image)
      : Network(std::move(type), options), channels_(channels), image_(image) {}
  std::vector<nn::InputSpec> inputs() const override;
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"image", image_}}; }

 protected:
  I channels_, image_;
};

/// nn.Conv2d with one number each for kernel, stride, padding and dilation.
struct ConvolutionForm {
  I in, out, kernel, stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};
class Convolution final : public Unary {
 public:
  explicit Convolution(const ConvolutionForm& form) : Unary("Conv2d"), form_(form) {
    new_parameter("weight", {form.out, form.in / form.groups, form.kernel, form.kernel});
    new_parameter("bias", {form.out}, form.bias);
  }
  const ConvolutionForm& form() const { return form_; }

 protected:
  X forward(X input) override;

 private:
  ConvolutionForm form_;
};
/// nn.BatchNorm2d with running statistics.
class BatchNorm2d final : public Unary {
 public:
  explicit BatchNorm2d(I features, double momentum = 0.1) : Unary("BatchNorm2d"), momentum_(momentum) {
    new_parameter("weight", {features});
    new_parameter("bias", {features});
    new_buffer("running_mean", {features}, default_dtype());
    new_buffer("running_var", {features}, default_dtype());
    new_buffer("num_batches_tracked", {}, DType::int64);
  }

 protected:
  X forward(X input) override;

 private:
  static DType default_dtype();
  double momentum_;
};

/// A list of sizes, `key`; each at least 1.
std::vector<I> stage_sizes(const Config& file, const std::string& key);

/// What PREFIXForImageClassification has around its model.
struct ImageForm {
  std::string prefix, base;
  I channels, image, features;
  double dropout = -1;  ///< before the classifier; negative: none
  bool in_place = true;
};
/// A model that gives last_hidden_state and pooler_output, and on top of it a classifier of the latter.
template <class Model>
class PooledNetwork final : public ImageNetwork {
 public:
  template <class... A>
  PooledNetwork(const Config& file, const Options& options, const ImageForm& form, const A&... arguments)
      : ImageNetwork(form.prefix + (options.task == Task::base ? "Model" : "ForImageClassification"), options, form.channels, form.image),
        labels_(num_labels(file)),
        dropout_(form.dropout),
        in_place_(form.in_place),
        model(child<Model>(form.base, arguments...)) {
    if (options.task != Task::base) classifier = &child<Linear>("classifier", form.features, labels_);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, pooled_output] = model(batch.input);
    if (!classifier) return {model_output({last_hidden_state, pooled_output}), {}};
    X dropped = pooled_output;
    if (dropout_ >= 0)
      dropped =
          in_place_ ? aten("dropout_", {Tensor(pooled_output), dropout_, training}) : X(ops::dropout(pooled_output, dropout_, training));
    X logits = (*classifier)(dropped);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    return {model_output({loss, logits}), loss};
  }

 private:
  I labels_;
  double dropout_;
  bool in_place_;
  Model& model;
  Linear* classifier = nullptr;
};

/// PREFIXForImageClassification and PREFIXModel.
std::vector<TaskClass> image_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options));

}  // namespace memest::hf
