// Readers turn a file into a model; each recognises its own input.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/transformers_version.h"
#include "nn/model.h"

namespace memest::spec {

/// What the command line says of sizes and inputs; readers bind it.
struct ReadOptions {
  std::vector<std::pair<std::string, std::int64_t>> sizes;  ///< --batch, --seq, --src-seq, --tgt-seq, --image, --set: symbol and value
  struct InputOverride {
    std::string name;
    std::vector<std::string> shape;  ///< numbers or expressions
    std::optional<DType> dtype;
  };
  std::vector<InputOverride> inputs;  ///< --input
  std::string method;                 ///< --method of a TorchScript file; empty: forward
  std::vector<std::int64_t> batches;  ///< --batch, where it was given
  std::optional<DType> dtype;         ///< --precision, where it was given: of parameters
  bool file_dtype = false;            ///< neither --precision nor --amp was given: a configuration's own type counts
  bool graph_lifetimes = false;       ///< --lifetimes graph
  // of models that know several tasks or ways to run (Hugging Face configurations)
  std::string task;                ///< --task; empty: what the file names
  std::string attention = "sdpa";  ///< --attn
  std::string experts;             ///< --experts; empty: the library's own
  std::optional<bool> use_cache;   ///< --use-cache
  bool training = true;            ///< labels are given and the model computes its loss
  bool checkpoint = false, reentrant = false;
  bool generates = false;                           ///< --new-tokens: the prompt comes with its attention mask
  std::optional<std::int64_t> logits_to_keep;       ///< --logits last: 1
  std::string cache;                                ///< --cache and --cache-dtype: static, fp8; empty: dynamic
  bool chunked_loss = false;                        ///< --loss chunked
  std::optional<TransformersVersion> transformers;  ///< --transformers-version; none: what went with the PyTorch that is followed
};

/// A JSON file that transformers or diffusers wrote.
bool looks_like_hf_config(const std::string& path, const std::string& head);

class Reader {
 public:
  explicit Reader(const char* name);
  virtual ~Reader() = default;
  const char* name;
  /// Whether the file looks like this reader's; `head` is its first 4 KiB (empty for a folder).
  virtual bool recognises(const std::string& path, const std::string& head) const = 0;
  virtual std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const = 0;
  /// Whether it builds a model from its configuration, so that --attn, --task and the like choose how.
  virtual bool builds() const { return false; }
};

/// The model of a path, or of a shipped spec's name. New parameters get the runtime's default dtype. Throws Error with the near names.
std::unique_ptr<nn::Model> read_model(const std::string& spec, const ReadOptions& options);

/// Names of the specs that ship with memest.
std::vector<std::string> shipped_specs();
/// The folder that holds them: MEMEST_SPECS, ../share/memest/model_specs or model_specs beside the executable or the source.
std::optional<std::string> shipped_folder();

}  // namespace memest::spec
