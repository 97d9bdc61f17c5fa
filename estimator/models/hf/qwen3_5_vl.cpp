// models/qwen3_5/modeling_qwen3_5.py (transformers 5.24) with images: Qwen3-VL's tower without DeepStack over the text model of
// qwen3_5.cpp.
#include "models/hf/grid_text.h"
#include "models/hf/qwen3_5.h"
#include "models/hf/qwen3_vl.h"

namespace memest::hf {
namespace {

NetworkPtr qwen3_5(const Config& config, const Options& o) {
  return make_grid_text(config, o, {"Qwen3_5", false}, make_qwen3_vl_tower(config.section("vision_config"), o, "Qwen3_5"));
}
const Family qwen3_5_family{{"qwen3_5"},
                            {{Task::image_text_to_text, "Qwen3_5ForConditionalGeneration", qwen3_5},
                             {Task::causal_lm, "Qwen3_5ForCausalLM", make_qwen3_5_text},
                             {Task::base, "Qwen3_5Model", qwen3_5}}};

}  // namespace
}  // namespace memest::hf
