// models/ctrl/modeling_ctrl.py.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// eager_attention_forward of bert: the softmax keeps the scores' type.
Pair ctrl_eager_attention_forward(const X& query, const X& key, const X& value, const AttentionCall& call) {
  X attn_weights = query.matmul(key.transpose(2, 3)).mul(1.0);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}

class CTRLAttention final : public DecoderAttention {
 public:
  CTRLAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "MultiHeadAttention") {
    dropout_ = 0;
    q_proj_ = &child<Linear>("Wq", c.hidden, c.hidden);
    k_proj_ = &child<Linear>("Wk", c.hidden, c.hidden);
    v_proj_ = &child<Linear>("Wv", c.hidden, c.hidden);
    o_proj_ = &child<Linear>("dense", c.hidden, c.hidden);
  }

 protected:
  void rotate(Frame&, const LayerCall&) override {}
  Pair attend(Frame& f, AttentionCall call) override {
    return options_.attention == Attention::sdpa ? sdpa_attention_forward(f.query, f.key, f.value, std::move(call))
                                                 : ctrl_eager_attention_forward(f.query, f.key, f.value, call);
  }
};

/// nn.Sequential(nn.Linear, nn.ReLU, nn.Linear).
class FeedForward final : public Unary {
 public:
  FeedForward(I width, I inner)
      : Unary("Sequential"),
        first(child<Linear>("0", width, inner)),
        second((child<Activation>("1", "relu"), child<Linear>("2", inner, width))) {}

 protected:
  X forward(X input) override {
    input = first(input);
    input = X(ops::relu(input));
    input = second(input);
    return input;
  }

 private:
  Linear &first, &second;
};

class CTRLLayer final : public DecoderLayer {
 public:
  CTRLLayer(const DecoderConfig& c, I layer) : DecoderLayer("EncoderLayer", c.options) {
    const double dropout = c.file.number_or("resid_pdrop", 0.1);
    multi_head_attention_ = register_module("multi_head_attention", std::make_shared<CTRLAttention>(c, layer));
    ffn_ = register_module("ffn", std::make_shared<FeedForward>(c.hidden, c.file.size("dff")));
    layernorm1 = &child<LayerNorm>("layernorm1", c.hidden);
    layernorm2 = &child<LayerNorm>("layernorm2", c.hidden);
    dropout1 = &child<Dropout>("dropout1", dropout);
    dropout2 = &child<Dropout>("dropout2", dropout);
  }

 protected:
  X forward(X x, const LayerCall& call) override {
    X normed = (*layernorm1)(x);
    auto [attn_output, weights] = (*multi_head_attention_)(normed, call);
    attn_output = (*dropout1)(attn_output);
    X out1 = x.add(attn_output);
    X out2 = (*layernorm2)(out1);
    X ffn_output = (*ffn_)(out2);
    ffn_output = (*dropout2)(ffn_output);
    out2 = out1.add(ffn_output);
    return leave(out2, x, normed, attn_output, weights, out1, ffn_output);
  }

 private:
  MixerPtr multi_head_attention_;
  UnaryPtr ffn_;
  LayerNorm *layernorm1, *layernorm2;
  Dropout *dropout1, *dropout2;
};

class CTRLModel final : public DecoderBody {
 public:
  explicit CTRLModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("CTRLModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    w = &child<Embedding>("w", c_->vocab, c_->hidden);
    dropout = &child<Dropout>("dropout", c_->file.number_or("embd_pdrop", 0.1));
    h_ = add_layers("h", c_->layers, [this](I i) { return std::make_shared<CTRLLayer>(*c_, i); });
    layernorm = &child<LayerNorm>("layernorm", c_->hidden);
    new_buffer("pos_encoding", {c_->file.size("max_position_embeddings"), c_->hidden}, DType::float32);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*w)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = arange(inputs_embeds.size(1));
    position_ids = position_ids.unsqueeze(0);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    inputs_embeds = aten("mul_", {Tensor(inputs_embeds), 1.0});
    if (buffer(0).dtype() != inputs_embeds.dtype()) {  // self.pos_encoding = self.pos_encoding.to(dtype): the buffer stays in that type
      X moved = X(buffer(0)).to(inputs_embeds.dtype());
      buffer(0)->dtype = moved.dtype();
      buffer(0)->storage = moved->storage;
    }
    X pos_embeds = aten("index", {Tensor(buffer(0)), make_list({Tensor(position_ids)})});
    X hidden_states = inputs_embeds.add(pos_embeds).add(0);
    hidden_states = (*dropout)(hidden_states);
    for (auto& layer : h_) hidden_states = (*layer)(hidden_states, {causal_mask, {}, {}, cache.get()});
    hidden_states = (*layernorm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* w;
  Dropout* dropout;
  std::vector<DecoderLayerPtr> h_;
  LayerNorm* layernorm;
};

class CTRLForSequenceClassification final : public Network {
 public:
  explicit CTRLForSequenceClassification(const std::shared_ptr<const DecoderConfig>& c)
      : Network("CTRLForSequenceClassification", c->options),
        c_(c),
        transformer_(register_module("transformer", std::make_shared<CTRLModel>(c))),
        classifier(child<Linear>("classifier", c->hidden, num_labels(c->file), false)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = (*transformer_)(batch.input);
    X logits = classifier(hidden_states);
    return classify_last_token(c_->file, batch.input, logits, batch.labels, nullptr);
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<CTRLModel> transformer_;
  Linear& classifier;
};

NetworkPtr ctrl(const Config& config, const Options& o) {
  if (o.task == Task::seq_cls) return std::make_shared<CTRLForSequenceClassification>(std::make_shared<const DecoderConfig>(config, o));
  DecoderForm f;
  f.prefix = "CTRL";
  f.causal_suffix = "LMHeadModel";
  f.base_prefix = "transformer";
  f.embedding_name = "w";
  f.head_bias = true;
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<CTRLModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family ctrl_family{
    {"ctrl"},
    {{Task::causal_lm, "CTRLLMHeadModel", ctrl}, {Task::seq_cls, "CTRLForSequenceClassification", ctrl}, {Task::base, "CTRLModel", ctrl}}};

}  // namespace
}  // namespace memest::hf
