// models/swiftformer/modeling_swiftformer.py.
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct SwiftConfig {
  SwiftConfig(const Config& f, const Options& o)
      : file(f),
        options(o),
        channels(f.size("num_channels")),
        depths(stage_sizes(f, "depths")),
        widths(stage_sizes(f, "embed_dims")),
        mlp_ratio(f.number_or("mlp_ratio", 4.0)),
        patch(f.size_or("down_patch_size", 3)),
        stride(f.size_or("down_stride", 2)),
        padding(f.integer_or("down_pad", 1)),
        act(f.text_or("hidden_act", "gelu")),
        drop_path(f.number_or("drop_path_rate", 0.0)),
        drop_mlp(f.number_or("drop_mlp_rate", 0.0)),
        drop_conv(f.number_or("drop_conv_encoder_rate", 0.0)),
        scales(f.boolean_or("use_layer_scale", true)) {
    if (widths.size() < depths.size())
      throw f.error("embed_dims", "expected an entry for each of the " + std::to_string(depths.size()) + " stages, found " +
                                      std::to_string(widths.size()));
    for (I d : depths)
      if (d > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(d));
    if (padding < 0) throw f.error("down_pad", "expected at least 0, found " + std::to_string(padding));
  }
  bool downsamples(std::size_t stage) const {
    const ConfigValue* list = file.find("downsamples");
    if (!list || !list->list() || stage >= list->list()->size()) return true;
    const auto* flag = std::get_if<bool>(&(*list->list())[stage].value);
    return !flag || *flag;
  }
  Config file;
  Options options;
  I channels;
  std::vector<I> depths, widths;
  double mlp_ratio;
  I patch, stride, padding;
  std::string act;
  double drop_path, drop_mlp, drop_conv;
  bool scales;
};

class PatchEmbedding final : public Unary {
 public:
  explicit PatchEmbedding(const SwiftConfig& c) : Unary("SwiftFormerPatchEmbedding") {
    const I out = c.widths[0];
    auto list = register_module("patch_embedding", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}, "Sequential"));
    auto add = [&](UnaryPtr layer) {
      layers_.push_back(layer);
      list->append(layer);
    };
    for (I half : {I{1}, I{0}}) {
      const I from = half ? c.channels : out / 2, to = half ? out / 2 : out;
      add(std::make_shared<Convolution>(ConvolutionForm{.in = from, .out = to, .kernel = 3, .stride = 2, .padding = 1}));
      add(std::make_shared<BatchNorm2d>(to));
      add(std::make_shared<Relu>());
    }
  }

 protected:
  X forward(X x) override {
    for (auto& layer : layers_) x = (*layer)(x);
    return x;
  }

 private:
  class Relu final : public Unary {
   public:
    Relu() : Unary("ReLU") {}

   protected:
    X forward(X x) override { return X(ops::relu(x)); }
  };
  std::vector<UnaryPtr> layers_;
};

class Embeddings final : public Unary {
 public:
  Embeddings(const SwiftConfig& c, I in, I out)
      : Unary("SwiftFormerEmbeddings"),
        proj(
            child<Convolution>("proj", ConvolutionForm{.in = in, .out = out, .kernel = c.patch, .stride = c.stride, .padding = c.padding})),
        norm(child<BatchNorm2d>("norm", out)) {}

 protected:
  X forward(X x) override {
    x = proj(x);
    x = norm(x);
    return x;
  }

 private:
  Convolution& proj;
  BatchNorm2d& norm;
};

/// SwiftFormerConvEncoder, and SwiftFormerLocalRepresentation with `hidden` as its width.
class ConvEncoder final : public Unary {
 public:
  ConvEncoder(std::string type, I width, I hidden, double rate) : Unary(std::move(type)) {
    new_parameter("layer_scale", {width, 1, 1});
    depth_wise_conv =
        &child<Convolution>("depth_wise_conv", ConvolutionForm{.in = width, .out = width, .kernel = 3, .padding = 1, .groups = width});
    norm = &child<BatchNorm2d>("norm", width);
    point_wise_conv1 = &child<Convolution>("point_wise_conv1", ConvolutionForm{.in = width, .out = hidden, .kernel = 1});
    act = &child<Activation>("act", "gelu");
    point_wise_conv2 = &child<Convolution>("point_wise_conv2", ConvolutionForm{.in = hidden, .out = width, .kernel = 1});
    drop_path = &child<Dropout>("drop_path", rate);
  }

 protected:
  X forward(X x) override {
    X input = x;
    x = (*depth_wise_conv)(x);
    x = (*norm)(x);
    x = (*point_wise_conv1)(x);
    x = (*act)(x);
    x = (*point_wise_conv2)(x);
    x = input.add((*drop_path)(X(parameter(0)).mul(x)));
    return leave(x, input);
  }

 private:
  Convolution *depth_wise_conv, *point_wise_conv1, *point_wise_conv2;
  BatchNorm2d* norm;
  Activation* act;
  Dropout* drop_path;
};

class Mlp final : public Unary {
 public:
  Mlp(const SwiftConfig& c, I width)
      : Unary("SwiftFormerMlp"),
        norm1(child<BatchNorm2d>("norm1", width)),
        fc1(child<Convolution>("fc1", ConvolutionForm{.in = width, .out = I(double(width) * c.mlp_ratio), .kernel = 1})),
        act(child<Activation>("act", c.act)),
        fc2(child<Convolution>("fc2", ConvolutionForm{.in = I(double(width) * c.mlp_ratio), .out = width, .kernel = 1})),
        drop(child<Dropout>("drop", c.drop_mlp)) {}

 protected:
  X forward(X x) override {
    x = norm1(x);
    x = fc1(x);
    x = act(x);
    x = drop(x);
    x = fc2(x);
    x = drop(x);
    return x;
  }

 private:
  BatchNorm2d& norm1;
  Convolution& fc1;
  Activation& act;
  Convolution& fc2;
  Dropout& drop;
};

class AdditiveAttention final : public Unary {
 public:
  explicit AdditiveAttention(I width) : Unary("SwiftFormerEfficientAdditiveAttention") {
    new_parameter("w_g", {width, 1});
    to_query = &child<Linear>("to_query", width, width);
    to_key = &child<Linear>("to_key", width, width);
    proj = &child<Linear>("proj", width, width);
    final_ = &child<Linear>("final", width, width);
  }

 protected:
  X forward(X x) override {
    X query = (*to_query)(x);
    X key = (*to_key)(x);
    query = normalize(query);
    key = normalize(key);
    X query_weight = query.matmul(X(parameter(0)));
    X scaled_query_weight = query_weight.mul(1.0);
    scaled_query_weight = scaled_query_weight.softmax(-1);
    X global_queries = scaled_query_weight.mul(query).sum(1);
    global_queries = aten("repeat", {Tensor(global_queries.unsqueeze(1)), list_of(Dims{1, key.size(1), 1})});
    X out = (*proj)(global_queries.mul(key)).add(query);
    out = (*final_)(out);
    return leave(out, query, key, query_weight, scaled_query_weight, global_queries);
  }

 private:
  /// torch.nn.functional.normalize over the last dimension.
  static X normalize(const X& input) {
    X denom = aten("linalg_vector_norm", {Tensor(input), 2.0, list_of(Dims{-1}), true});
    denom = X(aten("clamp_min", {Tensor(std::move(denom)), 1e-12})).expand(input.sizes());
    return input.div(denom);
  }
  Linear *to_query, *to_key, *proj, *final_;
};

class EncoderBlock final : public Unary {
 public:
  EncoderBlock(const SwiftConfig& c, I width, double rate) : Unary("SwiftFormerEncoderBlock"), scales_(c.scales) {
    new_parameter("layer_scale_1", {width, 1, 1}, scales_);
    new_parameter("layer_scale_2", {width, 1, 1}, scales_);
    local_representation = &child<ConvEncoder>("local_representation", "SwiftFormerLocalRepresentation", width, width, 0.0);
    attn = &child<AdditiveAttention>("attn", width);
    linear = &child<Mlp>("linear", c, width);
    if (rate > 0) drop_path_ = register_module("drop_path", std::make_shared<DropPath>("SwiftFormerDropPath", rate));
  }

 protected:
  X forward(X x) override {
    x = (*local_representation)(x);
    const I batch = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    X res = (*attn)(x.permute({0, 2, 3, 1}).reshape({batch, height * width, channels}));
    res = res.reshape({batch, height, width, channels}).permute({0, 3, 1, 2});
    x = x.add(drop_path(scales_ ? X(parameter(0)).mul(res) : res));
    X fed = (*linear)(x);
    if (scales_) fed = X(parameter(1)).mul(std::move(fed));
    x = x.add(drop_path(std::move(fed)));
    return leave(x, res);
  }

 private:
  X drop_path(X x) { return drop_path_ ? (*drop_path_)(std::move(x)) : x; }

  bool scales_;
  ConvEncoder* local_representation;
  AdditiveAttention* attn;
  Mlp* linear;
  UnaryPtr drop_path_;
};

class Stage final : public DecoderLayer {
 public:
  Stage(const SwiftConfig& c, std::size_t index) : DecoderLayer("SwiftFormerStage", c.options) {
    auto list = register_module("blocks", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    const I width = c.widths[index], depth = c.depths[index];
    I total = 0, before = 0;
    for (std::size_t i = 0; i < c.depths.size(); ++i) {
      if (i == index) before = total;
      total += c.depths[i];
    }
    for (I i = 0; i < depth; ++i) {
      if (depth - i <= 1)
        blocks_.push_back(std::make_shared<EncoderBlock>(c, width, c.drop_path * double(i + before) / double(std::max<I>(total - 1, 1))));
      else
        blocks_.push_back(std::make_shared<ConvEncoder>("SwiftFormerConvEncoder", width, I(c.mlp_ratio * double(width)), c.drop_conv));
      list->append(blocks_.back());
    }
  }

 protected:
  X forward(X input, const LayerCall&) override {
    for (auto& block : blocks_) input = (*block)(input);
    return input;
  }

 private:
  std::vector<UnaryPtr> blocks_;
};

class SwiftModel final : public Base {
 public:
  explicit SwiftModel(const SwiftConfig& c) : Base("SwiftFormerModel"), patch_embed(child<PatchEmbedding>("patch_embed", c)) {
    encoder_ = &child<Base>("encoder", "SwiftFormerEncoder");
    auto list = encoder_->register_module("network", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (std::size_t i = 0; i < c.depths.size(); ++i) {
      stages_.push_back(std::make_shared<Stage>(c, i));
      list->append(stages_.back());
      embeddings_.emplace_back();
      if (i + 1 < c.depths.size() && (c.downsamples(i) || c.widths[i] != c.widths[i + 1])) {
        embeddings_.back() = std::make_shared<Embeddings>(c, c.widths[i], c.widths[i + 1]);
        list->append(embeddings_.back());
      }
    }
  }
  X operator()(const X& pixel_values) {
    Entered scope(*this);
    X embedding_output = patch_embed(pixel_values);
    X hidden_states = embedding_output;
    {
      Entered within(*encoder_);
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        hidden_states = (*stages_[i])(hidden_states, LayerCall{});
        if (embeddings_[i]) hidden_states = (*embeddings_[i])(hidden_states);
      }
    }
    return leave(hidden_states, embedding_output);
  }

 private:
  PatchEmbedding& patch_embed;
  Base* encoder_;
  std::vector<std::shared_ptr<Stage>> stages_;
  std::vector<UnaryPtr> embeddings_;
};

class SwiftNetwork final : public ImageNetwork {
 public:
  SwiftNetwork(const SwiftConfig& c, I image)
      : ImageNetwork(c.options.task == Task::base ? "SwiftFormerModel" : "SwiftFormerForImageClassification", c.options, c.channels, image),
        labels_(num_labels(c.file)),
        model(child<SwiftModel>("swiftformer", c)) {
    if (c.options.task == Task::base) return;
    const I width = c.widths.back();
    norm = &child<BatchNorm2d>("norm", width);
    head = &child<Linear>("head", width, labels_);
    dist_head = &child<Linear>("dist_head", width, labels_);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X outputs = model(batch.input);
    if (!head) return {model_output({outputs}), {}};
    X sequence_output = (*norm)(outputs);
    sequence_output = sequence_output.flatten(2).mean(-1);
    X cls_out = (*head)(sequence_output);
    X distillation_out = (*dist_head)(sequence_output);
    X logits = cls_out.add(distillation_out).div(2);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    return {model_output({loss, logits}), loss};
  }

 private:
  I labels_;
  SwiftModel& model;
  BatchNorm2d* norm = nullptr;
  Linear *head = nullptr, *dist_head = nullptr;
};

NetworkPtr swiftformer(const Config& config, const Options& o) {
  return std::make_shared<SwiftNetwork>(SwiftConfig(config, o), config.size("image_size"));
}
const Family swiftformer_family{{"swiftformer"}, image_classes("SwiftFormer", swiftformer)};

}  // namespace
}  // namespace memest::hf
