// models/mbart/modeling_mbart.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr mbart(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "MBart";
  f.norm_before = f.norms_end = true;
  f.clamp = Seq2SeqForm::Clamp::always;
  f.keeps_position_ids = false;
  f.keeps_ones_mask = true;
  f.shift = wrap_tokens_right;
  return make_seq2seq(config, o, std::move(f));
}
const Family mbart_family{
    {"mbart"},
    seq2seq_classes("MBart", mbart,
                    {Task::seq2seq, Task::causal_lm, Task::masked_lm, Task::seq_cls, Task::question_answering, Task::base})};

}  // namespace
}  // namespace memest::hf
