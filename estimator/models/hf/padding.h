// PreTrainedModel.warn_if_padding_and_no_attention_mask (transformers/modeling_utils.py): a look at the first and the last ids of a batch.
#pragma once
#include "base/config.h"
#include "models/hf/python.h"

namespace memest::hf {

/// What a model does that was given no attention_mask.
void warn_if_padding(const Config& config, const X& input_ids);

}  // namespace memest::hf
