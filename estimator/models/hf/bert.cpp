// models/bert/modeling_bert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

NetworkPtr bert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Bert", "bert");
  f.causal_name = "LMHeadModel";
  return make_encoder(config, o, std::move(f));
}
const Family bert_family{{"bert"}, encoder_classes("Bert", bert, "LMHeadModel", true)};

}  // namespace
}  // namespace memest::hf
