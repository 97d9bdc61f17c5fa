// models/ministral3/modeling_ministral3.py: mistral with queries that are scaled by their positions.
#include "models/hf/ministral3.h"

#include "models/hf/llama_form.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class Ministral3Attention final : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    DecoderAttention::rotate(f, call);
    X scale = get_llama_4_attn_scale(call.position_ids).to(f.query.dtype());
    f.query = f.query.mul(std::move(scale));
  }
};

NetworkPtr ministral3(const Config& config, const Options& o) { return make_decoder(config, o, ministral3_form()); }
const Family ministral3_family{{"ministral3"}, decoder_classes("Ministral3", ministral3, {Task::question_answering, Task::token_cls})};

}  // namespace

DecoderForm ministral3_form() {
  DecoderForm f = llama_form(
      "Ministral3",
      [](const DecoderConfig& c, I i, const std::string& type) { return std::make_shared<Ministral3Attention>(c, i, type, Biases{}); },
      [](const DecoderConfig& c, I) { return make_gated_mlp("Ministral3MLP", c.hidden, c.intermediate, false, c.act); });
  f.masks = DecoderForm::Masks::sliding_if_set;
  return f;
}

}  // namespace memest::hf
