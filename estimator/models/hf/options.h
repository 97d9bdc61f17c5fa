// How a model of transformers is built and called: what from_config and forward get beside the configuration.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "models/hf/python.h"

namespace memest::hf {

/// Which class of the family is built (AutoModelForCausalLM, ...).
enum class Task {
  causal_lm,
  masked_lm,
  seq_cls,
  token_cls,
  question_answering,
  multiple_choice,
  pretraining,
  seq2seq,
  image_cls,
  semantic_seg,
  masked_image,
  audio_cls,
  ctc,
  text_encoding,
  base
};
enum class Attention { sdpa, eager, flash };

struct Options {
  Task task = Task::causal_lm;
  Attention attention = Attention::sdpa;
  /// Set by the attention functions that run flash_attention_2; a model that sets nothing has none.
  std::shared_ptr<bool> takes_flash = std::make_shared<bool>(false);
  std::string experts = "grouped_mm";  ///< experts_implementation: grouped_mm, batched_mm, eager
  bool use_cache = true;
  bool labels = true;               ///< the loss is computed
  std::optional<I> logits_to_keep;  ///< of a plain forward; none: the logits of all positions
  bool checkpoint = false;          ///< gradient_checkpointing_enable()
  bool reentrant = false;
  /// Without a mask and a cache, transformers looks for packed sequences in the values of position_ids (masking_utils.py
  /// find_packed_sequence_indices), and a packed batch materialises its mask. Values are not known here.
  bool packed = true;
  /// A model that makes a mask of ones itself reads it back to see that it masks nothing (masking_utils.py fast_all). Values are not known
  /// here: the mask is kept.
  bool padded = true;
  bool target = false;  ///< a target length is given: a call without labels of that length gets decoder_input_ids
};

}  // namespace memest::hf
