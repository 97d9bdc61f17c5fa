// models/m2m_100/modeling_m2m_100.py; NLLB is one.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr m2m_100(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "M2M100";
  f.norm_before = f.norms_end = true;
  f.clamp = Seq2SeqForm::Clamp::always;
  f.norms_embedding = f.shifts_input = f.logits_bias = f.labels_end_cache = false;
  f.position_ids = Seq2SeqForm::PositionIds::none;
  f.positions = Seq2SeqForm::Positions::counted;
  return make_seq2seq(config, o, std::move(f));
}
const Family m2m_100_family{{"m2m_100"}, seq2seq_classes("M2M100", m2m_100, {Task::seq2seq, Task::base})};

}  // namespace
}  // namespace memest::hf
