// models/bert/modeling_bert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

NetworkPtr bert(const Config& config, const Options& o) {
  EncoderForm f;
  f.embeddings = [](const EncoderConfig& c) { return make_embeddings("BertEmbeddings", c, Embeddings::bert); };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", make_mlm_head(c, "Bert")}}; };
  f.ties = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
            {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  f.causal_name = "LMHeadModel";
  return make_encoder(config, o, std::move(f));
}
const Family bert_family{{"bert"}, encoder_classes("Bert", bert, "LMHeadModel")};

}  // namespace
}  // namespace memest::hf
