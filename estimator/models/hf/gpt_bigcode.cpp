// models/gpt_bigcode/modeling_gpt_bigcode.py, without cross-attention's inputs.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class GPTBigCodeAttention final : public DecoderAttention {
 public:
  GPTBigCodeAttention(const DecoderConfig& c, I layer, bool is_cross_attention)
      : DecoderAttention(c, layer, "GPTBigCodeAttention"), multi_query_(c.file.boolean_or("multi_query", true)), embed_dim_(c.hidden) {
    kv_heads_ = multi_query_ ? 1 : heads_;
    groups_ = heads_ / kv_heads_;
    dropout_ = c.file.number_or("attn_pdrop", 0.1);
    c_attn = &child<Linear>("c_attn", embed_dim_, is_cross_attention ? 2 * embed_dim_ : embed_dim_ + 2 * kv_heads_ * head_dim_);
    if (is_cross_attention) child<Linear>("q_attn", embed_dim_, embed_dim_);
    o_proj_ = &child<Linear>("c_proj", embed_dim_, embed_dim_);
    resid_dropout = &child<Dropout>("resid_dropout", c.file.number_or("resid_pdrop", 0.1));
  }

 protected:
  void project(Frame& f) override {
    std::vector<X> parts;
    if (multi_query_) {
      parts = (*c_attn)(f.hidden_states).unsqueeze(1).split(Dims{embed_dim_, head_dim_, head_dim_}, 3);
      f.query = parts[0], f.key = parts[1], f.value = parts[2];
      f.query = f.query.view(f.hidden_shape).transpose(1, 2);
    } else {
      parts = (*c_attn)(f.hidden_states)
                  .view(f.input_shape + Dims{heads_, 3 * head_dim_})
                  .transpose(1, 2)
                  .split(Dims{head_dim_, head_dim_, head_dim_}, 3);
      f.query = parts[0], f.key = parts[1], f.value = parts[2];
    }
  }
  void rotate(Frame&, const LayerCall&) override {}
  X output(X attn_output) override {
    attn_output = (*o_proj_)(attn_output);
    attn_output = (*resid_dropout)(attn_output);
    return attn_output;
  }

 private:
  bool multi_query_;
  I embed_dim_;
  Linear* c_attn;
  Dropout* resid_dropout;
};

class GPTBigCodeMLP final : public Unary {
 public:
  GPTBigCodeMLP(I intermediate, const DecoderConfig& c)
      : Unary("GPTBigCodeMLP"),
        c_fc(child<Linear>("c_fc", c.hidden, intermediate)),
        c_proj(child<Linear>("c_proj", intermediate, c.hidden)),
        act(child<Activation>("act", c.file.text_or("activation_function", "gelu_pytorch_tanh"))),
        dropout(child<Dropout>("dropout", c.file.number_or("resid_pdrop", 0.1))) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = c_fc(hidden_states);
    hidden_states = act(hidden_states);
    hidden_states = c_proj(hidden_states);
    hidden_states = dropout(hidden_states);
    return hidden_states;
  }

 private:
  Linear &c_fc, &c_proj;
  Activation& act;
  Dropout& dropout;
};

class GPTBigCodeBlock final : public DecoderLayer {
 public:
  GPTBigCodeBlock(const DecoderConfig& c, I layer) : DecoderLayer("GPTBigCodeBlock", c.options) {
    ln_1 = &child<LayerNorm>("ln_1", c.hidden);
    attn_ = register_module("attn", std::make_shared<GPTBigCodeAttention>(c, layer, false));
    ln_2 = &child<LayerNorm>("ln_2", c.hidden);
    if (c.file.boolean_or("add_cross_attention", false)) {
      if (c.file.boolean_or("multi_query", true))
        throw c.file.error("add_cross_attention", "transformers has no cross-attention with multi_query");
      child<GPTBigCodeAttention>("crossattention", c, layer, true);
      child<LayerNorm>("ln_cross_attn", c.hidden);
    }
    mlp_ = register_module("mlp", std::make_shared<GPTBigCodeMLP>(c.file.size_or("n_inner", 4 * c.hidden), c));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*ln_1)(hidden_states);
    auto [attn_output, weights] = (*attn_)(hidden_states, call);
    hidden_states = attn_output.add(residual);
    residual = hidden_states;
    hidden_states = (*ln_2)(hidden_states);
    X feed_forward_hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(feed_forward_hidden_states);
    return leave(hidden_states, residual, attn_output, weights, feed_forward_hidden_states);
  }

 private:
  LayerNorm *ln_1, *ln_2;
  MixerPtr attn_;
  UnaryPtr mlp_;
};

class GPTBigCodeModel final : public DecoderBody {
 public:
  explicit GPTBigCodeModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("GPTBigCodeModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    const I positions = c_->file.size("max_position_embeddings");
    wte = &child<Embedding>("wte", c_->vocab, c_->hidden);
    wpe = &child<Embedding>("wpe", positions, c_->hidden);
    drop = &child<Dropout>("drop", c_->file.number_or("embd_pdrop", 0.1));
    h_ = add_layers("h", c_->layers, [this](I i) { return std::make_shared<GPTBigCodeBlock>(*c_, i); });
    ln_f = &child<LayerNorm>("ln_f", c_->hidden);
    new_buffer("bias", {positions, positions}, DType::boolean);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    CachePtr cache = new_cache(*c_, training);
    X inputs_embeds = (*wte)(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X position_embeds = (*wpe)(position_ids);
    X hidden_states = inputs_embeds.add(position_embeds);
    hidden_states = (*drop)(hidden_states);
    const Dims output_shape = inputs_embeds.sizes().slice(0, 2) + Dims{hidden_states.size(-1)};
    for (auto& block : h_) hidden_states = (*block)(hidden_states, {causal_mask, {}, {}, cache.get()});
    hidden_states = (*ln_f)(hidden_states);
    hidden_states = hidden_states.view(output_shape);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding *wte, *wpe;
  Dropout* drop;
  std::vector<DecoderLayerPtr> h_;
  LayerNorm* ln_f;
};

NetworkPtr gpt_bigcode(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "GPTBigCode";
  f.base_prefix = "transformer";
  f.embedding_name = "wte";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GPTBigCodeModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family gpt_bigcode_family{{"gpt_bigcode"}, decoder_classes("GPTBigCode", gpt_bigcode)};

}  // namespace
}  // namespace memest::hf
