// Quantised weights as bitsandbytes and transformers 5.24 put them into a finished model, and peft's preparation for training one.
#pragma once
#include "nn/model.h"
#include "nn/quantization.h"

namespace memest::run {

/// replace_with_bnb_linear (transformers/integrations/bitsandbytes.py): each linear layer but those that are skipped. `compute`: the
/// bnb_4bit_compute_dtype of a model of transformers where none is named. Throws Error where no layer is left.
void quantize(nn::Model& model, const nn::Quantization& quantization, DType compute);
/// A quantised model onto the device: as from_pretrained(quantization_config=..., device_map={"": 0}) loads one of transformers, else
/// Module.to("cuda").
void load_quantized(nn::Model& model);
/// peft.prepare_model_for_kbit_training without its checkpointing: freezes everything, 16-bit parameters that are not quantised become
/// float32, the cache is emptied.
void prepare_kbit_training(nn::Model& model);
/// Bytes on the device beside the weights themselves: scales, code books.
Bytes quantization_state_bytes(nn::Module& root);

}  // namespace memest::run
