// models/ernie/modeling_ernie.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

NetworkPtr ernie(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Ernie", "ernie");
  f.embeddings = [](const EncoderConfig& c) {
    const I task_types = c.file.boolean_or("use_task_id", false) ? c.file.size_or("task_type_vocab_size", 3) : 0;
    return make_embeddings("ErnieEmbeddings", c, {.task_types = task_types});
  };
  return make_encoder(config, o, std::move(f));
}
const Family ernie_family{{"ernie"}, encoder_classes("Ernie", ernie, {}, true)};

}  // namespace
}  // namespace memest::hf
