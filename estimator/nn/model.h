// A model that can be run: a module, the inputs it takes and what the file said of its loss.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nn/graph.h"
#include "nn/module.h"

namespace memest::nn {

struct InputSpec {
  std::string name;
  std::vector<SizeExpression> shape;
  DType dtype = DType::float32;
  Dims sizes(const Symbols& symbols) const {
    Dims dims;
    for (auto& s : shape) dims.push_back(s.evaluate(symbols));
    return dims;
  }
};

/// What one forward gives: the names `out` and `loss` of the training loop.
struct Outcome {
  Value out;
  Tensor loss;  ///< undefined where the model computes none itself
};

class Model {
 public:
  virtual ~Model() = default;
  /// out = model(*batch). Families that take labels compute their own loss.
  virtual Outcome forward(const Tensors& batch) {
    Values arguments;
    for (auto& x : batch) arguments.emplace_back(x);
    return {root->call(arguments), {}};
  }
  /// Whether forward() gives the loss (its inputs then hold the labels).
  virtual bool computes_loss() const { return false; }
  /// Path of the layer that gives logits over the vocabulary (transformers' get_output_embeddings); empty where there is none.
  virtual std::string output_embeddings() const { return {}; }
  /// Whether its forward checkpoints each layer where it was built so (gradient_checkpointing_enable).
  virtual bool checkpoints_itself() const { return false; }

  std::string name, kind, source;  ///< "resnet50"; "memest-spec"; the file or "shipped"
  ModulePtr root;
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();
  std::vector<InputSpec> inputs;
  bool keeps_types = false;  ///< its inputs have the types that `inputs` say, whatever the precision
  std::string loss;          ///< the file's default for --loss; empty where it names none
};

}  // namespace memest::nn
