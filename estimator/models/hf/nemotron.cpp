// models/nemotron/modeling_nemotron.py.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class NemotronAttention final : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_nemotron(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};

NetworkPtr nemotron(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Nemotron";
  f.norm = Norm::layer_norm_1p;
  f.norm_type = "NemotronLayerNorm1P";
  if (o.task == Task::question_answering) f.base_prefix = "transformer";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "NemotronDecoderLayer";
    form.norm = Norm::layer_norm_1p;
    form.norm_type = "NemotronLayerNorm1P";
    const bool b = c.attention_bias;
    auto attention = std::make_shared<NemotronAttention>(c, i, "NemotronAttention", Biases{b, b, b, b});
    return make_layer(c, form, attention,
                      make_plain_mlp("NemotronMLP", "up_proj", "down_proj", c.hidden, c.intermediate, c.mlp_bias, c.act));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("NemotronRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5));
  };
  return make_decoder(config, o, std::move(f));
}
const Family nemotron_family{{"nemotron"}, decoder_classes("Nemotron", nemotron, {Task::question_answering, Task::token_cls})};

}  // namespace
}  // namespace memest::hf
