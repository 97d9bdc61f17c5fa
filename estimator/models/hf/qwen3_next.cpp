// models/qwen3_next.
#include <algorithm>

#include "models/hf/gated_delta_net.h"
#include "models/hf/linear_attention.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

/// Whether a layer has experts: mlp_only_layers, decoder_sparse_step.
bool sparse(const DecoderConfig& c, I layer) {
  const auto dense = c.file.has("mlp_only_layers") ? c.file.integers("mlp_only_layers") : std::vector<std::int64_t>{};
  return std::find(dense.begin(), dense.end(), layer) == dense.end() && c.file.integer_or("num_experts", 0) > 0 &&
         (layer + 1) % c.file.size_or("decoder_sparse_step", 1) == 0;
}

NetworkPtr qwen3_next(const Config& config, const Options& o) {
  note_torch_recurrence("causal-conv1d and flash-linear-attention");
  DecoderForm f;
  f.prefix = "Qwen3Next";
  f.norm = Norm::gemma;
  f.norm_type = "Qwen3NextRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    return make_delta_net_layer(c, i, {.prefix = "Qwen3Next", .joint = true},
                                sparse(c, i) ? make_delta_net_experts(c, "Qwen3Next", c.file.boolean_or("norm_topk_prob", true))
                                             : make_gated_mlp("Qwen3NextMLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("Qwen3NextRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.25));
  };
  f.aux_loss = load_balancing();
  return make_decoder(with_delta_net_layers(config), o, std::move(f));
}
const Family qwen3_next_family{{"qwen3_next"}, decoder_classes("Qwen3Next", qwen3_next, {Task::question_answering, Task::token_cls})};

}  // namespace
}  // namespace memest::hf
