// The vision tower of Qwen3-VL, which Qwen3.5 has too (transformers 5.24, models/qwen3_vl and qwen3_5).
#pragma once
#include "models/hf/grid_vision.h"

namespace memest::hf {

/// PREFIXVisionModel of a vision_config.
std::shared_ptr<GridTower> make_qwen3_vl_tower(const Config& vision, const Options& options, const std::string& prefix);

}  // namespace memest::hf
