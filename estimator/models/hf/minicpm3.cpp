// models/minicpm3: latent attention as deepseek's, scaled embeddings, residuals and last hidden states.
#include "models/hf/loss.h"
#include "models/hf/mla.h"

namespace memest::hf {
namespace {

/// super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)
class ScaledWordEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  /// `whole`: config.scale_emb is an integer, and torch.tensor makes an int64 of it.
  ScaledWordEmbedding(I count, I width, bool whole) : Unary("MiniCPM3ScaledWordEmbedding") {
    new_parameter("weight", {count, width});
    new_buffer("embed_scale", {}, whole ? DType::int64 : runtime().default_dtype);
  }

 protected:
  X forward(X input_ids) override {
    X embedded = ops::embedding(parameter(0), input_ids, -1, false, false);
    return hooked(std::move(embedded).mul(X(buffer(0)).to(parameter(0).dtype())));
  }
};

DecoderForm form_of() {
  DecoderForm f;
  f.prefix = "MiniCPM3";
  f.norm_type = "MiniCPM3RMSNorm";
  f.embedding = [](const DecoderConfig& c) -> UnaryPtr {
    auto* scale = c.file.find("scale_emb");
    const bool whole = !scale || std::holds_alternative<std::int64_t>(scale->value);
    return std::make_shared<ScaledWordEmbedding>(c.vocab, c.hidden, whole);
  };
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "MiniCPM3DecoderLayer";
    form.norm_type = "MiniCPM3RMSNorm";
    form.multiplier = true;
    return make_layer(c, form, make_latent_attention(c, i, {.type = "MiniCPM3Attention"}),
                      make_gated_mlp("MiniCPM3MLP", c.hidden, c.intermediate, c.mlp_bias, c.act));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("MiniCPM3RotaryEmbedding", c.file, c.head_dim); };
  return f;
}

class MiniCPM3ForCausalLM final : public Network {
 public:
  explicit MiniCPM3ForCausalLM(const std::shared_ptr<const DecoderConfig>& c)
      : Network("MiniCPM3ForCausalLM", c->options),
        c_(c),
        model_(register_module("model", std::make_shared<DecoderModel>(c, std::make_shared<const DecoderForm>(form_of())))),
        lm_head(child<Linear>("lm_head", c->hidden, c->vocab, false)) {
    if (c->tie) tie("lm_head.weight", "model.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input);
    X hidden_states = last_hidden_state.div(1.0);
    hidden_states = hidden_states.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<DecoderModel> model_;
  Linear& lm_head;
};

NetworkPtr minicpm3(const Config& given, const Options& o) {
  Config config = given;
  if (!config.has("v_head_dim")) {
    ConfigValue width;
    width.value = config.size("hidden_size") / config.size("num_attention_heads");
    config.set("v_head_dim", std::move(width));
  }
  ConfigValue no;
  no.value = false;
  config.set("rope_interleave", std::move(no));
  config = with_mla_head_dim(config);
  if (o.task == Task::causal_lm) return std::make_shared<MiniCPM3ForCausalLM>(std::make_shared<const DecoderConfig>(config, o));
  return make_decoder(config, o, form_of());
}
const Family minicpm3_family{{"minicpm3"}, decoder_classes("MiniCPM3", minicpm3)};

}  // namespace
}  // namespace memest::hf
