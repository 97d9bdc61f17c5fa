// models/bigbird_pegasus/modeling_bigbird_pegasus.py, for sequences that are too short for block-sparse attention.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

class EncoderSelfAttention final : public Mixer {
 public:
  explicit EncoderSelfAttention(const Seq2SeqConfig& c)
      : Mixer("BigBirdPegasusSelfAttention"),
        head_dim_(c.hidden / c.encoder.heads),
        query(child<Linear>("query", c.hidden, c.hidden, c.file.boolean_or("use_bias", false))),
        key(child<Linear>("key", c.hidden, c.hidden, c.file.boolean_or("use_bias", false))),
        value(child<Linear>("value", c.hidden, c.hidden, c.file.boolean_or("use_bias", false))),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, 2), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(1.0);
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view(input_shape + Dims{-1});
    return leave(Pair{context_layer, attention_probs}, query_layer, key_layer, value_layer, attention_scores);
  }

 private:
  I head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

class EncoderAttention final : public Mixer {
 public:
  explicit EncoderAttention(const Seq2SeqConfig& c)
      : Mixer("BigBirdPegasusEncoderAttention"),
        self_(child<EncoderSelfAttention>("self", c)),
        output(child<Linear>("output", c.hidden, c.hidden, c.file.boolean_or("use_bias", false))) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    auto [context_layer, attention_probs] = self_(hidden_states, call);
    X attention_output = output(context_layer);
    return leave(Pair{attention_output, attention_probs}, context_layer);
  }

 private:
  EncoderSelfAttention& self_;
  Linear& output;
};

class EncoderLayer final : public DecoderLayer {
 public:
  explicit EncoderLayer(const Seq2SeqConfig& c)
      : DecoderLayer("BigBirdPegasusEncoderLayer", c.options),
        dropout_(c.dropout),
        self_attn(child<EncoderAttention>("self_attn", c)),
        self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", c.hidden)),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc1(child<Linear>("fc1", c.hidden, c.encoder.intermediate)),
        fc2(child<Linear>("fc2", c.encoder.intermediate, c.hidden)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = self_attn_layer_norm(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = self_attn(hidden_states, call);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = final_layer_norm(hidden_states);
    hidden_states = activation_fn(fc1(hidden_states));
    hidden_states = fc2(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    hidden_states = clamp_overflown(std::move(hidden_states));
    return leave(std::move(hidden_states), residual, weights);
  }

 private:
  double dropout_;
  EncoderAttention& self_attn;
  LayerNorm& self_attn_layer_norm;
  Activation& activation_fn;
  Linear &fc1, &fc2;
  LayerNorm& final_layer_norm;
};

class BigBirdPegasusEncoder final : public Seq2SeqEncoder {
 public:
  BigBirdPegasusEncoder(const Seq2SeqConfig& c, PositionEmbeddingPtr positions)
      : Seq2SeqEncoder("BigBirdPegasusEncoder"),
        c_(c),
        embed_tokens_(register_module("embed_tokens", make_scaled_embedding(c, "BigBirdPegasus", c.vocab))),
        embed_positions_(register_module("embed_positions", std::move(positions))),
        layers_(*this, "layers", c.encoder.layers, [&](I) { return std::make_shared<EncoderLayer>(c); }),
        layernorm_embedding(child<LayerNorm>("layernorm_embedding", c.hidden)) {}

 protected:
  X forward(const X& input_ids, X) override {
    X inputs_embeds = (*embed_tokens_)(input_ids);
    const I batch_size = inputs_embeds.size(0), seq_len = inputs_embeds.size(1);
    check_length(seq_len);
    X embed_pos = (*embed_positions_)(input_ids, inputs_embeds);
    X hidden_states = inputs_embeds.add(embed_pos);
    hidden_states = ops::dropout(hidden_states, c_.dropout, training);
    X attention_mask = ones({batch_size, seq_len}, DType::float32);
    attention_mask = attention_mask.to(DType::int64);
    attention_mask = create_bidirectional_mask({.options = c_.options, .inputs_embeds = inputs_embeds, .attention_mask = attention_mask});
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{attention_mask, {}, {}, nullptr});
    hidden_states = layernorm_embedding(hidden_states);
    return leave(std::move(hidden_states), attention_mask, inputs_embeds, embed_pos);
  }

 private:
  /// Longer sequences attend to blocks.
  void check_length(I length) const {
    const I least = (5 + 2 * c_.file.integer_or("num_random_blocks", 3)) * c_.file.size_or("block_size", 64);
    if (c_.file.text_or("attention_type", "block_sparse") == "block_sparse" && length > least)
      throw c_.file.error("attention_type",
                          "memest does not build block-sparse attention, which " + std::to_string(length) + " tokens ask for",
                          "use at most " + std::to_string(least) + " tokens, or \"original_full\"");
  }

  const Seq2SeqConfig c_;
  UnaryPtr embed_tokens_;
  PositionEmbeddingPtr embed_positions_;
  Layers<EncoderLayer> layers_;
  LayerNorm& layernorm_embedding;
};

NetworkPtr bigbird_pegasus(const Config& config, const Options& given) {
  Options o = given;
  o.attention = Attention::eager;  // _supports_sdpa is not set
  Seq2SeqForm f;
  f.prefix = "BigBirdPegasus";
  f.norm_before = f.norms_end = true;
  f.end_norm = "layernorm_embedding";
  f.norms_embedding = f.ties_causal_head = false;
  f.positions = Seq2SeqForm::Positions::learned;
  f.generates = false;
  f.encoder = [f](const Seq2SeqConfig& c) { return std::make_shared<BigBirdPegasusEncoder>(c, make_positions(c, f)); };
  f.attention = [](const Seq2SeqConfig& c, I heads, I layer) {
    return make_cross_attention(c, "BigBirdPegasusDecoder", heads, layer, false, c.file.boolean_or("use_bias", false));
  };
  return make_seq2seq(config, o, std::move(f));
}
const Family bigbird_pegasus_family{{"bigbird_pegasus"},
                                    seq2seq_classes("BigBirdPegasus", bigbird_pegasus,
                                                    {Task::seq2seq, Task::causal_lm, Task::seq_cls, Task::question_answering, Task::base})};

}  // namespace
}  // namespace memest::hf
