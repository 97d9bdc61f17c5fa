// models/gemma, gemma2, vaultgemma, gemma3 (text): a scaled embedding, norms with 1 + weight, four norms a layer from gemma2 on.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)
class ScaledWordEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  ScaledWordEmbedding(std::string type, I count, I width) : Unary(std::move(type)) {
    new_parameter("weight", {count, width});
    new_buffer("embed_scale", {}, runtime().default_dtype);
  }

 protected:
  X forward(X input_ids) override {
    X embedded = ops::embedding(parameter(0), input_ids, -1, false, false);
    return hooked(std::move(embedded).mul(X(buffer(0)).to(parameter(0).dtype())));
  }
};

DecoderForm gemma_form(const std::string& prefix) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm = Norm::gemma;
  f.norm_type = prefix + "RMSNorm";
  f.embedding = [prefix](const DecoderConfig& c) -> UnaryPtr {
    return std::make_shared<ScaledWordEmbedding>(prefix + "TextScaledWordEmbedding", c.vocab, c.hidden);
  };
  f.rotary = [prefix](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, c.head_dim); };
  return f;
}
/// logits / cap, tanh, * cap: each bound to the name logits.
X softcapped(X logits, const DecoderConfig& c) {
  if (!c.file.has("final_logit_softcapping")) return logits;
  logits = logits.div(30.0);
  logits = logits.tanh();
  logits = logits.mul(30.0);
  return logits;
}
Biases all(bool b) { return {b, b, b, b}; }

NetworkPtr gemma(const Config& config, const Options& o) {
  DecoderForm f = gemma_form("Gemma");
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "GemmaDecoderLayer";
    form.norm = Norm::gemma;
    form.norm_type = "GemmaRMSNorm";
    return make_layer(c, form, make_attention(c, i, "GemmaAttention", all(c.attention_bias)),
                      make_gated_mlp("GemmaMLP", c.hidden, c.intermediate, false, c.act == "gelu" ? "gelu_pytorch_tanh" : c.act));
  };
  return make_decoder(config, o, std::move(f));
}

LayerForm sandwich(const std::string& prefix) {
  LayerForm form;
  form.type = prefix + "DecoderLayer";
  form.order = LayerForm::Order::sandwich;
  form.norm = Norm::gemma;
  form.norm_type = prefix + "RMSNorm";
  form.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
  return form;
}

class Gemma2Attention final : public DecoderAttention {
 public:
  Gemma2Attention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "Gemma2Attention", all(c.attention_bias)), softcap_(c.file.number_if("attn_logit_softcapping")) {}

 protected:
  Pair attend(Frame& f, AttentionCall call) override {
    call.softcap = softcap_;
    return DecoderAttention::attend(f, std::move(call));
  }

 private:
  std::optional<double> softcap_;
};
/// _supports_sdpa = False: from_config takes eager attention.
Options without_sdpa(Options o) {
  if (o.attention == Attention::sdpa) o.attention = Attention::eager;
  return o;
}

NetworkPtr gemma2(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return (i + 1) % 2 ? "sliding_attention" : "full_attention"; });
  DecoderForm f = gemma_form("Gemma2");
  f.layer = [](const DecoderConfig& c, I i) {
    auto attention = std::make_shared<Gemma2Attention>(c, i);
    return make_layer(c, sandwich("Gemma2"), attention,
                      make_gated_mlp("Gemma2MLP", c.hidden, c.intermediate, false, c.file.text("hidden_activation")));
  };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.logits = softcapped;
  return make_decoder(config, without_sdpa(o), std::move(f));
}

/// gemma2 without the norms after its parts.
NetworkPtr vaultgemma(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return (i + 1) % 2 ? "sliding_attention" : "full_attention"; });
  DecoderForm f = gemma_form("VaultGemma");
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "VaultGemmaDecoderLayer";
    form.norm = Norm::gemma;
    form.norm_type = "VaultGemmaRMSNorm";
    form.norms = {"input_layernorm", "pre_feedforward_layernorm"};
    return make_layer(c, form, std::make_shared<Gemma2Attention>(c, i),
                      make_gated_mlp("VaultGemmaMLP", c.hidden, c.intermediate, false, c.file.text("hidden_activation")));
  };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.logits = softcapped;
  return make_decoder(config, without_sdpa(o), std::move(f));
}
const Family vaultgemma_family{{"vaultgemma"},
                               {{Task::causal_lm, "VaultGemmaForCausalLM", vaultgemma}, {Task::base, "VaultGemmaModel", vaultgemma}}};

NetworkPtr gemma3_text(const Config& given, const Options& o) {
  Config config = given;
  const I pattern = config.size_or("sliding_window_pattern", 6);
  default_layer_types(config, [pattern](I i) { return (i + 1) % pattern ? "sliding_attention" : "full_attention"; });
  DecoderForm f = gemma_form("Gemma3");
  f.layer = [](const DecoderConfig& c, I i) {
    auto attention = make_attention_with_qk_norm(c, i, "Gemma3Attention", all(c.attention_bias), QkNorm::after_transpose, Norm::gemma);
    return make_layer(c, sandwich("Gemma3"), attention,
                      make_gated_mlp("Gemma3MLP", c.hidden, c.intermediate, false, c.file.text("hidden_activation")));
  };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.rotary_by_layer_type = true;
  f.rotary = [](const DecoderConfig& c) {
    RotaryEmbedding::Form form;
    for (const char* type : {"full_attention", "sliding_attention"})
      if (std::find(c.layer_types.begin(), c.layer_types.end(), type) != c.layer_types.end())
        form.layer_types.emplace_back(type, c.head_dim);
    return std::make_shared<RotaryEmbedding>("Gemma3RotaryEmbedding", c.file, c.head_dim, form);
  };
  f.logits = softcapped;
  return make_decoder(config, o, std::move(f));
}
const Family gemma_family{{"gemma"}, decoder_classes("Gemma", gemma, {Task::token_cls})};
const Family gemma2_family{{"gemma2"}, decoder_classes("Gemma2", gemma2, {Task::token_cls})};
const Family gemma3_family{{"gemma3_text"}, decoder_classes("Gemma3", gemma3_text)};

}  // namespace
}  // namespace memest::hf
