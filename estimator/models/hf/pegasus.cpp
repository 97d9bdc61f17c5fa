// models/pegasus/modeling_pegasus.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr pegasus(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "Pegasus";
  f.norm_before = f.norms_end = true;
  f.clamp = Seq2SeqForm::Clamp::always;
  f.scales_itself = f.norms_embedding = f.shifts_input = false;
  f.positions = Seq2SeqForm::Positions::sinusoidal;
  f.keeps_ones_mask = true;
  return make_seq2seq(config, o, std::move(f));
}
const Family pegasus_family{{"pegasus"}, seq2seq_classes("Pegasus", pegasus, {Task::seq2seq, Task::causal_lm, Task::base})};

}  // namespace
}  // namespace memest::hf
