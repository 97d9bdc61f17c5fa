// models/poolformer: a transformer's layers with pooling in the place of attention.
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct PoolFormerConfig {
  PoolFormerConfig(const Config& f, const Options& o)
      : file(f),
        options(o),
        channels(f.size("num_channels")),
        pool(f.size_or("pool_size", 3)),
        blocks(f.size_or("num_encoder_blocks", 4)),
        widths(stage_sizes(f, "hidden_sizes")),
        depths(stage_sizes(f, "depths")),
        patches(stage_sizes(f, "patch_sizes")),
        strides(stage_sizes(f, "strides")),
        padding(f.integers("padding")),
        drop_path(f.number_or("drop_path_rate", 0.0)),
        scales(f.boolean_or("use_layer_scale", true)),
        act(f.text_or("hidden_act", "gelu")) {
    for (auto* list : {&widths, &depths, &patches, &strides})
      if (I(list->size()) < blocks)
        throw f.error("num_encoder_blocks",
                      "expected lists of " + std::to_string(blocks) + " sizes, found one of " + std::to_string(list->size()));
    if (I(padding.size()) < blocks)
      throw f.error("padding", "expected " + std::to_string(blocks) + " entries, found " + std::to_string(padding.size()));
    for (I d : depths) {
      if (d > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(d));
      layers += d;
    }
  }
  /// torch.linspace(0, drop_path_rate, layers)
  double rate_of(I layer) const { return layers > 1 ? drop_path * double(layer) / double(layers - 1) : 0.0; }
  Config file;
  Options options;
  I channels, pool, blocks, layers = 0;
  std::vector<I> widths, depths, patches, strides;
  std::vector<std::int64_t> padding;
  double drop_path;
  bool scales;
  std::string act;
};

/// PoolFormerGroupNorm: one group.
class OneGroupNorm final : public Unary {
 public:
  explicit OneGroupNorm(I channels) : Unary("PoolFormerGroupNorm") {
    new_parameter("weight", {channels});
    new_parameter("bias", {channels});
  }

 protected:
  X forward(X input) override { return aten("group_norm", {Tensor(input), I{1}, Tensor(parameter(0)), Tensor(parameter(1)), 1e-5, true}); }
};

class PoolFormerEmbeddings final : public Unary {
 public:
  explicit PoolFormerEmbeddings(const ConvolutionForm& form)
      : Unary("PoolFormerEmbeddings"), projection(child<Convolution>("projection", form)) {}

 protected:
  X forward(X pixel_values) override {
    X embeddings = projection(pixel_values);
    return embeddings;
  }

 private:
  Convolution& projection;
};

class PoolFormerPooling final : public Unary {
 public:
  explicit PoolFormerPooling(I size) : Unary("PoolFormerPooling"), size_(size) {}

 protected:
  X forward(X hidden_states) override {
    X pooled = aten("avg_pool2d", {Tensor(hidden_states), list_of(Dims{size_, size_}), list_of(Dims{1, 1}),
                                   list_of(Dims{size_ / 2, size_ / 2}), false, false, Value()});
    return std::move(pooled).sub(hidden_states);
  }

 private:
  I size_;
};

class PoolFormerOutput final : public Unary {
 public:
  PoolFormerOutput(const PoolFormerConfig& c, I width, I intermediate, double rate)
      : Unary("PoolFormerOutput"),
        conv1(child<Convolution>("conv1", ConvolutionForm{.in = width, .out = intermediate, .kernel = 1})),
        conv2(child<Convolution>("conv2", ConvolutionForm{.in = intermediate, .out = width, .kernel = 1})),
        drop(child<DropPath>("drop", "PoolFormerDropPath", rate)),
        act_fn(child<Activation>("act_fn", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = conv1(hidden_states);
    hidden_states = act_fn(hidden_states);
    hidden_states = drop(hidden_states);
    hidden_states = conv2(hidden_states);
    hidden_states = drop(hidden_states);
    return hidden_states;
  }

 private:
  Convolution &conv1, &conv2;
  DropPath& drop;
  Activation& act_fn;
};

class PoolFormerLayer final : public Unary {
 public:
  PoolFormerLayer(const PoolFormerConfig& c, I width, double rate)
      : Unary("PoolFormerLayer"),
        scales_(c.scales),
        pooling(child<PoolFormerPooling>("pooling", c.pool)),
        output(child<PoolFormerOutput>("output", c, width, I(double(width) * c.file.number_or("mlp_ratio", 4.0)), rate)),
        before_norm(child<OneGroupNorm>("before_norm", width)),
        after_norm(child<OneGroupNorm>("after_norm", width)) {
    if (rate > 0) drop_path = &child<DropPath>("drop_path", "PoolFormerDropPath", rate);
    if (!scales_) return;
    new_parameter("layer_scale_1", {width});
    new_parameter("layer_scale_2", {width});
  }

 protected:
  X forward(X hidden_states) override {
    if (!scales_) {
      X pooling_output = dropped(pooling(before_norm(hidden_states)));
      hidden_states = pooling_output.add(hidden_states);
      X layer_output = dropped(output(after_norm(hidden_states)));
      X result = hidden_states.add(layer_output);
      return leave(result, pooling_output, layer_output);
    }
    X pooling_output = pooling(before_norm(hidden_states));
    X scaled_op = X(parameter(0)).unsqueeze(-1).unsqueeze(-1).mul(pooling_output);
    hidden_states = joined(hidden_states, scaled_op);
    X layer_output = output(after_norm(hidden_states));
    scaled_op = X(parameter(1)).unsqueeze(-1).unsqueeze(-1).mul(layer_output);
    X result = joined(hidden_states, scaled_op);
    return leave(result, pooling_output, scaled_op, layer_output);
  }

 private:
  X dropped(X x) { return drop_path ? (*drop_path)(std::move(x)) : x; }
  X joined(const X& hidden_states, const X& scaled_op) {
    X kept = drop_path ? (*drop_path)(scaled_op) : scaled_op;
    return hidden_states.add(std::move(kept));
  }
  bool scales_;
  PoolFormerPooling& pooling;
  PoolFormerOutput& output;
  OneGroupNorm &before_norm, &after_norm;
  DropPath* drop_path = nullptr;
};

class PoolFormerEncoder final : public Unary {
 public:
  explicit PoolFormerEncoder(const PoolFormerConfig& c)
      : Unary("PoolFormerEncoder"), patch_embeddings_(*this, "patch_embeddings", c.blocks, [&](I i) {
          const std::size_t n = std::size_t(i);
          return std::make_shared<PoolFormerEmbeddings>(ConvolutionForm{.in = i ? c.widths[n - 1] : c.channels,
                                                                        .out = c.widths[n],
                                                                        .kernel = c.patches[n],
                                                                        .stride = c.strides[n],
                                                                        .padding = c.padding[n]});
        }) {
    auto block = register_module("block", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    I layer = 0;
    for (I i = 0; i < c.blocks; ++i) {
      auto list = std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{});
      blocks_.emplace_back();
      for (I j = 0; j < c.depths[std::size_t(i)]; ++j) {
        blocks_.back().push_back(std::make_shared<PoolFormerLayer>(c, c.widths[std::size_t(i)], c.rate_of(layer++)));
        list->append(blocks_.back().back());
      }
      block->append(list);
    }
  }

 protected:
  X forward(X pixel_values) override {
    X hidden_states = pixel_values, layer_outputs;
    for (I i = 0; i < patch_embeddings_.size(); ++i) {
      hidden_states = patch_embeddings_[i](hidden_states);
      for (auto& layer : blocks_[std::size_t(i)]) {
        layer_outputs = (*layer)(hidden_states);
        hidden_states = layer_outputs;
      }
    }
    return hidden_states;
  }

 private:
  Layers<PoolFormerEmbeddings> patch_embeddings_;
  std::vector<std::vector<std::shared_ptr<PoolFormerLayer>>> blocks_;
};

class PoolFormerModel final : public Base {
 public:
  explicit PoolFormerModel(const PoolFormerConfig& c) : Base("PoolFormerModel"), encoder(child<PoolFormerEncoder>("encoder", c)) {}
  X operator()(const X& pixel_values) {
    Entered scope(*this);
    return encoder(pixel_values);
  }

 private:
  PoolFormerEncoder& encoder;
};

class PoolFormerNetwork final : public ImageNetwork {
 public:
  explicit PoolFormerNetwork(const PoolFormerConfig& c)
      : ImageNetwork(c.options.task == Task::base ? "PoolFormerModel" : "PoolFormerForImageClassification", c.options, c.channels, 224),
        labels_(num_labels(c.file)),
        poolformer(child<PoolFormerModel>("poolformer", c)) {
    if (c.options.task == Task::base) return;
    norm = &child<OneGroupNorm>("norm", c.widths.back());
    classifier = &child<Linear>("classifier", c.widths.back(), labels_);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X sequence_output = poolformer(batch.input);
    if (!classifier) return {model_output({sequence_output}), {}};
    X features = (*norm)(sequence_output);
    features = ops::mean_dim(std::move(static_cast<Tensor&>(features)), Dims{-2, -1}, false, std::nullopt);
    X logits = (*classifier)(std::move(features));
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    return {model_output({loss, logits}), loss};
  }

 private:
  I labels_;
  PoolFormerModel& poolformer;
  OneGroupNorm* norm = nullptr;
  Linear* classifier = nullptr;
};

NetworkPtr poolformer(const Config& config, const Options& o) { return std::make_shared<PoolFormerNetwork>(PoolFormerConfig(config, o)); }
const Family poolformer_family{{"poolformer"}, image_classes("PoolFormer", poolformer)};

}  // namespace
}  // namespace memest::hf
