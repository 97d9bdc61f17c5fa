// models/bart/modeling_bart.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr bart(const Config& given, const Options& o) {
  Config config = given;
  if (!config.has("id2label") && !config.has("num_labels")) {  // BartConfig.__post_init__
    ConfigValue three;
    three.value = I{3};
    config.set("num_labels", std::move(three));
  }
  return make_seq2seq(config, o, {});
}
const Family bart_family{
    {"bart"},
    seq2seq_classes("Bart", bart, {Task::seq2seq, Task::causal_lm, Task::masked_lm, Task::seq_cls, Task::question_answering, Task::base})};

}  // namespace
}  // namespace memest::hf
