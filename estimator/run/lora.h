// LoRA as peft 0.21 adds it to a finished model (peft/tuners/lora/layer.py, tuners_utils.py).
#pragma once
#include "nn/model.h"
#include "run/options.h"

namespace memest::run {

/// get_peft_model: freezes the model, and gives each targeted linear layer lora_A, lora_B and a dropout. `checkpointed`: then also
/// enable_input_require_grads, without which nothing of a checkpointed layer would be trained. Throws Error where no layer is meant.
/// `follows`: the model is on the device before its adapters are made; load_adapters moves them.
void add_lora(nn::Model& model, const Lora& lora, bool checkpointed, bool follows);
/// Adapters onto the device one by one, in the type of their layer; at the end 16-bit ones become float32 (autocast_adapter_dtype).
void load_adapters(nn::Model& model);

}  // namespace memest::run
