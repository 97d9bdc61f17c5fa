// models/roberta/modeling_roberta.py, and the copies of it: camembert, xlm_roberta, data2vec (text).
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

NetworkPtr like_roberta(const Config& config, const Options& o, const std::string& prefix, const std::string& base,
                        bool heads_first = false) {
  EncoderForm f = roberta_form(prefix, base);
  f.heads_first = heads_first;
  return make_encoder(config, o, std::move(f));
}
NetworkPtr roberta(const Config& config, const Options& o) { return like_roberta(config, o, "Roberta", "roberta"); }
NetworkPtr camembert(const Config& config, const Options& o) { return like_roberta(config, o, "Camembert", "roberta", true); }
NetworkPtr xlm_roberta(const Config& config, const Options& o) { return like_roberta(config, o, "XLMRoberta", "roberta", true); }
NetworkPtr data2vec_text(const Config& config, const Options& o) { return like_roberta(config, o, "Data2VecText", "data2vec_text"); }
const Family roberta_family{{"roberta"}, encoder_classes("Roberta", roberta)};
const Family camembert_family{{"camembert"}, encoder_classes("Camembert", camembert)};
const Family xlm_roberta_family{{"xlm-roberta"}, encoder_classes("XLMRoberta", xlm_roberta)};
const Family data2vec_text_family{{"data2vec-text"}, encoder_classes("Data2VecText", data2vec_text)};

}  // namespace
}  // namespace memest::hf
