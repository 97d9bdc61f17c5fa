// models/deberta/modeling_deberta.py. Its attention is always eager.
#include "models/hf/deberta.h"

namespace memest::hf {
namespace {

class DebertaLayerNorm final : public Unary {
 public:
  explicit DebertaLayerNorm(I width) : Unary("DebertaLayerNorm") {
    new_parameter("weight", {width});
    new_parameter("bias", {width});
  }

 protected:
  X forward(X hidden_states) override {
    const DType input_type = hidden_states.dtype();
    hidden_states = hidden_states.to_float();
    X mean = hidden_states.mean(-1, true);
    X variance = hidden_states.sub(mean).pow(2).mean(-1, true);
    hidden_states = hidden_states.sub(mean).div(variance.add(1e-7).sqrt());
    hidden_states = hidden_states.to(input_type);
    X y = X(parameter(0)).mul(hidden_states).add(X(parameter(1)));
    return leave(std::move(y), hidden_states, mean, variance);
  }
};

using DebertaOutput = ResidualOutput<DebertaLayerNorm>;

I max_relative_positions(const EncoderConfig& c) {
  const I given = c.file.integer_or("max_relative_positions", -1);
  return given < 1 ? c.positions : given;
}

X build_relative_position(I query_size, I key_size) {
  X q_ids = arange(query_size);
  X k_ids = arange(key_size);
  X repeated = aten("repeat", {Tensor(k_ids.view({1, -1})), list_of(Dims{query_size, 1})});
  X rel_pos_ids = q_ids.whole_slices(1).unsqueeze(1).sub(std::move(repeated));
  rel_pos_ids = rel_pos_ids.slice(0, 0, query_size).whole_slices(1);
  rel_pos_ids = rel_pos_ids.unsqueeze(0);
  return leave(rel_pos_ids, q_ids, k_ids);
}

class DisentangledSelfAttention final : public DebertaSelfAttention {
 public:
  explicit DisentangledSelfAttention(const EncoderConfig& c)
      : DebertaSelfAttention("DisentangledSelfAttention"),
        heads_(c.heads),
        max_relative_(max_relative_positions(c)),
        relative_(c.file.boolean_or("relative_attention", false)),
        types_(deberta_types(c.file)) {
    new_parameter("q_bias", {c.hidden});
    new_parameter("v_bias", {c.hidden});
    in_proj = &child<Linear>("in_proj", c.hidden, checked_mul(c.hidden, 3), false);
    if (c.file.boolean_or("talking_head", false)) {
      head_logits_proj = &child<Linear>("head_logits_proj", heads_, heads_, false);
      head_weights_proj = &child<Linear>("head_weights_proj", heads_, heads_, false);
    }
    if (relative_) {
      pos_dropout = &child<Dropout>("pos_dropout", c.hidden_dropout);
      if (types_.c2p) pos_proj = &child<Linear>("pos_proj", c.hidden, c.hidden, false);
      if (types_.p2c) pos_q_proj = &child<Linear>("pos_q_proj", c.hidden, c.hidden);
    }
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }
  X operator()(const X& hidden_states, const DebertaContext& context) override {
    Entered scope(*this);
    X attention_mask = context.attention_mask, rel_embeddings = context.rel_embeddings;
    X qp = (*in_proj)(hidden_states);
    std::vector<X> parts = transpose_for_scores(qp).chunk(3, -1);
    X query_layer = std::move(parts[0]), key_layer = std::move(parts[1]), value_layer = std::move(parts[2]);
    query_layer = query_layer.add(bias(0));
    value_layer = value_layer.add(bias(1));
    X rel_att;
    query_layer = query_layer.div(1.0);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    if (relative_) {
      rel_embeddings = (*pos_dropout)(rel_embeddings);
      rel_att = disentangled_att_bias(query_layer, key_layer, context.relative_pos, rel_embeddings);
    }
    attention_scores = rel_att ? attention_scores.add(rel_att) : attention_scores.add(0);
    if (head_logits_proj) attention_scores = (*head_logits_proj)(attention_scores.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
    attention_mask = attention_mask.to(DType::boolean);
    attention_scores = aten("masked_fill", {Tensor(attention_scores), Tensor(aten("bitwise_not", {Tensor(attention_mask)})), -1e30});
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    if (head_weights_proj) attention_probs = (*head_weights_proj)(attention_probs.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, attention_mask, rel_embeddings, qp, query_layer, key_layer, value_layer, rel_att, attention_scores,
                 attention_probs);
  }

 private:
  X transpose_for_scores(X x) const {
    x = x.view(x.sizes().slice(0, x.dim() - 1) + Dims{heads_, -1});
    return x.permute({0, 2, 1, 3});
  }
  /// transpose_for_scores(self.q_bias[None, None, :])
  X bias(std::size_t index) const { return transpose_for_scores(X(parameter(index)).unsqueeze(0).unsqueeze(1).whole_slices(1)); }
  X disentangled_att_bias(const X& query_layer, const X& key_layer, X relative_pos, X rel_embeddings) {
    relative_pos = relative_pos.unsqueeze(1);
    const I batch = query_layer.size(0), length = query_layer.size(2), att_span = std::min(length, max_relative_);
    rel_embeddings = rel_embeddings.slice(0, max_relative_ - att_span, max_relative_ + att_span).unsqueeze(0);
    const auto positions = [&](X moved) { return aten("clamp", {Tensor(std::move(moved).add(Scalar(att_span))), I{0}, att_span * 2 - 1}); };
    const auto gathered = [&](const X& scores, const X& index) {
      return X(aten("gather", {Tensor(scores), I{-1}, Tensor(index.expand({batch, heads_, length, length}))}));
    };
    X score, pos_key_layer, c2p_att, c2p_pos, pos_query_layer, p2c_pos, p2c_att;
    if (types_.c2p) {
      pos_key_layer = (*pos_proj)(rel_embeddings);
      pos_key_layer = transpose_for_scores(pos_key_layer);
      c2p_att = query_layer.matmul(pos_key_layer.transpose(-1, -2));
      c2p_pos = positions(relative_pos);
      c2p_att = gathered(c2p_att, c2p_pos);
      score = c2p_att.add(0);
    }
    if (types_.p2c) {
      pos_query_layer = (*pos_q_proj)(rel_embeddings);
      pos_query_layer = transpose_for_scores(pos_query_layer);
      pos_query_layer = ops::div_(pos_query_layer, wrapped_number(DType::float32));
      p2c_pos = positions(relative_pos.neg());
      p2c_att = key_layer.matmul(pos_query_layer.transpose(-1, -2).to(key_layer.dtype()));
      p2c_att = gathered(p2c_att, p2c_pos).transpose(-1, -2);
      score = score ? score.add_(p2c_att) : p2c_att.add(0);
    }
    return leave(score, relative_pos, rel_embeddings, pos_key_layer, c2p_att, c2p_pos, pos_query_layer, p2c_pos, p2c_att);
  }

  I heads_, max_relative_;
  bool relative_;
  DebertaTypes types_;
  Linear *in_proj, *head_logits_proj = nullptr, *head_weights_proj = nullptr, *pos_proj = nullptr, *pos_q_proj = nullptr;
  Dropout *pos_dropout = nullptr, *dropout;
};

class Encoder final : public DebertaEncoder {
 public:
  explicit Encoder(const EncoderConfig& c)
      : DebertaEncoder("DebertaEncoder"), layers_(*this, "layer", c.layers, [&](I) {
          return std::make_shared<DebertaLayer>(c, "Deberta", std::make_shared<DisentangledSelfAttention>(c),
                                                std::make_shared<DebertaOutput>("DebertaSelfOutput", c, c.hidden),
                                                std::make_shared<DebertaOutput>("DebertaOutput", c, c.intermediate));
        }) {
    if (c.file.boolean_or("relative_attention", false))
      rel_embeddings = &child<Embedding>("rel_embeddings", checked_mul(max_relative_positions(c), 2), c.hidden);
  }
  std::vector<X> operator()(const X& hidden_states, X attention_mask) override {
    Entered scope(*this);
    attention_mask = deberta_mask(attention_mask);
    X relative_pos;
    if (rel_embeddings) relative_pos = build_relative_position(hidden_states.size(1), hidden_states.size(1));
    std::vector<X> all_hidden_states{hidden_states};
    X next_kv = hidden_states, relative_embeddings;
    if (rel_embeddings) relative_embeddings = rel_embeddings->weight();
    for (auto& layer : layers_) {
      next_kv = (*layer)(next_kv, {attention_mask, relative_pos, relative_embeddings});
      all_hidden_states.push_back(next_kv);
    }
    return all_hidden_states;
  }

 private:
  Layers<DebertaLayer> layers_;
  Embedding* rel_embeddings = nullptr;
};

NetworkPtr deberta(const Config& config, const Options& o) {
  EncoderForm f = deberta_form("Deberta");
  f.body = [](const EncoderConfig& c, bool) {
    return make_deberta_model("Deberta", c, std::make_shared<DebertaLayerNorm>(c.hidden), std::make_shared<Encoder>(c));
  };
  return make_encoder(config, o, std::move(f));
}
const Family deberta_family{{"deberta"},
                            {{Task::masked_lm, "DebertaForMaskedLM", deberta},
                             {Task::seq_cls, "DebertaForSequenceClassification", deberta},
                             {Task::token_cls, "DebertaForTokenClassification", deberta},
                             {Task::question_answering, "DebertaForQuestionAnswering", deberta},
                             {Task::base, "DebertaModel", deberta}}};

}  // namespace
}  // namespace memest::hf
