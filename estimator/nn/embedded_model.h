// Parts that are models of their own in transformers (PreTrainedModel), each with input embeddings.
#pragma once
#include "nn/adapter.h"

namespace memest::nn {

class EmbeddedModel {
 public:
  virtual ~EmbeddedModel() = default;
  /// get_input_embeddings(): what enable_input_require_grads hooks; null where it finds none.
  virtual InputEmbedding* input_embedding() = 0;

 protected:
  static InputEmbedding* embedding_at(Module& module, const std::string& path) { return dynamic_cast<InputEmbedding*>(module.find(path)); }
};

}  // namespace memest::nn
