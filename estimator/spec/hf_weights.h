// The safetensors files beside a config.json.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "nn/model.h"
#include "spec/safetensors.h"

namespace memest::spec {

class WeightFiles {
 public:
  /// model.safetensors, or the shards that model.safetensors.index.json names, whether or not they are there; nothing where the folder has
  /// neither. Throws Error for damaged ones.
  static std::optional<WeightFiles> find(const std::string& folder);
  /// The floating type of most bytes; nothing where only names are known.
  std::optional<DType> dtype() const;
  /// What the files hold, held against the model that the configuration makes: what disagrees is a diagnostic, too. Of a quantised model
  /// names and shapes are the format's own and not compared.
  nn::StoredWeights compared_with(const nn::Module& root, bool quantized);

 private:
  void add_file(const std::string& path);
  void read_index(const std::string& folder, const std::string& path);
  void compare(const nn::Module& root);

  nn::StoredWeights sums_;
  std::map<std::string, std::optional<SafeTensor>> tensors_;  ///< of a shard that is not there only the name is known
  std::int64_t absent_ = 0;                                   ///< shards
};

}  // namespace memest::spec
