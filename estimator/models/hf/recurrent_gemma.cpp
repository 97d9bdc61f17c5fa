// models/recurrent_gemma: gated linear recurrences, with local attention in some layers. The recurrences' states are attributes of their
// modules, which live on between calls.
#include "models/hf/decoder.h"
#include "models/hf/linear_attention.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

X logical_not(const X& x) { return aten("bitwise_not", {Tensor(x)}); }
X to_type(const X& x, DType dtype) { return x.to(dtype); }

/// SqrtBoundDerivative, an autograd.Function.
X sqrt_bound_derivative(const X& x) {
  auto fn = node("SqrtBoundDerivativeBackward", {Tensor(x)}, {Tensor(x)}, [](Backward& w, T saved) {
    X clipped_x_times_4 = aten("clip", {Tensor(X(saved).mul(4.0)), 1e-6});
    w.out[0] = X(w.grad[0]).div(clipped_x_times_4.sqrt());
  });
  X y;
  {
    NoGrad guard;
    y = x.sqrt();
  }
  fn.outputs({y});
  return y;
}

class RecurrentGemmaAttention final : public DecoderAttention {
 public:
  RecurrentGemmaAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "RecurrentGemmaAttention", {c.attention_bias, c.attention_bias, c.attention_bias, true}) {
    rotary_emb = register_module(
        "rotary_emb", std::make_shared<RotaryEmbedding>("RecurrentGemmaRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5)));
  }

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    auto [cos, sin] = (*rotary_emb)(f.value, call.position_ids);
    f.locals = {cos, sin};
    std::tie(f.query, f.key) = apply_rotary_named(f.query, f.key, cos, sin);
  }

 private:
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

class RecurrentGemmaRglru final : public Module<RecurrentGemmaRglru> {
 public:
  RecurrentGemmaRglru(I width, I heads) : Module("RecurrentGemmaRglru"), heads_(heads), block_width_(width / heads) {
    new_parameter("recurrent_param", {width});
    new_parameter("input_gate_weight", {heads, block_width_, block_width_});
    new_parameter("input_gate_bias", {heads, block_width_});
    new_parameter("recurrent_gate_weight", {heads, block_width_, block_width_});
    new_parameter("recurrent_gate_bias", {heads, block_width_});
  }
  X recurrent_states;

  X forward(X activations, X position_ids) {
    const I batch_size = activations.size(0), seq_len = activations.size(1), lru_width = activations.size(2);
    X reset = aten("eq", {Tensor(position_ids.whole_slices(2).unsqueeze(2)), I{0}});
    X reshape_act = activations.reshape({batch_size * seq_len, heads_, block_width_});
    reshape_act = reshape_act.permute({1, 0, 2});
    X res;
    auto gate = [&](std::size_t weight, std::size_t bias) {
      X bias_rows = X(parameter(bias)).whole_slices(1).unsqueeze(1);
      res = ops::baddbmm(std::move(bias_rows), reshape_act, parameter(weight), 1, 1);
      return res.transpose(0, 1).reshape({batch_size, seq_len, lru_width}).sigmoid();
    };
    X input_gate = gate(1, 2);
    X recurrent_gate = gate(3, 4);
    // Compute the parameter `A` of the recurrence.
    X scaled = recurrent_gate.mul(-8.0);
    X log_recurrent_gate = std::move(scaled).mul(aten("softplus", {Tensor(parameter(0))}));
    recurrent_gate = log_recurrent_gate.exp();
    X a_square = log_recurrent_gate.mul(2).exp();
    // Gate the input.
    X gated_inputs = activations.mul(input_gate);
    X multiplier = sqrt_bound_derivative(aten("rsub", {Tensor(a_square), I{1}}));
    multiplier = reset.add(logical_not(reset).mul(multiplier));
    X normalized_x = gated_inputs.mul(to_type(multiplier, activations.dtype()));
    X hidden_states;
    std::tie(hidden_states, recurrent_states) = rnn_scan(normalized_x, recurrent_gate, reset, recurrent_states);
    return hidden_states;
  }

 private:
  static Pair rnn_scan(const X& hidden_states, X recurrent_gate, const X& reset, X states) {
    recurrent_gate = recurrent_gate.mul(logical_not(reset));
    if (hidden_states.size(1) == 1) {
      if (!states) return {hidden_states, to_type(hidden_states.whole_slices(1).select(1, 0), DType::float32)};
      X contextualized_states = recurrent_gate.to_float().mul(states.whole_slices(1).unsqueeze(1));
      contextualized_states = ops::add_(contextualized_states, hidden_states.to_float(), 1);
      return {to_type(contextualized_states, hidden_states.dtype()), contextualized_states.whole_slices(1).select(1, -1)};
    }
    if (!states) states = zeros({hidden_states.size(0), hidden_states.size(2)}, DType::float32);
    X contextualized_states = aten("zeros_like", {Tensor(hidden_states)});
    for (I t = 0; t < hidden_states.size(1); ++t) {
      states = recurrent_gate.whole_slices(1).select(1, t).to_float().mul(states);
      states = states.add(hidden_states.whole_slices(1).select(1, t).to_float());
      set_item(contextualized_states.whole_slices(1).select(1, t), to_type(states, hidden_states.dtype()));
    }
    return {contextualized_states, states};
  }

  I heads_, block_width_;
};

class RecurrentGemmaRecurrentBlock final : public Mixer {
 public:
  explicit RecurrentGemmaRecurrentBlock(const DecoderConfig& c)
      : Mixer("RecurrentGemmaRecurrentBlock"),
        hidden_size_(c.hidden),
        lru_width_(c.file.size_or("lru_width", c.hidden)),
        conv1d_width_(c.file.size("conv1d_width")) {
    if (lru_width_ % c.heads != 0)
      throw c.file.error("lru_width",
                         "the width " + std::to_string(lru_width_) + " is not a multiple of " + std::to_string(c.heads) + " heads");
    linear_y = &child<Linear>("linear_y", c.hidden, lru_width_);
    linear_x = &child<Linear>("linear_x", c.hidden, lru_width_);
    linear_out = &child<Linear>("linear_out", lru_width_, c.hidden);
    conv_1d = &child<Conv1d>("conv_1d", lru_width_, lru_width_, conv1d_width_, 1, conv1d_width_ - 1, true, lru_width_);
    rg_lru = &child<RecurrentGemmaRglru>("rg_lru", lru_width_, c.heads);
    act_fn = &child<Activation>("act_fn", c.file.text_or("hidden_activation", "gelu_pytorch_tanh"));
  }
  void setup_cache(I batch_size, DType dtype) {
    rg_lru->recurrent_states = zeros({batch_size, lru_width_}, DType::float32);
    conv1d_state_ = zeros({batch_size, hidden_size_, conv1d_width_ - 1}, dtype);
    count_as_cache();
  }

 protected:
  Pair forward(X input_states, const LayerCall& call) override {
    const I batch_size = input_states.size(0), seq_len = input_states.size(1);
    X y_branch = (*linear_y)(input_states);
    y_branch = (*act_fn)(y_branch);
    X x_branch = (*linear_x)(input_states);
    x_branch = x_branch.transpose(1, 2);
    X conv_state;
    if (call.cache) {
      if (!conv1d_state_ || conv1d_state_.size(0) != batch_size) {
        conv1d_state_ = zeros({batch_size, hidden_size_, conv1d_width_ - 1}, input_states.dtype());
        rg_lru->recurrent_states = zeros({batch_size, lru_width_}, DType::float32);
      }
      if (call.position_ids.size(1) != 1) {
        conv1d_state_ = aten("constant_pad_nd", {Tensor(x_branch), list_of(Dims{conv1d_width_ - x_branch.size(-1) - 1, 0}), I{0}});
        x_branch = convolved(x_branch, seq_len);
      } else {
        conv_state = cat({conv1d_state_, x_branch}, -1);
        x_branch = conv_state.mul(X(conv_1d->weight()).whole_slices(1).select(1, 0)).sum(-1).add(X(conv_1d->bias()));
        x_branch = x_branch.unsqueeze(-1);
        conv1d_state_ = conv_state.whole_slices(2).slice(2, 1, std::nullopt);
      }
    } else {
      conv1d_state_.reset();
      rg_lru->recurrent_states.reset();
      x_branch = convolved(x_branch, seq_len);
    }
    x_branch = (*rg_lru)(x_branch.transpose(1, 2), call.position_ids);
    if (call.cache) count_as_cache();
    X hidden_states = x_branch.mul(y_branch);
    hidden_states = (*linear_out)(hidden_states);
    return {hidden_states, {}};
  }

 private:
  X convolved(const X& x_branch, I seq_len) { return (*conv_1d)(x_branch).slice(-1, std::nullopt, seq_len); }
  void count_as_cache() const {
    if (runtime().grad_mode) return;
    for (const X& state : {conv1d_state_, rg_lru->recurrent_states})
      if (state) state->storage->categorize(Category::kv_cache);
  }

  I hidden_size_, lru_width_, conv1d_width_;
  X conv1d_state_;
  Linear *linear_y, *linear_x, *linear_out;
  Conv1d* conv_1d;
  RecurrentGemmaRglru* rg_lru;
  Activation* act_fn;
};

class RecurrentGemmaMlp final : public Unary {
 public:
  explicit RecurrentGemmaMlp(const DecoderConfig& c)
      : Unary("RecurrentGemmaMlp"),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate / 2)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate / 2)),
        down_proj(child<Linear>("down_proj", c.intermediate / 2, c.hidden)),
        act_fn(child<Activation>("act_fn", c.file.text_or("hidden_activation", "gelu_pytorch_tanh"))) {}

 protected:
  X forward(X hidden_states) override {
    X gate = act_fn(gate_proj(hidden_states));
    return down_proj(gate.mul(up_proj(hidden_states)));
  }

 private:
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
};

class RecurrentGemmaDecoderLayer final : public DecoderLayer {
 public:
  RecurrentGemmaDecoderLayer(const DecoderConfig& c, I layer) : DecoderLayer("RecurrentGemmaDecoderLayer", c.options) {
    temporal_pre_norm_ = register_module("temporal_pre_norm", make_norm(Norm::gemma, c.hidden, "RecurrentGemmaRMSNorm"));
    if (c.sliding(layer)) {
      temporal_block_ = std::make_shared<RecurrentGemmaAttention>(c, layer);
    } else {
      recurrent = std::make_shared<RecurrentGemmaRecurrentBlock>(c);
      temporal_block_ = recurrent;
    }
    register_module("temporal_block", temporal_block_);
    channel_pre_norm_ = register_module("channel_pre_norm", make_norm(Norm::gemma, c.hidden, "RecurrentGemmaRMSNorm"));
    mlp_block_ = register_module("mlp_block", std::make_shared<RecurrentGemmaMlp>(c));
  }
  std::shared_ptr<RecurrentGemmaRecurrentBlock> recurrent;  ///< null where the layer has an attention

 protected:
  X forward(X activations, const LayerCall& call) override {
    X raw_activations = activations;
    X inputs_normalized = (*temporal_pre_norm_)(raw_activations);
    auto [hidden_states, weights] = (*temporal_block_)(inputs_normalized, call);
    X residual = hidden_states.add(raw_activations);
    hidden_states = (*channel_pre_norm_)(residual);
    hidden_states = (*mlp_block_)(hidden_states);
    hidden_states = hidden_states.add(residual);
    return hidden_states;
  }

 private:
  UnaryPtr temporal_pre_norm_, channel_pre_norm_, mlp_block_;
  MixerPtr temporal_block_;
};

class RecurrentGemmaModel final : public DecoderBody {
 public:
  explicit RecurrentGemmaModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("RecurrentGemmaModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    layers_ = add_layers("layers", c_->layers, [&](I i) {
      auto layer = std::make_shared<RecurrentGemmaDecoderLayer>(*c_, i);
      if (layer->recurrent) recurrent_.push_back(layer->recurrent);
      return layer;
    });
    final_norm_ = register_module("final_norm", make_norm(Norm::gemma, c_->hidden, "RecurrentGemmaRMSNorm"));
    new_buffer("normalizer", {}, DType::bfloat16);
  }
  CachePtr new_generation_cache(const DecoderConfig& c) const override {
    CachePtr cache = dynamic_cache(c);
    generation_cache_ = cache;
    return cache;
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(*c_, training);
    if (cache && cache != generation_cache_.lock())  // DynamicCache(config), made here
      for (auto& block : recurrent_) block->setup_cache(hidden_states.size(0), hidden_states.dtype());
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask =
        create_sliding_window_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids}, c_->file.size("attention_window_size"));
    hidden_states = hidden_states.mul(X(buffer(0)).to(hidden_states.dtype()));
    for (auto& residual_block : layers_) hidden_states = (*residual_block)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
    hidden_states = (*final_norm_)(hidden_states);
    return {hidden_states, {}};  // RecurrentGemmaForCausalLM's output has no cache
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  std::vector<std::shared_ptr<RecurrentGemmaRecurrentBlock>> recurrent_;
  UnaryPtr final_norm_;
  mutable std::weak_ptr<Cache> generation_cache_;
};

NetworkPtr recurrent_gemma(const Config& given, const Options& o) {
  Config config = given;
  const auto blocks = config.texts("block_types");
  if (blocks.empty()) throw config.error("block_types", "the list is empty");
  for (auto& block : blocks)
    if (block != "recurrent" && block != "attention")
      throw config.error("block_types", "the types are recurrent and attention, found '" + block.substr(0, 60) + "'");
  default_layer_types(
      config, [&](I i) { return blocks[std::size_t(i) % blocks.size()] == "recurrent" ? "linear_attention" : "sliding_attention"; });
  DecoderForm f;
  f.prefix = "RecurrentGemma";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<RecurrentGemmaModel>(std::move(c));
  };
  f.logits = [](X logits, const DecoderConfig&) { return logits.div(30.0).tanh().mul(30.0); };
  return make_decoder(config, o, std::move(f));
}
const Family recurrent_gemma_family{
    {"recurrent_gemma"},
    {{Task::causal_lm, "RecurrentGemmaForCausalLM", recurrent_gemma}, {Task::base, "RecurrentGemmaModel", recurrent_gemma}}};

}  // namespace
}  // namespace memest::hf
