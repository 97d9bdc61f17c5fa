// models/megatron_bert/modeling_megatron_bert.py.
#include "models/hf/classic_encoder.h"

namespace memest::hf {
namespace {

NetworkPtr megatron_bert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("MegatronBert", "bert");
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.classifier_dropout = c.hidden_dropout;
  };
  f.typed_embeddings = [](const EncoderConfig& c) { return make_classic_embeddings("MegatronBertEmbeddings", c, false); };
  f.ones_mask = true;
  f.masked_encoder = [](const EncoderConfig& c) { return make_classic_encoder(c, {.prefix = "MegatronBert", .pre_norm = true}); };
  return make_encoder(config, o, std::move(f));
}
const Family megatron_bert_family{{"megatron-bert"}, encoder_classes("MegatronBert", megatron_bert, {}, true)};

}  // namespace
}  // namespace memest::hf
