// models/convnext/modeling_convnext.py and models/convnextv2.
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct NextConfig {
  NextConfig(const Config& f, bool second_version)
      : second(second_version),
        prefix(second ? "ConvNextV2" : "ConvNext"),
        channels(f.size("num_channels")),
        patch(f.size("patch_size")),
        stages(f.size("num_stages")),
        widths(stage_sizes(f, "hidden_sizes")),
        depths(stage_sizes(f, "depths")),
        act(f.text_or("hidden_act", "gelu")),
        drop_path(f.number_or("drop_path_rate", 0.0)),
        scale(second ? 0.0 : f.number_or("layer_scale_init_value", 1e-6)) {
    for (const char* key : {"hidden_sizes", "depths"})
      if (I(f.integers(key).size()) < stages)
        throw f.error(key, "expected an entry for each of the " + std::to_string(stages) + " stages, found " +
                               std::to_string(f.integers(key).size()));
    for (I d : depths)
      if (d > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(d));
  }
  bool second;
  std::string prefix;
  I channels, patch, stages;
  std::vector<I> widths, depths;
  std::string act;
  double drop_path, scale;
};

/// ConvNextLayerNorm: over the channels, which come first or last.
class NextNorm final : public Unary {
 public:
  NextNorm(const NextConfig& c, I width, bool first) : Unary(c.prefix + "LayerNorm"), width_(width), first_(first) {
    new_parameter("weight", {width});
    new_parameter("bias", {width});
  }

 protected:
  X forward(X features) override {
    if (!first_) return X(ops::layer_norm(features, Dims{width_}, parameter(0), parameter(1), 1e-6, true));
    features = features.permute({0, 2, 3, 1});
    features = X(ops::layer_norm(features, Dims{width_}, parameter(0), parameter(1), 1e-6, true));
    features = features.permute({0, 3, 1, 2});
    return features;
  }

 private:
  I width_;
  bool first_;
};

class Grn final : public Unary {
 public:
  explicit Grn(I width) : Unary("ConvNextV2GRN") {
    new_parameter("weight", {1, 1, 1, width});
    new_parameter("bias", {1, 1, 1, width});
  }

 protected:
  X forward(X hidden_states) override {
    X global_features = aten("linalg_vector_norm", {Tensor(hidden_states), 2, list_of(Dims{1, 2}), true});
    X norm_features = global_features.div(global_features.mean(-1, true).add(1e-6));
    X scaled = X(parameter(0)).mul(hidden_states.mul(norm_features));
    hidden_states = std::move(scaled).add(X(parameter(1))).add(hidden_states);
    return leave(hidden_states, global_features, norm_features);
  }
};

class NextLayer final : public Unary {
 public:
  NextLayer(const NextConfig& c, I width, double rate) : Unary(c.prefix + "Layer") {
    new_parameter("layer_scale_parameter", {width}, c.scale > 0);
    scaled_ = c.scale > 0;
    dwconv = &child<Convolution>("dwconv", ConvolutionForm{.in = width, .out = width, .kernel = 7, .padding = 3, .groups = width});
    layernorm = &child<NextNorm>("layernorm", c, width, false);
    pwconv1 = &child<Linear>("pwconv1", width, 4 * width);
    act = &child<Activation>("act", c.act);
    if (c.second) grn = &child<Grn>("grn", 4 * width);
    pwconv2 = &child<Linear>("pwconv2", 4 * width, width);
    if (rate > 0) drop_path = &child<DropPath>("drop_path", c.prefix + "DropPath", rate);
  }

 protected:
  X forward(X features) override {
    X residual = features;
    features = (*dwconv)(features);
    features = features.permute({0, 2, 3, 1});
    features = (*layernorm)(features);
    features = (*pwconv1)(features);
    features = (*act)(features);
    if (grn) features = (*grn)(features);
    features = (*pwconv2)(features);
    if (scaled_) features = X(parameter(0)).mul(features);
    features = features.permute({0, 3, 1, 2});
    features = residual.add(drop_path ? (*drop_path)(features) : features);
    return leave(features, residual);
  }

 private:
  bool scaled_;
  Convolution* dwconv;
  NextNorm* layernorm;
  Linear *pwconv1, *pwconv2;
  Activation* act;
  Grn* grn = nullptr;
  DropPath* drop_path = nullptr;
};

class NextStage final : public Unary {
 public:
  NextStage(const NextConfig& c, I stage) : Unary(c.prefix + "Stage") {
    const std::size_t s = std::size_t(stage);
    const I in = c.widths[s ? s - 1 : 0], out = c.widths[s], stride = stage > 0 ? 2 : 1;
    auto downsampling = register_module("downsampling_layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    if (in != out || stride > 1) {
      all_ = {std::make_shared<NextNorm>(c, in, true),
              std::make_shared<Convolution>(ConvolutionForm{.in = in, .out = out, .kernel = 2, .stride = stride})};
      for (auto& layer : all_) downsampling->append(layer);
    }
    I total = 0, first = 0;
    for (std::size_t i = 0; i < std::size_t(c.stages); ++i) {
      if (i == s) first = total;
      total += c.depths[i];
    }
    auto layers = register_module("layers", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (I i = 0; i < c.depths[s]; ++i) {
      all_.push_back(std::make_shared<NextLayer>(c, out, c.drop_path * double(first + i) / double(std::max<I>(total - 1, 1))));
      layers->append(all_.back());
    }
  }

 protected:
  X forward(X features) override {
    for (auto& layer : all_) features = (*layer)(features);
    return features;
  }

 private:
  std::vector<UnaryPtr> all_;
};

class NextEncoder final : public Unary {
 public:
  explicit NextEncoder(const NextConfig& c)
      : Unary(c.prefix + "Encoder"), stages_(*this, "stages", c.stages, [&](I i) { return std::make_shared<NextStage>(c, i); }) {}

 protected:
  X forward(X hidden_states) override {
    for (auto& stage : stages_) hidden_states = (*stage)(hidden_states);
    return hidden_states;
  }

 private:
  Layers<NextStage> stages_;
};

class NextEmbeddings final : public Unary {
 public:
  explicit NextEmbeddings(const NextConfig& c)
      : Unary(c.prefix + "Embeddings"),
        patch_embeddings(child<Convolution>("patch_embeddings",
                                            ConvolutionForm{.in = c.channels, .out = c.widths[0], .kernel = c.patch, .stride = c.patch})),
        layernorm(child<NextNorm>("layernorm", c, c.widths[0], true)) {}

 protected:
  X forward(X pixel_values) override {
    X embeddings = patch_embeddings(pixel_values);
    embeddings = layernorm(embeddings);
    return embeddings;
  }

 private:
  Convolution& patch_embeddings;
  NextNorm& layernorm;
};

class NextModel final : public Base {
 public:
  explicit NextModel(const NextConfig& c)
      : Base(c.prefix + "Model"),
        embeddings(child<NextEmbeddings>("embeddings", c)),
        encoder(child<NextEncoder>("encoder", c)),
        layernorm(child<LayerNorm>("layernorm", c.widths[std::size_t(c.stages - 1)])) {}
  Pair operator()(const X& pixel_values) {
    Entered scope(*this);
    X embedding_output = embeddings(pixel_values);
    X last_hidden_state = encoder(embedding_output);
    X pooled_output = layernorm(X(ops::mean_dim(last_hidden_state, Dims{-2, -1}, false, std::nullopt)));
    return leave(Pair(last_hidden_state, pooled_output), embedding_output);
  }

 private:
  NextEmbeddings& embeddings;
  NextEncoder& encoder;
  LayerNorm& layernorm;
};

NetworkPtr make(const Config& config, const Options& o, bool second) {
  const NextConfig c(config, second);
  const ImageForm form{.prefix = c.prefix,
                       .base = second ? "convnextv2" : "convnext",
                       .channels = c.channels,
                       .image = config.size("image_size"),
                       .features = c.widths[std::size_t(c.stages - 1)]};
  return std::make_shared<PooledNetwork<NextModel>>(config, o, form, c);
}
NetworkPtr convnext(const Config& config, const Options& o) { return make(config, o, false); }
NetworkPtr convnextv2(const Config& config, const Options& o) { return make(config, o, true); }
const Family convnext_family{{"convnext"}, image_classes("ConvNext", convnext)};
const Family convnextv2_family{{"convnextv2"}, image_classes("ConvNextV2", convnextv2)};

}  // namespace
}  // namespace memest::hf
