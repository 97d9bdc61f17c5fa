// models/marian/modeling_marian.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr marian(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "Marian";
  f.generation_suffix = "MTModel";
  f.scales_itself = f.norms_embedding = f.shifts_input = false;
  f.positions = Seq2SeqForm::Positions::sinusoidal;
  f.keeps_position_ids = false;
  f.keeps_ones_mask = true;
  if (!config.boolean_or("share_encoder_decoder_embeddings", true)) f.shared.clear();
  return make_seq2seq(config, o, std::move(f));
}
const Family marian_family{{"marian"}, seq2seq_classes("Marian", marian, {Task::seq2seq, Task::causal_lm, Task::base}, "MTModel")};

}  // namespace
}  // namespace memest::hf
