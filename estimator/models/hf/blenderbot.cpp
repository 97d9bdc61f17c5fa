// models/blenderbot/modeling_blenderbot.py and models/blenderbot_small/modeling_blenderbot_small.py.
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

NetworkPtr blenderbot(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "Blenderbot";
  f.norm_before = f.norms_end = true;
  f.clamp = Seq2SeqForm::Clamp::always;
  f.norms_embedding = f.shifts_input = false;
  f.positions = Seq2SeqForm::Positions::learned;
  f.keeps_position_ids = false;
  f.keeps_ones_mask = f.names_layer_outputs = true;
  return make_seq2seq(config, o, std::move(f));
}
NetworkPtr blenderbot_small(const Config& config, const Options& o) {
  Seq2SeqForm f;
  f.prefix = "BlenderbotSmall";
  f.scales_itself = f.decoder_scales = f.shifts_input = false;
  f.positions = Seq2SeqForm::Positions::learned;
  f.norms_before_positions = true;
  f.keeps_position_ids = false;
  f.keeps_ones_mask = true;
  return make_seq2seq(config, o, std::move(f));
}
const Family blenderbot_family{{"blenderbot"}, seq2seq_classes("Blenderbot", blenderbot, {Task::seq2seq, Task::causal_lm, Task::base})};
const Family blenderbot_small_family{{"blenderbot-small"},
                                     seq2seq_classes("BlenderbotSmall", blenderbot_small, {Task::seq2seq, Task::causal_lm, Task::base})};

}  // namespace
}  // namespace memest::hf
