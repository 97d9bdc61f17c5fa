// models/gpt2/modeling_gpt2.py, without cross-attention's inputs.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"
#include "models/hf/padding.h"
#include "models/hf/release.h"

namespace memest::hf {
namespace {

/// Conv1D (pytorch_utils.py): a linear layer whose weight is [in, out].
class Conv1D final : public Module<Conv1D>, public nn::Adaptable {
 public:
  Conv1D(I out, I in) : Module("Conv1D"), out_(out) {
    new_parameter("weight", {in, out});
    new_parameter("bias", {out});
  }
  bool transposed() const override { return true; }
  X forward(X x) {
    if (quantized()) return adapted(x, product(x, parameter(0), parameter(1)));  // replaced by a linear layer of bitsandbytes
    const X input = x;                                                           // the caller holds it
    const Dims size_out = x.sizes().slice(0, x.dim() - 1) + Dims{out_};
    x = aten("addmm", {Tensor(parameter(1)), Tensor(x.view({-1, x.size(-1)})), Tensor(parameter(0))});
    x = x.view(size_out);
    return adapted(input, std::move(x));
  }

 private:
  I out_;
};

/// eager_attention_forward of gpt2: the softmax keeps the scores' type, and the result is transposed only.
Pair gpt2_eager_attention_forward(const X& query, const X& key, const X& value, const AttentionCall& call) {
  X attn_weights = query.matmul(key.transpose(-1, -2)).mul(1.0);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  attn_weights = attn_weights.to(value.dtype());
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2);
  return {attn_output, attn_weights};
}

class GPT2Attention final : public Mixer {
 public:
  GPT2Attention(const DecoderConfig& c, I layer, bool is_cross_attention)
      : Mixer("GPT2Attention"), options_(c.options), layer_(layer), split_size_(c.hidden), head_dim_(c.hidden / c.heads) {
    if (release().gpt2_registers_mask()) {
      const I positions = c.file.size("n_positions");
      new_buffer("bias", {1, 1, positions, positions}, DType::boolean);
    }
    if (release().gpt2_registers_mask_value()) new_buffer("masked_bias", {}, runtime().default_dtype);
    c_attn = &child<Conv1D>("c_attn", (is_cross_attention ? 2 : 3) * c.hidden, c.hidden);
    if (is_cross_attention) child<Conv1D>("q_attn", c.hidden, c.hidden);
    c_proj = &child<Conv1D>("c_proj", c.hidden, c.hidden);
    dropout_ = c.file.number_or("attn_pdrop", 0.1);
    child<Dropout>("attn_dropout", dropout_);
    resid_dropout = &child<Dropout>("resid_dropout", c.file.number_or("resid_pdrop", 0.1));
    if (options_.attention == Attention::eager && c.file.boolean_or("reorder_and_upcast_attn", false))
      throw c.file.error("reorder_and_upcast_attn", "memest does not build GPT-2's upcast eager attention; use --attn sdpa");
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    std::vector<X> states = (*c_attn)(hidden_states).split(split_size_, 2);
    const Dims shape = states[0].sizes().slice(0, 2) + Dims{-1, head_dim_};
    X key_states = states[1].view(shape).transpose(1, 2);
    X value_states = states[2].view(shape).transpose(1, 2);
    X query_states = states[0].view(shape).transpose(1, 2);
    states.clear();
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    const AttentionCall arguments{.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training};
    auto [attn_output, attn_weights] = options_.attention != Attention::eager
                                           ? attention_interface(options_, query_states, key_states, value_states, arguments)
                                           : gpt2_eager_attention_forward(query_states, key_states, value_states, arguments);
    attn_output = attn_output.reshape(attn_output.sizes().slice(0, 2) + Dims{-1}).contiguous();
    attn_output = (*c_proj)(attn_output);
    attn_output = (*resid_dropout)(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, split_size_, head_dim_;
  double dropout_;
  Conv1D *c_attn, *c_proj;
  Dropout* resid_dropout;
};

class GPT2MLP final : public Unary {
 public:
  GPT2MLP(I intermediate, const DecoderConfig& c)
      : Unary("GPT2MLP"),
        c_fc(child<Conv1D>("c_fc", intermediate, c.hidden)),
        c_proj(child<Conv1D>("c_proj", c.hidden, intermediate)),
        act(child<Activation>("act", c.file.text_or("activation_function", "gelu_new"))),
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
  Conv1D &c_fc, &c_proj;
  Activation& act;
  Dropout& dropout;
};

class GPT2Block final : public DecoderLayer {
 public:
  GPT2Block(const DecoderConfig& c, I layer) : DecoderLayer("GPT2Block", c.options) {
    ln_1 = &child<LayerNorm>("ln_1", c.hidden);
    attn_ = register_module("attn", std::make_shared<GPT2Attention>(c, layer, false));
    ln_2 = &child<LayerNorm>("ln_2", c.hidden);
    if (c.file.boolean_or("add_cross_attention", false)) {
      child<GPT2Attention>("crossattention", c, layer, true);
      child<LayerNorm>("ln_cross_attn", c.hidden);
    }
    mlp_ = register_module("mlp", std::make_shared<GPT2MLP>(c.file.size_or("n_inner", 4 * c.hidden), c));
  }

 protected:
  bool mask_by_position() const override { return true; }
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*ln_1)(hidden_states);
    auto [attn_output, weights] = (*attn_)(hidden_states, call);
    hidden_states = attn_output.add(residual);
    residual = hidden_states;
    hidden_states = (*ln_2)(hidden_states);
    X feed_forward_hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(feed_forward_hidden_states);
    return leave(hidden_states, residual, attn_output, feed_forward_hidden_states);
  }

 private:
  LayerNorm *ln_1, *ln_2;
  MixerPtr attn_;
  UnaryPtr mlp_;
};

class GPT2Model final : public DecoderBody {
 public:
  explicit GPT2Model(std::shared_ptr<const DecoderConfig> c) : DecoderBody("GPT2Model"), c_(std::move(c)) {
    wte = &child<Embedding>("wte", c_->vocab, c_->hidden);
    wpe = &child<Embedding>("wpe", c_->file.size("max_position_embeddings"), c_->hidden);
    drop = &child<Dropout>("drop", c_->file.number_or("embd_pdrop", 0.1));
    h_ = add_layers("h", c_->layers, [this](I i) { return std::make_shared<GPT2Block>(*c_, i); });
    ln_f = &child<LayerNorm>("ln_f", c_->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    if (c_->options.packed) warn_if_padding(c_->file, input_ids);  // generate() gives a mask
    CachePtr cache = new_cache(*c_, training);
    X inputs_embeds = (*wte)(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    X position_embeds = (*wpe)(position_ids);
    X hidden_states = inputs_embeds.add(position_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    hidden_states = (*drop)(hidden_states);
    const Dims output_shape{-1, input_ids.size(1), hidden_states.size(-1)};
    for (auto& block : h_) hidden_states = (*block)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
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

NetworkPtr gpt2(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "GPT2";
  f.causal_suffix = "LMHeadModel";
  f.base_prefix = "transformer";
  f.embedding_name = "wte";
  f.token_classifier_name = "classifier";
  f.token_classification_loss = flat_cross_entropy;
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GPT2Model>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family gpt2_family{{"gpt2", "gpt-sw3"},
                         {{Task::causal_lm, "GPT2LMHeadModel", gpt2},
                          {Task::seq_cls, "GPT2ForSequenceClassification", gpt2},
                          {Task::question_answering, "GPT2ForQuestionAnswering", gpt2},
                          {Task::token_cls, "GPT2ForTokenClassification", gpt2},
                          {Task::base, "GPT2Model", gpt2}}};

}  // namespace
}  // namespace memest::hf
