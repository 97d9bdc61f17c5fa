// A model family of transformers: which model_types it builds, for which tasks, and with what. One file each; it registers itself.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "models/hf/cache.h"
#include "models/hf/module.h"
#include "models/hf/options.h"
#include "nn/model.h"

namespace memest::hf {

/// What a class's forward is given: the arguments of the call, undefined where it gets none.
struct Batch {
  X input;          ///< input_ids, or pixel_values
  X labels;         ///< or start_positions
  X decoder_input;  ///< decoder_input_ids
  X end_positions;
  X next_sentence_label;
  X pixel_values;  ///< beside input_ids
  X token_type_ids;
  std::vector<std::pair<std::string, X>> others;  ///< any other argument, by its name
  // of generate()
  X position_ids;
  CachePtr cache;
  std::optional<I> logits_to_keep;  ///< the last so many positions; none: all, in float32
};

/// A class of transformers as AutoModelForX.from_config makes it: the root of a run.
class Network : public Base {
 public:
  explicit Network(std::string type, const Options& options) : Base(std::move(type)), options_(options) {}
  /// out = model(**batch): what the output object holds, and its loss.
  virtual nn::Outcome run(Batch batch) = 0;
  /// One call of generate(): what the next token is chosen from, and the cache that the call filled.
  struct Step {
    X logits;
    CachePtr cache;
  };
  virtual bool generates() const { return false; }
  virtual Step step(Batch) { throw Error(type() + " does not generate"); }
  virtual CachePtr new_generation_cache() const { return {}; }
  /// The arguments a batch has, in order, by the names of Batch; their sizes are expressions over batch, seq, image..., and src_seq and
  /// tgt_seq, which are seq unless given.
  virtual std::vector<nn::InputSpec> inputs() const;
  /// Sizes that the inputs need, with their defaults.
  virtual std::vector<std::pair<std::string, I>> default_sizes() const;

 protected:
  const Options options_;
};
using NetworkPtr = std::shared_ptr<Network>;

struct TaskClass {
  Task task;
  std::string class_name;  ///< of transformers: "LlamaForCausalLM"
  NetworkPtr (*make)(const Config& config, const Options& options);
};

class Family {
 public:
  Family(std::initializer_list<const char*> model_types, std::vector<TaskClass> classes);
  const std::vector<std::string> model_types;
  const std::vector<TaskClass> classes;
};

/// TaskClass{task, name, make_class<Class>}
template <class N>
NetworkPtr make_class(const Config& config, const Options& options) {
  return std::make_shared<N>(config, options);
}

const std::vector<const Family*>& all_families();
/// Null where no family builds this model_type.
const Family* find_family(const std::string& model_type);
std::vector<std::string> all_model_types();
std::string_view name_of(Task task);
std::optional<Task> task_from(std::string_view name);
/// The task of a class name: "LlamaForCausalLM", "GPT2LMHeadModel", "BertModel".
std::optional<Task> task_of_class(const std::string& class_name);

/// config.num_labels: the length of id2label, else num_labels, else 2.
I num_labels(const Config& config);

}  // namespace memest::hf
