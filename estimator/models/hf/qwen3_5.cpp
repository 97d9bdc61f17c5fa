// models/qwen3_5 and qwen3_5_moe: qwen3_next's layers with a projection for each part, and positions in time, height and width.
#include "models/hf/qwen3_5.h"

#include "models/hf/gated_delta_net.h"
#include "models/hf/linear_attention.h"
#include "models/hf/moe.h"

namespace memest::hf {

/// Qwen3_5TextRotaryEmbedding. Its recomposition writes the frequencies of height and width over some of those of time, in place.
class Qwen3_5TextModel::RotaryEmbedding final : public Base {
 public:
  RotaryEmbedding(std::string type, const Config& config, I width) : Base(std::move(type)) {
    if (const std::string kind = rope_type(config); kind != "default")
      throw config.error("rope_parameters",
                         "memest builds " + this->type() + " with the rope_type default only, found '" + kind.substr(0, 60) + "'");
    new_buffer("inv_freq", {ceil_div(width, 2)}, DType::float32);
    new_buffer("original_inv_freq", {ceil_div(width, 2)}, DType::float32);
  }
  /// `position_ids`: [1 or 3, batch, length].
  Pair operator()(X x, X position_ids) {
    Entered scope(*this);
    position_ids = position_ids.expand({3, -1, -1});
    X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
    X cos = aten("cos", {Tensor(freqs)}).mul(1.0);
    X sin = aten("sin", {Tensor(freqs)}).mul(1.0);
    sin = recomposition_frequencies(sin);
    cos = recomposition_frequencies(cos);
    X cos_cast = cos.to(x.dtype()), sin_cast = sin.to(x.dtype());
    return leave(Pair{cos_cast, sin_cast}, position_ids, freqs, cos, sin);
  }

 private:
  static X recomposition_frequencies(X freq) {
    X freqs_thw = freq.select(0, 0);
    return cat({freqs_thw, freqs_thw}, -1);
  }
};

Qwen3_5TextModel::Qwen3_5TextModel(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form)
    : DecoderBody(form->prefix + "TextModel"), c_(std::move(config)) {
  embed_tokens_ = register_module("embed_tokens", form->embedding(*c_));
  layers_ = add_layers("layers", c_->layers, [&](I i) { return form->layer(*c_, i); });
  norm_ = register_module("norm", make_norm(form->norm, c_->hidden, form->norm_type));
  rotary_emb_ = register_module("rotary_emb", std::make_shared<RotaryEmbedding>(form->prefix + "TextRotaryEmbedding", c_->file,
                                                                                rotary_width(c_->file, c_->head_dim, 0.25)));
}

std::pair<X, CachePtr> Qwen3_5TextModel::forward(X input) {
  X inputs_embeds = is_floating(input.dtype()) ? input : embed(input);
  CachePtr cache = new_cache(*c_, training);
  X position_ids = default_position_ids(inputs_embeds);
  return of_embeddings(inputs_embeds, position_ids, cache);
}

std::pair<X, CachePtr> Qwen3_5TextModel::of_embeddings(X inputs_embeds, X position_ids, CachePtr cache) {
  if (!position_ids) position_ids = hf::default_position_ids(inputs_embeds);
  X text_position_ids;
  if (position_ids.dim() == 2) {
    text_position_ids = position_ids.expand({inputs_embeds.size(0), -1});
    position_ids = text_position_ids.unsqueeze(0);
  } else if (position_ids.size(0) == 4) {  // generate() puts those of the text first
    text_position_ids = position_ids.select(0, 0);
    position_ids = position_ids.slice(0, 1, std::nullopt);
  }
  X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), text_position_ids});
  X hidden_states = inputs_embeds;
  Pair position_embeddings = (*rotary_emb_)(hidden_states, position_ids);
  for (I i = 0; i < c_->layers; ++i) {
    const bool linear = c_->layer_types[std::size_t(i)] == "linear_attention";
    hidden_states =
        (*layers_[std::size_t(i)])(hidden_states, {linear ? X() : causal_mask, position_embeddings, text_position_ids, cache.get()});
  }
  hidden_states = (*norm_)(hidden_states);
  return {hidden_states, cache};
}

namespace {

class TokenEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  TokenEmbedding(I count, I width, I padding_idx) : Unary("Embedding"), padding_idx_(padding_idx) {
    new_parameter("weight", {count, width});
  }

 protected:
  X forward(X indices) override { return hooked(ops::embedding(parameter(0), indices, padding_idx_, false, false)); }

 private:
  I padding_idx_;
};

}  // namespace

Config qwen3_5_text_config(const Config& text) { return with_delta_net_layers(text); }

DecoderForm qwen3_5_form(const Config& text) {
  const bool experts = text.has("num_experts");
  const std::string prefix = experts ? "Qwen3_5Moe" : "Qwen3_5";
  DecoderForm f;
  f.prefix = prefix;
  f.norm = Norm::gemma;
  f.norm_type = prefix + "RMSNorm";
  f.embedding = [](const DecoderConfig& c) {
    return std::make_shared<TokenEmbedding>(c.vocab, c.hidden, c.file.integer_or("pad_token_id", -1));
  };
  f.layer = [prefix, experts](const DecoderConfig& c, I i) {
    return make_delta_net_layer(
        c, i, {.prefix = prefix},
        experts ? make_delta_net_experts(c, prefix, true) : make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, false, c.act));
  };
  if (experts) f.aux_loss = load_balancing();
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form) {
    return std::make_shared<Qwen3_5TextModel>(std::move(c), std::move(form));
  };
  return f;
}

namespace {

NetworkPtr qwen3_5_text(const Config& config, const Options& o) {
  note_torch_recurrence("causal-conv1d and flash-linear-attention");
  const Config text = qwen3_5_text_config(config.has("text_config") ? config.section("text_config") : config);
  return make_decoder(text, o, qwen3_5_form(text));
}
const Family qwen3_5_text_family{{"qwen3_5_text"},
                                 {{Task::causal_lm, "Qwen3_5ForCausalLM", qwen3_5_text},
                                  {Task::seq_cls, "Qwen3_5TextForSequenceClassification", qwen3_5_text},
                                  {Task::token_cls, "Qwen3_5ForTokenClassification", qwen3_5_text},
                                  {Task::base, "Qwen3_5TextModel", qwen3_5_text}}};
const Family qwen3_5_moe_text_family{
    {"qwen3_5_moe_text"}, {{Task::causal_lm, "Qwen3_5MoeForCausalLM", qwen3_5_text}, {Task::base, "Qwen3_5MoeTextModel", qwen3_5_text}}};
const Family qwen3_5_moe_family{{"qwen3_5_moe"}, {{Task::causal_lm, "Qwen3_5MoeForCausalLM", qwen3_5_text}}};

}  // namespace

NetworkPtr make_qwen3_5_text(const Config& config, const Options& o) { return qwen3_5_text(config, o); }

}  // namespace memest::hf
