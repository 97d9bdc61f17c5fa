// models/mpnet/modeling_mpnet.py. Its attention is always eager.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

class MPNetEmbeddings final : public Unary {
 public:
  explicit MPNetEmbeddings(const EncoderConfig& c)
      : Unary("MPNetEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, 1)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden, 1)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    X embeddings = inputs_embeds.add(positions);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, position_ids, inputs_embeds, positions);
  }

 private:
  Embedding &word_embeddings, &position_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class MPNetSelfAttention final : public Joint {
 public:
  explicit MPNetSelfAttention(const EncoderConfig& c)
      : Joint("MPNetSelfAttention"),
        head_dim_(c.head_dim),
        q_(child<Linear>("q", c.hidden, c.hidden)),
        k_(child<Linear>("k", c.hidden, c.hidden)),
        v_(child<Linear>("v", c.hidden, c.hidden)),
        o_(child<Linear>("o", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  X forward(X hidden_states, X position_bias) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X q = q_(hidden_states).view(hidden_shape).transpose(1, 2);
    X k = k_(hidden_states).view(hidden_shape).transpose(1, 2);
    X v = v_(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores = q.matmul(k.transpose(-1, -2));
    attention_scores = attention_scores.div(1.0);
    attention_scores = attention_scores.add_(position_bias);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = dropout(attention_probs);
    X c = attention_probs.matmul(v);
    c = c.permute({0, 2, 1, 3}).contiguous();
    c = c.view({c.size(0), c.size(1), -1});
    X o = o_(c);
    return leave(o, q, k, v, attention_scores, attention_probs, c);
  }

 private:
  I head_dim_;
  Linear &q_, &k_, &v_, &o_;
  Dropout& dropout;
};

class MPNetAttention final : public Joint {
 public:
  explicit MPNetAttention(const EncoderConfig& c)
      : Joint("MPNetAttention"),
        attn(child<MPNetSelfAttention>("attn", c)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X hidden_states, X position_bias) override {
    X self_outputs = attn(hidden_states, position_bias);
    X attention_output = norm(dropout(self_outputs).add(hidden_states));
    return leave(attention_output, self_outputs);
  }

 private:
  MPNetSelfAttention& attn;
  LayerNorm& norm;
  Dropout& dropout;
};

class MPNetLayer final : public Joint {
 public:
  explicit MPNetLayer(const EncoderConfig& c)
      : Joint("MPNetLayer"),
        attention(child<MPNetAttention>("attention", c)),
        intermediate_(register_module("intermediate", make_intermediate("MPNetIntermediate", c))),
        output_(register_module("output", make_residual_output("MPNetOutput", c, c.intermediate))) {}

 protected:
  X forward(X hidden_states, X position_bias) override {
    X attention_output = attention(hidden_states, position_bias);
    X intermediate_output = (*intermediate_)(attention_output);
    X layer_output = (*output_)(intermediate_output, attention_output);
    return leave(layer_output, attention_output, intermediate_output);
  }

 private:
  MPNetAttention& attention;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class MPNetEncoder final : public Mixer {
 public:
  explicit MPNetEncoder(const EncoderConfig& c)
      : Mixer("MPNetEncoder"),
        layers_(*this, "layer", c.layers, [&](I) { return std::make_shared<MPNetLayer>(c); }),
        relative_attention_bias(
            child<Embedding>("relative_attention_bias", c.file.size_or("relative_attention_num_buckets", 32), c.heads)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall&) override {
    X position_bias = compute_position_bias(hidden_states);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, position_bias);
    return {hidden_states, {}};
  }

 private:
  X compute_position_bias(const X& x) {
    const I bsz = x.size(0), qlen = x.size(1), klen = qlen;
    X context_position = arange(qlen).whole_slices(1).unsqueeze(1);
    X memory_position = arange(klen).unsqueeze(0).whole_slices(1);
    X relative_position = memory_position.sub(context_position);
    X rp_bucket = relative_position_bucket(relative_position);
    X values = relative_attention_bias(rp_bucket);
    values = values.permute({2, 0, 1}).unsqueeze(0);
    values = values.expand({bsz, -1, qlen, klen}).contiguous();
    return leave(values, context_position, memory_position, relative_position, rp_bucket);
  }
  static X relative_position_bucket(const X& relative_position) {
    X n = relative_position.neg();
    X ret = X(aten("lt", {Tensor(n), I{0}})).to(DType::int64).mul(16).add(0);
    n = aten("abs", {Tensor(n)});
    X is_small = aten("lt", {Tensor(n), I{8}});
    X val_if_large = n.to_float().div(8);
    val_if_large = aten("log", {Tensor(std::move(val_if_large))});
    val_if_large = std::move(val_if_large).div(1.0).mul(8).to(DType::int64).add(8);
    {
      X most = aten("full_like", {Tensor(val_if_large), I{15}});
      val_if_large = aten("min", {Tensor(val_if_large), Tensor(std::move(most))});
    }
    ret = ret.add_(where(is_small, n, val_if_large));
    return leave(ret, n, is_small, val_if_large);
  }

  Layers<MPNetLayer> layers_;
  Embedding& relative_attention_bias;
};

NetworkPtr mpnet(const Config& config, const Options& o) {
  EncoderForm f = roberta_form("MPNet", "mpnet");
  f.adjust = [](EncoderConfig& c) { c.classifier_dropout = c.hidden_dropout; };
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<MPNetEmbeddings>(c); };
  f.masked_encoder = [](const EncoderConfig& c) { return std::make_shared<MPNetEncoder>(c); };
  return make_encoder(config, o, std::move(f));
}
const Family mpnet_family{{"mpnet"}, bidirectional_classes("MPNet", mpnet)};

}  // namespace
}  // namespace memest::hf
