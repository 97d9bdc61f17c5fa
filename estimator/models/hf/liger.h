// A causal language model's loss without the logits of all tokens: --loss chunked.
#pragma once
#include "models/hf/python.h"

namespace memest::hf {

/// A class whose loss is made so where Options::chunked_loss asks for it.
struct ChunksLoss {
  virtual ~ChunksLoss() = default;
};

/// LigerForCausalLMLoss of liger_kernel: what Trainer's use_liger_kernel puts in the place of lm_head and the loss. Logits exist for one
/// chunk of tokens at a time; the gradients of hidden states and head are made with them, in the forward, and wait for the backward.
X liger_causal_lm_loss(X hidden_states, const X& weight, const X& bias, X labels);

}  // namespace memest::hf
