// models/big_bird/modeling_big_bird.py with the attention it takes for short sequences, original_full, which is always eager.
#include <cmath>

#include "models/hf/cache.h"
#include "models/hf/encoder.h"
#include "models/hf/masks.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class BigBirdEmbeddings final : public Unary {
 public:
  explicit BigBirdEmbeddings(const EncoderConfig& c)
      : Unary("BigBirdEmbeddings"),
        scale_(c.file.boolean_or("rescale_embeddings", false) ? std::sqrt(double(c.hidden)) : 0),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    new_buffer("token_type_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    const I seq_length = input_ids.size(1);
    X token_type_ids = X(buffer(1)).whole_slices(1).slice(1, 0, seq_length).expand({input_ids.size(0), seq_length});
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, seq_length);
    X inputs_embeds = word_embeddings(input_ids);
    if (scale_ > 0) inputs_embeds = inputs_embeds.mul(scale_);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = position_embeddings(position_ids);
    embeddings = embeddings.add_(positions);
    embeddings = dropout(embeddings);
    embeddings = norm(embeddings);
    return leave(embeddings, inputs_embeds, types, positions);
  }

 private:
  double scale_;
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class BigBirdSelfAttention final : public Mixer {
 public:
  BigBirdSelfAttention(const EncoderConfig& c, I layer)
      : Mixer("BigBirdSelfAttention"),
        layer_(layer),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden, c.file.boolean_or("use_bias", true))),
        key(child<Linear>("key", c.hidden, c.hidden, c.file.boolean_or("use_bias", true))),
        value(child<Linear>("value", c.hidden, c.hidden, c.file.boolean_or("use_bias", true))),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    if (call.cache) std::tie(key_layer, value_layer) = call.cache->update(key_layer, value_layer, layer_);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(std::sqrt(double(head_dim_)));
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(Pair(context_layer, attention_probs), query_layer, key_layer, value_layer, attention_scores);
  }

 private:
  I layer_, head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

class BigBirdAttention final : public Mixer {
 public:
  BigBirdAttention(const EncoderConfig& c, I layer) : Mixer("BigBirdAttention") {
    self_ = register_module("self", std::make_shared<BigBirdSelfAttention>(c, layer));
    output_ = register_module("output", make_residual_output("BigBirdSelfOutput", c, c.hidden));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, attn_weights] = (*self_)(hidden_states, call);
    attention_output = (*output_)(attention_output, hidden_states);
    return {attention_output, attn_weights};
  }

 private:
  MixerPtr self_;
  JointPtr output_;
};

class BigBirdLayer final : public DecoderLayer {
 public:
  BigBirdLayer(const EncoderConfig& c, I layer) : DecoderLayer("BigBirdLayer", c.options) {
    attention_ = register_module("attention", std::make_shared<BigBirdAttention>(c, layer));
    intermediate_ = register_module("intermediate", make_intermediate("BigBirdIntermediate", c));
    output_ = register_module("output", make_residual_output("BigBirdOutput", c, c.intermediate));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, weights] = (*attention_)(hidden_states, call);
    X layer_output = feed_forward_chunk(attention_output);
    return leave(layer_output, attention_output, weights);
  }

 private:
  X feed_forward_chunk(const X& attention_output) {
    X intermediate_output = (*intermediate_)(attention_output);
    X layer_output = (*output_)(intermediate_output, attention_output);
    return leave(layer_output, intermediate_output);
  }

  MixerPtr attention_;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class BigBirdEncoder final : public Base {
 public:
  explicit BigBirdEncoder(const EncoderConfig& c)
      : Base("BigBirdEncoder"), layers_(*this, "layer", c.layers, [&](I i) { return std::make_shared<BigBirdLayer>(c, i); }) {}
  X operator()(X hidden_states, const LayerCall& call) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, call);
    return hidden_states;
  }

 private:
  Layers<BigBirdLayer> layers_;
};

class BigBirdModel final : public EncoderBody {
 public:
  BigBirdModel(const EncoderConfig& c, bool pools)
      : EncoderBody("BigBirdModel"),
        c_(c),
        embeddings(child<BigBirdEmbeddings>("embeddings", c)),
        encoder(child<BigBirdEncoder>("encoder", c)) {
    if (!pools) return;
    pooler = &child<Linear>("pooler", c.hidden, c.hidden);
    activation = &child<Activation>("activation", "tanh");
  }

 protected:
  EncoderOutput forward(X input_ids, bool use_cache) override {
    const Options& o = c_.options;
    const I batch_size = input_ids.size(0), seq_length = input_ids.size(1),
            most = (5 + 2 * c_.file.integer_or("num_random_blocks", 3)) * c_.file.integer_or("block_size", 64);
    if (c_.file.text_or("attention_type", "block_sparse") != "original_full" && seq_length > most)
      throw c_.file.error("attention_type", "memest builds original_full only, which block_sparse becomes up to a sequence length of " +
                                                std::to_string(most));
    CachePtr cache;
    if (c_.is_decoder && use_cache && o.use_cache && !(o.checkpoint && training && runtime().grad_mode))
      cache = std::make_shared<Cache>(std::vector<I>(std::size_t(c_.layers), 0));
    warn_if_padding(c_.file, input_ids);
    X attention_mask = ones({batch_size, seq_length}, DType::float32);
    X embedding_output = embeddings(input_ids);
    {
      const MaskArguments arguments{.options = o, .inputs_embeds = embedding_output, .attention_mask = attention_mask};
      attention_mask = c_.is_decoder ? create_causal_mask(arguments) : create_bidirectional_mask(arguments);
    }
    X sequence_output = encoder(embedding_output, {attention_mask, {}, {}, cache.get()});
    X pooler_output;
    if (pooler) pooler_output = (*activation)((*pooler)(sequence_output.whole_slices(1).select(1, 0).whole_slices(1)));
    return {sequence_output, pooler_output, cache};
  }

 private:
  EncoderConfig c_;
  BigBirdEmbeddings& embeddings;
  BigBirdEncoder& encoder;
  Linear* pooler = nullptr;
  Activation* activation = nullptr;
};

NetworkPtr big_bird(const Config& config, const Options& o) {
  EncoderForm f = bert_form("BigBird", "bert");
  f.adjust = [](EncoderConfig& c) { c.options.attention = Attention::eager; };
  f.body = [](const EncoderConfig& c, bool pools) {
    return std::make_shared<BigBirdModel>(c, pools || c.options.task != Task::question_answering);
  };
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("BigBirdClassificationHead", c, c.act)}};
  };
  f.choice = {};
  return make_encoder(config, o, std::move(f));
}
const Family big_bird_family{{"big_bird"},
                             {{Task::causal_lm, "BigBirdForCausalLM", big_bird},
                              {Task::masked_lm, "BigBirdForMaskedLM", big_bird},
                              {Task::seq_cls, "BigBirdForSequenceClassification", big_bird},
                              {Task::token_cls, "BigBirdForTokenClassification", big_bird},
                              {Task::pretraining, "BigBirdForPreTraining", big_bird},
                              {Task::base, "BigBirdModel", big_bird}}};

}  // namespace
}  // namespace memest::hf
