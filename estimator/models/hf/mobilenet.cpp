// models/mobilenet_v1/modeling_mobilenet_v1.py and models/mobilenet_v2.
#include <algorithm>
#include <cmath>

#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct MobileNetConfig {
  MobileNetConfig(const Config& f, bool first)
      : prefix(first ? "MobileNetV1" : "MobileNetV2"),
        momentum(first ? 0.9997 : 0.997),
        channels(f.size("num_channels")),
        multiplier(f.number_or("depth_multiplier", 1.0)),
        divisor(f.size_or("depth_divisible_by", 8)),
        least(f.size_or("min_depth", 8)),
        expand_ratio(f.number_or("expand_ratio", 6.0)),
        output_stride(f.size_or("output_stride", 32)),
        first_is_expansion(f.boolean_or("first_layer_is_expansion", true)),
        finegrained(f.boolean_or("finegrained_output", true)),
        tf_padding(f.boolean_or("tf_padding", true)),
        act(f.text_or("hidden_act", "relu6")) {
    if (!(multiplier > 0 && multiplier <= 100)) throw f.error("depth_multiplier", "expected more than 0 and at most 100");
    if (!(expand_ratio > 0 && expand_ratio <= 1000)) throw f.error("expand_ratio", "expected more than 0 and at most 1000");
  }
  I divisible(double value) const {
    I rounded = std::max(least, I(value + double(divisor) / 2) / divisor * divisor);
    if (double(rounded) < 0.9 * value) rounded += divisor;
    return rounded;
  }
  I depth(I width) const { return divisible(double(std::lrint(double(width) * multiplier))); }
  I last() const { return finegrained && multiplier < 1 ? 1280 : depth(1280); }
  std::string prefix;
  double momentum;
  I channels;
  double multiplier;
  I divisor, least;
  double expand_ratio;
  I output_stride;
  bool first_is_expansion, finegrained, tf_padding;
  std::string act;
};

class ConvLayer final : public Unary {
 public:
  ConvLayer(const MobileNetConfig& c, ConvolutionForm form, bool activates = true)
      : Unary(c.prefix + "ConvLayer"), tf_padding_(c.tf_padding) {
    form.bias = false;
    form.padding = c.tf_padding ? 0 : (form.kernel - 1) / 2 * form.dilation;
    convolution = &child<Convolution>("convolution", form);
    normalization = &child<BatchNorm2d>("normalization", form.out, c.momentum);
    if (activates) activation = &child<Activation>("activation", c.act);
  }

 protected:
  X forward(X features) override {
    if (tf_padding_) features = apply_tf_padding(features);
    features = (*convolution)(features);
    features = (*normalization)(features);
    if (activation) features = (*activation)(features);
    return features;
  }

 private:
  X apply_tf_padding(const X& features) const {
    const ConvolutionForm& f = convolution->form();
    auto along = [&](I size) { return std::max<I>(f.kernel - (size % f.stride == 0 ? f.stride : size % f.stride), 0); };
    const I height = along(features.size(-2)), width = along(features.size(-1));
    const Dims padding{width / 2 * f.dilation, (width - width / 2) * f.dilation, height / 2 * f.dilation,
                       (height - height / 2) * f.dilation};
    return aten("constant_pad_nd", {Tensor(features), list_of(padding), 0.0});
  }

  bool tf_padding_;
  Convolution* convolution;
  BatchNorm2d* normalization;
  Activation* activation = nullptr;
};

class InvertedResidual final : public Unary {
 public:
  InvertedResidual(const MobileNetConfig& c, I in, I out, I stride, I dilation)
      : Unary("MobileNetV2InvertedResidual"), residual_(stride == 1 && in == out) {
    const I expanded = c.divisible(double(std::lrint(double(in) * c.expand_ratio)));
    expand_1x1 = &child<ConvLayer>("expand_1x1", c, ConvolutionForm{.in = in, .out = expanded, .kernel = 1});
    conv_3x3 = &child<ConvLayer>(
        "conv_3x3", c,
        ConvolutionForm{.in = expanded, .out = expanded, .kernel = 3, .stride = stride, .dilation = dilation, .groups = expanded});
    reduce_1x1 = &child<ConvLayer>("reduce_1x1", c, ConvolutionForm{.in = expanded, .out = out, .kernel = 1}, false);
  }

 protected:
  X forward(X features) override {
    X residual = features;
    features = (*expand_1x1)(features);
    features = (*conv_3x3)(features);
    features = (*reduce_1x1)(features);
    return residual_ ? residual.add(features) : features;
  }

 private:
  bool residual_;
  ConvLayer *expand_1x1, *conv_3x3, *reduce_1x1;
};

class Stem final : public Unary {
 public:
  Stem(const MobileNetConfig& c, I in, I expanded, I out) : Unary("MobileNetV2Stem") {
    first_conv = &child<ConvLayer>("first_conv", c, ConvolutionForm{.in = in, .out = expanded, .kernel = 3, .stride = 2});
    if (!c.first_is_expansion)
      expand_1x1 = &child<ConvLayer>("expand_1x1", c, ConvolutionForm{.in = expanded, .out = expanded, .kernel = 1});
    conv_3x3 =
        &child<ConvLayer>("conv_3x3", c, ConvolutionForm{.in = expanded, .out = expanded, .kernel = 3, .stride = 1, .groups = expanded});
    reduce_1x1 = &child<ConvLayer>("reduce_1x1", c, ConvolutionForm{.in = expanded, .out = out, .kernel = 1}, false);
  }

 protected:
  X forward(X features) override {
    features = (*first_conv)(features);
    if (expand_1x1) features = (*expand_1x1)(features);
    features = (*conv_3x3)(features);
    features = (*reduce_1x1)(features);
    return features;
  }

 private:
  ConvLayer *first_conv, *expand_1x1 = nullptr, *conv_3x3, *reduce_1x1;
};

class MobileNetModel final : public Base {
 public:
  explicit MobileNetModel(const MobileNetConfig& c) : Base("MobileNetV2Model") {
    static constexpr I kWidths[] = {16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320};
    static constexpr I kStrides[] = {2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1};
    conv_stem = &child<Stem>("conv_stem", c, c.channels, c.depth(32), c.depth(kWidths[0]));
    I current_stride = 2, dilation = 1;
    auto list = register_module("layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (std::size_t i = 0; i < 16; ++i) {
      I stride = kStrides[i], own_dilation = 1;
      if (current_stride == c.output_stride) {
        stride = 1;
        own_dilation = dilation;
        dilation *= kStrides[i];
      } else {
        current_stride *= stride;
      }
      layers_.push_back(std::make_shared<InvertedResidual>(c, c.depth(kWidths[i]), c.depth(kWidths[i + 1]), stride, own_dilation));
      list->append(layers_.back());
    }
    conv_1x1 = &child<ConvLayer>("conv_1x1", c, ConvolutionForm{.in = c.depth(kWidths[16]), .out = c.last(), .kernel = 1});
  }
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X hidden_states = (*conv_stem)(pixel_values);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states);
    X last_hidden_state = (*conv_1x1)(hidden_states);
    X pooled_output = X(aten("adaptive_avg_pool2d", {Tensor(last_hidden_state), list_of(Dims{1, 1})})).flatten(1);
    return leave(Pair(last_hidden_state, pooled_output), hidden_states);
  }

 private:
  Stem* conv_stem;
  std::vector<UnaryPtr> layers_;
  ConvLayer* conv_1x1;
};

class FirstModel final : public Base {
 public:
  explicit FirstModel(const MobileNetConfig& c) : Base("MobileNetV1Model") {
    static constexpr I kStrides[] = {1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1};
    I depth = 32, out = width(c, depth);
    conv_stem = &child<ConvLayer>("conv_stem", c, ConvolutionForm{.in = c.channels, .out = out, .kernel = 3, .stride = 2});
    auto list = register_module("layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (std::size_t i = 0; i < 13; ++i) {
      const I in = out;
      if (kStrides[i] == 2 || i == 0) out = width(c, depth *= 2);
      layers_.push_back(
          std::make_shared<ConvLayer>(c, ConvolutionForm{.in = in, .out = in, .kernel = 3, .stride = kStrides[i], .groups = in}));
      layers_.push_back(std::make_shared<ConvLayer>(c, ConvolutionForm{.in = in, .out = out, .kernel = 1}));
    }
    for (auto& layer : layers_) list->append(layer);
  }
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X hidden_states = (*conv_stem)(pixel_values);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states);
    X pooled_output = X(aten("adaptive_avg_pool2d", {Tensor(hidden_states), list_of(Dims{1, 1})})).flatten(1);
    return {hidden_states, pooled_output};
  }
  static I width(const MobileNetConfig& c, I depth) { return std::max(I(double(depth) * c.multiplier), c.least); }

 private:
  ConvLayer* conv_stem;
  std::vector<UnaryPtr> layers_;
};

NetworkPtr mobilenet_v1(const Config& config, const Options& o) {
  const MobileNetConfig c(config, true);
  const ImageForm form{.prefix = "MobileNetV1",
                       .base = "mobilenet_v1",
                       .channels = c.channels,
                       .image = config.size("image_size"),
                       .features = FirstModel::width(c, 1024),
                       .dropout = config.number_or("classifier_dropout_prob", 0.999)};
  return std::make_shared<PooledNetwork<FirstModel>>(config, o, form, c);
}
NetworkPtr mobilenet_v2(const Config& config, const Options& o) {
  const MobileNetConfig c(config, false);
  const ImageForm form{.prefix = "MobileNetV2",
                       .base = "mobilenet_v2",
                       .channels = c.channels,
                       .image = config.size("image_size"),
                       .features = c.last(),
                       .dropout = config.number_or("classifier_dropout_prob", 0.8)};
  return std::make_shared<PooledNetwork<MobileNetModel>>(config, o, form, c);
}
const Family mobilenet_v1_family{{"mobilenet_v1"}, image_classes("MobileNetV1", mobilenet_v1)};
const Family mobilenet_v2_family{{"mobilenet_v2"}, image_classes("MobileNetV2", mobilenet_v2)};

}  // namespace
}  // namespace memest::hf
