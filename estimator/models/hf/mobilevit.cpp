// models/mobilevit/modeling_mobilevit.py.
#include <algorithm>
#include <cmath>

#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct MobileVitConfig {
  MobileVitConfig(const Config& f, const Options& o)
      : options(o),
        channels(f.size("num_channels")),
        patch(f.size("patch_size")),
        widths(stage_sizes(f, "hidden_sizes")),
        necks(stage_sizes(f, "neck_hidden_sizes")),
        heads(f.size("num_attention_heads")),
        kernel(f.size_or("conv_kernel_size", 3)),
        output_stride(f.size_or("output_stride", 32)),
        mlp_ratio(f.number_or("mlp_ratio", 2.0)),
        expand_ratio(f.number_or("expand_ratio", 4.0)),
        act(f.text_or("hidden_act", "silu")),
        dropout(f.number_or("hidden_dropout_prob", 0.1)),
        attention_dropout(f.number_or("attention_probs_dropout_prob", 0.0)),
        qkv_bias(f.boolean_or("qkv_bias", true)) {
    if (widths.size() != 3) throw f.error("hidden_sizes", "expected 3 entries, found " + std::to_string(widths.size()));
    if (necks.size() != 7) throw f.error("neck_hidden_sizes", "expected 7 entries, found " + std::to_string(necks.size()));
    for (I w : widths)
      if (w % heads != 0)
        throw f.error("hidden_sizes",
                      "expected multiples of the " + std::to_string(heads) + " attention heads, found " + std::to_string(w));
  }
  Options options;
  I channels, patch;
  std::vector<I> widths, necks;
  I heads, kernel, output_stride;
  double mlp_ratio, expand_ratio;
  std::string act;
  double dropout, attention_dropout;
  bool qkv_bias;
};

class ConvLayer final : public Unary {
 public:
  ConvLayer(const MobileVitConfig& c, ConvolutionForm form, bool normalizes = true, bool activates = true) : Unary("MobileViTConvLayer") {
    form.bias = false;
    form.padding = (form.kernel - 1) / 2 * form.dilation;
    convolution = &child<Convolution>("convolution", form);
    if (normalizes) normalization = &child<BatchNorm2d>("normalization", form.out);
    if (activates) activation = &child<Activation>("activation", c.act);
  }

 protected:
  X forward(X features) override {
    features = (*convolution)(features);
    if (normalization) features = (*normalization)(features);
    if (activation) features = (*activation)(features);
    return features;
  }

 private:
  Convolution* convolution;
  BatchNorm2d* normalization = nullptr;
  Activation* activation = nullptr;
};

class InvertedResidual final : public Unary {
 public:
  InvertedResidual(const MobileVitConfig& c, I in, I out, I stride, I dilation = 1)
      : Unary("MobileViTInvertedResidual"), residual_(stride == 1 && in == out) {
    const double wanted = double(std::lrint(double(in) * c.expand_ratio));
    I expanded = std::max<I>(8, I(wanted + 4) / 8 * 8);
    if (double(expanded) < 0.9 * wanted) expanded += 8;
    expand_1x1 = &child<ConvLayer>("expand_1x1", c, ConvolutionForm{.in = in, .out = expanded, .kernel = 1});
    conv_3x3 = &child<ConvLayer>(
        "conv_3x3", c,
        ConvolutionForm{.in = expanded, .out = expanded, .kernel = 3, .stride = stride, .dilation = dilation, .groups = expanded});
    reduce_1x1 = &child<ConvLayer>("reduce_1x1", c, ConvolutionForm{.in = expanded, .out = out, .kernel = 1}, true, false);
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

class MobileNetLayer final : public Unary {
 public:
  MobileNetLayer(const MobileVitConfig& c, I in, I out, I stride, I count)
      : Unary("MobileViTMobileNetLayer"),
        layers_(*this, "layer", count, [&](I i) { return std::make_shared<InvertedResidual>(c, i ? out : in, out, i ? 1 : stride); }) {}

 protected:
  X forward(X features) override {
    for (auto& layer : layers_) features = (*layer)(features);
    return features;
  }

 private:
  Layers<InvertedResidual> layers_;
};

class SelfAttention final : public Unary {
 public:
  SelfAttention(const MobileVitConfig& c, I width)
      : Unary("MobileViTSelfAttention"),
        head_dim_(width / c.heads),
        query(child<Linear>("query", width, width, c.qkv_bias)),
        key(child<Linear>("key", width, width, c.qkv_bias)),
        value(child<Linear>("value", width, width, c.qkv_bias)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  X forward(X hidden_states) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(1.0);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, query_layer, key_layer, value_layer, attention_scores, attention_probs);
  }

 private:
  I head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

class AttentionBlock final : public Unary {
 public:
  AttentionBlock(const MobileVitConfig& c, I width)
      : Unary("MobileViTAttention"),
        attention(child<SelfAttention>("attention", c, width)),
        output(child<DenseDropout>("output", "MobileViTSelfOutput", width, width, c.dropout)) {}

 protected:
  X forward(X hidden_states) override {
    X self_outputs = attention(hidden_states);
    X attention_output = output(self_outputs);
    return leave(attention_output, self_outputs);
  }

 private:
  SelfAttention& attention;
  DenseDropout& output;
};

class Intermediate final : public Unary {
 public:
  Intermediate(const MobileVitConfig& c, I in, I out)
      : Unary("MobileViTIntermediate"), dense(child<Linear>("dense", in, out)), act(child<Activation>("intermediate_act_fn", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = act(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Activation& act;
};

class Output final : public Base {
 public:
  Output(const MobileVitConfig& c, I in, I out)
      : Base("MobileViTOutput"), dense(child<Linear>("dense", in, out)), dropout(child<Dropout>("dropout", c.dropout)) {}
  X operator()(X hidden_states, const X& input_tensor) {
    Entered scope(*this);
    X given = hidden_states;
    hidden_states = dense(hidden_states);
    hidden_states = dropout(hidden_states);
    hidden_states = hidden_states.add(input_tensor);
    return hidden_states;
  }

 private:
  Linear& dense;
  Dropout& dropout;
};

class TransformerLayer final : public Unary {
 public:
  TransformerLayer(const MobileVitConfig& c, I width)
      : Unary("MobileViTTransformerLayer"),
        attention(child<AttentionBlock>("attention", c, width)),
        intermediate(child<Intermediate>("intermediate", c, width, I(double(width) * c.mlp_ratio))),
        output(child<Output>("output", c, I(double(width) * c.mlp_ratio), width)),
        layernorm_before(child<LayerNorm>("layernorm_before", width)),
        layernorm_after(child<LayerNorm>("layernorm_after", width)) {}

 protected:
  X forward(X hidden_states) override {
    X attention_output = attention(layernorm_before(hidden_states));
    hidden_states = attention_output.add(hidden_states);
    X layer_output = layernorm_after(hidden_states);
    layer_output = intermediate(layer_output);
    layer_output = output(layer_output, hidden_states);
    return leave(layer_output, hidden_states, attention_output);
  }

 private:
  AttentionBlock& attention;
  Intermediate& intermediate;
  Output& output;
  LayerNorm &layernorm_before, &layernorm_after;
};

class Transformer final : public Unary {
 public:
  Transformer(const MobileVitConfig& c, I width, I count)
      : Unary("MobileViTTransformer"), layers_(*this, "layer", count, [&](I) { return std::make_shared<TransformerLayer>(c, width); }) {}

 protected:
  X forward(X hidden_states) override {
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states);
    return hidden_states;
  }

 private:
  Layers<TransformerLayer> layers_;
};

/// Convolutions around a transformer over the pixels of each patch.
class MobileVitLayer final : public DecoderLayer {
 public:
  MobileVitLayer(const MobileVitConfig& c, I in, I out, I width, I count, I dilation)
      : DecoderLayer("MobileViTLayer", c.options),
        patch_(c.patch),
        downsampling_layer(
            child<InvertedResidual>("downsampling_layer", c, in, out, dilation == 1 ? I{2} : I{1}, dilation > 1 ? dilation / 2 : I{1})),
        conv_kxk(child<ConvLayer>("conv_kxk", c, ConvolutionForm{.in = out, .out = out, .kernel = c.kernel})),
        conv_1x1(child<ConvLayer>("conv_1x1", c, ConvolutionForm{.in = out, .out = width, .kernel = 1}, false, false)),
        transformer(child<Transformer>("transformer", c, width, count)),
        layernorm(child<LayerNorm>("layernorm", width)),
        conv_projection(child<ConvLayer>("conv_projection", c, ConvolutionForm{.in = width, .out = out, .kernel = 1})),
        fusion(child<ConvLayer>("fusion", c, ConvolutionForm{.in = 2 * out, .out = out, .kernel = c.kernel})) {}

 protected:
  X forward(X features, const LayerCall&) override {
    features = downsampling_layer(features);
    X residual = features;
    features = conv_kxk(features);
    features = conv_1x1(features);
    X patches = unfolding(features);
    patches = transformer(patches);
    patches = layernorm(patches);
    features = folding(patches);
    features = conv_projection(features);
    features = fusion(cat({residual, features}, 1));
    return leave(features, residual, patches);
  }

 private:
  X interpolated(const X& features, I height, I width) const {
    return aten("upsample_bilinear2d", {Tensor(features), list_of(Dims{height, width}), false, Value()});
  }
  X unfolding(X features) {
    const I area = patch_ * patch_;
    batch_ = features.size(0), channels_ = features.size(1), height_ = features.size(2), width_ = features.size(3);
    const I new_height = (height_ + patch_ - 1) / patch_ * patch_, new_width = (width_ + patch_ - 1) / patch_ * patch_;
    interpolates_ = new_height != height_ || new_width != width_;
    if (interpolates_) features = interpolated(features, new_height, new_width);
    rows_ = new_height / patch_, columns_ = new_width / patch_;
    X patches = features.reshape({batch_ * channels_ * rows_, patch_, columns_, patch_});
    patches = patches.transpose(1, 2);
    patches = patches.reshape({batch_, channels_, rows_ * columns_, area});
    patches = patches.transpose(1, 3);
    patches = patches.reshape({batch_ * area, rows_ * columns_, -1});
    return patches;
  }
  X folding(const X& patches) {
    X features = patches.contiguous().view({batch_, patch_ * patch_, rows_ * columns_, -1});
    features = features.transpose(1, 3);
    features = features.reshape({batch_ * channels_ * rows_, columns_, patch_, patch_});
    features = features.transpose(1, 2);
    features = features.reshape({batch_, channels_, rows_ * patch_, columns_ * patch_});
    if (interpolates_) features = interpolated(features, height_, width_);
    return features;
  }

  I patch_, batch_ = 0, channels_ = 0, height_ = 0, width_ = 0, rows_ = 0, columns_ = 0;
  bool interpolates_ = false;
  InvertedResidual& downsampling_layer;
  ConvLayer &conv_kxk, &conv_1x1;
  Transformer& transformer;
  LayerNorm& layernorm;
  ConvLayer &conv_projection, &fusion;
};

class MobileVitEncoder final : public Base {
 public:
  explicit MobileVitEncoder(const MobileVitConfig& c) : Base("MobileViTEncoder") {
    auto list = register_module("layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    const auto& n = c.necks;
    first_ = std::make_shared<MobileNetLayer>(c, n[0], n[1], 1, 1);
    second_ = std::make_shared<MobileNetLayer>(c, n[1], n[2], 2, 3);
    list->append(first_), list->append(second_);
    I dilation = 1;
    for (std::size_t i = 0; i < 3; ++i) {
      if ((i == 1 && c.output_stride == 8) || (i == 2 && (c.output_stride == 8 || c.output_stride == 16))) dilation *= 2;
      layers_.push_back(std::make_shared<MobileVitLayer>(c, n[i + 2], n[i + 3], c.widths[i], i == 0 ? 2 : i == 1 ? 4 : 3, dilation));
      list->append(layers_.back());
    }
  }
  X operator()(X hidden_states) {
    Entered scope(*this);
    hidden_states = (*first_)(hidden_states);
    hidden_states = (*second_)(hidden_states);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{});
    return hidden_states;
  }

 private:
  std::shared_ptr<MobileNetLayer> first_, second_;
  std::vector<std::shared_ptr<MobileVitLayer>> layers_;
};

class MobileVitModel final : public Base {
 public:
  explicit MobileVitModel(const MobileVitConfig& c)
      : Base("MobileViTModel"),
        conv_stem(child<ConvLayer>("conv_stem", c, ConvolutionForm{.in = c.channels, .out = c.necks[0], .kernel = 3, .stride = 2})),
        encoder(child<MobileVitEncoder>("encoder", c)),
        conv_1x1_exp(child<ConvLayer>("conv_1x1_exp", c, ConvolutionForm{.in = c.necks[5], .out = c.necks[6], .kernel = 1})) {}
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X embedding_output = conv_stem(pixel_values);
    X encoder_output = encoder(embedding_output);
    X last_hidden_state = conv_1x1_exp(encoder_output);
    X pooled_output = X(ops::mean_dim(last_hidden_state, Dims{-2, -1}, false, std::nullopt));
    return leave(Pair(last_hidden_state, pooled_output), embedding_output, encoder_output);
  }

 private:
  ConvLayer& conv_stem;
  MobileVitEncoder& encoder;
  ConvLayer& conv_1x1_exp;
};

NetworkPtr mobilevit(const Config& config, const Options& o) {
  const MobileVitConfig c(config, o);
  const ImageForm form{.prefix = "MobileViT",
                       .base = "mobilevit",
                       .channels = c.channels,
                       .image = config.size("image_size"),
                       .features = c.necks[6],
                       .dropout = config.number_or("classifier_dropout_prob", 0.1)};
  return std::make_shared<PooledNetwork<MobileVitModel>>(config, o, form, c);
}
const Family mobilevit_family{{"mobilevit"}, image_classes("MobileViT", mobilevit)};

}  // namespace
}  // namespace memest::hf
