// models/resnet and models/regnet.
#include <cmath>

#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct ResNetConfig {
  ResNetConfig(const Config& f, const Options& o, bool is_regnet)
      : file(f),
        options(o),
        regnet(is_regnet),
        prefix(is_regnet ? "RegNet" : "ResNet"),
        channels(f.size("num_channels")),
        embedding(f.size("embedding_size")),
        widths(stage_sizes(f, "hidden_sizes")),
        depths(stage_sizes(f, "depths")),
        act(f.text_or("hidden_act", "relu")),
        downsample_first(f.boolean_or("downsample_in_first_stage", is_regnet)),
        downsample_in_bottleneck(f.boolean_or("downsample_in_bottleneck", false)) {
    const std::string layer = f.text_or("layer_type", is_regnet ? "y" : "bottleneck");
    for (I d : depths)
      if (d > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(d));
    if (is_regnet) {
      if (layer != "x" && layer != "y") throw f.error("layer_type", "expected x or y, found '" + layer.substr(0, 60) + "'");
      squeezes = layer == "y";
      groups_width = f.size_or("groups_width", 64);
      for (I w : widths)
        if (w % groups_of(w) != 0)
          throw f.error("groups_width", std::to_string(w) + " channels do not make " + std::to_string(groups_of(w)) + " equal groups");
      return;
    }
    if (layer != "basic" && layer != "bottleneck")
      throw f.error("layer_type", "expected basic or bottleneck, found '" + layer.substr(0, 60) + "'");
    bottleneck = layer == "bottleneck";
    if (bottleneck)
      for (I w : widths)
        if (w < kReduction) throw f.error("hidden_sizes", "a bottleneck takes at least 4 channels, found " + std::to_string(w));
  }
  static constexpr I kReduction = 4;
  I stages() const { return I(std::min(widths.size(), depths.size())); }
  I groups_of(I out) const { return std::max<I>(1, out / groups_width); }
  Config file;
  Options options;
  bool regnet;
  std::string prefix;
  I groups_width = 64;
  bool squeezes = false;  ///< RegNetYLayer
  I channels, embedding;
  std::vector<I> widths, depths;
  std::string act;
  bool downsample_first, downsample_in_bottleneck, bottleneck = true;
};

class ConvLayer final : public Unary {
 public:
  ConvLayer(const ResNetConfig& c, I in, I out, I kernel, I stride, const std::string& act, I groups = 1)
      : Unary(c.prefix + "ConvLayer"),
        convolution(child<Convolution>(
            "convolution",
            ConvolutionForm{
                .in = in, .out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .groups = groups, .bias = false})),
        normalization(child<BatchNorm2d>("normalization", out)) {
    if (!act.empty()) activation = &child<Activation>("activation", act);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = convolution(hidden_states);
    hidden_states = normalization(hidden_states);
    if (activation) hidden_states = (*activation)(hidden_states);
    return hidden_states;
  }

 private:
  Convolution& convolution;
  BatchNorm2d& normalization;
  Activation* activation = nullptr;
};

class ResNetEmbeddings final : public Unary {
 public:
  explicit ResNetEmbeddings(const ResNetConfig& c)
      : Unary(c.prefix + "Embeddings"),
        pools_(!c.regnet),
        embedder(child<ConvLayer>("embedder", c, c.channels, c.embedding, c.regnet ? 3 : 7, 2, c.act)) {}

 protected:
  X forward(X pixel_values) override {
    X embedding = embedder(pixel_values);
    if (pools_) embedding = ops::max_pool2d(embedding, Dims{3, 3}, Dims{2, 2}, Dims{1, 1}, Dims{1, 1}, false);
    return embedding;
  }

 private:
  bool pools_;
  ConvLayer& embedder;
};

class ShortCut final : public Unary {
 public:
  ShortCut(const ResNetConfig& c, I in, I out, I stride)
      : Unary(c.prefix + "ShortCut"),
        convolution(child<Convolution>("convolution", ConvolutionForm{.in = in, .out = out, .kernel = 1, .stride = stride, .bias = false})),
        normalization(child<BatchNorm2d>("normalization", out)) {}

 protected:
  X forward(X input) override {
    X hidden_state = convolution(input);
    hidden_state = normalization(hidden_state);
    return hidden_state;
  }

 private:
  Convolution& convolution;
  BatchNorm2d& normalization;
};

/// nn.Sequential.
class Sequence final : public Unary {
 public:
  explicit Sequence(std::vector<UnaryPtr> modules) : Unary("Sequential"), modules_(std::move(modules)) {
    for (std::size_t i = 0; i < modules_.size(); ++i) register_module(std::to_string(i), modules_[i]);
  }
  const std::vector<UnaryPtr>& modules() const { return modules_; }

 protected:
  X forward(X input) override {
    for (auto& module : modules_) input = (*module)(input);
    return input;
  }

 private:
  std::vector<UnaryPtr> modules_;
};

/// RegNetSELayer.
class SELayer final : public Unary {
 public:
  SELayer(I channels, I reduced) : Unary("RegNetSELayer") {
    auto made = [](I in, I out) { return std::make_shared<Convolution>(ConvolutionForm{.in = in, .out = out, .kernel = 1}); };
    auto& attention = child<Base>("attention", "Sequential");
    squeeze = attention.register_module("0", made(channels, reduced));
    excite = attention.register_module("2", made(reduced, channels));
  }

 protected:
  X forward(X hidden_state) override {
    X pooled = aten("adaptive_avg_pool2d", {Tensor(hidden_state), list_of(Dims{1, 1})});
    X attention = (*squeeze)(pooled);
    attention = aten("relu", {Tensor(std::move(attention))});
    attention = (*excite)(attention);
    attention = std::move(attention).sigmoid();
    hidden_state = hidden_state.mul(attention);
    return leave(hidden_state, pooled, attention);
  }

 private:
  std::shared_ptr<Convolution> squeeze, excite;
};

/// ResNetBasicLayer and ResNetBottleNeckLayer, RegNetXLayer and RegNetYLayer.
class ResNetLayer final : public Unary {
 public:
  ResNetLayer(const ResNetConfig& c, I in, I out, I stride) : Unary(type_of(c)) {
    if (in != out || stride != 1) shortcut = &child<ShortCut>("shortcut", c, in, out, stride);
    std::vector<UnaryPtr> parts;
    if (c.regnet) {
      parts = {std::make_shared<ConvLayer>(c, in, out, 1, 1, c.act),
               std::make_shared<ConvLayer>(c, out, out, 3, stride, c.act, c.groups_of(out))};
      if (c.squeezes) parts.push_back(std::make_shared<SELayer>(out, std::max<I>(1, I(std::nearbyint(double(in) / 4)))));
      parts.push_back(std::make_shared<ConvLayer>(c, out, out, 1, 1, ""));
    } else if (c.bottleneck) {
      const I reduced = out / ResNetConfig::kReduction;
      const bool first = c.downsample_in_bottleneck;
      parts = {std::make_shared<ConvLayer>(c, in, reduced, 1, first ? stride : 1, "relu"),
               std::make_shared<ConvLayer>(c, reduced, reduced, 3, first ? 1 : stride, "relu"),
               std::make_shared<ConvLayer>(c, reduced, out, 1, 1, "")};
    } else {
      parts = {std::make_shared<ConvLayer>(c, in, out, 3, stride, "relu"), std::make_shared<ConvLayer>(c, out, out, 3, 1, "")};
    }
    layer = &child<Sequence>("layer", std::move(parts));
    activation = &child<Activation>("activation", c.act);
  }

 protected:
  X forward(X hidden_state) override {
    X residual = hidden_state;
    hidden_state = (*layer)(hidden_state);
    if (shortcut) residual = (*shortcut)(residual);
    hidden_state = hidden_state.add_(residual);
    hidden_state = (*activation)(hidden_state);
    return leave(hidden_state, residual);
  }

 private:
  static const char* type_of(const ResNetConfig& c) {
    if (c.regnet) return c.squeezes ? "RegNetYLayer" : "RegNetXLayer";
    return c.bottleneck ? "ResNetBottleNeckLayer" : "ResNetBasicLayer";
  }
  ShortCut* shortcut = nullptr;
  Sequence* layer;
  Activation* activation;
};

class ResNetStage final : public Unary {
 public:
  ResNetStage(const ResNetConfig& c, I in, I out, I stride, I depth) : Unary(c.prefix + "Stage") {
    std::vector<UnaryPtr> list;
    for (I i = 0; i < depth; ++i) list.push_back(std::make_shared<ResNetLayer>(c, i ? out : in, out, i ? 1 : stride));
    layers = &child<Sequence>("layers", std::move(list));
  }

 protected:
  X forward(X input) override {
    X hidden_state = input;
    for (auto& layer : layers->modules()) hidden_state = (*layer)(hidden_state);
    return hidden_state;
  }

 private:
  Sequence* layers;
};

class ResNetEncoder final : public Unary {
 public:
  explicit ResNetEncoder(const ResNetConfig& c)
      : Unary(c.prefix + "Encoder"), stages_(*this, "stages", c.stages(), [&](I i) {
          const std::size_t s = std::size_t(i);
          return std::make_shared<ResNetStage>(c, i ? c.widths[s - 1] : c.embedding, c.widths[s], i || c.downsample_first ? 2 : 1,
                                               c.depths[s]);
        }) {}

 protected:
  X forward(X hidden_state) override {
    for (auto& stage : stages_) hidden_state = (*stage)(hidden_state);
    return hidden_state;
  }

 private:
  Layers<ResNetStage> stages_;
};

class ResNetModel final : public Base {
 public:
  explicit ResNetModel(const ResNetConfig& c)
      : Base(c.prefix + "Model"), embedder(child<ResNetEmbeddings>("embedder", c)), encoder(child<ResNetEncoder>("encoder", c)) {}
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X embedding_output = embedder(pixel_values);
    X last_hidden_state = encoder(embedding_output);
    X pooled_output = aten("adaptive_avg_pool2d", {Tensor(last_hidden_state), list_of(Dims{1, 1})});
    return leave(Pair(last_hidden_state, pooled_output), embedding_output);
  }

 private:
  ResNetEmbeddings& embedder;
  ResNetEncoder& encoder;
};

/// nn.Sequential(nn.Flatten(), nn.Linear(...)).
class Classifier final : public Unary {
 public:
  Classifier(I features, I labels) : Unary("Sequential"), linear(child<Linear>("1", features, labels)) {}

 protected:
  X forward(X input) override {
    input = input.flatten(1);
    return linear(input);
  }

 private:
  Linear& linear;
};

/// ResNetForImageClassification and ResNetModel, and RegNet's.
class ResNetNetwork final : public ImageNetwork {
 public:
  ResNetNetwork(const ResNetConfig& c, const std::string& type)
      : ImageNetwork(type, c.options, c.channels, 224),
        labels_(num_labels(c.file)),
        resnet(child<ResNetModel>(c.regnet ? "regnet" : "resnet", c)) {
    if (c.options.task != Task::base) classifier = &child<Classifier>("classifier", c.widths[std::size_t(c.stages() - 1)], labels_);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, pooled_output] = resnet(batch.input);
    if (!classifier) return {model_output({last_hidden_state, pooled_output}), {}};
    X logits = (*classifier)(pooled_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    return {model_output({loss, logits}), loss};
  }

 private:
  I labels_;
  ResNetModel& resnet;
  Classifier* classifier = nullptr;
};

template <bool is_regnet>
NetworkPtr resnet(const Config& config, const Options& o) {
  const ResNetConfig c(config, o, is_regnet);
  return std::make_shared<ResNetNetwork>(c, c.prefix + (o.task == Task::base ? "Model" : "ForImageClassification"));
}
const Family resnet_family{{"resnet"}, image_classes("ResNet", resnet<false>)};
const Family regnet_family{{"regnet"}, image_classes("RegNet", resnet<true>)};

}  // namespace
}  // namespace memest::hf
