// models/gemma4 and gemma4_unified, their text models: keys and values that layers share, an embedding for each layer, wider heads in the
// layers with full attention. Without experts.
#include <algorithm>

#include "fake/checkpoint.h"
#include "models/hf/gemma4.h"
#include "models/hf/gemma_sharing.h"

namespace memest::hf {
namespace {

using Sharing = KvSharing;
struct Gemma4Call {
  X mask;
  Pair position_embeddings;
  X position_ids;
  Cache* cache = nullptr;
  std::shared_ptr<SharedKv> shared;
};

struct LayerFacts {
  I index, head_dim, kv_heads, intermediate;
  std::string type;
  Sharing sharing;
  bool k_eq_v;
};

class Gemma4TextAttention final : public Module<Gemma4TextAttention> {
 public:
  Gemma4TextAttention(const DecoderConfig& c, const LayerFacts& facts)
      : Module("Gemma4TextAttention"), options_(c.options), f_(facts), heads_(c.heads), dropout_(c.attention_dropout) {
    const bool b = c.attention_bias;
    q_proj = &child<Linear>("q_proj", c.hidden, c.heads * f_.head_dim, b);
    q_norm = &child<PowRMSNorm>("q_norm", "Gemma4RMSNorm", f_.head_dim);
    if (f_.sharing != Sharing::reuse) {
      k_norm = &child<PowRMSNorm>("k_norm", "Gemma4RMSNorm", f_.head_dim);
      v_norm = &child<PowRMSNorm>("v_norm", "Gemma4RMSNorm", f_.head_dim, false);
      k_proj = &child<Linear>("k_proj", c.hidden, f_.kv_heads * f_.head_dim, b);
      if (!f_.k_eq_v) v_proj = &child<Linear>("v_proj", c.hidden, f_.kv_heads * f_.head_dim, b);
    }
    o_proj = &child<Linear>("o_proj", c.heads * f_.head_dim, c.hidden, b);
  }
  Pair forward(X hidden_states, const Gemma4Call* call) {
    const Dims input_shape = hidden_states.sizes().slice(0, 2), hidden_shape = input_shape + Dims{-1, f_.head_dim};
    const auto& [cos, sin] = call->position_embeddings;
    X query_states = (*q_proj)(hidden_states).view(hidden_shape);
    query_states = (*q_norm)(query_states);
    query_states = rotated_before_transpose(query_states, cos, sin);
    query_states = query_states.transpose(1, 2);
    X key_states, value_states;
    if (f_.sharing == Sharing::reuse) {
      std::tie(key_states, value_states) = call->shared->at(f_.type);
    } else {
      key_states = (*k_proj)(hidden_states).view(hidden_shape);
      value_states = v_proj ? (*v_proj)(hidden_states).view(hidden_shape) : key_states;
      key_states = (*k_norm)(key_states);
      key_states = rotated_before_transpose(key_states, cos, sin);
      key_states = key_states.transpose(1, 2);
      value_states = (*v_norm)(value_states);
      value_states = value_states.transpose(1, 2);
      if (call->cache) std::tie(key_states, value_states) = call->cache->update(key_states, value_states, f_.index);
    }
    if (f_.sharing == Sharing::store) (*call->shared)[f_.type] = {key_states, value_states};
    auto [attn_output, attn_weights] = attention_interface(
        options_, query_states, key_states, value_states,
        {.mask = call->mask, .groups = heads_ / f_.kv_heads, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = (*o_proj)(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  const LayerFacts f_;
  I heads_;
  double dropout_;
  Linear *q_proj, *k_proj = nullptr, *v_proj = nullptr, *o_proj;
  PowRMSNorm *q_norm, *k_norm = nullptr, *v_norm = nullptr;
};

class Gemma4TextDecoderLayer final : public Base {
 public:
  Gemma4TextDecoderLayer(const DecoderConfig& c, const LayerFacts& facts, I per_layer_width)
      : Base("Gemma4TextDecoderLayer"), options_(c.options) {
    const std::string act = c.file.text_or("hidden_activation", "gelu_pytorch_tanh");
    self_attn = &child<Gemma4TextAttention>("self_attn", c, facts);
    mlp_ = register_module("mlp", make_gated_mlp("Gemma4TextMLP", c.hidden, facts.intermediate, false, act));
    input_layernorm = &child<PowRMSNorm>("input_layernorm", "Gemma4RMSNorm", c.hidden);
    post_attention_layernorm = &child<PowRMSNorm>("post_attention_layernorm", "Gemma4RMSNorm", c.hidden);
    pre_feedforward_layernorm = &child<PowRMSNorm>("pre_feedforward_layernorm", "Gemma4RMSNorm", c.hidden);
    post_feedforward_layernorm = &child<PowRMSNorm>("post_feedforward_layernorm", "Gemma4RMSNorm", c.hidden);
    new_buffer("layer_scalar", {1}, runtime().default_dtype);
    if (per_layer_width == 0) return;
    act_fn = &child<Activation>("act_fn", act);
    per_layer_input_gate = &child<Linear>("per_layer_input_gate", c.hidden, per_layer_width, false);
    per_layer_projection = &child<Linear>("per_layer_projection", per_layer_width, c.hidden, false);
    post_per_layer_input_norm = &child<PowRMSNorm>("post_per_layer_input_norm", "Gemma4RMSNorm", c.hidden);
  }
  /// GradientCheckpointingLayer; the layer's own input is a positional argument, too.
  X operator()(X hidden_states, X per_layer_input, Gemma4Call call) {
    Entered scope(*this);
    if (options_.checkpoint && training && runtime().grad_mode) {
      call.cache = nullptr;
      Region region = [this, call](const Tensors& inputs) {
        return Tensors{forward(X(inputs[0]), inputs.size() > 1 ? X(inputs[1]) : X(), call)};
      };
      Tensors inputs{hidden_states};
      if (per_layer_input) inputs.push_back(per_layer_input);
      return options_.reentrant ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
    }
    X result = forward(hidden_states, per_layer_input, call);
    hidden_states.reset(), per_layer_input.reset();
    return result;
  }

 private:
  using Base::forward;
  X forward(X hidden_states, const X& per_layer_input, const Gemma4Call& call) {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, &call);
    hidden_states = (*post_attention_layernorm)(hidden_states);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*pre_feedforward_layernorm)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = (*post_feedforward_layernorm)(hidden_states);
    hidden_states = residual.add(hidden_states);
    if (per_layer_input_gate) {
      residual = hidden_states;
      hidden_states = (*per_layer_input_gate)(hidden_states);
      hidden_states = (*act_fn)(hidden_states);
      hidden_states = hidden_states.mul(per_layer_input);
      hidden_states = (*per_layer_projection)(hidden_states);
      hidden_states = (*post_per_layer_input_norm)(hidden_states);
      hidden_states = residual.add(hidden_states);
    }
    hidden_states = aten("mul_", {Tensor(hidden_states), Tensor(buffer(0))});
    return leave(hidden_states, residual, weights);
  }

  const Options options_;
  Gemma4TextAttention* self_attn;
  UnaryPtr mlp_;
  PowRMSNorm *input_layernorm, *post_attention_layernorm, *pre_feedforward_layernorm, *post_feedforward_layernorm;
  Activation* act_fn = nullptr;
  Linear *per_layer_input_gate = nullptr, *per_layer_projection = nullptr;
  PowRMSNorm* post_per_layer_input_norm = nullptr;
};

class Gemma4TextModel final : public Gemma4Text {
 public:
  explicit Gemma4TextModel(std::shared_ptr<const DecoderConfig> config, bool unified)
      : Gemma4Text("Gemma4TextModel"),
        c_(std::move(config)),
        per_layer_(unified ? 0 : c_->file.integer_or("hidden_size_per_layer_input", 256)) {
    const auto& file = c_->file;
    const bool k_eq_v = file.boolean_or("attention_k_eq_v", false);
    const I global_head_dim = file.size_or("global_head_dim", 512);
    const I global_kv_heads = k_eq_v ? file.size_or("num_global_key_value_heads", c_->kv_heads) : c_->kv_heads;
    const auto given = file.section_if("per_layer_config");
    const auto sharing = kv_sharing_modes(*c_);
    embed_tokens = &child<BufferScaledEmbedding>("embed_tokens", "Gemma4TextScaledWordEmbedding", c_->vocab, c_->hidden);
    I full_width = global_head_dim;
    layers_ = std::make_unique<Layers<Gemma4TextDecoderLayer>>(*this, "layers", c_->layers, [&](I i) {
      const bool slides = c_->sliding(i);
      LayerFacts facts{i,
                       slides ? c_->head_dim : global_head_dim,
                       slides ? c_->kv_heads : global_kv_heads,
                       c_->intermediate,
                       c_->layer_types[std::size_t(i)],
                       sharing[std::size_t(i)],
                       k_eq_v && !slides};
      if (given) {
        const auto own = given->section_if(std::to_string(i));
        facts.head_dim = own ? own->size_or("head_dim", c_->head_dim) : c_->head_dim;
        facts.kv_heads = own ? own->size_or("num_key_value_heads", c_->kv_heads) : c_->kv_heads;
      }
      if (c_->heads % facts.kv_heads != 0)
        throw file.error("num_key_value_heads",
                         std::to_string(c_->heads) + " attention heads are not a multiple of " + std::to_string(facts.kv_heads));
      if (!slides) full_width = facts.head_dim;
      if (file.boolean_or("use_double_wide_mlp", false) && facts.sharing == Sharing::reuse)
        facts.intermediate = checked_mul(facts.intermediate, 2);
      return std::make_shared<Gemma4TextDecoderLayer>(*c_, facts, per_layer_);
    });
    norm = &child<PowRMSNorm>("norm", "Gemma4RMSNorm", c_->hidden);
    RotaryEmbedding::Form form;
    if (has("full_attention")) form.layer_types.emplace_back("full_attention", full_width);
    if (has("sliding_attention")) form.layer_types.emplace_back("sliding_attention", c_->head_dim);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("Gemma4TextRotaryEmbedding", file, c_->head_dim, form));
    if (per_layer_ == 0) return;
    const I all = checked_mul(c_->layers, per_layer_);
    embed_tokens_per_layer = &child<BufferScaledEmbedding>("embed_tokens_per_layer", "Gemma4TextScaledWordEmbedding",
                                                           file.size_or("vocab_size_per_layer_input", 262'144), all);
    per_layer_model_projection = &child<Linear>("per_layer_model_projection", c_->hidden, all, false);
    per_layer_projection_norm = &child<PowRMSNorm>("per_layer_projection_norm", "Gemma4RMSNorm", per_layer_);
  }

  X embed(const X& input_ids) override { return (*embed_tokens)(input_ids); }
  X get_per_layer_inputs(const X& input_ids) override {
    if (!embed_tokens_per_layer) return {};
    return (*embed_tokens_per_layer)(input_ids).reshape(by_layer(input_ids));
  }
  T embedding_weight() const override { return embed_tokens->own_parameters()[0].second; }

 protected:
  std::pair<X, CachePtr> forward(X input) override {
    const bool embedded = is_floating(input.dtype());
    X inputs_embeds = embedded ? input : embed(input);
    X per_layer_inputs = std::exchange(given_per_layer_inputs, {});
    if (embed_tokens_per_layer) {
      if (!embedded) per_layer_inputs = get_per_layer_inputs(input);
      per_layer_inputs = project_per_layer_inputs(inputs_embeds, per_layer_inputs);
    }
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    auto [full, sliding, mapping] = masks() ? *masks() : make_masks({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    Pair full_embeddings, sliding_embeddings;
    if (has("full_attention")) full_embeddings = (*rotary_emb)(hidden_states, position_ids, "full_attention");
    if (has("sliding_attention")) sliding_embeddings = (*rotary_emb)(hidden_states, position_ids, "sliding_attention");
    auto shared = std::make_shared<SharedKv>();
    X per_layer_input;
    for (I i = 0; i < c_->layers; ++i) {
      if (per_layer_inputs) per_layer_input = per_layer_inputs.whole_slices(2).select(2, i);
      const bool slides = c_->sliding(i);
      hidden_states =
          (*layers_)[i](hidden_states, per_layer_input,
                        {slides ? sliding : full, slides ? sliding_embeddings : full_embeddings, position_ids, cache.get(), shared});
    }
    hidden_states = (*norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  DecoderMasks make_masks(const MaskArguments& arguments) const {
    DecoderMasks made;
    made.full = create_causal_mask(arguments);
    made.sliding = create_sliding_window_causal_mask(arguments, c_->sliding_window.value_or(512));
    return made;
  }
  bool has(const char* type) const { return std::find(c_->layer_types.begin(), c_->layer_types.end(), type) != c_->layer_types.end(); }
  Dims by_layer(const X& x) const { return x.sizes().slice(0, 2) + Dims{c_->layers, per_layer_}; }
  X project_per_layer_inputs(const X& inputs_embeds, const X& per_layer_inputs) {
    X per_layer_projection = (*per_layer_model_projection)(inputs_embeds).mul(1.0);
    per_layer_projection = per_layer_projection.reshape(by_layer(inputs_embeds));
    per_layer_projection = (*per_layer_projection_norm)(per_layer_projection);
    return per_layer_projection.add(per_layer_inputs).mul(1.0);
  }

  std::shared_ptr<const DecoderConfig> c_;
  I per_layer_;
  BufferScaledEmbedding *embed_tokens, *embed_tokens_per_layer = nullptr;
  std::unique_ptr<Layers<Gemma4TextDecoderLayer>> layers_;
  PowRMSNorm* norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  Linear* per_layer_model_projection = nullptr;
  PowRMSNorm* per_layer_projection_norm = nullptr;
};

template <bool unified>
NetworkPtr gemma4_text(const Config& given, const Options& o) {
  Config config = given;
  if (config.boolean_or("enable_moe_block", false)) throw config.error("enable_moe_block", "memest does not build Gemma 4's experts yet");
  if (config.text_or("use_bidirectional_attention", "") == "all")
    throw config.error("use_bidirectional_attention", "memest does not build attention to all tokens; \"vision\" and null are built");
  default_layer_types(config, [](I i) { return (i + 1) % 6 ? "sliding_attention" : "full_attention"; });
  ConfigValue::List types;
  for (const std::string& name : config.texts("layer_types")) {
    if (name != "full_attention" && name != "sliding_attention")
      throw config.error("layer_types", "the types are full_attention and sliding_attention, found '" + name.substr(0, 60) + "'");
    ConfigValue type;
    type.value = name;
    types.push_back(std::move(type));
  }
  if (!types.empty()) types.back().value = std::string("full_attention");  // the class forces it
  ConfigValue all;
  all.value = std::move(types);
  config.set("layer_types", std::move(all));
  DecoderForm f;
  f.prefix = unified ? "Gemma4Unified" : "Gemma4";
  f.logits = [](X logits, const DecoderConfig& c) {
    if (!c.file.has("final_logit_softcapping")) return logits;
    logits = logits.div(30.0);
    logits = logits.tanh();
    logits = logits.mul(30.0);
    return logits;
  };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Gemma4TextModel>(std::move(c), unified);
  };
  return make_decoder(config, o, std::move(f));
}
const Family gemma4_text_family{
    {"gemma4_text"}, {{Task::causal_lm, "Gemma4ForCausalLM", gemma4_text<false>}, {Task::base, "Gemma4TextModel", gemma4_text<false>}}};
const Family gemma4_unified_text_family{
    {"gemma4_unified_text"},
    {{Task::causal_lm, "Gemma4UnifiedForCausalLM", gemma4_text<true>}, {Task::base, "Gemma4UnifiedTextModel", gemma4_text<true>}}};

}  // namespace
}  // namespace memest::hf
