// models/mvp/modeling_mvp.py, without prompts.
#include "models/hf/batched_attention.h"
#include "models/hf/encoder_decoder.h"

namespace memest::hf {
namespace {

class MvpAttention final : public BatchedAttention {
 public:
  MvpAttention(const Seq2SeqConfig& c, I heads, I layer) : BatchedAttention("MvpAttention", c, heads, layer) {}
};

NetworkPtr mvp(const Config& config, const Options& given) {
  if (config.boolean_or("use_prompt", false)) throw config.error("use_prompt", "memest does not build MVP's prompts");
  Options o = given;
  o.attention = Attention::eager;
  Seq2SeqForm f;
  f.prefix = "Mvp";
  f.scales_itself = f.ones_mask = false;
  f.position_ids = Seq2SeqForm::PositionIds::none;
  f.attention = [](const Seq2SeqConfig& c, I heads, I layer) { return std::make_shared<MvpAttention>(c, heads, layer); };
  return make_seq2seq(config, o, std::move(f));
}
const Family mvp_family{
    {"mvp"},
    seq2seq_classes("Mvp", mvp, {Task::seq2seq, Task::causal_lm, Task::masked_lm, Task::seq_cls, Task::question_answering, Task::base})};

}  // namespace
}  // namespace memest::hf
