// models/segformer/modeling_segformer.py.
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

struct SegformerConfig {
  SegformerConfig(const Config& f, const Options& o)
      : file(f),
        options(o),
        channels(f.size("num_channels")),
        stages(f.size("num_encoder_blocks")),
        act(f.text_or("hidden_act", "gelu")),
        hidden_dropout(f.number_or("hidden_dropout_prob", 0.0)),
        attention_dropout(f.number_or("attention_probs_dropout_prob", 0.0)),
        drop_path(f.number_or("drop_path_rate", 0.1)),
        reshapes_last(f.boolean_or("reshape_last_stage", true)) {
    for (auto& [key, list] : lists()) {
      *list = stage_sizes(f, key);
      if (I(list->size()) < stages)
        throw f.error(key,
                      "expected an entry for each of the " + std::to_string(stages) + " stages, found " + std::to_string(list->size()));
    }
    for (std::size_t s = 0; s < std::size_t(stages); ++s) {
      if (depths[s] > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(depths[s]));
      if (widths[s] % heads[s] != 0)
        throw f.error("num_attention_heads",
                      "expected a divisor of the hidden size " + std::to_string(widths[s]) + ", found " + std::to_string(heads[s]));
      layers += depths[s];
    }
  }
  std::vector<std::pair<std::string, std::vector<I>*>> lists() {
    return {{"depths", &depths},   {"sr_ratios", &reductions},  {"hidden_sizes", &widths},      {"patch_sizes", &patches},
            {"strides", &strides}, {"mlp_ratios", &mlp_ratios}, {"num_attention_heads", &heads}};
  }
  double drop_path_of(I layer) const { return drop_path * double(layer) / double(std::max<I>(layers - 1, 1)); }
  Config file;
  Options options;
  I channels, stages, layers = 0;
  std::vector<I> depths, reductions, widths, patches, strides, mlp_ratios, heads;
  std::string act;
  double hidden_dropout, attention_dropout, drop_path;
  bool reshapes_last;
};

struct Grid {
  I height = 0, width = 0;
};

class OverlapPatchEmbeddings final : public Base {
 public:
  OverlapPatchEmbeddings(I in, I out, I patch, I stride)
      : Base("SegformerOverlapPatchEmbeddings"),
        proj(child<Convolution>("proj", ConvolutionForm{.in = in, .out = out, .kernel = patch, .stride = stride, .padding = patch / 2})),
        layer_norm(child<LayerNorm>("layer_norm", out)) {}
  X operator()(const X& pixel_values, Grid& grid) {
    Entered scope(*this);
    X embeddings = proj(pixel_values);
    grid = {embeddings.size(2), embeddings.size(3)};
    embeddings = embeddings.flatten(2).transpose(1, 2);
    embeddings = layer_norm(embeddings);
    return embeddings;
  }

 private:
  Convolution& proj;
  LayerNorm& layer_norm;
};

class SequenceReduction final : public Base {
 public:
  SequenceReduction(I width, I ratio)
      : Base("SegformerSequenceReduction"),
        sequence_reduction(
            child<Convolution>("sequence_reduction", ConvolutionForm{.in = width, .out = width, .kernel = ratio, .stride = ratio})),
        layer_norm(child<LayerNorm>("layer_norm", width)) {}
  X operator()(X hidden_states, Grid grid) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0), num_channels = hidden_states.size(2);
    hidden_states = hidden_states.transpose(1, 2).reshape({batch_size, num_channels, grid.height, grid.width});
    hidden_states = sequence_reduction(hidden_states);
    hidden_states = hidden_states.reshape({batch_size, num_channels, -1}).transpose(1, 2);
    hidden_states = layer_norm(hidden_states);
    return hidden_states;
  }

 private:
  Convolution& sequence_reduction;
  LayerNorm& layer_norm;
};

class SegformerAttention final : public Base {
 public:
  SegformerAttention(const SegformerConfig& c, std::size_t stage)
      : Base("SegformerAttention"),
        options_(c.options),
        head_dim_(c.widths[stage] / c.heads[stage]),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.widths[stage], c.widths[stage])),
        k_proj(child<Linear>("k_proj", c.widths[stage], c.widths[stage])),
        v_proj(child<Linear>("v_proj", c.widths[stage], c.widths[stage])),
        o_proj(child<Linear>("o_proj", c.widths[stage], c.widths[stage])) {
    if (c.reductions[stage] > 1) sequence_reduction = &child<SequenceReduction>("sequence_reduction", c.widths[stage], c.reductions[stage]);
  }
  Pair operator()(const X& hidden_states, Grid grid) {
    Entered scope(*this);
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    X query_states = q_proj(hidden_states).view(input_shape + Dims{-1, head_dim_}).transpose(1, 2);
    X kv_hidden_states = hidden_states;
    if (sequence_reduction) kv_hidden_states = (*sequence_reduction)(hidden_states, grid);
    const Dims kv_hidden_shape = kv_hidden_states.sizes().slice(0, 2) + Dims{-1, head_dim_};
    X key_states = k_proj(kv_hidden_states).view(kv_hidden_shape).transpose(1, 2);
    X value_states = v_proj(kv_hidden_states).view(kv_hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] = attention_interface(options_, query_states, key_states, value_states,
                                                           {.dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, query_states, kv_hidden_states, key_states, value_states);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  SequenceReduction* sequence_reduction = nullptr;
};

class DepthWiseConv final : public Base {
 public:
  explicit DepthWiseConv(I width)
      : Base("SegformerDepthWiseConv"),
        dwconv(child<Convolution>("dwconv", ConvolutionForm{.in = width, .out = width, .kernel = 3, .padding = 1, .groups = width})) {}
  X operator()(X hidden_states, Grid grid) {
    Entered scope(*this);
    X images = hidden_states.transpose(1, 2).view({hidden_states.size(0), hidden_states.size(2), grid.height, grid.width});
    images = dwconv(images);
    images = images.flatten(2).transpose(1, 2);
    return images;
  }

 private:
  Convolution& dwconv;
};

class MixMlp final : public Base {
 public:
  MixMlp(const SegformerConfig& c, std::size_t stage)
      : Base("SegformerMixMLP"),
        fc1(child<Linear>("fc1", c.widths[stage], checked_mul(c.widths[stage], c.mlp_ratios[stage]))),
        dwconv(child<DepthWiseConv>("dwconv", c.widths[stage] * c.mlp_ratios[stage])),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc2(child<Linear>("fc2", c.widths[stage] * c.mlp_ratios[stage], c.widths[stage])),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}
  X operator()(X hidden_states, Grid grid) {
    Entered scope(*this);
    X x = fc1(hidden_states);
    x = dwconv(x, grid);
    x = activation_fn(x);
    x = dropout(x);
    x = fc2(x);
    x = dropout(x);
    return x;
  }

 private:
  Linear& fc1;
  DepthWiseConv& dwconv;
  Activation& activation_fn;
  Linear& fc2;
  Dropout& dropout;
};

class SegformerLayer final : public DecoderLayer {
 public:
  SegformerLayer(const SegformerConfig& c, std::size_t stage, double drop_path_rate)
      : DecoderLayer("SegformerLayer", c.options),
        layernorm_before(child<LayerNorm>("layernorm_before", c.widths[stage])),
        attention(child<SegformerAttention>("attention", c, stage)) {
    if (drop_path_rate > 0) drop_path = &child<DropPath>("drop_path", "SegformerDropPath", drop_path_rate);
    layernorm_after = &child<LayerNorm>("layernorm_after", c.widths[stage]);
    mlp = &child<MixMlp>("mlp", c, stage);
    hidden_dropout = &child<Dropout>("hidden_dropout", c.hidden_dropout);
  }
  X operator()(X hidden_states, Grid grid) {
    grid_ = grid;
    return DecoderLayer::operator()(std::move(hidden_states), LayerCall{});
  }

 protected:
  X forward(X hidden_states, const LayerCall&) override {
    X residual = hidden_states, weights;
    hidden_states = layernorm_before(hidden_states);
    std::tie(hidden_states, weights) = attention(hidden_states, grid_);
    hidden_states = (*hidden_dropout)(hidden_states);
    hidden_states = dropped(hidden_states).add(residual);
    residual = hidden_states;
    hidden_states = (*layernorm_after)(hidden_states);
    hidden_states = (*mlp)(hidden_states, grid_);
    hidden_states = dropped(hidden_states).add(residual);
    return leave(hidden_states, residual, weights);
  }

 private:
  X dropped(const X& x) { return drop_path ? (*drop_path)(x) : x; }

  Grid grid_;  ///< of the call that runs
  LayerNorm& layernorm_before;
  SegformerAttention& attention;
  DropPath* drop_path = nullptr;
  LayerNorm* layernorm_after;
  MixMlp* mlp;
  Dropout* hidden_dropout;
};

class SegformerStage final : public Base {
 public:
  SegformerStage(const SegformerConfig& c, std::size_t stage, I first_layer)
      : Base("SegformerStage"),
        reshapes_(I(stage) < c.stages - 1 || c.reshapes_last),
        patch_embeddings(child<OverlapPatchEmbeddings>("patch_embeddings", stage ? c.widths[stage - 1] : c.channels, c.widths[stage],
                                                       c.patches[stage], c.strides[stage])),
        blocks_(*this, "blocks", c.depths[stage],
                [&](I i) { return std::make_shared<SegformerLayer>(c, stage, c.drop_path_of(first_layer + i)); }),
        layer_norm(child<LayerNorm>("layer_norm", c.widths[stage])) {}
  X operator()(X hidden_states) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0);
    Grid grid;
    X states = patch_embeddings(hidden_states, grid);
    for (auto& block : blocks_) states = (*block)(states, grid);
    states = layer_norm(states);
    if (reshapes_) states = states.reshape({batch_size, grid.height, grid.width, -1}).permute({0, 3, 1, 2}).contiguous();
    return states;
  }

 private:
  bool reshapes_;
  OverlapPatchEmbeddings& patch_embeddings;
  Layers<SegformerLayer> blocks_;
  LayerNorm& layer_norm;
};

class SegformerModel final : public Base {
 public:
  explicit SegformerModel(const SegformerConfig& c)
      : Base("SegformerModel"), stages_(*this, "stages", c.stages, [&](I i) {
          I first = 0;
          for (std::size_t s = 0; s < std::size_t(i); ++s) first += c.depths[s];
          return std::make_shared<SegformerStage>(c, std::size_t(i), first);
        }) {}
  /// `captured`: where not null, takes what comes out of each stage.
  X operator()(const X& pixel_values, std::vector<X>* captured = nullptr) {
    Entered scope(*this);
    X hidden_states = pixel_values;
    for (auto& stage : stages_) {
      hidden_states = (*stage)(hidden_states);
      if (captured) captured->push_back(hidden_states);
    }
    return hidden_states;
  }

 private:
  Layers<SegformerStage> stages_;
};

X interpolate(const X& x, I height, I width) {
  return aten("upsample_bilinear2d", {Tensor(x), list_of(Dims{height, width}), false, Value()});
}

class SegformerMlp final : public Unary {
 public:
  SegformerMlp(I in, I out) : Unary("SegformerMLP"), proj(child<Linear>("proj", in, out)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = hidden_states.flatten(2).transpose(1, 2);
    hidden_states = proj(hidden_states);
    return hidden_states;
  }

 private:
  Linear& proj;
};

class DecodeHead final : public Base {
 public:
  explicit DecodeHead(const SegformerConfig& c)
      : Base("SegformerDecodeHead"),
        width_(c.file.size("decoder_hidden_size")),
        linear_projections_(*this, "linear_projections", c.stages,
                            [&](I i) { return std::make_shared<SegformerMlp>(c.widths[std::size_t(i)], width_); }),
        linear_fuse(child<Convolution>("linear_fuse",
                                       ConvolutionForm{.in = checked_mul(width_, c.stages), .out = width_, .kernel = 1, .bias = false})),
        batch_norm(child<BatchNorm2d>("batch_norm", width_)),
        activation(child<Activation>("activation", "relu")),
        dropout(child<Dropout>("dropout", c.file.number_or("classifier_dropout_prob", 0.1))),
        classifier(child<Convolution>("classifier", ConvolutionForm{.in = width_, .out = num_labels(c.file), .kernel = 1})) {}
  X operator()(const std::vector<X>& encoder_hidden_states) {
    Entered scope(*this);
    std::vector<X> all_hidden_states;
    X encoder_hidden_state;
    for (I i = 0; i < linear_projections_.size(); ++i) {
      encoder_hidden_state = encoder_hidden_states[std::size_t(i)];
      const I batch_size = encoder_hidden_state.size(0), height = encoder_hidden_state.size(2), width = encoder_hidden_state.size(3);
      encoder_hidden_state = linear_projections_[i](encoder_hidden_state);
      encoder_hidden_state = encoder_hidden_state.transpose(1, 2);
      encoder_hidden_state = encoder_hidden_state.reshape({batch_size, -1, height, width});
      encoder_hidden_state = interpolate(encoder_hidden_state, encoder_hidden_states[0].size(2), encoder_hidden_states[0].size(3));
      all_hidden_states.push_back(encoder_hidden_state);
    }
    X hidden_states = linear_fuse(cat(std::vector<X>(all_hidden_states.rbegin(), all_hidden_states.rend()), 1));
    hidden_states = batch_norm(hidden_states);
    hidden_states = activation(hidden_states);
    hidden_states = dropout(hidden_states);
    X logits = classifier(hidden_states);
    while (!all_hidden_states.empty()) all_hidden_states.pop_back();  // a tuple goes from its end
    return leave(logits, encoder_hidden_state, hidden_states);
  }

 private:
  I width_;
  Layers<SegformerMlp> linear_projections_;
  Convolution& linear_fuse;
  BatchNorm2d& batch_norm;
  Activation& activation;
  Dropout& dropout;
  Convolution& classifier;
};

class SegformerNetwork : public ImageNetwork {
 public:
  SegformerNetwork(const SegformerConfig& c, const char* suffix)
      : ImageNetwork(std::string("Segformer") + suffix, c.options, c.channels, 512),
        c_(c),
        labels_(num_labels(c.file)),
        segformer(child<SegformerModel>("segformer", c)) {}

 protected:
  const SegformerConfig c_;
  I labels_;
  SegformerModel& segformer;
};

class ForImageClassification final : public SegformerNetwork {
 public:
  explicit ForImageClassification(const SegformerConfig& c)
      : SegformerNetwork(c, "ForImageClassification"),
        width_(c.widths[std::size_t(c.stages - 1)]),
        classifier(child<Linear>("classifier", width_, labels_)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X last_hidden_state = segformer(batch.input);
    X sequence_output = last_hidden_state;
    if (c_.reshapes_last) sequence_output = sequence_output.permute({0, 2, 3, 1});
    sequence_output = sequence_output.reshape({last_hidden_state.size(0), -1, width_});
    sequence_output = sequence_output.mean(1);
    X logits = classifier(sequence_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, labels_);
    return leave(nn::Outcome{model_output({loss, logits}), loss}, last_hidden_state, sequence_output);
  }

 private:
  I width_;
  Linear& classifier;
};

class ForSemanticSegmentation final : public SegformerNetwork {
 public:
  explicit ForSemanticSegmentation(const SegformerConfig& c)
      : SegformerNetwork(c, "ForSemanticSegmentation"), decode_head(child<DecodeHead>("decode_head", c)) {
    if (!c.reshapes_last) throw c.file.error("reshape_last_stage", "memest builds the decoder on reshaped stages only");
  }
  std::vector<nn::InputSpec> inputs() const override {
    auto list = ImageNetwork::inputs();
    if (options_.labels) list.back().shape = {nn::SizeExpression("batch"), nn::SizeExpression("image"), nn::SizeExpression("image")};
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    std::vector<X> encoder_hidden_states;
    X last_hidden_state = segformer(batch.input, &encoder_hidden_states);
    X logits = decode_head(encoder_hidden_states);
    X loss, upsampled_logits, valid_mask;
    if (batch.labels) {
      upsampled_logits = interpolate(logits, batch.labels.size(-2), batch.labels.size(-1));
      const I ignored = c_.file.integer_or("semantic_loss_ignore_index", 255);
      if (labels_ > 1) {
        loss = ops::cross_entropy_loss(upsampled_logits, batch.labels, Tensor(), 1, ignored, 0.0);
      } else {
        X labeled = aten("ge", {Tensor(batch.labels), I{0}});
        X counted = aten("ne", {Tensor(batch.labels), ignored});
        valid_mask = X(aten("bitwise_and", {Tensor(std::move(labeled)), Tensor(std::move(counted))})).to_float();
        loss = aten("binary_cross_entropy_with_logits",
                    {Tensor(upsampled_logits.squeeze(1)), Tensor(batch.labels.to_float()), Value(), Value(), I{0}});
        loss = X(aten("mean", {Tensor(loss.mul(valid_mask))}));
      }
    }
    nn::Outcome outcome = leave(nn::Outcome{model_output({loss, logits}), loss}, last_hidden_state);
    while (!encoder_hidden_states.empty()) encoder_hidden_states.pop_back();
    return leave(std::move(outcome), upsampled_logits, valid_mask);
  }

 private:
  DecodeHead& decode_head;
};

class Alone final : public SegformerNetwork {
 public:
  explicit Alone(const SegformerConfig& c) : SegformerNetwork(c, "Model") {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    return {model_output({segformer(batch.input)}), {}};
  }
};

NetworkPtr make_segformer(const Config& config, const Options& o) {
  const SegformerConfig c(config, o);
  switch (o.task) {
    case Task::semantic_seg: return std::make_shared<ForSemanticSegmentation>(c);
    case Task::image_cls: return std::make_shared<ForImageClassification>(c);
    default: return std::make_shared<Alone>(c);
  }
}
const Family segformer_family{{"segformer"},
                              {{Task::image_cls, "SegformerForImageClassification", make_segformer},
                               {Task::semantic_seg, "SegformerForSemanticSegmentation", make_segformer},
                               {Task::base, "SegformerModel", make_segformer}}};

}  // namespace
}  // namespace memest::hf
