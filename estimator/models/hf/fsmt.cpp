// models/fsmt/modeling_fsmt.py: translation models of fairseq, with the time before the batch.
#include "models/hf/loss.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

/// shift_tokens_right of fsmt, which writes its argument.
X wrap_in_place(const X& input_ids) {
  { aten("masked_fill_", {Tensor(input_ids), Tensor(aten("eq", {Tensor(input_ids), I{-100}})), I{0}}); }
  X prev_output_tokens = input_ids.clone();
  X index_of_eos = aten("ne", {Tensor(input_ids), I{1}}).sum(1).sub(1).unsqueeze(-1);
  {
    X last = aten("squeeze", {Tensor(aten("gather", {Tensor(input_ids), I{1}, Tensor(index_of_eos)}))});
    aten("copy_", {Tensor(prev_output_tokens.select(1, 0)), Tensor(last), false});
  }
  aten("copy_", {Tensor(prev_output_tokens.slice(1, 1, std::nullopt)), Tensor(input_ids.slice(1, std::nullopt, -1)), false});
  return prev_output_tokens;
}
/// make_padding_mask looks for padding, and gives no mask where there is none. Values are not known: none is found.
void look_for_padding(const X& input_ids) {
  X padding_mask = aten("eq", {Tensor(input_ids), I{1}});
  X any = aten("any", {Tensor(padding_mask)});
}
/// fill_with_neg_inf(torch.zeros(n, n)), above the diagonal.
X causal_mask_of(I length, DType dtype) {
  X filled;
  {
    X t = zeros({length, length}, dtype);
    X wide = t.to_float();
    aten("fill_", {Tensor(wide), -1e30});
    filled = wide.to(dtype);
    filled = leave(std::move(filled), wide, t);
  }
  return aten("triu", {Tensor(filled), I{1}});
}

class Attention final : public CrossMixer {
 public:
  Attention(const Seq2SeqConfig& c, I heads, I layer)
      : CrossMixer("Attention"),
        layer_(layer),
        heads_(heads),
        head_dim_(c.hidden / heads),
        dropout_(c.attention_dropout),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden)) {}

 protected:
  Pair forward(const X& query, const X& key, X attn_mask, Cache* cache) override {
    const I tgt_len = query.size(0), bsz = query.size(1);
    const X& current_states = key ? key : query;
    X key_states = k_proj(current_states);
    X value_states = v_proj(current_states);
    key_states = key_states.view({-1, bsz, heads_, head_dim_}).permute({1, 2, 0, 3});
    value_states = value_states.view({-1, bsz, heads_, head_dim_}).permute({1, 2, 0, 3});
    if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
    X query_states = q_proj(query).mul(1.0);
    query_states = query_states.view({-1, bsz * heads_, head_dim_}).transpose(0, 1);
    key_states = key_states.reshape({bsz * heads_, -1, head_dim_});
    value_states = value_states.reshape({bsz * heads_, -1, head_dim_});
    const I src_len = key_states.size(1);
    X attn_weights = query_states.bmm(key_states.transpose(1, 2));
    if (attn_mask) {
      attn_weights = attn_weights.view({bsz, heads_, tgt_len, src_len}).add(attn_mask);
      attn_weights = attn_weights.view({bsz * heads_, tgt_len, src_len});
    }
    attn_weights = attn_weights.softmax(-1);
    X attn_probs = ops::dropout(attn_weights, dropout_, training);
    X attn_output = attn_probs.bmm(value_states);
    attn_output = attn_output.transpose(0, 1).contiguous().view({tgt_len, bsz, heads_ * head_dim_});
    attn_output = out_proj(attn_output);
    return leave(Pair{attn_output, {}}, key_states, value_states, query_states, attn_weights, attn_probs, attn_output);
  }

 private:
  I layer_, heads_, head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

/// EncoderLayer, and DecoderLayer where it crosses.
class Layer final : public Base {
 public:
  Layer(const Seq2SeqConfig& c, I index, bool crosses)
      : Base(crosses ? "DecoderLayer" : "EncoderLayer"), dropout_(c.dropout), activation_dropout_(c.activation_dropout) {
    const auto& stack = crosses ? c.decoder : c.encoder;
    self_attn_ = register_module("self_attn", std::make_shared<Attention>(c, stack.heads, index));
    if (crosses) activation_fn = &child<Activation>("activation_fn", c.act);
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.hidden);
    if (crosses) {
      encoder_attn_ = register_module("encoder_attn", std::make_shared<Attention>(c, stack.heads, index));
      encoder_attn_layer_norm = &child<LayerNorm>("encoder_attn_layer_norm", c.hidden);
    } else {
      activation_fn = &child<Activation>("activation_fn", c.act);
    }
    fc1 = &child<Linear>("fc1", c.hidden, stack.intermediate);
    fc2 = &child<Linear>("fc2", stack.intermediate, c.hidden);
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c.hidden);
  }
  X operator()(X x, X encoder_hidden_states, X causal_mask, EncoderDecoderCache* cache) {
    Entered scope(*this);
    X residual = x;
    X weights;
    std::tie(x, weights) = (*self_attn_)(x, {}, causal_mask, cache ? &cache->self_attention : nullptr);
    x = ops::dropout(x, dropout_, training);
    x = residual.add(x);
    x = (*self_attn_layer_norm)(x);
    if (encoder_attn_) {
      residual = x;
      std::tie(x, weights) = (*encoder_attn_)(x, encoder_hidden_states, {}, cache ? &cache->cross_attention : nullptr);
      x = ops::dropout(x, dropout_, training);
      x = residual.add(x);
      x = (*encoder_attn_layer_norm)(x);
    }
    residual = x;
    x = (*activation_fn)((*fc1)(x));
    x = ops::dropout(x, activation_dropout_, training);
    x = (*fc2)(x);
    x = ops::dropout(x, dropout_, training);
    x = residual.add(x);
    x = (*final_layer_norm)(x);
    return leave(std::move(x), residual);
  }

 private:
  using Base::forward;
  double dropout_, activation_dropout_;
  CrossMixerPtr self_attn_, encoder_attn_;
  Activation* activation_fn;
  LayerNorm *self_attn_layer_norm, *encoder_attn_layer_norm = nullptr, *final_layer_norm;
  Linear *fc1, *fc2;
};

/// SinusoidalPositionalEmbedding: a parameter that is trained unless a long sequence makes it anew.
class Positions final : public Module<Positions> {
 public:
  explicit Positions(const Seq2SeqConfig& c)
      : Module("SinusoidalPositionalEmbedding"), padding_idx_(c.pad_token.value_or(1)), rows_(c.positions + padding_idx_ + 1) {
    new_parameter("weight", {rows_, c.hidden});
  }
  X forward(const X& input) {
    if (padding_idx_ + 1 + input.size(1) > rows_)
      throw Error("a sequence of " + std::to_string(input.size(1)) + " tokens is longer than max_position_embeddings",
                  "memest does not build FSMT's positions anew; give the config more positions");
    X positions = made(input).add(0);
    return ops::embedding(parameter(0), positions, padding_idx_, false, false);
  }

 private:
  static X made(const X& input) {
    X mask = aten("ne", {Tensor(input), I{1}}).to(DType::int32);
    X positions = aten("cumsum", {Tensor(mask), I{1}}).to(DType::int32).mul(mask).to(DType::int64).add(1);
    return positions;
  }
  I padding_idx_, rows_;
};

class Stack final : public Base {
 public:
  Stack(const Seq2SeqConfig& c, bool decodes)
      : Base(decodes ? "FSMTDecoder" : "FSMTEncoder"),
        dropout_(c.dropout),
        embed_tokens(child<Embedding>("embed_tokens", decodes ? c.decoder_vocab : c.vocab, c.hidden, c.pad_token)),
        embed_positions(child<Positions>("embed_positions", c)),
        layers_(*this, "layers", (decodes ? c.decoder : c.encoder).layers, [&](I i) { return std::make_shared<Layer>(c, i, decodes); }) {
    if (decodes) output_projection = &child<Linear>("output_projection", c.hidden, c.decoder_vocab, false);
  }
  X encode(X input_ids) {
    Entered scope(*this);
    X inputs_embeds = embed_tokens(input_ids).mul(1.0);
    X embed_pos = embed_positions(input_ids);
    X x = inputs_embeds.add(embed_pos);
    x = ops::dropout(x, dropout_, training);
    x = x.transpose(0, 1);
    for (auto& layer : layers_) x = (*layer)(x, {}, {}, nullptr);
    x = x.transpose(0, 1);
    return leave(std::move(x), inputs_embeds, embed_pos);
  }
  X decode(X input_ids, X encoder_hidden_states, X causal_mask, EncoderDecoderCache* cache) {
    Entered scope(*this);
    X positions = embed_positions(input_ids);
    X x = embed_tokens(input_ids).mul(1.0);
    x = x.add_(positions);
    x = ops::dropout(x, dropout_, training);
    x = x.transpose(0, 1);
    encoder_hidden_states = encoder_hidden_states.transpose(0, 1);
    for (auto& layer : layers_) x = (*layer)(x, encoder_hidden_states, causal_mask, cache);
    x = x.transpose(0, 1);
    x = (*output_projection)(x);
    return leave(std::move(x), positions);
  }
  DType dtype() const { return embed_tokens.weight().dtype(); }

 private:
  using Base::forward;
  double dropout_;
  Embedding& embed_tokens;
  Positions& embed_positions;
  Layers<Layer> layers_;
  Linear* output_projection = nullptr;
};

class FsmtModel final : public Base {
 public:
  explicit FsmtModel(const Seq2SeqConfig& c)
      : Base("FSMTModel"), encoder(child<Stack>("encoder", c, false)), decoder(child<Stack>("decoder", c, true)) {
    if (!c.tie) return;
    for (const char* other : {"encoder.embed_tokens.weight", "decoder.output_projection.weight"}) tie(other, "decoder.embed_tokens.weight");
  }
  struct Output {
    X last_hidden_state;
    std::shared_ptr<EncoderDecoderCache> cache;
    X encoder_last_hidden_state;
  };
  Output operator()(X input_ids, X decoder_input_ids, bool use_cache) {
    Entered scope(*this);
    X causal_mask;
    std::shared_ptr<EncoderDecoderCache> cache;
    if (!decoder_input_ids || !use_cache) {
      if (!decoder_input_ids) decoder_input_ids = wrap_in_place(input_ids);
      look_for_padding(decoder_input_ids);
      causal_mask = causal_mask_of(decoder_input_ids.size(1), decoder.dtype());
    } else {
      cache = std::make_shared<EncoderDecoderCache>();
    }
    X encoder_last_hidden_state = encoder.encode(input_ids);
    X last_hidden_state = decoder.decode(decoder_input_ids, encoder_last_hidden_state, causal_mask, cache.get());
    return leave(Output{last_hidden_state, cache, encoder_last_hidden_state}, decoder_input_ids, causal_mask);
  }

 private:
  using Base::forward;
  Stack &encoder, &decoder;
};

/// FSMTForConditionalGeneration, or the model alone. Without decoder_input_ids the target is the source, and as long.
class Fsmt final : public Seq2SeqNetwork {
 public:
  explicit Fsmt(const Seq2SeqConfig& c)
      : Seq2SeqNetwork(c.options.task == Task::base ? "FSMTModel" : "FSMTForConditionalGeneration", c.options),
        c_(c),
        model_(child<FsmtModel>("model", c)) {}
  std::vector<nn::InputSpec> inputs() const override {
    const nn::SizeExpression batch("batch"), src_seq("src_seq"), tgt_seq("tgt_seq");
    std::vector<nn::InputSpec> list = {{"input_ids", {batch, src_seq}, DType::int64}};
    if (options_.target) list.push_back({"decoder_input_ids", {batch, tgt_seq}, DType::int64});
    if (options_.labels) list.push_back({"labels", {batch, options_.target ? tgt_seq : src_seq}, DType::int64});
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    FsmtModel::Output outputs = model_(batch.input, batch.decoder_input, options_.use_cache && !batch.labels);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(outputs.last_hidden_state, batch.labels, c_.decoder_vocab);
    return {seq2seq_output({loss, outputs.last_hidden_state}, outputs.cache.get(), outputs.encoder_last_hidden_state), loss};
  }

 private:
  const Seq2SeqConfig c_;
  FsmtModel& model_;
};

NetworkPtr fsmt(const Config& config, const Options& o) {
  Seq2SeqConfig c(config, o);
  c.vocab = config.size("src_vocab_size");
  c.decoder_vocab = config.size("tgt_vocab_size");
  return std::make_shared<Fsmt>(c);
}
const Family fsmt_family{{"fsmt"}, seq2seq_classes("FSMT", fsmt, {Task::seq2seq, Task::base})};

}  // namespace
}  // namespace memest::hf
