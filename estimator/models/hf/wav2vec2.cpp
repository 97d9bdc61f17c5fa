// models/wav2vec2/modeling_wav2vec2.py, and hubert, which is written after it; without adapters.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

struct SpeechConfig {
  SpeechConfig(const Config& f, const Options& o, std::string name) : file(f), options(o), prefix(std::move(name)) {
    hubert = prefix == "Hubert";
    width = f.size("hidden_size");
    layers = layer_count(f);
    heads = f.size("num_attention_heads");
    if (width % heads != 0)
      throw f.error("num_attention_heads",
                    "expected a divisor of the hidden_size " + std::to_string(width) + ", found " + std::to_string(heads));
    intermediate = f.size("intermediate_size");
    dims = f.integers("conv_dim");
    kernels = f.integers("conv_kernel");
    strides = f.integers("conv_stride");
    for (auto& [key, list] : {std::pair{"conv_dim", &dims}, {"conv_kernel", &kernels}, {"conv_stride", &strides}}) {
      if (list->empty() || list->size() != dims.size())
        throw f.error(key, "conv_dim, conv_kernel and conv_stride have one entry for each layer, found " + std::to_string(list->size()));
      for (I n : *list)
        if (n < 1) throw f.error(key, "expected positive integers, found " + std::to_string(n));
    }
    const std::string norm = f.text_or("feat_extract_norm", "group");
    if (norm != "group" && norm != "layer")
      throw f.error("feat_extract_norm", "expected group or layer, found '" + norm.substr(0, 60) + "'");
    group_norm = norm == "group";
    stable = f.boolean_or("do_stable_layer_norm", false);
    hidden_dropout = f.number_or("hidden_dropout", 0.1);
    if (f.boolean_or("add_adapter", false)) throw f.error("add_adapter", "memest does not build the adapter of wav2vec2");
    if (f.has("adapter_attn_dim")) throw f.error("adapter_attn_dim", "memest does not build the adapters of wav2vec2's attention");
    if (f.boolean_or("conv_pos_batch_norm", false)) throw f.error("conv_pos_batch_norm", "memest builds the weight norm only");
    masks_time = f.number_or("mask_time_prob", 0.05) > 0;
    masks_features = f.number_or("mask_feature_prob", 0.0) > 0;
    if (o.labels && f.number_or("layerdrop", 0.0) > 0)
      runtime().diagnostics.add({Diagnostic::Severity::note, "layerdrop",
                                 "layers are skipped at random in training, and a step that skips one takes less: every layer is run here",
                                 f.pointer() + "/layerdrop", ""});
  }
  Config file;
  Options options;
  std::string prefix;
  bool hubert, group_norm, stable, masks_time, masks_features;
  I width, layers, heads, intermediate;
  std::vector<I> dims, kernels, strides;
  double hidden_dropout;
};

class GroupNorm final : public Module<GroupNorm> {
 public:
  explicit GroupNorm(I channels) : Module("GroupNorm"), groups_(channels) {
    new_parameter("weight", {channels});
    new_parameter("bias", {channels});
  }
  X forward(const X& x) { return ops::group_norm(x, groups_, parameter(0), parameter(1), 1e-5, true); }

 private:
  I groups_;
};

/// GroupNormConvLayer, NoLayerNormConvLayer and LayerNormConvLayer.
class ConvLayer final : public DecoderLayer {
 public:
  ConvLayer(const SpeechConfig& c, std::size_t i)
      : DecoderLayer(c.prefix + (!c.group_norm ? "LayerNormConvLayer"
                                 : i           ? "NoLayerNormConvLayer"
                                               : "GroupNormConvLayer"),
                     c.options),
        conv(
            child<Conv1d>("conv", i ? c.dims[i - 1] : 1, c.dims[i], c.kernels[i], c.strides[i], 0, c.file.boolean_or("conv_bias", false))) {
    if (!c.group_norm) layer_norm = &child<LayerNorm>("layer_norm", c.dims[i]);
    activation = &child<Activation>("activation", c.file.text_or("feat_extract_activation", "gelu"));
    if (c.group_norm && i == 0) group_norm = &child<GroupNorm>("layer_norm", c.dims[i]);
  }

 protected:
  X forward(X hidden_states, const LayerCall&) override {
    hidden_states = conv(hidden_states);
    if (group_norm) hidden_states = (*group_norm)(hidden_states);
    if (layer_norm) {
      hidden_states = hidden_states.transpose(-2, -1);
      hidden_states = (*layer_norm)(hidden_states);
      hidden_states = hidden_states.transpose(-2, -1);
    }
    hidden_states = (*activation)(hidden_states);
    return hidden_states;
  }

 private:
  Conv1d& conv;
  LayerNorm* layer_norm = nullptr;
  GroupNorm* group_norm = nullptr;
  Activation* activation;
};

class FeatureEncoder final : public Base {
 public:
  explicit FeatureEncoder(const SpeechConfig& c)
      : Base(c.prefix + "FeatureEncoder"),
        conv_layers_(*this, "conv_layers", I(c.dims.size()), [&](I i) { return std::make_shared<ConvLayer>(c, std::size_t(i)); }) {}
  X operator()(X input_values) {
    Entered scope(*this);
    X hidden_states = input_values.unsqueeze(1);
    if (training) hidden_states->requires_grad = true;
    for (auto& layer : conv_layers_) hidden_states = (*layer)(hidden_states, LayerCall{});
    return hidden_states;
  }

 private:
  Layers<ConvLayer> conv_layers_;
};

/// nn.Conv1d under torch.nn.utils.parametrizations.weight_norm(name="weight", dim=2).
class NormedConv final : public Module<NormedConv> {
 public:
  NormedConv(I width, I kernel, I groups) : Module("ParametrizedConv1d"), padding_(kernel / 2), groups_(groups) {
    new_parameter("bias", {width});
    weight_ = child<Parametrizations>("parametrizations", width, width / groups, kernel).weight;
  }
  X forward(const X& input) {
    X weight = (*weight_)();
    return ops::conv1d(input, weight, parameter(0), Dims{1}, Dims{padding_}, Dims{1}, groups_);
  }

 private:
  struct Weight final : Base {
    Weight(I out, I in, I kernel) : Base("ParametrizationList") {
      new_parameter("original0", {1, 1, kernel});
      new_parameter("original1", {out, in, kernel});
    }
    X operator()() {
      Entered scope(*this);
      return aten("_weight_norm", {Tensor(parameter(1)), Tensor(parameter(0)), I{2}});
    }
  };
  struct Parametrizations final : Base {
    Parametrizations(I out, I in, I kernel) : Base("ModuleDict"), weight(&child<Weight>("weight", out, in, kernel)) {}
    Weight* weight;
  };
  I padding_, groups_;
  Weight* weight_;
};

class PositionalConvEmbedding final : public Module<PositionalConvEmbedding> {
 public:
  explicit PositionalConvEmbedding(const SpeechConfig& c) : Module(c.prefix + "PositionalConvEmbedding") {
    const I kernel = c.file.size("num_conv_pos_embeddings"), groups = c.file.size("num_conv_pos_embedding_groups");
    if (c.width % groups != 0)
      throw c.file.error("num_conv_pos_embedding_groups",
                         "expected a divisor of the hidden_size " + std::to_string(c.width) + ", found " + std::to_string(groups));
    even_ = kernel % 2 == 0;
    conv = &child<NormedConv>("conv", c.width, kernel, groups);
    activation = &child<Activation>("activation", c.file.text_or("feat_extract_activation", "gelu"));
  }
  X forward(X hidden_states) {
    hidden_states = hidden_states.transpose(1, 2);
    hidden_states = (*conv)(hidden_states);
    if (even_) hidden_states = hidden_states.whole_slices(2).slice(2, std::nullopt, -1);
    hidden_states = (*activation)(hidden_states);
    hidden_states = hidden_states.transpose(1, 2);
    return hidden_states;
  }

 private:
  bool even_;
  NormedConv* conv;
  Activation* activation;
};

class SpeechFeedForward final : public Module<SpeechFeedForward> {
 public:
  explicit SpeechFeedForward(const SpeechConfig& c)
      : Module(c.prefix + "FeedForward"),
        intermediate_dropout(child<Dropout>("intermediate_dropout", c.file.number_or("activation_dropout", 0.1))),
        intermediate_dense(child<Linear>("intermediate_dense", c.width, c.intermediate)),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", c.file.text_or("hidden_act", "gelu"))),
        output_dense(child<Linear>("output_dense", c.intermediate, c.width)),
        output_dropout(child<Dropout>("output_dropout", c.hidden_dropout)) {}
  X forward(X hidden_states) {
    hidden_states = intermediate_dense(hidden_states);
    hidden_states = intermediate_act_fn(hidden_states);
    hidden_states = intermediate_dropout(hidden_states);
    hidden_states = output_dense(hidden_states);
    hidden_states = output_dropout(hidden_states);
    return hidden_states;
  }

 private:
  Dropout& intermediate_dropout;
  Linear& intermediate_dense;
  Activation& intermediate_act_fn;
  Linear& output_dense;
  Dropout& output_dropout;
};

class SpeechAttention final : public Mixer {
 public:
  explicit SpeechAttention(const SpeechConfig& c)
      : Mixer(c.prefix + "Attention"),
        options_(c.options),
        head_dim_(c.width / c.heads),
        dropout_(c.file.number_or("attention_dropout", 0.1)),
        k_proj(child<Linear>("k_proj", c.width, c.width)),
        v_proj(child<Linear>("v_proj", c.width, c.width)),
        q_proj(child<Linear>("q_proj", c.width, c.width)),
        out_proj(child<Linear>("out_proj", c.width, c.width)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_states, key_states, value_states,
                                 {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, query_states, key_states, value_states, attn_output);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

/// EncoderLayer and EncoderLayerStableLayerNorm.
class SpeechLayer final : public DecoderLayer {
 public:
  explicit SpeechLayer(const SpeechConfig& c)
      : DecoderLayer(c.prefix + (c.stable ? "EncoderLayerStableLayerNorm" : "EncoderLayer"), c.options),
        stable_(c.stable),
        attention_(register_module("attention", std::make_shared<SpeechAttention>(c))),
        dropout(child<Dropout>("dropout", c.hidden_dropout)),
        layer_norm(child<LayerNorm>("layer_norm", c.width)),
        feed_forward(child<SpeechFeedForward>("feed_forward", c)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.width)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attn_residual = hidden_states, weights;
    if (stable_) hidden_states = layer_norm(hidden_states);
    std::tie(hidden_states, weights) = (*attention_)(hidden_states, call);
    hidden_states = dropout(hidden_states);
    hidden_states = attn_residual.add(hidden_states);
    if (stable_) {
      hidden_states = hidden_states.add(feed_forward(final_layer_norm(hidden_states)));
    } else {
      hidden_states = layer_norm(hidden_states);
      hidden_states = hidden_states.add(feed_forward(hidden_states));
      hidden_states = final_layer_norm(hidden_states);
    }
    return leave(std::move(hidden_states), attn_residual, weights);
  }

 private:
  bool stable_;
  MixerPtr attention_;
  Dropout& dropout;
  LayerNorm& layer_norm;
  SpeechFeedForward& feed_forward;
  LayerNorm& final_layer_norm;
};

/// Encoder and EncoderStableLayerNorm.
class SpeechEncoder final : public Base {
 public:
  explicit SpeechEncoder(const SpeechConfig& c)
      : Base(c.prefix + (c.stable ? "EncoderStableLayerNorm" : "Encoder")),
        stable_(c.stable),
        pos_conv_embed(child<PositionalConvEmbedding>("pos_conv_embed", c)),
        layer_norm(child<LayerNorm>("layer_norm", c.width)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<SpeechLayer>(c); }) {}
  /// `all`: where not null, takes what goes into the first layer and what comes out of each.
  X operator()(X hidden_states, std::vector<X>* all) {
    Entered scope(*this);
    X position_embeddings = pos_conv_embed(hidden_states);
    hidden_states = hidden_states.add(position_embeddings);
    if (!stable_) hidden_states = layer_norm(hidden_states);
    hidden_states = dropout(hidden_states);
    if (all) all->push_back(hidden_states);
    for (auto& layer : layers_) {
      hidden_states = (*layer)(hidden_states, LayerCall{});
      if (all) all->push_back(hidden_states);
    }
    if (stable_) hidden_states = layer_norm(hidden_states);
    return leave(std::move(hidden_states), position_embeddings);
  }

 private:
  bool stable_;
  PositionalConvEmbedding& pos_conv_embed;
  LayerNorm& layer_norm;
  Dropout& dropout;
  Layers<SpeechLayer> layers_;
};

class FeatureProjection final : public Base {
 public:
  explicit FeatureProjection(const SpeechConfig& c) : Base(c.prefix + "FeatureProjection") {
    if (!c.hubert || c.file.boolean_or("feat_proj_layer_norm", true)) layer_norm = &child<LayerNorm>("layer_norm", c.dims.back());
    projection = &child<Linear>("projection", c.dims.back(), c.width);
    dropout = &child<Dropout>("dropout", c.file.number_or("feat_proj_dropout", 0.0));
  }
  /// The projected states, and the normed ones before the projection.
  Pair operator()(X hidden_states) {
    Entered scope(*this);
    X norm_hidden_states = layer_norm ? (*layer_norm)(hidden_states) : hidden_states;
    hidden_states = (*projection)(norm_hidden_states);
    hidden_states = (*dropout)(hidden_states);
    return {hidden_states, norm_hidden_states};
  }

 private:
  LayerNorm* layer_norm = nullptr;
  Linear* projection;
  Dropout* dropout;
};

class SpeechModel final : public Base {
 public:
  explicit SpeechModel(const SpeechConfig& c) : Base(c.prefix + "Model"), c_(c) {
    new_parameter("masked_spec_embed", {c.width}, c.masks_time || c.masks_features);
    feature_extractor = &child<FeatureEncoder>("feature_extractor", c);
    feature_projection = &child<FeatureProjection>("feature_projection", c);
    encoder = &child<SpeechEncoder>("encoder", c);
  }
  /// last_hidden_state, and wav2vec2's extract_features.
  Pair operator()(X input_values, std::vector<X>* all = nullptr) {
    Entered scope(*this);
    X extract_features = (*feature_extractor)(input_values);
    extract_features = extract_features.transpose(1, 2);
    X hidden_states, normed;
    std::tie(hidden_states, normed) = (*feature_projection)(extract_features);
    if (!c_.hubert) extract_features = std::move(normed);
    normed.reset();
    mask(hidden_states);
    hidden_states = (*encoder)(hidden_states, all);
    return {hidden_states, c_.hubert ? X() : extract_features};
  }

 private:
  /// _mask_hidden_states (SpecAugment), in place. The spans are drawn at random: taken not to overlap.
  void mask(X& hidden_states) {
    if (!training || !c_.file.boolean_or("apply_spec_augment", true)) return;
    const I batch = hidden_states.size(0), length = hidden_states.size(1), width = hidden_states.size(2);
    X mask_time_indices, mask_feature_indices;
    if (c_.masks_time) {
      const I span = c_.file.size_or("mask_time_length", 10);
      if (span > length)
        throw Error("`mask_length` has to be smaller than `sequence_length`, but got " + std::to_string(span) + " and " +
                        std::to_string(length) + " frames",
                    "give more samples with --set samples=N, or set apply_spec_augment to false");
      const double drawn = c_.file.number_or("mask_time_prob", 0.05) * double(length) / double(span) + 0.5;
      const I spans = std::clamp<I>(std::max<I>(I(drawn), c_.file.integer_or("mask_time_min_masks", 2)), 0, length / span);
      mask_time_indices = empty({batch, length}, DType::boolean);
      X embed = X(parameter(0)).to(hidden_states.dtype());
      ops::AssumedSelection masked(checked_mul(batch, spans * span));
      aten("index_put_", {Tensor(hidden_states), make_list({Tensor(mask_time_indices)}), Tensor(embed)});
    }
    if (c_.masks_features) {
      mask_feature_indices = empty({batch, width}, DType::boolean);
      mask_feature_indices = mask_feature_indices.unsqueeze(1).expand({-1, length, -1});
      aten("masked_fill_", {Tensor(hidden_states), Tensor(mask_feature_indices), I{0}});
    }
    leave(0, mask_time_indices, mask_feature_indices);
  }

  const SpeechConfig c_;
  FeatureEncoder* feature_extractor;
  FeatureProjection* feature_projection;
  SpeechEncoder* encoder;
};

/// A class that takes input_values: samples of a waveform.
class SpeechNetwork : public Network {
 public:
  SpeechNetwork(const SpeechConfig& c, const char* suffix)
      : Network(c.prefix + suffix, c.options), c_(c), model_(child<SpeechModel>(c.hubert ? "hubert" : "wav2vec2", c)) {}
  std::vector<nn::InputSpec> inputs() const override {
    const nn::SizeExpression batch("batch"), samples("samples");
    std::vector<nn::InputSpec> list{{"input_values", {batch, samples}, DType::float32}};
    if (options_.labels) list.push_back({"labels", {batch}, DType::int64});
    return list;
  }
  /// Ten seconds at 16 kHz.
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"samples", 160'000}}; }

 protected:
  /// What the convolutions leave of so many samples.
  void check_length(const X& input_values) const {
    I length = input_values.size(1);
    for (std::size_t i = 0; i < c_.kernels.size(); ++i) length = length < c_.kernels[i] ? 0 : (length - c_.kernels[i]) / c_.strides[i] + 1;
    if (length < 1)
      throw Error(std::to_string(input_values.size(1)) + " samples are fewer than the convolutions take", "give more with --set samples=N");
  }
  const SpeechConfig c_;
  SpeechModel& model_;
};

class SpeechForSequenceClassification final : public SpeechNetwork {
 public:
  explicit SpeechForSequenceClassification(const SpeechConfig& c) : SpeechNetwork(c, "ForSequenceClassification") {
    weighted_ = c.file.boolean_or("use_weighted_layer_sum", false);
    new_parameter("layer_weights", {c.layers + 1}, weighted_);
    const I width = c.file.size("classifier_proj_size");
    projector = &child<Linear>("projector", c.width, width);
    classifier = &child<Linear>("classifier", width, num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    check_length(batch.input);
    std::vector<X> all;  // filter_output_hidden_states asks for them always, and drops them from the output
    auto [last_hidden_state, extract_features] = model_(batch.input, &all);
    X hidden_states = last_hidden_state, norm_weights;
    if (weighted_) {
      hidden_states = stack(all, 1);
      norm_weights = X(parameter(0)).softmax(-1);
      hidden_states = hidden_states.mul(norm_weights.view({-1, 1, 1})).sum(1);
    }
    hidden_states = (*projector)(hidden_states);
    X pooled_output = hidden_states.mean(1);
    X logits = (*classifier)(pooled_output);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, num_labels(c_.file));
    nn::Outcome outcome = leave(nn::Outcome{model_output({loss, logits}), loss}, last_hidden_state, extract_features, hidden_states,
                                norm_weights, pooled_output);
    while (!all.empty()) all.pop_back();  // a tuple goes from its end
    return outcome;
  }

 private:
  bool weighted_;
  Linear *projector, *classifier;
};

/// ForCTC. The targets' lengths are counted in their values: here no label is padding.
class SpeechForCTC final : public SpeechNetwork {
 public:
  explicit SpeechForCTC(const SpeechConfig& c)
      : SpeechNetwork(c, "ForCTC"),
        dropout(child<Dropout>("dropout", c.file.number_or("final_dropout", 0.1))),
        lm_head(child<Linear>("lm_head", c.width, c.file.size("vocab_size"))) {}
  std::vector<nn::InputSpec> inputs() const override {
    auto list = SpeechNetwork::inputs();
    if (options_.labels) list.back().shape.emplace_back("tgt_seq");
    return list;
  }
  /// Some ten characters a second.
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"samples", 160'000}, {"tgt_seq", 100}}; }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    check_length(batch.input);
    if (batch.labels) {
      X most = aten("max", {Tensor(batch.labels)});
      aten("ge", {Tensor(std::move(most)), c_.file.integer("vocab_size")});
    }
    auto [last_hidden_state, extract_features] = model_(batch.input);
    X hidden_states = last_hidden_state;
    hidden_states = dropout(hidden_states);
    X logits = lm_head(hidden_states);
    X loss, attention_mask, input_lengths;
    if (batch.labels) {
      attention_mask = ones(batch.input.sizes(), DType::int64);
      input_lengths = output_lengths(attention_mask.sum(-1));
      loss = ctc_loss(logits, batch.labels, input_lengths);
    }
    return leave(nn::Outcome{model_output({loss, logits}), loss}, attention_mask, last_hidden_state, extract_features, hidden_states,
                 input_lengths);
  }

 private:
  /// _get_feat_extract_output_lengths.
  X output_lengths(X lengths) const {
    for (std::size_t i = 0; i < c_.kernels.size(); ++i) {
      X steps = aten("div", {Tensor(lengths.sub(Scalar(c_.kernels[i]))), c_.strides[i]}, {{"rounding_mode", std::string("floor")}});
      lengths = std::move(steps).add(1);
    }
    return lengths;
  }
  /// ForCTCLoss (loss/loss_ctc.py).
  X ctc_loss(const X& logits, const X& labels, const X& logit_lengths) const {
    const I blank = c_.file.integer_or("pad_token_id", 0);
    X given = aten("ne", {Tensor(labels), I{-100}});
    X labels_mask = aten("bitwise_and", {Tensor(std::move(given)), Tensor(aten("ne", {Tensor(labels), blank}))});
    X target_lengths = labels_mask.sum(-1);
    X flattened_targets;
    {
      ops::AssumedSelection all(labels.numel());
      flattened_targets = aten("masked_select", {Tensor(labels), Tensor(labels_mask)});
    }
    X log_probs = aten("log_softmax", {Tensor(logits), I{-1}}, {{"dtype", DType::float32}}).transpose(0, 1);
    X loss = aten("ctc_loss", {Tensor(log_probs), Tensor(flattened_targets), Tensor(logit_lengths), Tensor(target_lengths), blank,
                               reduction(), c_.file.boolean_or("ctc_zero_infinity", false)});
    return leave(loss, labels_mask, target_lengths, flattened_targets, log_probs);
  }
  /// The number of at::Reduction.
  I reduction() const {
    const std::string name = c_.file.text_or("ctc_loss_reduction", "sum");
    if (name != "mean" && name != "sum")
      throw c_.file.error("ctc_loss_reduction", "expected mean or sum, found '" + name.substr(0, 60) + "'");
    return name == "mean" ? 1 : 2;
  }

  Dropout& dropout;
  Linear& lm_head;
};

class SpeechAlone final : public SpeechNetwork {
 public:
  explicit SpeechAlone(const SpeechConfig& c) : SpeechNetwork(c, "Model") {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    check_length(batch.input);
    auto [last_hidden_state, extract_features] = model_(batch.input);
    return {model_output({last_hidden_state, extract_features}), {}};
  }
};

NetworkPtr speech(const Config& config, const Options& o, const char* prefix) {
  SpeechConfig c(config, o, prefix);
  switch (o.task) {
    case Task::audio_cls: return std::make_shared<SpeechForSequenceClassification>(c);
    case Task::ctc: return std::make_shared<SpeechForCTC>(c);
    default: return std::make_shared<SpeechAlone>(c);
  }
}
NetworkPtr wav2vec2(const Config& config, const Options& o) { return speech(config, o, "Wav2Vec2"); }
NetworkPtr hubert(const Config& config, const Options& o) { return speech(config, o, "Hubert"); }
std::vector<TaskClass> speech_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options)) {
  return {{Task::audio_cls, prefix + "ForSequenceClassification", make},
          {Task::ctc, prefix + "ForCTC", make},
          {Task::base, prefix + "Model", make}};
}
const Family wav2vec2_family{{"wav2vec2"}, speech_classes("Wav2Vec2", wav2vec2)};
const Family hubert_family{{"hubert"}, speech_classes("Hubert", hubert)};

}  // namespace
}  // namespace memest::hf
