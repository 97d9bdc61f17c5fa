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

class DisentangledSelfAttention final : public DebertaSelfAttention {
 public:
  explicit DisentangledSelfAttention(const V2Config& v)
      : DebertaSelfAttention("DisentangledSelfAttention"),
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
  X operator()(const X& hidden_states, const DebertaContext& context) override {
    Entered scope(*this);
    X attention_mask = context.attention_mask, rel_embeddings = context.rel_embeddings;
    X query_layer = transpose_for_scores(query_proj(hidden_states));
    X key_layer = transpose_for_scores(key_proj(hidden_states));
    X value_layer = transpose_for_scores(value_proj(hidden_states));
    X rel_att;
    X attention_scores = query_layer.bmm(key_layer.transpose(-1, -2).div(1.0));
    if (relative_) {
      rel_embeddings = (*pos_dropout)(rel_embeddings);
      rel_att = disentangled_attention_bias(query_layer, key_layer, context.relative_pos, rel_embeddings);
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

std::shared_ptr<DebertaLayer> make_v2_layer(const V2Config& v) {
  return std::make_shared<DebertaLayer>(v.c, "DebertaV2", std::make_shared<DisentangledSelfAttention>(v),
                                        make_residual_output("DebertaV2SelfOutput", v.c, v.c.hidden),
                                        make_residual_output("DebertaV2Output", v.c, v.c.intermediate));
}

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

class V2Encoder final : public DebertaEncoder {
 public:
  explicit V2Encoder(const V2Config& v)
      : DebertaEncoder("DebertaV2Encoder"),
        buckets_(v.buckets),
        max_relative_(v.max_relative),
        layers_(*this, "layer", v.c.layers, [&](I) { return make_v2_layer(v); }) {
    if (v.relative) rel_embeddings = &child<Embedding>("rel_embeddings", v.span * 2, v.c.hidden);
    if (v.c.file.text_or("norm_rel_ebd", "none").find("layer_norm") != std::string::npos) norm = &child<LayerNorm>("LayerNorm", v.c.hidden);
    if (v.c.file.integer_or("conv_kernel_size", 0) > 0) conv = &child<ConvLayer>("conv", v.c);
  }
  std::vector<X> operator()(const X& hidden_states, X attention_mask) override {
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
      X output_states = layers_[i](next_kv, {attention_mask, relative_pos, relative_embeddings});
      if (i == 0 && conv) output_states = (*conv)(hidden_states, output_states, input_mask);
      all_hidden_states.push_back(output_states);
      next_kv = output_states;
    }
    return all_hidden_states;
  }

 private:
  I buckets_, max_relative_;
  Layers<DebertaLayer> layers_;
  Embedding* rel_embeddings = nullptr;
  LayerNorm* norm = nullptr;
  ConvLayer* conv = nullptr;
};

NetworkPtr deberta_v2(const Config& config, const Options& o) {
  EncoderForm f = deberta_form("DebertaV2");
  f.body = [](const EncoderConfig& c, bool) {
    return make_deberta_model("DebertaV2", c, make_norm(Norm::layer_norm, c.hidden, "LayerNorm"), std::make_shared<V2Encoder>(V2Config(c)));
  };
  return make_encoder(config, o, std::move(f));
}
const Family deberta_v2_family{{"deberta-v2"}, bidirectional_classes("DebertaV2", deberta_v2)};

}  // namespace
}  // namespace memest::hf
