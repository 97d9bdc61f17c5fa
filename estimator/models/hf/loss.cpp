#include "models/hf/loss.h"

namespace memest::hf {

X cross_entropy(X source, X target) { return ops::cross_entropy_loss(std::move(source), std::move(target), Tensor(), 1, -100, 0.0); }

X causal_lm_loss(X logits, X labels, I vocab_size) {
  logits = logits.to_float();
  labels = aten("constant_pad_nd", {Tensor(labels), list_of(Dims{0, 1}), I{-100}});
  X shift_labels = labels.slice(-1, 1, std::nullopt).contiguous();
  logits = logits.view({-1, vocab_size});
  shift_labels = shift_labels.view({-1});
  return cross_entropy(logits, shift_labels);
}

X masked_lm_loss(X logits, X labels, I vocab_size) {
  logits = logits.to_float();
  logits = logits.view({-1, vocab_size});
  labels = labels.view({-1});
  return cross_entropy(logits, labels);
}

X sequence_classification_loss(X labels, X pooled_logits, I num_labels) {
  if (num_labels == 1) return ops::mse_loss(aten("squeeze", {Tensor(pooled_logits)}), aten("squeeze", {Tensor(labels)}), 1);
  return flat_cross_entropy(pooled_logits, labels, num_labels);
}

X token_classification_loss(X logits, X labels, I num_labels) {
  logits = logits.view({-1, num_labels});
  labels = labels.view({-1});
  logits = logits.to_float();
  return cross_entropy(logits, labels);
}

X flat_cross_entropy(X logits, X labels, I classes) { return cross_entropy(logits.view({-1, classes}), labels.view({-1})); }

X question_answering_loss(const X& start_logits, const X& end_logits, X start_positions, X end_positions) {
  const I ignored_index = start_logits.size(1);
  start_positions = aten("clamp", {Tensor(start_positions), I{0}, ignored_index});
  end_positions = aten("clamp", {Tensor(end_positions), I{0}, ignored_index});
  X start_loss = ops::cross_entropy_loss(start_logits, start_positions, Tensor(), 1, ignored_index, 0.0);
  X end_loss = ops::cross_entropy_loss(end_logits, end_positions, Tensor(), 1, ignored_index, 0.0);
  return start_loss.add(end_loss).div(2);
}

}  // namespace memest::hf
