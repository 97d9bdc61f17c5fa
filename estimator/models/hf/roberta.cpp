// models/roberta/modeling_roberta.py, and the copies of it: camembert, xlm_roberta, data2vec (text).
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

/// RobertaClassificationHead.
class ClassificationHead final : public Unary {
 public:
  ClassificationHead(const EncoderConfig& c, const std::string& prefix)
      : Unary(prefix + "ClassificationHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.classifier_dropout)),
        out_proj(child<Linear>("out_proj", c.hidden, num_labels(c.file))) {}

 protected:
  X forward(X features) override {
    X x = features.whole_slices(1).select(1, 0);
    if (runtime().settings.torch.full_slice_records_node()) x = x.slice(1, std::nullopt, std::nullopt);
    x = dropout(x);
    x = dense(x);
    x = x.tanh();
    x = dropout(x);
    x = out_proj(x);
    return x;
  }

 private:
  Linear& dense;
  Dropout& dropout;
  Linear& out_proj;
};

NetworkPtr like_roberta(const Config& config, const Options& o, const std::string& prefix, const std::string& base,
                        bool head_first = false) {
  EncoderForm f;
  f.lm_head_first = head_first;
  f.prefix = prefix;
  f.base_prefix = base;
  f.embeddings = [=](const EncoderConfig& c) { return make_embeddings(prefix + "Embeddings", c, Embeddings::roberta); };
  f.lm_head = [=](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", make_roberta_lm_head(c, prefix)}}; };
  f.ties = {{"lm_head.decoder.weight", base + ".embeddings.word_embeddings.weight"}, {"lm_head.decoder.bias", "lm_head.bias"}};
  f.classifier = [=](const EncoderConfig& c) { return std::make_shared<ClassificationHead>(c, prefix); };
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
