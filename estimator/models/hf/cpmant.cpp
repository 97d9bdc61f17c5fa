// models/cpmant/modeling_cpmant.py.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

struct CpmAntConfig {
  CpmAntConfig(const Config& f, const Options& o)
      : file(f),
        options(o),
        vocab(f.size("vocab_size")),
        hidden(f.size("hidden_size")),
        heads(f.size("num_attention_heads")),
        head_dim(f.size("dim_head")),
        intermediate(f.size("dim_ff")),
        layers(layer_count(f)),
        buckets(f.size("position_bias_num_buckets")),
        prompt(f.size("prompt_length")),
        segments(f.size("segment_types")) {
    if (f.has("dropout_p")) dropout = f.number("dropout_p");
  }
  Config file;
  Options options;
  I vocab, hidden, heads, head_dim, intermediate, layers, buckets, prompt, segments;
  std::optional<double> dropout;
};

class CpmAntLayerNorm final : public Module<CpmAntLayerNorm> {
 public:
  explicit CpmAntLayerNorm(I width) : Module("CpmAntLayerNorm") { new_parameter("weight", {width}); }
  X forward(X hidden_states) {
    const DType old_dtype = hidden_states.dtype();
    X variance = hidden_states.to(DType::float32).pow(2).mean(-1, true);
    hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt()).to(old_dtype).mul(X(parameter(0)));
    return leave(hidden_states, variance);
  }
};

class CpmAntAttention final : public Base {
 public:
  CpmAntAttention(const CpmAntConfig& c, I layer)
      : Base("CpmAntAttention"),
        heads_(c.heads),
        head_dim_(c.head_dim),
        layer_(layer),
        project_q(child<Linear>("project_q", c.hidden, checked_mul(c.heads, c.head_dim), false)),
        project_k(child<Linear>("project_k", c.hidden, c.heads * c.head_dim, false)),
        project_v(child<Linear>("project_v", c.hidden, c.heads * c.head_dim, false)),
        attention_out(child<Linear>("attention_out", c.heads * c.head_dim, c.hidden, false)) {
    if (c.dropout) dropout = &child<Dropout>("dropout", *c.dropout);
  }
  X operator()(X hidden_states, const X& attention_mask, const X& position_bias, Cache* cache) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0), len_q = hidden_states.size(1);
    X query = project_q(hidden_states);
    X key = project_k(hidden_states);
    X value = project_v(hidden_states);
    for (X* x : {&query, &key, &value}) *x = x->view({batch_size, len_q, heads_, head_dim_}).permute({0, 2, 1, 3});
    if (cache) std::tie(key, value) = cache->update(key, value, layer_);
    const I len_k = key.size(-2);
    X score = query.matmul(key.transpose(-1, -2)).div(1.0);
    score = score.add(position_bias);
    const auto masked = [&](const X& scores) -> X {
      X excluded = aten("eq", {Tensor(attention_mask.view({batch_size, 1, len_q, len_k})), false});
      X filler = zeros({}, scores.dtype());
      return aten("masked_fill", {Tensor(scores), Tensor(std::move(excluded)), Tensor(std::move(filler))});
    };
    score = masked(score);
    score = score.softmax(-1);
    score = masked(score);
    if (dropout) score = (*dropout)(score);
    score = score.matmul(value);
    score = score.view({batch_size, heads_, len_q, head_dim_}).permute({0, 2, 1, 3});
    score = score.contiguous().view({batch_size, len_q, heads_ * head_dim_});
    score = attention_out(score);
    return leave(score, query, key, value);
  }

 private:
  I heads_, head_dim_, layer_;
  Linear &project_q, &project_k, &project_v, &attention_out;
  Dropout* dropout = nullptr;
};

/// The dropout of a block, which has none where its probability is zero.
Dropout* block_dropout(const CpmAntConfig& c, const std::function<Dropout&(double)>& make) {
  return c.dropout.value_or(0.0) > 0 ? &make(*c.dropout) : nullptr;
}

class CpmAntSelfAttentionBlock final : public Base {
 public:
  CpmAntSelfAttentionBlock(const CpmAntConfig& c, I layer)
      : Base("CpmAntSelfAttentionBlock"),
        layernorm_before_attention(child<CpmAntLayerNorm>("layernorm_before_attention", c.hidden)),
        self_attention(child<CpmAntAttention>("self_attention", c, layer)),
        dropout(block_dropout(c, [this](double p) -> Dropout& { return child<Dropout>("dropout", p); })) {}
  X operator()(const X& hidden_states, const X& attention_mask, const X& position_bias, Cache* cache) {
    Entered scope(*this);
    X outputs = layernorm_before_attention(hidden_states);
    outputs = self_attention(outputs, attention_mask, position_bias, cache);
    if (dropout) outputs = (*dropout)(outputs);
    X sum = hidden_states.add(outputs);
    return leave(sum, outputs);
  }

 private:
  CpmAntLayerNorm& layernorm_before_attention;
  CpmAntAttention& self_attention;
  Dropout* dropout;
};

class CpmAntDenseGatedACT final : public Module<CpmAntDenseGatedACT> {
 public:
  explicit CpmAntDenseGatedACT(const CpmAntConfig& c)
      : Module("CpmAntDenseGatedACT"),
        w_0(child<Linear>("w_0", c.hidden, c.intermediate, false)),
        w_1(child<Linear>("w_1", c.hidden, c.intermediate, false)),
        act(child<Activation>("act", "gelu")) {}
  X forward(X hidden_states) {
    X gate_score = act(w_0(hidden_states));
    hidden_states = w_1(hidden_states);
    hidden_states = gate_score.mul(hidden_states);
    return leave(hidden_states, gate_score);
  }

 private:
  Linear &w_0, &w_1;
  Activation& act;
};

class CpmAntFeedForward final : public Module<CpmAntFeedForward> {
 public:
  explicit CpmAntFeedForward(const CpmAntConfig& c) : Module("CpmAntFeedForward"), w_in(child<CpmAntDenseGatedACT>("w_in", c)) {
    if (c.dropout) dropout = &child<Dropout>("dropout", *c.dropout);
    w_out = &child<Linear>("w_out", c.intermediate, c.hidden, false);
  }
  X forward(X hidden_states) {
    hidden_states = w_in(hidden_states);
    if (dropout) hidden_states = (*dropout)(hidden_states);
    hidden_states = (*w_out)(hidden_states);
    return hidden_states;
  }

 private:
  CpmAntDenseGatedACT& w_in;
  Dropout* dropout = nullptr;
  Linear* w_out;
};

class CpmAntFFNBlock final : public Base {
 public:
  explicit CpmAntFFNBlock(const CpmAntConfig& c)
      : Base("CpmAntFFNBlock"),
        layernorm_before_ffn(child<CpmAntLayerNorm>("layernorm_before_ffn", c.hidden)),
        ffn(child<CpmAntFeedForward>("ffn", c)),
        dropout(block_dropout(c, [this](double p) -> Dropout& { return child<Dropout>("dropout", p); })) {}
  X operator()(const X& hidden_states) {
    Entered scope(*this);
    X ln_outputs = layernorm_before_ffn(hidden_states);
    X outputs = ffn(ln_outputs);
    if (dropout) outputs = (*dropout)(outputs);
    X sum = hidden_states.add(outputs);
    return leave(sum, ln_outputs, outputs);
  }

 private:
  CpmAntLayerNorm& layernorm_before_ffn;
  CpmAntFeedForward& ffn;
  Dropout* dropout;
};

class CpmAntTransformerBlock final : public Base {
 public:
  CpmAntTransformerBlock(const CpmAntConfig& c, I layer)
      : Base("CpmAntTransformerBlock"),
        self_att(child<CpmAntSelfAttentionBlock>("self_att", c, layer)),
        ffn(child<CpmAntFFNBlock>("ffn", c)) {}
  X operator()(X hidden_states, const X& attention_mask, const X& position_bias, Cache* cache) {
    Entered scope(*this);
    X attended = self_att(hidden_states, attention_mask, position_bias, cache);
    attended = ffn(attended);
    return attended;
  }

 private:
  CpmAntSelfAttentionBlock& self_att;
  CpmAntFFNBlock& ffn;
};

class CpmAntEncoder final : public Base {
 public:
  explicit CpmAntEncoder(const CpmAntConfig& c)
      : Base("CpmAntEncoder"),
        layers_(*this, "layers", c.layers, [&](I i) { return std::make_shared<CpmAntTransformerBlock>(c, i); }),
        output_layernorm(child<CpmAntLayerNorm>("output_layernorm", c.hidden)) {}
  X operator()(const X& hidden_states, const X& attention_mask, const X& position_bias, Cache* cache) {
    Entered scope(*this);
    X layer_outputs = hidden_states;
    for (auto& layer : layers_) layer_outputs = (*layer)(layer_outputs, attention_mask, position_bias, cache);
    X normed = output_layernorm(layer_outputs);
    return leave(normed, layer_outputs);
  }

 private:
  Layers<CpmAntTransformerBlock> layers_;
  CpmAntLayerNorm& output_layernorm;
};

class SegmentPositionEmbedding final : public Base {
 public:
  explicit SegmentPositionEmbedding(const CpmAntConfig& c)
      : Base("CpmAntSegmentPositionEmbedding"), segments_(c.segments), buckets_(c.buckets) {
    new_parameter("relative_attention_bias", {checked_mul(c.segments, c.segments) + c.buckets, c.heads});
  }
  X operator()(const X& position, const X& segment) {
    Entered scope(*this);
    X relative_position_bucket, absolute_position_bucket;
    {
      NoGrad guard;
      const I batch = position.size(0), length = position.size(1);
      X key_segment = segment.view({batch, -1, length}), query_segment = segment.view({batch, length, -1});
      relative_position_bucket = query_segment.mul(Scalar(segments_)).add(key_segment);
      relative_position_bucket = relative_position_bucket.add(Scalar(buckets_));
      {
        X keys = arange(length, DType::int32);
        absolute_position_bucket = position_bucket(keys.unsqueeze(0).sub(arange(length, DType::int32).unsqueeze(1)));
      }
      X same = aten("eq", {Tensor(key_segment), Tensor(query_segment)});
      relative_position_bucket = where(std::move(same), absolute_position_bucket.unsqueeze(0), relative_position_bucket);
    }
    X embeds = ops::embedding(parameter(0), relative_position_bucket, -1, false, false);
    embeds = embeds.permute({0, 3, 1, 2}).contiguous();
    return leave(embeds, relative_position_bucket, absolute_position_bucket);
  }

 private:
  X position_bucket(X relative_position) const {
    X relative_buckets = X(aten("gt", {Tensor(relative_position), I{0}})).to(DType::int32).mul(1);
    relative_position = aten("abs", {Tensor(relative_position)});
    X is_small = aten("lt", {Tensor(relative_position), I{1}});
    X if_large = aten("log", {Tensor(relative_position.to_float().div(1))});
    if_large = std::move(if_large).div(1.0).mul(1).to(DType::int32).add(1);
    if_large = aten("minimum", {Tensor(if_large), Tensor(aten("full_like", {Tensor(if_large), I{1}}))});
    relative_buckets = relative_buckets.add_(where(is_small, relative_position, if_large));
    return leave(relative_buckets, relative_position, is_small, if_large);
  }

  I segments_, buckets_;
};

class CpmAntModel final : public Base {
 public:
  explicit CpmAntModel(const CpmAntConfig& c)
      : Base("CpmAntModel"),
        c_(c),
        encoder(child<CpmAntEncoder>("encoder", c)),
        segment_embedding(child<Embedding>("segment_embedding", c.segments, c.hidden)),
        input_embedding(child<Embedding>("input_embedding", c.vocab + checked_mul(c.file.size("prompt_types"), c.prompt), c.hidden)),
        position_bias_(child<SegmentPositionEmbedding>("position_bias", c)) {}
  std::pair<X, CachePtr> operator()(X input_ids) {
    Entered scope(*this);
    const I batch = input_ids.size(0), seq_length = input_ids.size(1) + c_.prompt;
    constexpr DType kType = DType::int32;
    input_ids = input_ids.to(kType);
    X segment = aten("where", {Tensor(aten("ne", {Tensor(input_ids), I{0}})), I{2}, I{0}}).to(kType);
    X length = X(aten("ne", {Tensor(segment), I{0}})).sum(-1).to(kType);
    X prompt = aten("repeat", {Tensor(arange(c_.prompt, kType)), list_of(Dims{batch, 1})});
    input_ids = cat({std::move(prompt), input_ids}, 1);
    segment = cat({zeros({batch, c_.prompt}, kType), segment}, 1);
    X context = full({batch, seq_length}, 1, kType);
    X position = aten("repeat", {Tensor(arange(seq_length, kType)), list_of(Dims{batch, 1})});
    X span = full({batch, seq_length}, 0, kType);
    CachePtr cache;
    if (c_.options.use_cache) cache = std::make_shared<Cache>(std::vector<I>(std::size_t(c_.layers), 0));
    X hidden_states = input_embedding(input_ids);
    X segment_states = segment_embedding(segment);
    hidden_states = hidden_states.add(segment_states);
    X attention_mask = prepare_attention_mask(span, context, length);
    X position_bias = position_bias_(position, segment);
    hidden_states = encoder(hidden_states, attention_mask, position_bias, cache.get());
    hidden_states = hidden_states.whole_slices(1).slice(1, c_.prompt, std::nullopt);
    return {leave(hidden_states, input_ids, segment, length, context, position, span, segment_states, attention_mask, position_bias),
            cache};
  }

 private:
  /// _prepare_attention_mask: [batch, length, length], int32.
  X prepare_attention_mask(const X& span, const X& context, const X& length) const {
    const I batch = span.size(0), seqlen = span.size(1);
    const auto both = [](X a, X b) { return X(aten("bitwise_and", {Tensor(std::move(a)), Tensor(std::move(b))})); };
    X directional_mask_2d;
    {
      X keys = arange(seqlen);
      directional_mask_2d = aten("le", {Tensor(std::move(keys)), Tensor(arange(seqlen).view({-1, 1}))});
    }
    X attention_mask;
    {
      X later = both(aten("logical_not", {Tensor(context.unsqueeze(2))}), directional_mask_2d.view({1, seqlen, seqlen}));
      attention_mask = aten("bitwise_or", {Tensor(context.unsqueeze(1)), Tensor(std::move(later))});
    }
    attention_mask = both(attention_mask, aten("eq", {Tensor(span.unsqueeze(1)), Tensor(span.unsqueeze(2))}));
    X mask_1d = aten("repeat", {Tensor(X(empty({seqlen - c_.prompt}, DType::int64)).unsqueeze(0)), list_of(Dims{batch, 1})});
    mask_1d = aten("lt", {Tensor(std::move(mask_1d)), Tensor(length.unsqueeze(1))});
    mask_1d = cat({ones({batch, c_.prompt}, DType::float32).to(DType::boolean), mask_1d}, 1);
    X real = both(mask_1d.view({batch, seqlen, 1}), mask_1d.view({batch, 1, seqlen}));
    attention_mask = both(std::move(real), attention_mask);
    return leave(attention_mask, directional_mask_2d, mask_1d);
  }

  const CpmAntConfig c_;
  CpmAntEncoder& encoder;
  Embedding &segment_embedding, &input_embedding;
  SegmentPositionEmbedding& position_bias_;
};

class CpmAntForCausalLM final : public Network {
 public:
  explicit CpmAntForCausalLM(const CpmAntConfig& c)
      : Network("CpmAntForCausalLM", c.options),
        cpmant(child<CpmAntModel>("cpmant", c)),
        lm_head(child<Linear>("lm_head", c.hidden, c.vocab, false)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = cpmant(batch.input);
    X hidden_states =
        options_.logits_to_keep ? last_hidden_state.slice(1, -*options_.logits_to_keep, std::nullopt) : last_hidden_state.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, logits.size(-1));
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  CpmAntModel& cpmant;
  Linear& lm_head;
};

class CpmAntAlone final : public Network {
 public:
  explicit CpmAntAlone(const CpmAntConfig& c) : Network("CpmAntModel", c.options), cpmant(child<CpmAntModel>("cpmant", c)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = cpmant(batch.input);
    return {model_output({hidden_states}, cache.get()), {}};
  }

 private:
  CpmAntModel& cpmant;
};

NetworkPtr make_cpmant(const Config& config, const Options& o) {
  const CpmAntConfig c(config, o);
  if (o.task == Task::base) return std::make_shared<CpmAntAlone>(c);
  return std::make_shared<CpmAntForCausalLM>(c);
}
const Family cpmant_family{{"cpmant"}, {{Task::causal_lm, "CpmAntForCausalLM", make_cpmant}, {Task::base, "CpmAntModel", make_cpmant}}};

}  // namespace
}  // namespace memest::hf
