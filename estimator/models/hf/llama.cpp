// models/llama, and the families whose layers are its statements with other parts: mistral, ministral, qwen2, qwen3, arcee, smollm3, cwm,
// seed_oss, granite, and starcoder2.
#include "models/hf/llama_form.h"

namespace memest::hf {
namespace {

using MakeAttention = std::function<MixerPtr(const DecoderConfig& c, I layer, const std::string& type)>;
using MakeMlp = std::function<UnaryPtr(const DecoderConfig& c, const std::string& type)>;

UnaryPtr gated(const DecoderConfig& c, const std::string& type) { return make_gated_mlp(type, c.hidden, c.intermediate, false, c.act); }
UnaryPtr gated_with_bias(const DecoderConfig& c, const std::string& type) {
  return make_gated_mlp(type, c.hidden, c.intermediate, c.mlp_bias, c.act);
}
MixerPtr plain(const DecoderConfig& c, I layer, const std::string& type) { return make_attention(c, layer, type, {}); }
MixerPtr biased(const DecoderConfig& c, I layer, const std::string& type) {
  const bool b = c.attention_bias;
  return make_attention(c, layer, type, {b, b, b, b});
}

DecoderForm form_of(const std::string& prefix, MakeAttention attention, MakeMlp mlp) {
  return llama_form(prefix, attention, [prefix, mlp](const DecoderConfig& c, I) { return mlp(c, prefix + "MLP"); });
}

NetworkPtr llama(const Config& config, const Options& o) { return make_decoder(config, o, form_of("Llama", biased, gated_with_bias)); }
const Family llama_family{{"llama"}, decoder_classes("Llama", llama, {Task::question_answering, Task::token_cls})};

NetworkPtr mistral(const Config& config, const Options& o) {
  DecoderForm f = form_of("Mistral", plain, gated);
  f.masks = DecoderForm::Masks::sliding_if_set;
  return make_decoder(config, o, std::move(f));
}
const Family mistral_family{{"mistral"}, decoder_classes("Mistral", mistral, {Task::question_answering, Task::token_cls})};

NetworkPtr ministral(const Config& given, const Options& o) {
  Config config = given;
  const bool window = config.has("sliding_window");
  default_layer_types(config, [window](I) { return window ? "sliding_attention" : "full_attention"; });
  DecoderForm f = form_of("Ministral", plain, gated);
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  return make_decoder(config, o, std::move(f));
}
const Family ministral_family{{"ministral"}, decoder_classes("Ministral", ministral, {Task::question_answering, Task::token_cls})};

/// Qwen2Config.__post_init__, Qwen3Config's the same.
Config with_qwen_windows(Config config) {
  if (!config.boolean_or("use_sliding_window", false)) config.set("sliding_window", {});
  const bool window = config.has("sliding_window");
  const I first = config.integer_or("max_window_layers", 0);
  default_layer_types(config, [=](I i) { return window && i >= first ? "sliding_attention" : "full_attention"; });
  return config;
}
NetworkPtr qwen2(const Config& config, const Options& o) {
  DecoderForm f = form_of(
      "Qwen2",
      [](const DecoderConfig& c, I i, const std::string& type) {
        return make_attention(c, i, type, {true, true, true, false});
      },
      gated);
  f.masks = DecoderForm::Masks::by_layer_type;
  return make_decoder(with_qwen_windows(config), o, std::move(f));
}
const Family qwen2_family{{"qwen2"}, decoder_classes("Qwen2", qwen2, {Task::question_answering, Task::token_cls})};

NetworkPtr qwen3(const Config& config, const Options& o) {
  DecoderForm f = form_of(
      "Qwen3",
      [](const DecoderConfig& c, I i, const std::string& type) {
        const bool b = c.attention_bias;
        return make_attention_with_qk_norm(c, i, type, {b, b, b, b}, QkNorm::before_transpose, Norm::llama);
      },
      gated);
  f.masks = DecoderForm::Masks::by_layer_type;
  return make_decoder(with_qwen_windows(config), o, std::move(f));
}
const Family qwen3_family{{"qwen3"}, decoder_classes("Qwen3", qwen3, {Task::question_answering, Task::token_cls})};

/// down(act(up(x))).
class UpDown final : public Unary {
 public:
  UpDown(const DecoderConfig& c, const std::string& type)
      : Unary(type),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, c.mlp_bias)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, c.mlp_bias)),
        act_fn(child<Activation>("act_fn", c.act)) {}

 protected:
  X forward(X x) override { return down_proj(act_fn(up_proj(x))); }

 private:
  Linear &up_proj, &down_proj;
  Activation& act_fn;
};
NetworkPtr arcee(const Config& config, const Options& o) {
  return make_decoder(config, o, form_of("Arcee", biased, [](const DecoderConfig& c, const std::string& type) -> UnaryPtr {
                        return std::make_shared<UpDown>(c, type);
                      }));
}
const Family arcee_family{{"arcee"}, decoder_classes("Arcee", arcee, {Task::question_answering, Task::token_cls})};

/// SmolLM3Attention: no rotary embedding in every fourth layer.
class SmolLM3Attention final : public DecoderAttention {
 public:
  SmolLM3Attention(const DecoderConfig& c, I layer, const std::string& type, bool use_rope)
      : DecoderAttention(c, layer, type, {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}), use_rope_(use_rope) {}

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    if (use_rope_) DecoderAttention::rotate(f, call);
  }

 private:
  bool use_rope_;
};
NetworkPtr smollm3(const Config& given, const Options& o) {
  Config config = given;
  std::vector<std::int64_t> rope;
  if (config.has("no_rope_layers")) rope = config.integers("no_rope_layers");
  const I interval = config.size_or("no_rope_layer_interval", 4);
  for (I i = I(rope.size()); i < layer_count(config); ++i) rope.push_back((i + 1) % interval != 0);
  const bool window = config.boolean_or("use_sliding_window", false) && config.has("sliding_window");
  default_layer_types(config, [&](I i) { return window && !rope[std::size_t(i)] ? "sliding_attention" : "full_attention"; });
  DecoderForm f = form_of(
      "SmolLM3",
      [rope](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr {
        return std::make_shared<SmolLM3Attention>(c, i, type, rope[std::size_t(i)] != 0);
      },
      gated_with_bias);
  f.masks = DecoderForm::Masks::by_layer_type;
  return make_decoder(config, o, std::move(f));
}
const Family smollm3_family{{"smollm3"}, decoder_classes("SmolLM3", smollm3, {Task::question_answering, Task::token_cls})};

NetworkPtr cwm(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return i % 4 == 0 ? "full_attention" : "sliding_attention"; });
  DecoderForm f = form_of("Cwm", plain, gated_with_bias);
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  return make_decoder(config, o, std::move(f));
}
const Family cwm_family{{"cwm"}, decoder_classes("Cwm", cwm)};

/// SeedOssAttention, Starcoder2Attention: dropout on the output.
class DroppedAttention final : public DecoderAttention {
 public:
  DroppedAttention(const DecoderConfig& c, I layer, const std::string& type, Biases biases)
      : DecoderAttention(c, layer, type, biases), residual_dropout_(c.file.number_or("residual_dropout", 0.0)) {}

 protected:
  X output(X attn_output) override {
    attn_output = (*o_proj_)(attn_output);
    return ops::dropout(attn_output, residual_dropout_, training);
  }

 private:
  double residual_dropout_;
};
NetworkPtr seed_oss(const Config& config, const Options& o) {
  return make_decoder(
      config, o,
      form_of(
          "SeedOss",
          [](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr {
            const bool b = c.attention_bias;
            return std::make_shared<DroppedAttention>(c, i, type, Biases{b, b, b, c.file.boolean_or("attention_out_bias", false)});
          },
          [](const DecoderConfig& c, const std::string& type) {
            return make_gated_mlp(type, c.hidden, c.intermediate, c.mlp_bias, c.act, c.file.number_or("residual_dropout", 0.0));
          }));
}
const Family seed_oss_family{{"seed_oss"}, decoder_classes("SeedOss", seed_oss, {Task::question_answering, Task::token_cls})};

NetworkPtr starcoder2(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Starcoder2";
  f.norm = Norm::layer_norm;
  f.norm_type = "LayerNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Starcoder2DecoderLayer";
    form.norm = Norm::layer_norm;
    form.norm_type = "LayerNorm";
    const bool b = c.file.boolean_or("use_bias", true);
    auto attention = std::make_shared<DroppedAttention>(c, i, "Starcoder2Attention", Biases{b, b, b, b});
    return make_layer(
        c, form, attention,
        make_plain_mlp("Starcoder2MLP", "c_fc", "c_proj", c.hidden, c.intermediate, b, c.act, c.file.number_or("residual_dropout", 0.0)));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("Starcoder2RotaryEmbedding", c.file, c.head_dim); };
  f.masks = DecoderForm::Masks::sliding_if_set;
  f.first_hidden = [](X x, const DecoderConfig& c, bool training) -> X {
    return ops::dropout(x, c.file.number_or("embedding_dropout", 0.0), training);
  };
  return make_decoder(config, o, std::move(f));
}
const Family starcoder2_family{{"starcoder2"}, decoder_classes("Starcoder2", starcoder2, {Task::token_cls})};

NetworkPtr granite(const Config& config, const Options& o) {
  DecoderForm f = form_of("Granite", biased, gated_with_bias);
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "GraniteDecoderLayer";
    form.norm_type = "GraniteRMSNorm";
    form.multiplier = true;
    return make_layer(c, form, biased(c, i, "GraniteAttention"), gated_with_bias(c, "GraniteMLP"));
  };
  f.after_embedding = [](X x, const DecoderConfig&) { return x.mul(1.0); };
  f.logits = [](X logits, const DecoderConfig&) { return logits.div(1.0); };
  return make_decoder(config, o, std::move(f));
}
const Family granite_family{{"granite"}, decoder_classes("Granite", granite)};

/// Configurations of llama's classes.
const Family exaone_family{{"exaone", "internlm3", "iquestcoder"},
                           {{Task::causal_lm, "LlamaForCausalLM", llama}, {Task::base, "LlamaModel", llama}}};

/// granite with norms after each part, where use_post_norm asks for them; the logits are multiplied.
NetworkPtr hyperclovax(const Config& config, const Options& o) {
  DecoderForm f = form_of("HyperCLOVAX", biased, gated_with_bias);
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "HyperCLOVAXDecoderLayer";
    form.norm_type = "HyperCLOVAXRMSNorm";
    form.multiplier = true;
    if (c.file.boolean_or("use_post_norm", true)) {
      form.order = LayerForm::Order::glm4;
      form.norms = {"input_layernorm", "post_attention_layernorm", "post_norm1", "post_norm2"};
    }
    return make_layer(c, form, biased(c, i, "HyperCLOVAXAttention"), gated_with_bias(c, "HyperCLOVAXMLP"));
  };
  f.after_embedding = [](X x, const DecoderConfig&) { return x.mul(1.0); };
  f.logits = [](X logits, const DecoderConfig&) { return logits.mul(1.0); };
  return make_decoder(config, o, std::move(f));
}
const Family hyperclovax_family{{"hyperclovax"},
                                {{Task::causal_lm, "HyperCLOVAXForCausalLM", hyperclovax}, {Task::base, "HyperCLOVAXModel", hyperclovax}}};

NetworkPtr jais2(const Config& config, const Options& o) {
  DecoderForm f = form_of("Jais2", biased, {});
  f.norm = Norm::layer_norm;
  f.norm_type = "LayerNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Jais2DecoderLayer";
    form.norm = Norm::layer_norm;
    form.norm_type = "LayerNorm";
    return make_layer(c, form, biased(c, i, "Jais2Attention"), std::make_shared<UpDown>(c, "Jais2MLP"));
  };
  return make_decoder(config, o, std::move(f));
}
const Family jais2_family{{"jais2"}, {{Task::causal_lm, "Jais2ForCausalLM", jais2}, {Task::base, "Jais2Model", jais2}}};

}  // namespace
}  // namespace memest::hf
