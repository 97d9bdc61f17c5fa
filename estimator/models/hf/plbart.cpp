// models/plbart/modeling_plbart.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr plbart(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "PLBart";
  f.shift = wrap_tokens_right;
  f.labels_end_cache = false;
  return make_seq2seq(config, o, std::move(f));
}
const Family plbart_family{{"plbart"}, seq2seq_classes("PLBart", plbart, {Task::seq2seq, Task::causal_lm, Task::seq_cls, Task::base})};

}  // namespace
}  // namespace memest::hf
