// models/gptj and models/codegen: sinusoidal tables as a buffer, neighbours rotated, attention and MLP side by side.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// GPTJRotaryEmbedding, CodeGenRotaryEmbedding: returns (sin, cos); codegen keeps them in fp32.
class SinusoidalEmbedding final : public Base {
 public:
  SinusoidalEmbedding(std::string type, I positions, I width, bool cast) : Base(std::move(type)), cast_(cast) {
    new_buffer("embed_positions", {positions, 2 * ceil_div(width, 2)}, DType::float32);
  }
  Pair operator()(X x, X position_ids) {
    Entered scope(*this);
    X sincos = aten("index", {Tensor(buffer(0)), make_list({Tensor(position_ids)})});
    if (cast_) sincos = sincos.to(x.dtype());
    std::vector<X> halves = sincos.split(sincos.size(-1) / 2, -1);
    return {halves[0], halves[1]};
  }

 private:
  bool cast_;
};

X rotate_every_two(X x) {
  X x1 = x.slice(3, std::nullopt, std::nullopt, 2);
  X x2 = x.slice(3, 1, std::nullopt, 2);
  std::vector<X> parts;
  parts.push_back(x2.neg());
  parts.push_back(x1);
  x = stack(std::move(parts), -1);
  return leave(x.flatten(-2), x, x1, x2);
}
X apply_rotary_pos_emb(X tensor, X sin, X cos) {
  sin = aten("repeat_interleave", {Tensor(sin.whole_slices(2).unsqueeze(2)), I{2}, I{3}});
  cos = aten("repeat_interleave", {Tensor(cos.whole_slices(2).unsqueeze(2)), I{2}, I{3}});
  X straight = tensor.mul(cos);
  X turned = rotate_every_two(tensor).mul(sin);
  X result = std::move(straight).add(std::move(turned));
  return leave(std::move(result), tensor, sin, cos);
}

/// eager_attention_forward of gptj: the scores in fp32.
Pair fp32_eager_attention_forward(X query, X key, X value, const AttentionCall& call) {
  X attn_weights = query.to(DType::float32).matmul(key.to(DType::float32).transpose(2, 3)).mul(1.0);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1).to(value.dtype());
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}

class GPTJAttention final : public DecoderAttention {
 public:
  GPTJAttention(const DecoderConfig& c, I layer, bool codegen)
      : DecoderAttention(c, layer, codegen ? "CodeGenAttention" : "GPTJAttention"),
        codegen_(codegen),
        width_(c.hidden),
        rotary_dim_(c.file.size("rotary_dim")) {
    dropout_ = c.file.number_or("attn_pdrop", 0.0);
    if (!codegen) {
      k_proj_ = &child<Linear>("k_proj", width_, width_, false);
      v_proj_ = &child<Linear>("v_proj", width_, width_, false);
      q_proj_ = &child<Linear>("q_proj", width_, width_, false);
    }
    o_proj_ = &child<Linear>("out_proj", width_, width_, false);
    resid_dropout_ = &child<Dropout>("resid_dropout", c.file.number_or("resid_pdrop", 0.0));
    if (codegen) qkv_proj_ = &child<Linear>("qkv_proj", width_, 3 * width_, false);
  }

 protected:
  void project(Frame& f) override {
    if (!codegen_) {
      f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape);
      f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape);
      f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
      return;
    }
    const I local_dim = width_ / kShards;
    X qkv = (*qkv_proj_)(f.hidden_states).view(f.input_shape + Dims{-1, 3 * local_dim});
    std::vector<X> parts = qkv.split(local_dim, -1);
    f.query = parts[0], f.value = parts[1], f.key = parts[2];
    parts.clear();
    f.query = f.query.reshape(f.hidden_shape);
    f.key = f.key.reshape(f.hidden_shape);
    f.value = f.value.reshape(f.hidden_shape).transpose(1, 2);
    f.locals = {qkv};
  }
  void rotate(Frame& f, const LayerCall& call) override {
    const auto& [sin, cos] = call.position_embeddings;
    X k_rot = f.key.slice(3, std::nullopt, rotary_dim_), k_pass = f.key.slice(3, rotary_dim_, std::nullopt);
    X q_rot = f.query.slice(3, std::nullopt, rotary_dim_), q_pass = f.query.slice(3, rotary_dim_, std::nullopt);
    k_rot = apply_rotary_pos_emb(k_rot, sin, cos);
    q_rot = apply_rotary_pos_emb(q_rot, sin, cos);
    f.key = cat({k_rot, k_pass}, -1);
    f.query = cat({q_rot, q_pass}, -1);
    for (X* x : {&k_rot, &k_pass, &q_rot, &q_pass}) f.locals.push_back(*x);
    f.query = f.query.transpose(1, 2);
    if (codegen_) f.query = f.query.to(f.value.dtype());
    f.key = f.key.transpose(1, 2);
    if (codegen_) f.key = f.key.to(f.value.dtype());
  }
  Pair attend(Frame& f, AttentionCall call) override {
    return options_.attention == Attention::sdpa ? sdpa_attention_forward(f.query, f.key, f.value, std::move(call))
                                                 : fp32_eager_attention_forward(f.query, f.key, f.value, call);
  }
  X output(X attn_output) override {
    attn_output = (*o_proj_)(attn_output);
    attn_output = (*resid_dropout_)(attn_output);
    return attn_output;
  }

 private:
  static constexpr I kShards = 4;  ///< mp_num: the fused projection's parts are interleaved by so many
  bool codegen_;
  I width_;
  I rotary_dim_;
  Linear* qkv_proj_ = nullptr;
  Dropout* resid_dropout_;
};

class GPTJMLP final : public Unary {
 public:
  GPTJMLP(std::string type, I intermediate, const DecoderConfig& c)
      : Unary(std::move(type)),
        fc_in(child<Linear>("fc_in", c.hidden, intermediate)),
        fc_out(child<Linear>("fc_out", intermediate, c.hidden)),
        act(child<Activation>("act", c.file.text_or("activation_function", "gelu_new"))),
        dropout(child<Dropout>("dropout", c.file.number_or("resid_pdrop", 0.0))) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = fc_in(hidden_states);
    hidden_states = act(hidden_states);
    hidden_states = fc_out(hidden_states);
    hidden_states = dropout(hidden_states);
    return hidden_states;
  }

 private:
  Linear &fc_in, &fc_out;
  Activation& act;
  Dropout& dropout;
};

class GPTJBlock final : public DecoderLayer {
 public:
  GPTJBlock(const DecoderConfig& c, I layer, bool codegen) : DecoderLayer(codegen ? "CodeGenBlock" : "GPTJBlock", c.options) {
    ln_1 = &child<LayerNorm>("ln_1", c.hidden);
    attn_ = register_module("attn", std::make_shared<GPTJAttention>(c, layer, codegen));
    mlp_ =
        register_module("mlp", std::make_shared<GPTJMLP>(codegen ? "CodeGenMLP" : "GPTJMLP", c.file.size_or("n_inner", 4 * c.hidden), c));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*ln_1)(hidden_states);
    auto [attn_output, weights] = (*attn_)(hidden_states, call);
    X feed_forward_hidden_states = (*mlp_)(hidden_states);
    X result = attn_output.add(feed_forward_hidden_states).add(residual);
    return leave(std::move(result), hidden_states, residual, attn_output, weights, feed_forward_hidden_states);
  }

 private:
  LayerNorm* ln_1;
  MixerPtr attn_;
  UnaryPtr mlp_;
};

class GPTJModel final : public DecoderBody {
 public:
  GPTJModel(std::shared_ptr<const DecoderConfig> config, bool codegen)
      : DecoderBody(codegen ? "CodeGenModel" : "GPTJModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    if (codegen && c_->hidden % 4 != 0) throw c_->file.error("hidden_size", "codegen's fused projection needs a multiple of 4");
    wte = &child<Embedding>("wte", c_->vocab, c_->hidden);
    drop = &child<Dropout>("drop", c_->file.number_or("embd_pdrop", 0.0));
    h_ = add_layers("h", c_->layers, [&](I i) { return std::make_shared<GPTJBlock>(*c_, i, codegen); });
    ln_f = &child<LayerNorm>("ln_f", c_->hidden);
    const I width = c_->file.size("rotary_dim");
    if (width > c_->head_dim)
      throw c_->file.error("rotary_dim", "expected at most a head's " + std::to_string(c_->head_dim) + ", found " + std::to_string(width));
    rotary_emb = &child<SinusoidalEmbedding>("rotary_emb", codegen ? "CodeGenRotaryEmbedding" : "GPTJRotaryEmbedding",
                                             c_->file.size("max_position_embeddings"), width, !codegen);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*wte)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    hidden_states = (*drop)(hidden_states);
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (auto& block : h_) hidden_states = (*block)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
    hidden_states = (*ln_f)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* wte;
  Dropout* drop;
  std::vector<DecoderLayerPtr> h_;
  LayerNorm* ln_f;
  SinusoidalEmbedding* rotary_emb;
};

template <bool codegen>
NetworkPtr make_gptj(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = codegen ? "CodeGen" : "GPTJ";
  f.base_prefix = "transformer";
  f.embedding_name = "wte";
  f.head_bias = true;
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GPTJModel>(std::move(c), codegen);
  };
  return make_decoder(config, o, std::move(f));
}
const Family gptj_family{{"gptj"}, decoder_classes("GPTJ", make_gptj<false>)};
const Family codegen_family{{"codegen"},
                            {{Task::causal_lm, "CodeGenForCausalLM", make_gptj<true>}, {Task::base, "CodeGenModel", make_gptj<true>}}};

}  // namespace
}  // namespace memest::hf
