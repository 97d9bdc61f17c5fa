// models/efficientnet/modeling_efficientnet.py.
#include <algorithm>
#include <cmath>

#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct EfficientConfig {
  explicit EfficientConfig(const Config& f)
      : channels(f.size("num_channels")),
        width(f.number_or("width_coefficient", 2.0)),
        depth(f.number_or("depth_coefficient", 3.1)),
        divisor(f.size_or("depth_divisor", 8)),
        hidden(f.size_or("hidden_dim", 2560)),
        kernels(stage_sizes(f, "kernel_sizes")),
        in(stage_sizes(f, "in_channels")),
        out(stage_sizes(f, "out_channels")),
        strides(stage_sizes(f, "strides")),
        repeats(stage_sizes(f, "num_block_repeats")),
        ratios(stage_sizes(f, "expand_ratios")),
        padded(f.has("depthwise_padding") ? f.integers("depthwise_padding") : std::vector<I>{}),
        squeeze(f.number_or("squeeze_expansion_ratio", 0.25)),
        drop_connect(f.number_or("drop_connect_rate", 0.2)),
        momentum(f.number_or("batch_norm_momentum", 0.99)),
        act(f.text_or("hidden_act", "swish")),
        pooling(f.text_or("pooling_type", "mean")) {
    for (const char* key : {"kernel_sizes", "out_channels", "strides", "num_block_repeats", "expand_ratios"})
      if (f.integers(key).size() < in.size())
        throw f.error(key, "expected an entry for each of the " + std::to_string(in.size()) + " in_channels, found " +
                               std::to_string(f.integers(key).size()));
    if (!(width > 0 && width <= 100)) throw f.error("width_coefficient", "expected more than 0 and at most 100");
    if (!(depth > 0 && depth <= 100)) throw f.error("depth_coefficient", "expected more than 0 and at most 100");
    for (I r : repeats)
      if (r > 1000) throw f.error("num_block_repeats", "expected at most 1000, found " + std::to_string(r));
    if (pooling != "mean" && pooling != "max") throw f.error("pooling_type", "expected mean or max, found '" + pooling.substr(0, 40) + "'");
    if (filters(1280) != hidden)
      throw f.error("hidden_dim",
                    "expected " + std::to_string(filters(1280)) + ", the last convolution's width, found " + std::to_string(hidden));
  }
  I filters(I count) const {
    const double wanted = double(count) * width;
    I rounded = std::max(divisor, I(wanted + double(divisor) / 2) / divisor * divisor);
    if (double(rounded) < 0.9 * wanted) rounded += divisor;
    return rounded;
  }
  I repeated(std::size_t stage) const { return I(std::ceil(depth * double(repeats[stage]))); }
  I channels;
  double width, depth;
  I divisor, hidden;
  std::vector<I> kernels, in, out, strides, repeats, ratios, padded;
  double squeeze, drop_connect, momentum;
  std::string act, pooling;
};

/// nn.ZeroPad2d.
class ZeroPad2d final : public Unary {
 public:
  explicit ZeroPad2d(const Dims& amounts) : Unary("ZeroPad2d"), amounts_(amounts) {}

 protected:
  X forward(X input) override { return aten("constant_pad_nd", {Tensor(input), list_of(amounts_), 0.0}); }

 private:
  Dims amounts_;
};

class EfficientEmbeddings final : public Unary {
 public:
  explicit EfficientEmbeddings(const EfficientConfig& c)
      : Unary("EfficientNetEmbeddings"),
        padding(child<ZeroPad2d>("padding", Dims{0, 1, 0, 1})),
        convolution(child<Convolution>("convolution",
                                       ConvolutionForm{.in = c.channels, .out = c.filters(32), .kernel = 3, .stride = 2, .bias = false})),
        batchnorm(child<BatchNorm2d>("batchnorm", c.filters(32), c.momentum)),
        activation(child<Activation>("activation", c.act)) {}

 protected:
  X forward(X pixel_values) override {
    X features = padding(pixel_values);
    features = convolution(features);
    features = batchnorm(features);
    features = activation(features);
    return features;
  }

 private:
  ZeroPad2d& padding;
  Convolution& convolution;
  BatchNorm2d& batchnorm;
  Activation& activation;
};

class Expansion final : public Unary {
 public:
  Expansion(const EfficientConfig& c, I in, I out)
      : Unary("EfficientNetExpansionLayer"),
        expand_conv(child<Convolution>("expand_conv", ConvolutionForm{.in = in, .out = out, .kernel = 1, .bias = false})),
        expand_bn(child<BatchNorm2d>("expand_bn", out)),
        expand_act(child<Activation>("expand_act", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = expand_conv(hidden_states);
    hidden_states = expand_bn(hidden_states);
    hidden_states = expand_act(hidden_states);
    return hidden_states;
  }

 private:
  Convolution& expand_conv;
  BatchNorm2d& expand_bn;
  Activation& expand_act;
};

class Depthwise final : public Unary {
 public:
  Depthwise(const EfficientConfig& c, I width, I stride, I kernel, bool adjust)
      : Unary("EfficientNetDepthwiseLayer"),
        pads_(stride == 2),
        pad(child<ZeroPad2d>("depthwise_conv_pad", adjust ? Dims{kernel / 2 - 1, kernel / 2, kernel / 2 - 1, kernel / 2}
                                                          : Dims{kernel / 2, kernel / 2, kernel / 2, kernel / 2})),
        conv(child<Convolution>("depthwise_conv", ConvolutionForm{.in = width,
                                                                  .out = width,
                                                                  .kernel = kernel,
                                                                  .stride = stride,
                                                                  .padding = stride == 2 ? I{0} : kernel / 2,
                                                                  .groups = width,
                                                                  .bias = false})),
        norm(child<BatchNorm2d>("depthwise_norm", width, c.momentum)),
        act(child<Activation>("depthwise_act", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    if (pads_) hidden_states = pad(hidden_states);
    hidden_states = conv(hidden_states);
    hidden_states = norm(hidden_states);
    hidden_states = act(hidden_states);
    return hidden_states;
  }

 private:
  bool pads_;
  ZeroPad2d& pad;
  Convolution& conv;
  BatchNorm2d& norm;
  Activation& act;
};

class SqueezeExcite final : public Unary {
 public:
  SqueezeExcite(const EfficientConfig& c, I in, I width)
      : Unary("EfficientNetSqueezeExciteLayer"),
        reduce(child<Convolution>("reduce", ConvolutionForm{.in = width, .out = squeezed(c, in), .kernel = 1})),
        expand(child<Convolution>("expand", ConvolutionForm{.in = squeezed(c, in), .out = width, .kernel = 1})),
        act_reduce(child<Activation>("act_reduce", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    X inputs = hidden_states;
    hidden_states = aten("adaptive_avg_pool2d", {Tensor(hidden_states), list_of(Dims{1, 1})});
    hidden_states = reduce(hidden_states);
    hidden_states = act_reduce(hidden_states);
    hidden_states = expand(hidden_states);
    hidden_states = hidden_states.sigmoid();
    hidden_states = inputs.mul(hidden_states);
    return leave(hidden_states, inputs);
  }

 private:
  static I squeezed(const EfficientConfig& c, I in) { return std::max<I>(1, I(double(in) * c.squeeze)); }
  Convolution &reduce, &expand;
  Activation& act_reduce;
};

class FinalBlock final : public Base {
 public:
  FinalBlock(const EfficientConfig& c, I in, I out, bool drops, double rate)
      : Base("EfficientNetFinalBlockLayer"),
        drops_(drops),
        project_conv(child<Convolution>("project_conv", ConvolutionForm{.in = in, .out = out, .kernel = 1, .bias = false})),
        project_bn(child<BatchNorm2d>("project_bn", out, c.momentum)),
        dropout(child<Dropout>("dropout", rate)) {}
  X operator()(const X& embeddings, X hidden_states) {
    Entered scope(*this);
    hidden_states = project_conv(hidden_states);
    hidden_states = project_bn(hidden_states);
    if (!drops_) return hidden_states;
    hidden_states = dropout(hidden_states);
    hidden_states = hidden_states.add(embeddings);
    return hidden_states;
  }

 private:
  bool drops_;
  Convolution& project_conv;
  BatchNorm2d& project_bn;
  Dropout& dropout;
};

class Block final : public Unary {
 public:
  Block(const EfficientConfig& c, I in, I out, I stride, I ratio, I kernel, double rate, bool first, bool adjust)
      : Unary("EfficientNetBlock") {
    const I width = in * ratio;
    if (ratio != 1) expansion = &child<Expansion>("expansion", c, in, width);
    depthwise_conv = &child<Depthwise>("depthwise_conv", c, width, stride, kernel, adjust);
    squeeze_excite = &child<SqueezeExcite>("squeeze_excite", c, in, width);
    projection = &child<FinalBlock>("projection", c, width, out, stride == 1 && !first, rate);
  }

 protected:
  X forward(X hidden_states) override {
    X embeddings = hidden_states;
    if (expansion) hidden_states = (*expansion)(hidden_states);
    hidden_states = (*depthwise_conv)(hidden_states);
    hidden_states = (*squeeze_excite)(hidden_states);
    hidden_states = (*projection)(embeddings, hidden_states);
    return leave(hidden_states, embeddings);
  }

 private:
  Expansion* expansion = nullptr;
  Depthwise* depthwise_conv;
  SqueezeExcite* squeeze_excite;
  FinalBlock* projection;
};

class EfficientEncoder final : public Unary {
 public:
  explicit EfficientEncoder(const EfficientConfig& c) : Unary("EfficientNetEncoder") {
    auto list = register_module("blocks", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    I total = 0, number = 0, out = 0;
    for (std::size_t i = 0; i < c.repeats.size(); ++i) total += c.repeated(i);
    for (std::size_t i = 0; i < c.in.size(); ++i) {
      I in = c.filters(c.in[i]);
      out = c.filters(c.out[i]);
      for (I j = 0; j < c.repeated(i); ++j, ++number) {
        if (j > 0) in = out;
        const bool adjust = std::find(c.padded.begin(), c.padded.end(), number) == c.padded.end();
        blocks_.push_back(std::make_shared<Block>(c, in, out, j > 0 ? 1 : c.strides[i], c.ratios[i], c.kernels[i],
                                                  c.drop_connect * double(number) / double(total), j == 0, adjust));
        list->append(blocks_.back());
      }
    }
    top_conv = &child<Convolution>("top_conv", ConvolutionForm{.in = out, .out = c.filters(1280), .kernel = 1, .bias = false});
    top_bn = &child<BatchNorm2d>("top_bn", c.hidden, c.momentum);
    top_activation = &child<Activation>("top_activation", c.act);
  }

 protected:
  X forward(X hidden_states) override {
    for (auto& block : blocks_) hidden_states = (*block)(hidden_states);
    hidden_states = (*top_conv)(hidden_states);
    hidden_states = (*top_bn)(hidden_states);
    hidden_states = (*top_activation)(hidden_states);
    return hidden_states;
  }

 private:
  std::vector<UnaryPtr> blocks_;
  Convolution* top_conv;
  BatchNorm2d* top_bn;
  Activation* top_activation;
};

class EfficientModel final : public Base {
 public:
  explicit EfficientModel(const EfficientConfig& c)
      : Base("EfficientNetModel"),
        window_(c.hidden),
        max_(c.pooling == "max"),
        embeddings(child<EfficientEmbeddings>("embeddings", c)),
        encoder(child<EfficientEncoder>("encoder", c)) {}
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X embedding_output = embeddings(pixel_values);
    X last_hidden_state = encoder(embedding_output);
    const Value window = list_of(Dims{window_, window_}), none = list_of(Dims{0, 0});
    X pooled_output = max_ ? aten("max_pool2d", {Tensor(last_hidden_state), window, window, none, list_of(Dims{1, 1}), true})
                           : aten("avg_pool2d", {Tensor(last_hidden_state), window, window, none, true, true});
    pooled_output = pooled_output.reshape({pooled_output.size(0), pooled_output.size(1)});
    return leave(Pair(last_hidden_state, pooled_output), embedding_output);
  }

 private:
  I window_;
  bool max_;
  EfficientEmbeddings& embeddings;
  EfficientEncoder& encoder;
};

NetworkPtr efficientnet(const Config& config, const Options& o) {
  const EfficientConfig c(config);
  const ImageForm form{.prefix = "EfficientNet",
                       .base = "efficientnet",
                       .channels = c.channels,
                       .image = config.size("image_size"),
                       .features = c.hidden,
                       .dropout = config.number_or("dropout_rate", 0.5),
                       .in_place = false};
  return std::make_shared<PooledNetwork<EfficientModel>>(config, o, form, c);
}
const Family efficientnet_family{{"efficientnet"}, image_classes("EfficientNet", efficientnet)};

}  // namespace
}  // namespace memest::hf
