// models/deberta_v2/modeling_deberta_v2.py. Its attention is always eager.
#include "models/hf/deberta.h"

namespace memest::hf {
namespace {

/// make_log_bucket_position: int64 positions to float buckets.
X make_log_bucket_position(const X& relative_pos, I bucket_size) {
  X sign = aten("sign", {Tensor(relative_pos)});
  const I mid = bucket_size / 2;
  X abs_pos;
  {
    X below = aten("lt", {Tensor(relative_pos), mid});
    X above = aten("gt", {Tensor(relative_pos), -mid});
    X near = aten("bitwise_and", {Tensor(std::move(below)), Tensor(std::move(above))});
    X most = zeros({}, DType::int64);
    abs_pos = where(std::move(near), std::move(most), X(aten("abs", {Tensor(relative_pos)})));
  }
  X log_pos = abs_pos.div(Scalar(mid));
  log_pos = aten("log", {Tensor(std::move(log_pos))});
  log_pos = std::move(log_pos).div(1.0).mul(Scalar(mid - 1));
  log_pos = aten("ceil", {Tensor(std::move(log_pos))});
  log_pos = std::move(log_pos).add(Scalar(mid));
  X bucket_pos;
  {
    X within = aten("le", {Tensor(abs_pos), mid});
    X small = relative_pos.to(log_pos.dtype());
    bucket_pos = where(std::move(within), std::move(small), log_pos.mul(sign));
  }
  return leave(bucket_pos, sign, abs_pos, log_pos);
}

X build_relative_position(I query_size, I key_size, I bucket_size, I max_position) {
  X q_ids = arange(query_size);
  X k_ids = arange(key_size);
  X rel_pos_ids = q_ids.whole_slices(1).unsqueeze(1).sub(k_ids.unsqueeze(0).whole_slices(1));
  if (bucket_size > 0 && max_position > 0) rel_pos_ids = make_log_bucket_position(rel_pos_ids, bucket_size);
  rel_pos_ids = rel_pos_ids.to(DType::int64);
  rel_pos_ids = rel_pos_ids.slice(0, 0, query_size).whole_slices(0);
  rel_pos_ids = rel_pos_ids.unsqueeze(0);
  return leave(rel_pos_ids, q_ids, k_ids);
}

struct V2Config {
  explicit V2Config(const EncoderConfig& config)
      : c(config),
        relative(c.file.boolean_or("relative_attention", false)),
        share_att_key(c.file.boolean_or("share_att_key", false)),
        buckets(c.file.integer_or("position_buckets", -1)),
        max_relative(c.file.integer_or("max_relative_positions", -1)),
        attention(deberta_types(c.file)) {
    if (max_relative < 1) max_relative = c.positions;
    span = buckets > 0 ? buckets : max_relative;
  }
  const EncoderConfig& c;
  bool relative, share_att_key;
  I buckets, max_relative, span = 0;
  DebertaTypes attention;
};

class DisentangledSelfAttention final : public Base {
 public:
  explicit DisentangledSelfAttention(const V2Config& v)
      : Base("DisentangledSelfAttention"),
        heads_(v.c.heads),
        span_(v.span),
        relative_(v.relative),
        shared_(v.share_att_key),
        types_(v.attention),
        query_proj(child<Linear>("query_proj", v.c.hidden, v.c.hidden)),
        key_proj(child<Linear>("key_proj", v.c.hidden, v.c.hidden)),
        value_proj(child<Linear>("value_proj", v.c.hidden, v.c.hidden)) {
    if (relative_) {
      pos_dropout = &child<Dropout>("pos_dropout", v.c.hidden_dropout);
      if (!shared_ && types_.c2p) pos_key_proj = &child<Linear>("pos_key_proj", v.c.hidden, v.c.hidden);
      if (!shared_ && types_.p2c) pos_query_proj = &child<Linear>("pos_query_proj", v.c.hidden, v.c.hidden);
    }
    dropout = &child<Dropout>("dropout", v.c.attention_dropout);
  }
  X operator()(const X& hidden_states, X attention_mask, const X& relative_pos, X rel_embeddings) {
    Entered scope(*this);
    X query_layer = transpose_for_scores(query_proj(hidden_states));
    X key_layer = transpose_for_scores(key_proj(hidden_states));
    X value_layer = transpose_for_scores(value_proj(hidden_states));
    X rel_att;
    X attention_scores = query_layer.bmm(key_layer.transpose(-1, -2).div(1.0));
    if (relative_) {
      rel_embeddings = (*pos_dropout)(rel_embeddings);
      rel_att = disentangled_attention_bias(query_layer, key_layer, relative_pos, rel_embeddings);
      if (rel_att) attention_scores = attention_scores.add(rel_att);
    }
    attention_scores = attention_scores.view({-1, heads_, attention_scores.size(-2), attention_scores.size(-1)});
    attention_mask = attention_mask.to(DType::boolean);
    attention_scores = aten("masked_fill", {Tensor(attention_scores), Tensor(aten("bitwise_not", {Tensor(attention_mask)})), -1e30});
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.view({-1, attention_probs.size(-2), attention_probs.size(-1)}).bmm(value_layer);
    context_layer = context_layer.view({-1, heads_, context_layer.size(-2), context_layer.size(-1)}).permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, attention_mask, rel_embeddings, query_layer, key_layer, value_layer, rel_att, attention_scores,
                 attention_probs);
  }

 private:
  X transpose_for_scores(X x) const {
    x = std::move(x).view({x.size(0), x.size(1), heads_, -1});
    return x.permute({0, 2, 1, 3}).contiguous().view({-1, x.size(1), x.size(-1)});
  }
  X position_layer(Linear& proj, const X& rel_embeddings, I batch) {
    return X(aten("repeat", {Tensor(transpose_for_scores(proj(rel_embeddings))), list_of(Dims{batch, 1, 1})}));
  }
  X disentangled_attention_bias(const X& query_layer, const X& key_layer, X relative_pos, X rel_embeddings) {
    relative_pos = relative_pos.unsqueeze(1);
    rel_embeddings = rel_embeddings.slice(0, 0, span_ * 2).unsqueeze(0);
    const I batch = query_layer.size(0) / heads_;
    X pos_query_layer, pos_key_layer, score, c2p_att, c2p_pos, p2c_pos, p2c_att;
    if (shared_) {
      pos_query_layer = position_layer(query_proj, rel_embeddings, batch);
      pos_key_layer = position_layer(key_proj, rel_embeddings, batch);
    } else {
      if (types_.c2p) pos_key_layer = position_layer(*pos_key_proj, rel_embeddings, batch);
      if (types_.p2c) pos_query_layer = position_layer(*pos_query_proj, rel_embeddings, batch);
    }
    if (types_.c2p) {
      c2p_att = query_layer.bmm(pos_key_layer.transpose(-1, -2));
      c2p_pos = aten("clamp", {Tensor(relative_pos.add(Scalar(span_))), I{0}, span_ * 2 - 1});
      c2p_att = aten("gather", {Tensor(c2p_att), I{-1},
                                Tensor(c2p_pos.squeeze(0).expand({query_layer.size(0), query_layer.size(1), relative_pos.size(-1)}))});
      score = c2p_att.div(1.0).add(0);
    }
    if (types_.p2c) {
      p2c_pos = aten("clamp", {Tensor(relative_pos.neg().add(Scalar(span_))), I{0}, span_ * 2 - 1});
      p2c_att = key_layer.bmm(pos_query_layer.transpose(-1, -2));
      p2c_att = X(aten("gather", {Tensor(p2c_att), I{-1},
                                  Tensor(p2c_pos.squeeze(0).expand({query_layer.size(0), key_layer.size(-2), key_layer.size(-2)}))}))
                    .transpose(-1, -2);
      score = score ? score.add_(p2c_att.div(1.0)) : p2c_att.div(1.0).add(0);
    }
    return leave(score, relative_pos, rel_embeddings, pos_query_layer, pos_key_layer, c2p_att, c2p_pos, p2c_pos, p2c_att);
  }

  I heads_, span_;
  bool relative_, shared_;
  DebertaTypes types_;
  Linear &query_proj, &key_proj, &value_proj;
  Linear *pos_key_proj = nullptr, *pos_query_proj = nullptr;
  Dropout *pos_dropout = nullptr, *dropout;
};

/// What a layer gets beside the hidden states.
struct Context {
  X attention_mask, relative_pos, rel_embeddings;
};

class V2Attention final : public Base {
 public:
  explicit V2Attention(const V2Config& v)
      : Base("DebertaV2Attention"),
        self(child<DisentangledSelfAttention>("self", v)),
        output_(register_module("output", make_residual_output("DebertaV2SelfOutput", v.c, v.c.hidden))) {}
  X operator()(const X& hidden_states, const Context& context) {
    Entered scope(*this);
    X self_output = self(hidden_states, context.attention_mask, context.relative_pos, context.rel_embeddings);
    X attention_output = (*output_)(self_output, hidden_states);
    return attention_output;
  }

 private:
  DisentangledSelfAttention& self;
  JointPtr output_;
};

class V2Layer final : public DecoderLayer {
 public:
  explicit V2Layer(const V2Config& v)
      : DecoderLayer("DebertaV2Layer", v.c.options),
        attention(child<V2Attention>("attention", v)),
        intermediate_(register_module("intermediate", make_intermediate("DebertaV2Intermediate", v.c))),
        output_(register_module("output", make_residual_output("DebertaV2Output", v.c, v.c.intermediate))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attention_output = attention(hidden_states, {call.mask, call.position_ids, call.position_embeddings.first});
    X intermediate_output = (*intermediate_)(attention_output);
    X layer_output = (*output_)(intermediate_output, attention_output);
    return leave(layer_output, attention_output, intermediate_output);
  }

 private:
  V2Attention& attention;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class ConvLayer final : public Base {
 public:
  explicit ConvLayer(const EncoderConfig& c)
      : Base("ConvLayer"),
        act_(c.file.text_or("conv_act", "tanh")),
        conv(child<Conv1d>("conv", c.hidden, c.hidden, kernel(c), 1, (kernel(c) - 1) / 2, true, c.file.size_or("conv_groups", 1))),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}
  X operator()(const X& hidden_states, const X& residual_states, X input_mask) {
    Entered scope(*this);
    X out = conv(hidden_states.permute({0, 2, 1}).contiguous()).permute({0, 2, 1}).contiguous();
    X rmask = X(aten("rsub", {Tensor(input_mask), I{1}})).to(DType::boolean);
    out = aten("masked_fill_", {Tensor(out), Tensor(rmask.unsqueeze(-1).expand(out.sizes())), I{0}});
    out = act_.forward(dropout(out));
    X layer_norm_input = residual_states.add(out);
    X output = norm(layer_norm_input).to(layer_norm_input.dtype());
    input_mask = input_mask.unsqueeze(2);
    input_mask = input_mask.to(output.dtype());
    X output_states = output.mul(input_mask);
    return leave(output_states, input_mask, out, rmask, layer_norm_input, output);
  }

 private:
  static I kernel(const EncoderConfig& c) { return c.file.size("conv_kernel_size"); }

  Activation act_;
  Conv1d& conv;
  LayerNorm& norm;
  Dropout& dropout;
};

class V2Embeddings final : public Base {
 public:
  explicit V2Embeddings(const EncoderConfig& c)
      : Base("DebertaV2Embeddings"), word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token.value_or(0))) {
    if (c.file.boolean_or("position_biased_input", true))
      position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.embedding);
    if (c.types > 0) token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.embedding);
    if (c.embedding != c.hidden) embed_proj = &child<Linear>("embed_proj", c.embedding, c.hidden, false);
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }
  X operator()(const X& input_ids, const X& token_type_ids, X mask) {
    Entered scope(*this);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings ? (*position_embeddings)(position_ids) : X(aten("zeros_like", {Tensor(inputs_embeds)}));
    X embeddings = inputs_embeds, types;
    if (position_embeddings) embeddings = embeddings.add(positions);
    if (token_type_embeddings) {
      types = (*token_type_embeddings)(token_type_ids);
      embeddings = embeddings.add(types);
    }
    if (embed_proj) embeddings = (*embed_proj)(embeddings);
    embeddings = (*norm)(embeddings);
    mask = mask.unsqueeze(2);
    mask = mask.to(embeddings.dtype());
    embeddings = embeddings.mul(mask);
    embeddings = (*dropout)(embeddings);
    return leave(embeddings, mask, inputs_embeds, positions, types);
  }

 private:
  Embedding &word_embeddings, *position_embeddings = nullptr, *token_type_embeddings = nullptr;
  Linear* embed_proj = nullptr;
  LayerNorm* norm;
  Dropout* dropout;
};

class V2Encoder final : public Base {
 public:
  explicit V2Encoder(const V2Config& v)
      : Base("DebertaV2Encoder"),
        buckets_(v.buckets),
        max_relative_(v.max_relative),
        layers_(*this, "layer", v.c.layers, [&](I) { return std::make_shared<V2Layer>(v); }) {
    if (v.relative) rel_embeddings = &child<Embedding>("rel_embeddings", v.span * 2, v.c.hidden);
    if (v.c.file.text_or("norm_rel_ebd", "none").find("layer_norm") != std::string::npos) norm = &child<LayerNorm>("LayerNorm", v.c.hidden);
    if (v.c.file.integer_or("conv_kernel_size", 0) > 0) conv = &child<ConvLayer>("conv", v.c);
  }
  /// The hidden states after each layer.
  std::vector<X> operator()(const X& hidden_states, X attention_mask) {
    Entered scope(*this);
    X input_mask = attention_mask;
    attention_mask = deberta_mask(attention_mask);
    X relative_pos;
    if (rel_embeddings) relative_pos = build_relative_position(hidden_states.size(1), hidden_states.size(1), buckets_, max_relative_);
    std::vector<X> all_hidden_states{hidden_states};
    X next_kv = hidden_states, relative_embeddings;
    if (rel_embeddings) {
      relative_embeddings = rel_embeddings->weight();
      if (norm) relative_embeddings = (*norm)(relative_embeddings);
    }
    for (I i = 0; i < layers_.size(); ++i) {
      X output_states = layers_[i](next_kv, {attention_mask, {relative_embeddings, {}}, relative_pos});
      if (i == 0 && conv) output_states = (*conv)(hidden_states, output_states, input_mask);
      all_hidden_states.push_back(output_states);
      next_kv = output_states;
    }
    return all_hidden_states;
  }

 private:
  I buckets_, max_relative_;
  Layers<V2Layer> layers_;
  Embedding* rel_embeddings = nullptr;
  LayerNorm* norm = nullptr;
  ConvLayer* conv = nullptr;
};

class V2Model final : public EncoderBody {
 public:
  explicit V2Model(const V2Config& v)
      : EncoderBody("DebertaV2Model"), embeddings(child<V2Embeddings>("embeddings", v.c)), encoder(child<V2Encoder>("encoder", v)) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X attention_mask = ones(input_ids.sizes(), DType::float32);
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    X embedding_output = embeddings(input_ids, token_type_ids, attention_mask);
    std::vector<X> encoded_layers = encoder(embedding_output, attention_mask);
    X sequence_output = encoded_layers.back();
    return {sequence_output, {}};
  }

 private:
  V2Embeddings& embeddings;
  V2Encoder& encoder;
};

NetworkPtr deberta_v2(const Config& config, const Options& o) {
  EncoderForm f = deberta_form("DebertaV2");
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<V2Model>(V2Config(c)); };
  return make_encoder(config, o, std::move(f));
}
const Family deberta_v2_family{{"deberta-v2"}, bidirectional_classes("DebertaV2", deberta_v2)};

}  // namespace
}  // namespace memest::hf
