// models/apertus: llama with norms on queries and keys, and xIELU, an activation with parameters.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

/// XIELUActivation (activations.py) as its Python runs.
class XIELU final : public Unary {
 public:
  explicit XIELU(DType dtype) : Unary("XIELUActivation") {
    new_parameter("alpha_p", {1});
    new_parameter("alpha_n", {1});
    new_buffer("beta", {}, dtype);
    new_buffer("eps", {}, dtype);
  }

 protected:
  X forward(X x) override {
    const X beta = X(buffer(0)), eps = X(buffer(1));
    X alpha_p = aten("softplus", {Tensor(parameter(0))});
    X alpha_n;
    {
      X soft = aten("softplus", {Tensor(parameter(1))});
      alpha_n = beta.add(std::move(soft));
    }
    X positive = aten("gt", {Tensor(x), I{0}});
    X above = alpha_p.mul(x).mul(x);
    X scaled = beta.mul(x);
    above = std::move(above).add(std::move(scaled));
    X below = aten("minimum", {Tensor(x), Tensor(eps)});
    X grown = aten("expm1", {Tensor(std::move(below))});
    below = std::move(grown).sub(x).mul(alpha_n);
    scaled = beta.mul(x);
    below = std::move(below).add(std::move(scaled));
    X result = where(std::move(positive), std::move(above), std::move(below));
    return leave(std::move(result), x, alpha_p, alpha_n);
  }
};

class ApertusMLP final : public Unary {
 public:
  explicit ApertusMLP(const DecoderConfig& c)
      : Unary("ApertusMLP"),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, false)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, false)) {
    if (c.act == "xielu")
      xielu_ = register_module("act_fn", std::make_shared<XIELU>(runtime().default_dtype));
    else
      act_fn = &child<Activation>("act_fn", c.act);
  }

 protected:
  X forward(X x) override {
    X up = up_proj(x);
    X activated = xielu_ ? (*xielu_)(std::move(up)) : (*act_fn)(std::move(up));
    return down_proj(std::move(activated));
  }

 private:
  Linear &up_proj, &down_proj;
  UnaryPtr xielu_;
  Activation* act_fn = nullptr;
};

NetworkPtr apertus(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Apertus";
  f.norm_type = "ApertusRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "ApertusDecoderLayer";
    form.norm_type = "ApertusRMSNorm";
    form.norms = {"attention_layernorm", "feedforward_layernorm"};
    const bool b = c.attention_bias;
    return make_layer(c, form, make_attention_with_qk_norm(c, i, "ApertusAttention", {b, b, b, b}, QkNorm::after_transpose, Norm::llama),
                      std::make_shared<ApertusMLP>(c));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("ApertusRotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family apertus_family{{"apertus"},
                            {{Task::causal_lm, "ApertusForCausalLM", apertus},
                             {Task::token_cls, "ApertusForTokenClassification", apertus},
                             {Task::base, "ApertusModel", apertus}}};

}  // namespace
}  // namespace memest::hf
