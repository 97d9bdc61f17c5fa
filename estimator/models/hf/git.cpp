// models/git/modeling_git.py (transformers 5.24): a decoder after BERT whose sequence begins with the patches of an image; eager attention
// only.
#include "models/hf/block.h"
#include "models/hf/clip_encoder.h"
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "models/hf/weights.h"

namespace memest::hf {
namespace {

class GitEmbeddings final : public Unary {
 public:
  explicit GitEmbeddings(const EncoderConfig& c) : Unary("GitEmbeddings") {
    word_embeddings = &child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token);
    position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.hidden);
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    const I seq_length = input_ids.size(1);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, seq_length);
    X embeddings = (*word_embeddings)(input_ids);
    X positions = (*position_embeddings)(position_ids);
    embeddings = embeddings.add_(positions);
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return leave(std::move(embeddings), position_ids, positions);
  }

 private:
  Embedding *word_embeddings, *position_embeddings;
  LayerNorm* norm;
  Dropout* dropout;
};

class GitSelfAttention final : public Mixer {
 public:
  GitSelfAttention(const EncoderConfig& c, I layer)
      : Mixer("GitSelfAttention"),
        layer_(layer),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    if (call.cache) std::tie(key_layer, value_layer) = call.cache->update(key_layer, value_layer, layer_);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(8.0);
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view(input_shape + Dims{-1});
    return leave(Pair(context_layer, attention_probs), query_layer, key_layer, value_layer, attention_scores);
  }

 private:
  I layer_, head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

class GitVisionTransformer final : public Unary, public nn::EmbeddedModel {
 public:
  explicit GitVisionTransformer(const ClipVisionConfig& c)
      : Unary("GitVisionTransformer"),
        embeddings_(register_module("embeddings", make_clip_vision_embeddings("Git", c, true))),
        pre_layrnorm(child<LayerNorm>("pre_layrnorm", c.hidden)),
        encoder(child<ClipEncoder>("encoder", c, ClipEncoder::Form{.prefix = "GitVision"})),
        post_layernorm(child<LayerNorm>("post_layernorm", c.hidden)) {}
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.patch_embedding"); }

 protected:
  X forward(X pixel_values) override {
    X hidden_states = (*embeddings_)(pixel_values);
    hidden_states = pre_layrnorm(hidden_states);
    X encoder_outputs = encoder(hidden_states, {});
    X last_hidden_state = post_layernorm(encoder_outputs);
    return leave(std::move(last_hidden_state), hidden_states, encoder_outputs);
  }

 private:
  UnaryPtr embeddings_;
  LayerNorm& pre_layrnorm;
  ClipEncoder& encoder;
  LayerNorm& post_layernorm;
};

/// GitLayer: what its attention made of the scores goes when GitAttention returns.
class GitLayer final : public DecoderLayer {
 public:
  GitLayer(const EncoderConfig& c, I layer) : DecoderLayer("GitLayer", c.options) {
    attention = &child<GitAttention>("attention", c, layer);
    intermediate = register_module("intermediate", make_intermediate("GitIntermediate", c));
    output = register_module("output", make_residual_output("GitOutput", c, c.intermediate));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attention_output = (*attention)(hidden_states, call);
    X intermediate_output = (*intermediate)(attention_output);
    X layer_output = (*output)(intermediate_output, attention_output);
    return layer_output;
  }

 private:
  class GitAttention final : public Base {
   public:
    GitAttention(const EncoderConfig& c, I layer)
        : Base("GitAttention"),
          self(register_module("self", std::make_shared<GitSelfAttention>(c, layer))),
          output(register_module("output", make_residual_output("GitSelfOutput", c, c.hidden))) {}
    X operator()(const X& hidden_states, const LayerCall& call) {
      Entered scope(*this);
      auto [attn_output, attention_probs] = (*self)(hidden_states, call);
      X attention_output = (*output)(attn_output, hidden_states);
      return attention_output;
    }

   private:
    MixerPtr self;
    JointPtr output;
  };

  GitAttention* attention;
  UnaryPtr intermediate;
  JointPtr output;
};

/// A module of one other: GitVisionModel, GitProjection, GitEncoder.
class Holder final : public Base {
 public:
  using Base::Base;
  using Base::child;
};

class GitModel final : public Base, public nn::EmbeddedModel {
 public:
  GitModel(const EncoderConfig& c, const ClipVisionConfig& vision)
      : Base("GitModel"), c_(c), embeddings(child<GitEmbeddings>("embeddings", c)) {
    image_encoder = &child<Holder>("image_encoder", "GitVisionModel").child<GitVisionTransformer>("vision_model", vision);
    add_layers();
    auto projection =
        child<Holder>("visual_projection", "GitProjection")
            .register_module("visual_projection", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}, "Sequential"));
    projection->append(linear_ = std::make_shared<Linear>(vision.hidden, c.hidden));
    projection->append(norm_ = std::make_shared<LayerNorm>(c.hidden));
    if (const I frames = c.file.integer_or("num_image_with_embedding", 0); frames > 0) {
      Weights& list = child<Weights>("img_temporal_embedding", "ParameterList");
      for (I i = 0; i < frames; ++i) list.new_parameter(std::to_string(i), {1, 1, vision.hidden});
    }
  }

  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.word_embeddings"); }
  std::pair<X, CachePtr> operator()(X input_ids, X pixel_values, bool use_cache) {
    Entered scope(*this);
    CachePtr cache;
    if (use_cache) cache = std::make_shared<Cache>(std::vector<I>(std::size_t(c_.layers), 0));
    X embedding_output = embeddings(input_ids);
    X token_type_ids = aten("zeros_like", {Tensor(embedding_output)}, {{"dtype", DType::int32}}).select(-1, 0);
    X visual_features, projected_visual_features, image_token_type_ids;
    if (pixel_values) {
      visual_features = (*image_encoder)(pixel_values);
      projected_visual_features = projected(visual_features);
      projected_visual_features = aten("repeat", {Tensor(projected_visual_features), list_of(Dims{1, 1, 1})});
      embedding_output = cat({projected_visual_features, embedding_output}, 1);
      image_token_type_ids = aten("ones_like", {Tensor(projected_visual_features)}, {{"dtype", DType::int32}}).select(-1, 0);
      token_type_ids = cat({image_token_type_ids, token_type_ids}, -1);
    }
    X group_ids = full({embedding_output.size(0), embedding_output.size(1)}, Scalar(-1), DType::int64);
    group_ids = aten("where", {Tensor(aten("eq", {Tensor(token_type_ids), I{1}})), I{0}, I{-1}});
    MaskArguments arguments{c_.options, embedding_output, cache.get()};
    arguments.block_sequence_ids = group_ids;
    X causal_mask = create_causal_mask(arguments);
    arguments.block_sequence_ids.reset();
    X hidden_states = encode(embedding_output, causal_mask, cache.get());
    return {leave(std::move(hidden_states), embedding_output, token_type_ids, visual_features, projected_visual_features,
                  image_token_type_ids, group_ids, causal_mask),
            cache};
  }

 private:
  void add_layers() {
    Holder& encoder = child<Holder>("encoder", "GitEncoder");
    auto list = encoder.register_module("layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (I i = 0; i < c_.layers; ++i) {
      layers_.push_back(std::make_shared<GitLayer>(c_, i));
      list->append(layers_.back());
    }
  }
  X projected(const X& features) { return (*norm_)((*linear_)(features)); }
  X encode(X hidden_states, const X& causal_mask, Cache* cache) {
    for (auto& layer : layers_) {
      LayerCall call;
      call.mask = causal_mask;
      call.cache = cache;
      hidden_states = (*layer)(hidden_states, std::move(call));
    }
    return hidden_states;
  }
  EncoderConfig c_;
  GitEmbeddings& embeddings;
  GitVisionTransformer* image_encoder;
  std::vector<DecoderLayerPtr> layers_;
  std::shared_ptr<Linear> linear_;
  std::shared_ptr<LayerNorm> norm_;
};

class GitNetwork final : public Network {
 public:
  GitNetwork(const Config& config, const Options& o, const EncoderConfig& c, const ClipVisionConfig& vision)
      : Network(o.class_name, o), vision_(vision), vocab_(c.vocab), git(child<GitModel>("git", c, vision)) {
    if (o.images > 1) throw Error("memest runs git with one image a sample", "--images 1 or 0");
    if (o.task == Task::base) return;
    output = &child<Linear>("output", c.hidden, c.vocab);
    if (config.boolean_or("tie_word_embeddings", false)) tie("output.weight", "git.embeddings.word_embeddings.weight");
  }
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    const nn::SizeExpression image("image");
    if (options_.images > 0)
      list.insert(list.begin() + 1, {"pixel_values",
                                     {nn::SizeExpression("batch"), nn::SizeExpression(std::to_string(vision_.channels)), image, image},
                                     DType::float32});
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"seq", 512}, {"image", vision_.image}}; }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = git(batch.input, batch.pixel_values, options_.use_cache && !batch.labels);
    if (!output) return {model_output({hidden_states}, cache.get()), {}};
    X kept = slice_logits_to_keep(hidden_states, options_.logits_to_keep);
    X logits = (*output)(kept);
    X loss;
    if (batch.labels) loss = shifted_loss(logits, batch.labels);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  X shifted_loss(const X& logits, const X& labels) const {
    const I num_image_tokens = vision_.patches() + 1;
    if (logits.size(1) - num_image_tokens != labels.size(1))
      throw Error("git computes its loss behind the tokens of an image",
                  "give it one with --images 1, or leave the labels out with --mode infer");
    X shifted_logits = logits.whole_slices(1).slice(1, num_image_tokens, -1).whole_slices(1).contiguous();
    X shift_labels = labels.whole_slices(1).slice(1, 1, std::nullopt).contiguous();
    X loss = cross_entropy(shifted_logits.to_float().view({-1, vocab_}), shift_labels.view({-1}));
    return leave(std::move(loss), shifted_logits, shift_labels);
  }

  ClipVisionConfig vision_;
  I vocab_;
  GitModel& git;
  Linear* output = nullptr;
};

NetworkPtr make_git(const Config& config, const Options& o) {
  const Options own = eager_only(o);
  const EncoderConfig c(config, own);
  return std::make_shared<GitNetwork>(config, own, c, ClipVisionConfig(config.section("vision_config"), own));
}
const Family git_family{{"git"},
                        {{Task::image_text_to_text, "GitForCausalLM", make_git},
                         {Task::causal_lm, "GitForCausalLM", make_git},
                         {Task::base, "GitModel", make_git}}};

}  // namespace
}  // namespace memest::hf
