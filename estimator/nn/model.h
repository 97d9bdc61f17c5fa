// A model that can be run: a module, the inputs it takes and what the file said of its loss.
#pragma once
#include <functional>
#include <map>
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

/// What one token of one sample takes of the cache that generate() fills.
struct CacheBytes {
  Bytes per_token = 0;              ///< of all layers
  Bytes sliding_per_token = 0;      ///< of those of them that keep no more than a window
  std::int64_t sliding_window = 0;  ///< tokens; 0: no layer has one
  Bytes state = 0;                  ///< of convolution and recurrent layers: the same for any length
};

/// Parameters by what they are for, shared ones once.
struct ParameterParts {
  std::int64_t embeddings = 0, attention = 0, mlp = 0, norms = 0, head = 0, other = 0;
  std::int64_t experts = 0, active_experts = 0;  ///< of mlp: those of routed experts, and of them those that one token meets
};

/// The weights that lie beside a configuration.
struct StoredWeights {
  std::int64_t files = 0, tensors = 0;
  Bytes bytes = 0;
  std::map<std::string, Bytes> dtypes;  ///< by the file's own names; empty where only an index is there
  std::vector<std::string> missing, unexpected, mismatched;
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
  /// From a call with one token on the current runtime; nothing where there is no cache.
  virtual std::optional<CacheBytes> cache_bytes() { return {}; }
  virtual std::optional<ParameterParts> parameter_parts() const { return {}; }
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
  std::int64_t most_tokens = 0;     ///< that it has positions for; 0: not known
  std::optional<StoredWeights> stored;
};

}  // namespace memest::nn
