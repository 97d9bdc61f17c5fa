// models/gemma3n, its text model: several hidden states side by side (AltUp), a low-rank residual (LAuReL), an embedding for each layer,
// and layers that share keys and values.
#include <algorithm>

#include "fake/checkpoint.h"
#include "models/hf/gemma_sharing.h"
#include "models/hf/linear_attention.h"

namespace memest::hf {
namespace {

PowRMSNorm& add_norm(nn::Module& owner, const char* name, I width, bool with_scale = true) {
  return *owner.register_module(name, std::make_shared<PowRMSNorm>("Gemma3nRMSNorm", width, with_scale));
}

struct Gemma3nCall {
  X mask;
  Pair position_embeddings;
  X position_ids;
  Cache* cache = nullptr;
  std::shared_ptr<SharedKv> shared;
};

class Gemma3nTextAttention final : public Module<Gemma3nTextAttention> {
 public:
  Gemma3nTextAttention(const DecoderConfig& c, I layer, KvSharing sharing)
      : Module("Gemma3nTextAttention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        dropout_(c.attention_dropout),
        type_(c.layer_types[std::size_t(layer)]),
        sharing_(sharing) {
    const bool b = c.attention_bias;
    q_proj = &child<Linear>("q_proj", c.hidden, c.heads * head_dim_, b);
    q_norm = &add_norm(*this, "q_norm", head_dim_);
    if (sharing != KvSharing::reuse) {
      k_proj = &child<Linear>("k_proj", c.hidden, c.kv_heads * head_dim_, b);
      v_proj = &child<Linear>("v_proj", c.hidden, c.kv_heads * head_dim_, b);
      k_norm = &add_norm(*this, "k_norm", head_dim_);
      v_norm = &add_norm(*this, "v_norm", head_dim_, false);
    }
    o_proj = &child<Linear>("o_proj", c.heads * head_dim_, c.hidden, b);
  }
  Pair forward(X hidden_states, const Gemma3nCall* call) {
    const Dims input_shape = hidden_states.sizes().slice(0, 2), hidden_shape = input_shape + Dims{-1, head_dim_};
    const auto& [cos, sin] = call->position_embeddings;
    X query_states = (*q_proj)(hidden_states).view(hidden_shape);
    query_states = (*q_norm)(query_states);
    query_states = rotated_before_transpose(query_states, cos, sin);
    query_states = query_states.transpose(1, 2);
    X key_states, value_states;
    if (sharing_ == KvSharing::reuse) {
      std::tie(key_states, value_states) = call->shared->at(type_);
    } else {
      key_states = (*k_proj)(hidden_states).view(hidden_shape);
      key_states = (*k_norm)(key_states);
      key_states = rotated_before_transpose(key_states, cos, sin);
      key_states = key_states.transpose(1, 2);
      value_states = (*v_proj)(hidden_states).view(hidden_shape);
      value_states = (*v_norm)(value_states);
      value_states = value_states.transpose(1, 2);
      if (call->cache) std::tie(key_states, value_states) = call->cache->update(key_states, value_states, layer_);
    }
    if (sharing_ == KvSharing::store) (*call->shared)[type_] = {key_states, value_states};
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call->mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = (*o_proj)(attn_output);
    return leave(Pair(attn_output, attn_weights), query_states, key_states, value_states);
  }

 private:
  const Options options_;
  I layer_, head_dim_, groups_;
  double dropout_;
  std::string type_;
  KvSharing sharing_;
  Linear *q_proj, *k_proj = nullptr, *v_proj = nullptr, *o_proj;
  PowRMSNorm *q_norm, *k_norm = nullptr, *v_norm = nullptr;
};

class Gemma3nTextMLP final : public Unary {
 public:
  Gemma3nTextMLP(const DecoderConfig& c, I intermediate, double sparsity)
      : Unary("Gemma3nTextMLP"),
        sparse_(sparsity > 0),
        gate_proj_(child<Linear>("gate_proj", c.hidden, intermediate, false)),
        up_proj_(child<Linear>("up_proj", c.hidden, intermediate, false)),
        down_proj_(child<Linear>("down_proj", intermediate, c.hidden, false)),
        act_fn(child<Activation>("act_fn", c.file.text_or("hidden_activation", "gelu_pytorch_tanh"))) {}

 protected:
  X forward(X hidden_states) override {
    X gate_proj = gate_proj_(hidden_states);
    if (sparse_) gate_proj = gaussian_topk(gate_proj);
    X activations = act_fn(gate_proj);
    X up_proj = up_proj_(hidden_states);
    X down_proj = down_proj_(activations.mul(up_proj));
    return leave(down_proj, gate_proj, activations, up_proj);
  }

 private:
  /// The quantile of a normal distribution (torch.distributions.Normal.icdf) as a tensor, and what lies above it.
  static X gaussian_topk(const X& inputs) {
    X target_sparsity_tensor = full({}, 0.95, DType::float32);
    X std_multiplier;
    {
      X argument = target_sparsity_tensor.mul(2).sub(1);
      X inverse = aten("erfinv", {Tensor(std::move(argument))});
      std_multiplier = std::move(inverse).mul(1.0).mul(1.0).add(0.0);
    }
    std_multiplier = std_multiplier.to(inputs.dtype());
    X inputs_mean = inputs.mean(-1, true);
    X inputs_std = aten("std", {Tensor(inputs), list_of(Dims{-1}), false, true});
    X spread = inputs_std.mul(std_multiplier);
    X cutoff_x = inputs_mean.add(std::move(spread));
    X above = inputs.sub(cutoff_x);
    X result = aten("relu", {Tensor(std::move(above))});
    return leave(result, target_sparsity_tensor, std_multiplier, inputs_mean, inputs_std, cutoff_x);
  }

  bool sparse_;
  Linear &gate_proj_, &up_proj_, &down_proj_;
  Activation& act_fn;
};

class Gemma3nTextAltUp final : public Base {
 public:
  explicit Gemma3nTextAltUp(const DecoderConfig& c)
      : Base("Gemma3nTextAltUp"),
        count_(c.file.size_or("altup_num_inputs", 4)),
        active_(c.file.integer_or("altup_active_idx", 0)),
        clips_(c.file.has("altup_coef_clip")) {
    if (active_ < 0 || active_ >= count_)
      throw c.file.error("altup_active_idx", "expected 0 to " + std::to_string(count_ - 1) + ", found " + std::to_string(active_));
    new_parameter("correct_output_scale", {c.hidden});
    correction_coefs = &child<Linear>("correction_coefs", count_, count_, false);
    prediction_coefs = &child<Linear>("prediction_coefs", count_, checked_mul(count_, count_), false);
    modality_router = &child<Linear>("modality_router", c.hidden, count_, false);
    router_norm = &add_norm(*this, "router_norm", c.hidden);
    new_buffer("router_input_scale", {}, runtime().default_dtype);
  }
  I active() const { return active_; }

  X predict(const X& hidden_states) {
    X modalities = compute_router_modalities(hidden_states.select(0, active_));
    X all_coefs = (*prediction_coefs)(modalities).reshape(modalities.sizes().slice(0, 2) + Dims{count_, count_}).permute({0, 1, 3, 2});
    X predictions = hidden_states.permute({1, 2, 3, 0}).matmul(all_coefs);
    predictions = predictions.permute({3, 0, 1, 2});
    predictions = predictions.add_(hidden_states);
    X result = predictions.contiguous().to(hidden_states.dtype());
    return leave(result, modalities, all_coefs, predictions);
  }
  X correct(const X& predictions, const X& activated) {
    X modalities = compute_router_modalities(activated);
    X innovation = activated.sub(predictions.select(0, active_));
    innovation = aten("repeat", {Tensor(innovation), list_of(Dims{count_, 1, 1, 1})});
    X weight, all_coefs;
    if (training && clips_) {
      weight = aten("clamp", {Tensor(correction_coefs->weight()), -120.0, 120.0});
      all_coefs = X(ops::linear(modalities, weight, {})).add(1.0);
    } else {
      all_coefs = (*correction_coefs)(modalities).add(1.0);
    }
    all_coefs = all_coefs.permute({2, 0, 1}).unsqueeze(-1);
    X corrected = innovation.mul(all_coefs);
    corrected = corrected.add_(predictions);
    X result = corrected.contiguous().to(activated.dtype());
    return leave(result, modalities, innovation, weight, all_coefs, corrected);
  }
  X scale_corrected_output(const X& corrected) {
    X scale = X(parameter(0));
    X cast = corrected.to(scale.dtype());
    return std::move(cast).mul(scale).to(corrected.dtype());
  }

 private:
  X compute_router_modalities(const X& x) {
    X router_inputs = (*router_norm)(x).mul(X(buffer(0)));
    X routed = (*modality_router)(router_inputs);
    X wide = routed.to_float();
    X bounded = std::move(wide).tanh();
    X result = std::move(bounded).to(x.dtype());
    return leave(result, router_inputs, routed);
  }
  I count_, active_;
  bool clips_;
  Linear *correction_coefs, *prediction_coefs, *modality_router;
  PowRMSNorm* router_norm;
};

class Gemma3nTextLaurelBlock final : public Unary {
 public:
  explicit Gemma3nTextLaurelBlock(const DecoderConfig& c)
      : Unary("Gemma3nTextLaurelBlock"),
        linear_left(child<Linear>("linear_left", c.hidden, c.file.size_or("laurel_rank", 64), false)),
        linear_right(child<Linear>("linear_right", c.file.size_or("laurel_rank", 64), c.hidden, false)),
        post_laurel_norm(add_norm(*this, "post_laurel_norm", c.hidden)) {}

 protected:
  X forward(X hidden_states) override {
    X laurel_hidden_states = linear_left(hidden_states);
    laurel_hidden_states = linear_right(laurel_hidden_states);
    X normed_laurel_hidden_states = post_laurel_norm(laurel_hidden_states);
    X result = hidden_states.add(normed_laurel_hidden_states);
    return leave(result, laurel_hidden_states, normed_laurel_hidden_states);
  }

 private:
  Linear &linear_left, &linear_right;
  PowRMSNorm& post_laurel_norm;
};

class Gemma3nTextDecoderLayer final : public Base {
 public:
  Gemma3nTextDecoderLayer(const DecoderConfig& c, I layer, KvSharing sharing, I intermediate, double sparsity)
      : Base("Gemma3nTextDecoderLayer"), options_(c.options), scales_(c.file.boolean_or("altup_correct_scale", true)) {
    const I width = c.file.size_or("hidden_size_per_layer_input", 256);
    self_attn = &child<Gemma3nTextAttention>("self_attn", c, layer, sharing);
    mlp = &child<Gemma3nTextMLP>("mlp", c, intermediate, sparsity);
    input_layernorm = &add_norm(*this, "input_layernorm", c.hidden);
    post_attention_layernorm = &add_norm(*this, "post_attention_layernorm", c.hidden);
    pre_feedforward_layernorm = &add_norm(*this, "pre_feedforward_layernorm", c.hidden);
    post_feedforward_layernorm = &add_norm(*this, "post_feedforward_layernorm", c.hidden);
    act_fn = &child<Activation>("act_fn", c.file.text_or("hidden_activation", "gelu_pytorch_tanh"));
    altup = &child<Gemma3nTextAltUp>("altup", c);
    laurel = &child<Gemma3nTextLaurelBlock>("laurel", c);
    per_layer_input_gate = &child<Linear>("per_layer_input_gate", c.hidden, width, false);
    per_layer_projection = &child<Linear>("per_layer_projection", width, c.hidden, false);
    post_per_layer_input_norm = &add_norm(*this, "post_per_layer_input_norm", c.hidden);
  }
  /// GradientCheckpointingLayer; the layer's own input is a positional argument, too.
  X operator()(X hidden_states, X per_layer_input, Gemma3nCall call) {
    Entered scope(*this);
    if (options_.checkpoint && training && runtime().grad_mode) {
      call.cache = nullptr;
      Region region = [this, call](const Tensors& inputs) { return Tensors{forward(X(inputs[0]), X(inputs[1]), call)}; };
      Tensors inputs{hidden_states, per_layer_input};
      return options_.reentrant ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
    }
    X result = forward(hidden_states, per_layer_input, call);
    hidden_states.reset(), per_layer_input.reset();
    return result;
  }

 private:
  using Base::forward;
  X forward(X hidden_states, const X& per_layer_input, const Gemma3nCall& call) {
    X predictions = altup->predict(hidden_states);
    X active_prediction = predictions.select(0, altup->active());
    X active_prediction_normed = (*input_layernorm)(active_prediction);
    X laurel_output = (*laurel)(active_prediction_normed);
    auto [attn, weights] = (*self_attn)(active_prediction_normed, &call);
    attn = (*post_attention_layernorm)(attn);
    X attn_gated = active_prediction.add(attn);
    X attn_laurel = attn_gated.add(laurel_output).div(1.0);
    X attn_norm = (*pre_feedforward_layernorm)(attn_laurel);
    X attn_ffw = (*mlp)(attn_norm);
    X attn_ffw_norm = (*post_feedforward_layernorm)(attn_ffw);
    X attn_ffw_laurel_gated = attn_laurel.add(attn_ffw_norm);
    X corrected_predictions = altup->correct(predictions, attn_ffw_laurel_gated);
    X first_prediction = corrected_predictions.select(0, altup->active()).clone();
    if (scales_) first_prediction = altup->scale_corrected_output(first_prediction);
    first_prediction = (*per_layer_input_gate)(first_prediction);
    first_prediction = (*act_fn)(first_prediction);
    first_prediction = first_prediction.mul(per_layer_input);
    first_prediction = (*per_layer_projection)(first_prediction);
    first_prediction = (*post_per_layer_input_norm)(first_prediction);
    {
      X others = corrected_predictions.slice(0, 1, std::nullopt);
      others = others.add_(first_prediction);
      set_item(corrected_predictions.slice(0, 1, std::nullopt), others);
    }
    return leave(corrected_predictions, predictions, active_prediction, active_prediction_normed, laurel_output, attn, weights, attn_gated,
                 attn_laurel, attn_norm, attn_ffw, attn_ffw_norm, attn_ffw_laurel_gated, first_prediction);
  }

  const Options options_;
  bool scales_;
  Gemma3nTextAttention* self_attn;
  Gemma3nTextMLP* mlp;
  PowRMSNorm *input_layernorm, *post_attention_layernorm, *pre_feedforward_layernorm, *post_feedforward_layernorm;
  Activation* act_fn;
  Gemma3nTextAltUp* altup;
  Gemma3nTextLaurelBlock* laurel;
  Linear *per_layer_input_gate, *per_layer_projection;
  PowRMSNorm* post_per_layer_input_norm;
};

/// A field with one value for all layers or a list of one for each.
std::vector<I> intermediate_sizes(const DecoderConfig& c) {
  const ConfigValue* given = c.file.find("intermediate_size");
  std::vector<I> sizes;
  if (given && given->list())
    sizes = c.file.integers("intermediate_size");
  else
    sizes.assign(std::size_t(c.layers), c.file.size("intermediate_size"));
  if (I(sizes.size()) != c.layers || *std::min_element(sizes.begin(), sizes.end()) < 1)
    throw c.file.error("intermediate_size", "expected a size for each of the " + std::to_string(c.layers) + " layers");
  return sizes;
}
/// Gemma3nTextConfig.__post_init__: the first ten layers of a model with more.
std::vector<double> sparsities(const DecoderConfig& c) {
  std::vector<double> pattern(std::size_t(c.layers), 0.0);
  const char* key = "activation_sparsity_pattern";
  if (c.file.has(key)) {
    const auto* list = c.file.find(key)->list();
    if (!list || I(list->size()) != c.layers)
      throw c.file.error(
          key, "expected a list of " + std::to_string(c.layers) + " numbers, one for each layer, found " + c.file.find(key)->describe());
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto& value = (*list)[i].value;
      const auto* whole = std::get_if<std::int64_t>(&value);
      const auto* part = std::get_if<double>(&value);
      if (!whole && !part) throw c.file.error(key, "expected numbers, found " + (*list)[i].describe());
      pattern[i] = whole ? double(*whole) : *part;
    }
  } else if (c.layers > 10) {
    std::fill(pattern.begin(), pattern.begin() + 10, 0.95);
  }
  return pattern;
}

class Gemma3nTextModel final : public DecoderBody {
 public:
  explicit Gemma3nTextModel(std::shared_ptr<const DecoderConfig> config)
      : DecoderBody("Gemma3nTextModel"),
        c_(std::move(config)),
        per_layer_(c_->file.size_or("hidden_size_per_layer_input", 256)),
        count_(c_->file.size_or("altup_num_inputs", 4)) {
    const auto sharing = c_->file.integer_or("num_kv_shared_layers", 0) == 0
                             ? std::vector<KvSharing>(std::size_t(c_->layers), KvSharing::none)
                             : kv_sharing_modes(*c_);
    const auto sizes = intermediate_sizes(*c_);
    const auto sparse = sparsities(*c_);
    embed_tokens = &child<BufferScaledEmbedding>("embed_tokens", kEmbedding, c_->vocab, c_->hidden);
    layers_ = std::make_unique<Layers<Gemma3nTextDecoderLayer>>(*this, "layers", c_->layers, [&](I i) {
      const std::size_t n = std::size_t(i);
      return std::make_shared<Gemma3nTextDecoderLayer>(*c_, i, sharing[n], sizes[n], sparse[n]);
    });
    norm = &add_norm(*this, "norm", c_->hidden);
    RotaryEmbedding::Form form;
    for (const char* type : {"full_attention", "sliding_attention"})
      if (has(type)) form.layer_types.emplace_back(type, c_->head_dim);
    rotary_emb = &child<RotaryEmbedding>("rotary_emb", "Gemma3nRotaryEmbedding", c_->file, c_->head_dim, form);
    const I all = checked_mul(c_->layers, per_layer_);
    embed_tokens_per_layer =
        &child<BufferScaledEmbedding>("embed_tokens_per_layer", kEmbedding, c_->file.size_or("vocab_size_per_layer_input", 262'144), all);
    per_layer_model_projection = &child<Linear>("per_layer_model_projection", c_->hidden, all, false);
    per_layer_projection_norm = &add_norm(*this, "per_layer_projection_norm", per_layer_);
    const auto square = [&](I) { return std::make_shared<Linear>(c_->hidden, c_->hidden, false); };
    altup_projections = std::make_unique<Layers<Linear>>(*this, "altup_projections", count_ - 1, square);
    altup_unembed_projections = std::make_unique<Layers<Linear>>(*this, "altup_unembed_projections", count_ - 1, square);
    new_buffer("per_layer_projection_scale", {}, runtime().default_dtype);
    new_buffer("per_layer_input_scale", {}, runtime().default_dtype);
  }
  X embed(const X& input_ids) override { return (*embed_tokens)(input_ids); }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    if (is_floating(input_ids.dtype())) throw Error("Gemma 3n takes no inputs_embeds in memest");
    X inputs_embeds = embed(input_ids);
    X per_layer_inputs = get_per_layer_inputs(input_ids);
    per_layer_inputs = project_per_layer_inputs(inputs_embeds, per_layer_inputs);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{c_->options, inputs_embeds, cache.get(), position_ids};
    X full_mask = create_causal_mask(arguments);
    X sliding_mask = create_sliding_window_causal_mask(arguments, c_->file.size("sliding_window"));
    X hidden_states_0 = inputs_embeds;
    std::vector<X> temp_hidden_states;
    X target_magnitude, altup_proj, current_hidden_state, new_magnitude;
    target_magnitude = magnitude(hidden_states_0);
    temp_hidden_states = {hidden_states_0};
    for (auto& projection : *altup_projections) {
      altup_proj = (*projection)(hidden_states_0);
      rescale(altup_proj, hidden_states_0.dtype(), target_magnitude, current_hidden_state, new_magnitude);
      temp_hidden_states.push_back(current_hidden_state);
    }
    X hidden_states = stack(temp_hidden_states, 0);
    Pair full_embeddings, sliding_embeddings;
    if (has("full_attention")) full_embeddings = (*rotary_emb)(hidden_states, position_ids, "full_attention");
    if (has("sliding_attention")) sliding_embeddings = (*rotary_emb)(hidden_states, position_ids, "sliding_attention");
    auto shared_kv_states = std::make_shared<SharedKv>();
    X per_layer_input;
    for (I i = 0; i < c_->layers; ++i) {
      per_layer_input = per_layer_inputs.whole_slices(2).select(2, i);
      const bool slides = c_->sliding(i);
      hidden_states = (*layers_)[i](
          hidden_states, per_layer_input,
          {slides ? sliding_mask : full_mask, slides ? sliding_embeddings : full_embeddings, position_ids, cache.get(), shared_kv_states});
    }
    target_magnitude = magnitude(hidden_states.select(0, 0));
    temp_hidden_states = {hidden_states.select(0, 0)};
    X altup_unemb_proj;
    for (I i = 1; i < count_; ++i) {
      altup_unemb_proj = (*altup_unembed_projections)[i - 1](hidden_states.select(0, i));
      rescale(altup_unemb_proj, hidden_states_0.dtype(), target_magnitude, current_hidden_state, new_magnitude);
      temp_hidden_states.push_back(current_hidden_state);
    }
    hidden_states = stack(temp_hidden_states, 0);
    hidden_states = hidden_states.mean(0);
    hidden_states = (*norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  static constexpr const char* kEmbedding = "Gemma3nTextScaledWordEmbedding";
  bool has(const char* type) const { return std::find(c_->layer_types.begin(), c_->layer_types.end(), type) != c_->layer_types.end(); }
  Dims by_layer(const X& x) const { return x.sizes().slice(0, 2) + Dims{c_->layers, per_layer_}; }
  static X magnitude(const X& x) { return x.pow(2).mean(-1, true).pow(0.5); }
  static void rescale(const X& projected, DType dtype, const X& target_magnitude, X& current_hidden_state, X& new_magnitude) {
    current_hidden_state = projected.to(dtype);
    new_magnitude = current_hidden_state.pow(2).mean(-1, true);
    X least = aten("clamp", {Tensor(new_magnitude), 1e-5});
    new_magnitude = std::move(least).sqrt();
    current_hidden_state = current_hidden_state.mul(target_magnitude).div(new_magnitude);
  }
  X get_per_layer_inputs(const X& given) {
    X in_table;
    {
      X not_negative = aten("ge", {Tensor(given), I{0}});
      X below = aten("lt", {Tensor(given), I{1}});
      in_table = aten("logical_and", {Tensor(std::move(not_negative)), Tensor(std::move(below))});
    }
    X input_ids = where(in_table, given, Scalar(I{0}));
    X result = (*embed_tokens_per_layer)(input_ids).reshape(by_layer(input_ids));
    return leave(result, in_table, input_ids);
  }
  X project_per_layer_inputs(const X& inputs_embeds, const X& per_layer_inputs) {
    X per_layer_projection = (*per_layer_model_projection)(inputs_embeds);
    per_layer_projection = aten("mul_", {Tensor(per_layer_projection), Tensor(X(buffer(0)).to(inputs_embeds.dtype()))});
    per_layer_projection = per_layer_projection.reshape(by_layer(inputs_embeds));
    per_layer_projection = (*per_layer_projection_norm)(per_layer_projection);
    return per_layer_projection.add(per_layer_inputs).mul(X(buffer(1)).to(inputs_embeds.dtype()));
  }

  std::shared_ptr<const DecoderConfig> c_;
  I per_layer_, count_;
  BufferScaledEmbedding *embed_tokens, *embed_tokens_per_layer;
  std::unique_ptr<Layers<Gemma3nTextDecoderLayer>> layers_;
  PowRMSNorm* norm;
  RotaryEmbedding* rotary_emb;
  Linear* per_layer_model_projection;
  PowRMSNorm* per_layer_projection_norm;
  std::unique_ptr<Layers<Linear>> altup_projections, altup_unembed_projections;
};

NetworkPtr gemma3n_text(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return (i + 1) % 5 ? "sliding_attention" : "full_attention"; });
  for (const std::string& name : config.texts("layer_types"))
    if (name != "full_attention" && name != "sliding_attention")
      throw config.error("layer_types", "the types are full_attention and sliding_attention, found '" + name.substr(0, 60) + "'");
  DecoderForm f;
  f.prefix = "Gemma3n";
  f.logits = [](X logits, const DecoderConfig& c) {
    if (!c.file.has("final_logit_softcapping")) return logits;
    logits = logits.div(30.0);
    logits = logits.tanh();
    logits = logits.mul(30.0);
    return logits;
  };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Gemma3nTextModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family gemma3n_text_family{{"gemma3n_text"},
                                 {{Task::causal_lm, "Gemma3nForCausalLM", gemma3n_text}, {Task::base, "Gemma3nTextModel", gemma3n_text}}};

}  // namespace
}  // namespace memest::hf
