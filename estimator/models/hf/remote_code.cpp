// Decoders whose code stands beside their weights and not in transformers 5.24: chatglm (2, 3 and GLM-4), qwen (the first), baichuan,
// internlm2 and minicpm. Their parameters and key-value heads are those of the published code; the run is assumed to be that of the
// library's own decoders, which they come near to.
#include "models/hf/late_mlp.h"
#include "models/hf/llama_form.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

void assume(const std::string& model_type, const std::string& like) {
  runtime().diagnostics.add(
      {Diagnostic::Severity::warning, "assumed-run",
       "remote code: the run of '" + model_type + "' is assumed to be like that of " + like + " of transformers; its parameters are exact",
       "/model_type", ""});
}

ConfigValue value_of(I n) {
  ConfigValue v;
  v.value = n;
  return v;
}
ConfigValue value_of(bool b) {
  ConfigValue v;
  v.value = b;
  return v;
}
/// A field of the published configuration under the name that the library's decoders use.
void rename(Config& config, const char* from, const char* to) {
  if (config.has(from)) config.set(to, value_of(config.size(from)));
}

/// One projection for query, key and value.
struct FusedForm {
  const char *projection, *output;
  bool bias = false, output_bias = false;
  enum class Positions { rotary, half_rotary, alibi } positions = Positions::rotary;
};
class FusedAttention final : public DecoderAttention {
 public:
  FusedAttention(const DecoderConfig& c, I layer, std::string type, const FusedForm& form, std::shared_ptr<X> alibi = {})
      : DecoderAttention(c, layer, std::move(type)), positions_(form.positions), alibi_mask_(std::move(alibi)) {
    const I width = checked_mul(heads_ + 2 * kv_heads_, head_dim_);
    qkv_ = &child<Linear>(form.projection, c.hidden, width, form.bias);
    o_proj_ = &child<Linear>(form.output, heads_ * head_dim_, c.hidden, form.output_bias);
  }

 protected:
  void project(Frame& f) override {
    X mixed = (*qkv_)(f.hidden_states);
    std::vector<X> parts = mixed.split(Dims{heads_ * head_dim_, kv_heads_ * head_dim_, kv_heads_ * head_dim_}, -1);
    f.query = parts[0].view(f.hidden_shape).transpose(1, 2);
    f.key = parts[1].view(f.hidden_shape).transpose(1, 2);
    f.value = parts[2].view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (positions_ == FusedForm::Positions::alibi) return;
    if (positions_ == FusedForm::Positions::half_rotary)
      std::tie(f.query, f.key) = apply_rotary_glm(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
    else
      DecoderAttention::rotate(f, call);
  }
  /// ALiBi comes as a mask of each head, made once for all layers.
  Pair attend(Frame& f, AttentionCall call) override {
    if (positions_ == FusedForm::Positions::alibi) {
      if (layer_ == 0) *alibi_mask_ = full({1, heads_, f.query.size(2), f.key.size(2)}, 0.0, f.query.dtype());
      call.mask = *alibi_mask_;
    }
    return DecoderAttention::attend(f, std::move(call));
  }

 private:
  FusedForm::Positions positions_;
  std::shared_ptr<X> alibi_mask_;
  Linear* qkv_;
};

/// down(act(gate(x)) * up(x)) with names of its own.
class NamedGatedMlp final : public Unary {
 public:
  NamedGatedMlp(std::string type, const char* gate, const char* up, const char* down, I hidden, I intermediate, bool bias)
      : Unary(std::move(type)),
        gate_(child<Linear>(gate, hidden, intermediate, bias)),
        up_(child<Linear>(up, hidden, intermediate, bias)),
        down_(child<Linear>(down, intermediate, hidden, bias)) {}

 protected:
  X forward(X x) override { return down_(X(ops::silu(gate_(x))).mul(up_(x))); }

 private:
  Linear &gate_, &up_, &down_;
};

/// dense_4h_to_h(silu(a) * b), a and b the halves of dense_h_to_4h(x).
class GlmMlp final : public Unary {
 public:
  GlmMlp(I hidden, I ffn, bool bias)
      : Unary("MLP"),
        dense_h_to_4h(child<Linear>("dense_h_to_4h", hidden, checked_mul(2, ffn), bias)),
        dense_4h_to_h(child<Linear>("dense_4h_to_h", ffn, hidden, bias)) {}

 protected:
  X forward(X hidden_states) override {
    X intermediate_parallel = dense_h_to_4h(hidden_states);
    std::vector<X> parts = intermediate_parallel.chunk(2, -1);
    intermediate_parallel = X(ops::silu(parts[0])).mul(parts[1]);
    return dense_4h_to_h(intermediate_parallel);
  }

 private:
  Linear &dense_h_to_4h, &dense_4h_to_h;
};

// ---- chatglm ---------------------------------------------------------------------------------------------------------------

NetworkPtr chatglm(const Config& given, const Options& o) {
  Config config = given;
  if (config.has("inner_hidden_size"))
    throw config.error("inner_hidden_size", "this is the first ChatGLM, which memest does not build",
                       "it builds ChatGLM2, ChatGLM3 and GLM-4");
  rename(config, "num_layers", "num_hidden_layers");
  rename(config, "ffn_hidden_size", "intermediate_size");
  rename(config, "padded_vocab_size", "vocab_size");
  rename(config, "kv_channels", "head_dim");
  const bool grouped = config.boolean_or("multi_query_attention", false);
  config.set("num_key_value_heads", value_of(grouped ? config.size("multi_query_group_num") : config.size("num_attention_heads")));
  config.set("hidden_act", {std::string("silu")});
  if (!config.given("tie_word_embeddings")) config.set("tie_word_embeddings", value_of(false));
  assume("chatglm", "glm");

  const bool bias = config.boolean_or("add_bias_linear", false);
  DecoderForm f;
  f.prefix = "ChatGLM";
  f.base_prefix = "transformer";
  f.embedding_name = "embedding";
  f.head_name = "output_layer";
  f.head_bias = bias;
  f.norm_type = "RMSNorm";
  f.norm_name = "final_layernorm";
  f.layer = [bias](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "GLMBlock";
    form.norm_type = "RMSNorm";
    form.attention = "self_attention";
    const FusedForm fused{.projection = "query_key_value",
                          .output = "dense",
                          .bias = bias || c.file.boolean_or("add_qkv_bias", false),
                          .output_bias = bias,
                          .positions = FusedForm::Positions::half_rotary};
    return make_layer_with_late_mlp(c, form, std::make_shared<FusedAttention>(c, i, "SelfAttention", fused),
                                    std::make_shared<GlmMlp>(c.hidden, c.intermediate, bias));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("RotaryEmbedding", c.file, c.head_dim / 2); };
  return make_decoder(config, o, std::move(f));
}
// Its files name the bare model, where AutoModel and AutoModelForCausalLM give the one with a head.
const Family chatglm_family{{"chatglm"}, {{Task::causal_lm, "ChatGLMModel", chatglm}}};

// ---- qwen ------------------------------------------------------------------------------------------------------------------

NetworkPtr qwen(const Config& given, const Options& o) {
  Config config = given;
  if (config.has("visual"))
    throw config.error("visual", "this is Qwen-VL, whose vision tower memest does not build", "it builds the language models of that type");
  // Each of w1 and w2 has half the width that the file names.
  config.set("intermediate_size", value_of(config.size("intermediate_size") / 2));
  rename(config, "kv_channels", "head_dim");
  config.set("num_key_value_heads", value_of(config.size("num_attention_heads")));
  config.set("hidden_act", {std::string("silu")});
  if (!config.given("tie_word_embeddings")) config.set("tie_word_embeddings", value_of(false));
  assume("qwen", "qwen2");

  const bool bias = !config.boolean_or("no_bias", true);
  DecoderForm f;
  f.prefix = "QWen";
  f.base_prefix = "transformer";
  f.embedding_name = "wte";
  f.layers_name = "h";
  f.norm_name = "ln_f";
  f.norm_type = "RMSNorm";
  f.causal_suffix = "LMHeadModel";
  f.layer = [bias](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "QWenBlock";
    form.norm_type = "RMSNorm";
    form.norms = {"ln_1", "ln_2"};
    form.attention = "attn";
    const FusedForm fused{.projection = "c_attn", .output = "c_proj", .bias = true, .output_bias = bias};
    return make_layer_with_late_mlp(c, form, std::make_shared<FusedAttention>(c, i, "QWenAttention", fused),
                                    std::make_shared<NamedGatedMlp>("QWenMLP", "w2", "w1", "c_proj", c.hidden, c.intermediate, bias));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("RotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family qwen_family{{"qwen"}, {{Task::causal_lm, "QWenLMHeadModel", qwen}, {Task::base, "QWenModel", qwen}}};

// ---- baichuan, internlm2, minicpm ------------------------------------------------------------------------------------------

NetworkPtr baichuan(const Config& given, const Options& o) {
  Config config = given;
  config.set("num_key_value_heads", value_of(config.size("num_attention_heads")));
  if (!config.given("tie_word_embeddings")) config.set("tie_word_embeddings", value_of(false));
  assume("baichuan", "llama");
  // The 13B models have ALiBi and no max_position_embeddings.
  const bool alibi = !config.has("max_position_embeddings");
  auto mask = std::make_shared<X>();
  const FusedForm fused{
      .projection = "W_pack", .output = "o_proj", .positions = alibi ? FusedForm::Positions::alibi : FusedForm::Positions::rotary};
  DecoderForm f = llama_form(
      "Baichuan",
      [fused, mask](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr {
        return std::make_shared<FusedAttention>(c, i, type, fused, mask);
      },
      [](const DecoderConfig& c, I) { return make_gated_mlp("MLP", c.hidden, c.intermediate, false, c.act); });
  return make_decoder(config, o, std::move(f));
}
const Family baichuan_family{{"baichuan"}, {{Task::causal_lm, "BaichuanForCausalLM", baichuan}, {Task::base, "BaichuanModel", baichuan}}};

NetworkPtr internlm2(const Config& given, const Options& o) {
  Config config = given;
  if (!config.given("tie_word_embeddings")) config.set("tie_word_embeddings", value_of(false));
  assume("internlm2", "llama");
  const bool bias = config.boolean_or("bias", false);
  DecoderForm f;
  f.prefix = "InternLM2";
  f.embedding_name = "tok_embeddings";
  f.head_name = "output";
  f.norm_type = "InternLM2RMSNorm";
  f.layer = [bias](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "InternLM2DecoderLayer";
    form.norm_type = "InternLM2RMSNorm";
    form.norms = {"attention_norm", "ffn_norm"};
    form.attention = "attention";
    form.mlp = "feed_forward";
    const FusedForm fused{.projection = "wqkv", .output = "wo", .bias = bias, .output_bias = bias};
    return make_layer(c, form, std::make_shared<FusedAttention>(c, i, "InternLM2Attention", fused),
                      std::make_shared<NamedGatedMlp>("InternLM2MLP", "w1", "w3", "w2", c.hidden, c.intermediate, false));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("InternLM2RotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family internlm2_family{{"internlm2"},
                              {{Task::causal_lm, "InternLM2ForCausalLM", internlm2}, {Task::base, "InternLM2Model", internlm2}}};

/// llama with what it embeds, adds and gives to its head multiplied.
NetworkPtr minicpm(const Config& config, const Options& o) {
  assume("minicpm", "granite");
  DecoderForm f = llama_form("MiniCPM",
                             [](const DecoderConfig& c, I i, const std::string& type) {
                               const bool b = c.attention_bias;
                               return make_attention(c, i, type, {b, b, b, b});
                             },
                             {});
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "MiniCPMDecoderLayer";
    form.norm_type = "MiniCPMRMSNorm";
    form.multiplier = true;
    const bool b = c.attention_bias;
    return make_layer(c, form, make_attention(c, i, "MiniCPMAttention", {b, b, b, b}),
                      make_gated_mlp("MiniCPMMLP", c.hidden, c.intermediate, false, c.act));
  };
  f.after_embedding = [](X x, const DecoderConfig&) { return x.mul(1.0); };
  return make_decoder(config, o, std::move(f));
}
const Family minicpm_family{{"minicpm"}, {{Task::causal_lm, "MiniCPMForCausalLM", minicpm}, {Task::base, "MiniCPMModel", minicpm}}};

}  // namespace
}  // namespace memest::hf
