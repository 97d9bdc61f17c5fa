// models/xlm/modeling_xlm.py and models/flaubert. Attention is always eager, and each forward fills a cache that dies with it.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

struct XlmForm {
  std::string prefix;
  bool expands_positions = false;  ///< flaubert: position_ids of each sample
};

class XlmAttention final : public Base {
 public:
  XlmAttention(const EncoderConfig& c, I layer)
      : Base("MultiHeadAttention"),
        layer_(layer),
        heads_(c.heads),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        q_lin(child<Linear>("q_lin", c.hidden, c.hidden)),
        k_lin(child<Linear>("k_lin", c.hidden, c.hidden)),
        v_lin(child<Linear>("v_lin", c.hidden, c.hidden)),
        out_lin(child<Linear>("out_lin", c.hidden, c.hidden)) {}
  X operator()(const X& input, X mask, Cache& cache) {
    Entered scope(*this);
    const I bs = input.size(0), qlen = input.size(1);
    const Dims mask_reshape = mask.dim() == 3 ? Dims{bs, 1, qlen, -1} : Dims{bs, 1, 1, -1};
    const Dims shape{bs, -1, heads_, head_dim_};
    X q = q_lin(input).view(shape).transpose(1, 2);
    X k = k_lin(input);
    X v = v_lin(input);
    k = k.view(shape).transpose(1, 2);
    v = v.view(shape).transpose(1, 2);
    std::tie(k, v) = cache.update(k, v, layer_);
    q = q.div(1.0);
    X scores = q.matmul(k.transpose(2, 3));
    mask = X(aten("eq", {Tensor(mask), I{0}})).view(mask_reshape).expand(scores.sizes());
    scores = aten("masked_fill_", {Tensor(scores), Tensor(mask), -1e30});
    X weights = scores.to_float().softmax(-1).to(scores.dtype());
    weights = ops::dropout(weights, dropout_, training);
    X context = weights.matmul(v);
    context = context.transpose(1, 2).contiguous().view({bs, -1, heads_ * head_dim_});
    X output = out_lin(context);
    return leave(output, mask, q, k, v, scores, weights, context);
  }

 private:
  I layer_, heads_, head_dim_;
  double dropout_;
  Linear &q_lin, &k_lin, &v_lin, &out_lin;
};

class XlmFfn final : public Unary {
 public:
  explicit XlmFfn(const EncoderConfig& c)
      : Unary("TransformerFFN"),
        dropout_(c.hidden_dropout),
        lin1(child<Linear>("lin1", c.hidden, 4 * c.hidden)),
        lin2(child<Linear>("lin2", 4 * c.hidden, c.hidden)),
        act_(c.file.boolean_or("gelu_activation", true) ? "gelu" : "relu") {}

 protected:
  X forward(X input) override {
    X x = lin1(input);
    x = act_.forward(x);
    x = lin2(x);
    x = ops::dropout(x, dropout_, training);
    return x;
  }

 private:
  double dropout_;
  Linear &lin1, &lin2;
  Activation act_;
};

class XlmModel final : public EncoderBody {
 public:
  XlmModel(const EncoderConfig& c, const XlmForm& form)
      : EncoderBody(form.prefix + "Model"),
        layers_count_(c.layers),
        dropout_(c.hidden_dropout),
        causal_(c.file.boolean_or("causal", false)),
        expands_positions_(form.expands_positions),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden)) {
    if (!c.file.boolean_or("is_encoder", true)) throw c.file.error("is_encoder", "Currently XLM can only be used as an encoder");
    if (c.file.boolean_or("pre_norm", false)) throw c.file.error("pre_norm", "memest builds false only");
    if (c.file.number_or("layerdrop", 0.0) > 0) throw c.file.error("layerdrop", "which layers are dropped is random; memest builds 0 only");
    if (c.file.boolean_or("sinusoidal_embeddings", false)) position_embeddings.weight()->requires_grad = false;
    const I langs = c.file.integer_or("n_langs", 1);
    if (langs > 1 && c.file.boolean_or("use_lang_emb", true)) child<Embedding>("lang_embeddings", langs, c.hidden);
    embeddings = &child<Embedding>("embeddings", c.vocab, c.hidden, 2);
    layer_norm_emb = &child<LayerNorm>("layer_norm_emb", c.hidden);
    auto list = [&](const char* name) { return register_module(name, std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{})); };
    auto attentions = list("attentions"), norms1 = list("layer_norm1"), ffns = list("ffns"), norms2 = list("layer_norm2");
    for (I i = 0; i < layers_count_; ++i) {
      attentions_.push_back(std::make_shared<XlmAttention>(c, i)), attentions->append(attentions_.back());
      norm1_.push_back(std::make_shared<LayerNorm>(c.hidden)), norms1->append(norm1_.back());
      ffns_.push_back(std::make_shared<XlmFfn>(c)), ffns->append(ffns_.back());
      norm2_.push_back(std::make_shared<LayerNorm>(c.hidden)), norms2->append(norm2_.back());
    }
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    const I bs = input_ids.size(0), slen = input_ids.size(1);
    Cache cache(std::vector<I>(std::size_t(layers_count_), 0));
    X lengths;
    {
      X words = aten("ne", {Tensor(input_ids), I{2}});
      lengths = words.sum(1);
    }
    check_lengths(lengths);
    auto [mask, attn_mask] = get_masks(bs, slen, lengths);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, slen);
    if (expands_positions_) position_ids = position_ids.expand({bs, slen});
    input_ids = input_ids.whole_slices(1).slice(1, -slen, std::nullopt);
    position_ids = position_ids.whole_slices(1).slice(1, -slen, std::nullopt);
    mask = mask.whole_slices(1).slice(1, -slen, std::nullopt);
    attn_mask = attn_mask.whole_slices(1).slice(1, -slen, std::nullopt);
    X inputs_embeds = (*embeddings)(input_ids);
    X tensor = inputs_embeds.add(position_embeddings(position_ids).expand(inputs_embeds.sizes()));
    tensor = (*layer_norm_emb)(tensor);
    tensor = ops::dropout(tensor, dropout_, training);
    auto masked = [&mask = mask](X x) { return X(aten("mul_", {Tensor(x), Tensor(mask.unsqueeze(-1).to(x.dtype()))})); };
    tensor = masked(tensor);
    X attn_outputs, attn;
    for (std::size_t i = 0; i < attentions_.size(); ++i) {
      attn_outputs = (*attentions_[i])(tensor, attn_mask, cache);
      attn = attn_outputs;
      attn = ops::dropout(attn, dropout_, training);
      tensor = tensor.add(attn);
      tensor = (*norm1_[i])(tensor);
      tensor = tensor.add((*ffns_[i])(tensor));
      tensor = (*norm2_[i])(tensor);
      tensor = masked(tensor);
    }
    return {leave(tensor, lengths, mask, attn_mask, inputs_embeds, attn_outputs, attn), {}};
  }

 private:
  /// assert lengths.max().item() <= slen
  static void check_lengths(const X& lengths) { aten("max", {Tensor(lengths)}); }
  Pair get_masks(I bs, I slen, const X& lengths) const {
    X alen = arange(slen);
    check_lengths(lengths);
    X mask = aten("lt", {Tensor(alen), Tensor(lengths.whole_slices(1).unsqueeze(1))});
    if (!causal_) return leave(Pair(mask, mask), alen);
    X repeated = aten("repeat", {Tensor(alen.unsqueeze(0).unsqueeze(0).whole_slices(3)), list_of(Dims{bs, slen, 1})});
    X attn_mask = aten("le", {Tensor(std::move(repeated)), Tensor(alen.unsqueeze(0).whole_slices(2).unsqueeze(2))});
    return leave(Pair(mask, attn_mask), alen);
  }

  I layers_count_;
  double dropout_;
  bool causal_, expands_positions_;
  Embedding &position_embeddings, *embeddings;
  LayerNorm* layer_norm_emb;
  std::vector<std::shared_ptr<XlmAttention>> attentions_;
  std::vector<std::shared_ptr<LayerNorm>> norm1_, norm2_;
  std::vector<std::shared_ptr<XlmFfn>> ffns_;
};

/// XLMPredLayer without the adaptive softmax.
class PredLayer final : public Unary {
 public:
  PredLayer(const EncoderConfig& c, const std::string& prefix)
      : Unary(prefix + "PredLayer"), proj(child<Linear>("proj", c.hidden, c.vocab)) {
    if (c.file.boolean_or("asm", false)) throw c.file.error("asm", "memest does not build the adaptive softmax");
  }

 protected:
  X forward(X x) override { return proj(x); }

 private:
  Linear& proj;
};

NetworkPtr like_xlm(const Config& config, const Options& o, const XlmForm& form) {
  EncoderForm f;
  f.prefix = form.prefix;
  f.base_prefix = "transformer";
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.hidden_dropout = c.classifier_dropout = c.file.number_or("dropout", 0.1);
    c.attention_dropout = c.file.number_or("attention_dropout", 0.1);
    c.is_decoder = false;
  };
  f.body = [form](const EncoderConfig& c, bool) { return std::make_shared<XlmModel>(c, form); };
  f.lm_head = [form](const EncoderConfig& c) { return EncoderForm::Heads{{"pred_layer", std::make_shared<PredLayer>(c, form.prefix)}}; };
  f.ties = {{"pred_layer.proj.weight", "transformer.embeddings.weight"}};
  f.classifier = [form](const EncoderConfig& c) {
    return EncoderForm::Heads{{"sequence_summary", make_sequence_summary(form.prefix + "SequenceSummary", c.file, c.hidden)}};
  };
  f.choice = [form](const EncoderConfig& c) {
    return EncoderForm::Heads{{"sequence_summary", make_sequence_summary(form.prefix + "SequenceSummary", c.file, c.hidden)},
                              {"logits_proj", make_linear(num_labels(c.file), 1)}};
  };
  return make_encoder(config, o, std::move(f));
}
NetworkPtr xlm(const Config& config, const Options& o) { return like_xlm(config, o, {.prefix = "XLM"}); }
NetworkPtr flaubert(const Config& config, const Options& o) {
  return like_xlm(config, o, {.prefix = "Flaubert", .expands_positions = true});
}
std::vector<TaskClass> classes(const std::string& prefix, NetworkPtr (*make)(const Config&, const Options&)) {
  return {
      {Task::masked_lm, prefix + "WithLMHeadModel", make},         {Task::seq_cls, prefix + "ForSequenceClassification", make},
      {Task::token_cls, prefix + "ForTokenClassification", make},  {Task::question_answering, prefix + "ForQuestionAnsweringSimple", make},
      {Task::multiple_choice, prefix + "ForMultipleChoice", make}, {Task::base, prefix + "Model", make}};
}
const Family xlm_family{{"xlm"}, classes("XLM", xlm)};
const Family flaubert_family{{"flaubert"}, classes("Flaubert", flaubert)};

}  // namespace
}  // namespace memest::hf
