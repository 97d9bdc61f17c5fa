// transformers/loss/loss_utils.py.
#pragma once
#include "models/hf/python.h"

namespace memest::hf {

/// torch.nn.functional.cross_entropy(source, target), mean.
X cross_entropy(X source, X target);
/// ForCausalLMLoss: fp32 logits, labels padded and shifted.
X causal_lm_loss(X logits, X labels, I vocab_size);
/// ForMaskedLMLoss.
X masked_lm_loss(X logits, X labels, I vocab_size);
/// ForSequenceClassificationLoss with class indices.
X sequence_classification_loss(X labels, X pooled_logits, I num_labels);
/// ForTokenClassification: fp32 logits.
X token_classification_loss(X logits, X labels, I num_labels);
/// CrossEntropyLoss()(logits.view(-1, n), labels.view(-1)), as families write it themselves.
X flat_cross_entropy(X logits, X labels, I classes);
/// The loss of question answering: the mean of the start's and the end's, positions beyond the sequence ignored.
X question_answering_loss(const X& start_logits, const X& end_logits, X start_positions, X end_positions);

}  // namespace memest::hf
