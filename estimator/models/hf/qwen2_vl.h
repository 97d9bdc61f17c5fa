// The text model of Qwen2-VL and Qwen2.5-VL (transformers 5.24, models/qwen2_vl/modeling_qwen2_vl.py).
#pragma once
#include "models/hf/mrope.h"

namespace memest::hf {

/// Qwen2VLTextModel and Qwen2_5_VLTextModel: qwen2's layers.
NetworkPtr make_qwen2_vl_text(const Config& config, const Options& options, const std::string& prefix);

}  // namespace memest::hf
