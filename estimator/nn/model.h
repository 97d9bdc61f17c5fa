// A model that can be run: a module, the inputs it takes and what the file said of its loss.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/graph.h"
#include "nn/module.h"

namespace memest::nn {

struct Quantization;

struct InputSpec {
  std::string name;
  std::vector<SizeExpression> shape;
  DType dtype = DType::float32;
  bool keep_dtype = false;  ///< --precision does not change it
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

/// --new-tokens
struct Generation {
  std::int64_t new_tokens = 0;      ///< max_new_tokens, all of which are generated
  bool all_logits = false;          ///< logits of the whole prompt instead of its last position
  std::function<void()> on_decode;  ///< called between the prefill and the first decoding call
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
  /// Whether the model can continue a prompt; batch then holds its attention mask too.
  virtual bool generates() const { return false; }
  /// model.generate(*batch): the sequences.
  virtual Value generate(const Tensors&, const Generation&) { throw Error("this model does not generate"); }
  /// Whether forward() gives the loss (its inputs then hold the labels).
  virtual bool computes_loss() const { return false; }
  /// Path of the layer that gives logits over the vocabulary (transformers' get_output_embeddings); empty where there is none.
  virtual std::string output_embeddings() const { return {}; }
  /// Whether it is loaded by transformers' from_pretrained where its weights are quantised.
  virtual bool is_transformers() const { return false; }
  /// Whether its forward checkpoints each layer where it was built so (gradient_checkpointing_enable).
  virtual bool checkpoints_itself() const { return false; }

  std::string name, kind, source;  ///< "resnet50"; "memest-spec"; the file or "shipped"
  ModulePtr root;
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();
  std::vector<InputSpec> inputs;
  std::shared_ptr<const Quantization> quantization;  ///< that the file says its weights have; null where it says nothing
  std::string loss;                                  ///< the file's default for --loss; empty where it names none
  // What the file fixes, and a run takes where the user gives nothing else.
  std::int64_t file_batch = 0;      ///< samples; 0: nothing
  std::optional<DType> file_dtype;  ///< of parameters and inputs
};

}  // namespace memest::nn
