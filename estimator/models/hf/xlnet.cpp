// models/xlnet/modeling_xlnet.py, without memories, masks and targets given.
#include <cmath>

#include "models/hf/encoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

struct XLNetConfig {
  XLNetConfig(const Config& config, const Options& o)
      : file(config),
        options(o),
        width(config.size("d_model")),
        heads(config.size("n_head")),
        head_dim(config.size_or("d_head", width / heads)),
        dropout(config.number_or("dropout", 0.1)) {
    if (config.text_or("attn_type", "bi") != "bi") throw config.error("attn_type", "memest builds bi only");
    if (config.boolean_or("bi_data", false)) throw config.error("bi_data", "memest builds false only");
  }
  Config file;
  Options options;
  I width, heads, head_dim;
  double dropout;
};

X einsum(const char* equation, const X& a, const X& b) {
  return aten("einsum", {std::string(equation), make_list({Tensor(a), Tensor(b)})});
}

class XLNetRelativeAttention final : public Joint {
 public:
  explicit XLNetRelativeAttention(const XLNetConfig& c) : Joint("XLNetRelativeAttention"), scale_(1 / std::sqrt(double(c.head_dim))) {
    for (const char* name : {"q", "k", "v", "o", "r"}) new_parameter(name, {c.width, c.heads, c.head_dim});
    for (const char* name : {"r_r_bias", "r_s_bias", "r_w_bias"}) new_parameter(name, {c.heads, c.head_dim});
    new_parameter("seg_embed", {2, c.heads, c.head_dim});
    layer_norm = &child<LayerNorm>("layer_norm", c.width);
    dropout = &child<Dropout>("dropout", c.dropout);
  }

 protected:
  X forward(X h, X r) override {
    X q_head_h = einsum("ibh,hnd->ibnd", h, parameter(0));
    X k_head_h = einsum("ibh,hnd->ibnd", h, parameter(1));
    X v_head_h = einsum("ibh,hnd->ibnd", h, parameter(2));
    X k_head_r;
    {
      X typed = r.to(X(parameter(4)).dtype());
      k_head_r = einsum("ibh,hnd->ibnd", typed, parameter(4));
    }
    X attn_vec = rel_attn_core(q_head_h, k_head_h, v_head_h, k_head_r);
    X output_h = post_attention(h, attn_vec);
    return leave(output_h, k_head_h, v_head_h, k_head_r, q_head_h, attn_vec);
  }

 private:
  static X rel_shift_bnij(X x, I klen) {
    const Dims x_size = x.sizes();
    x = x.reshape({x_size[0], x_size[1], x_size[3], x_size[2]});
    x = x.slice(2, 1, std::nullopt);
    x = x.reshape({x_size[0], x_size[1], x_size[2], x_size[3] - 1});
    X kept = arange(klen);
    x = aten("index_select", {Tensor(x), I{3}, Tensor(kept)});
    return x;
  }
  X rel_attn_core(const X& q_head, const X& k_head_h, const X& v_head_h, const X& k_head_r) {
    X ac, bd;
    {
      X biased = q_head.add(X(parameter(7)));
      ac = einsum("ibnd,jbnd->bnij", biased, k_head_h);
    }
    {
      X biased = q_head.add(X(parameter(5)));
      bd = einsum("ibnd,jbnd->bnij", biased, k_head_r);
    }
    bd = rel_shift_bnij(std::move(bd), ac.size(3));
    X attn_score = ac.add(bd).add(0).mul(scale_);
    X attn_prob = attn_score.softmax(3);
    attn_prob = (*dropout)(attn_prob);
    X attn_vec = einsum("bnij,jbnd->ibnd", attn_prob, v_head_h);
    return leave(attn_vec, ac, bd, attn_score, attn_prob);
  }
  X post_attention(const X& h, const X& attn_vec) {
    X attn_out = einsum("ibnd,hnd->ibh", attn_vec, parameter(3));
    attn_out = (*dropout)(attn_out);
    attn_out = attn_out.add(h);
    X output = (*layer_norm)(attn_out);
    return leave(output, attn_out);
  }

  double scale_;
  LayerNorm* layer_norm;
  Dropout* dropout;
};

class XLNetFeedForward final : public Unary {
 public:
  explicit XLNetFeedForward(const XLNetConfig& c)
      : Unary("XLNetFeedForward"),
        layer_norm(child<LayerNorm>("layer_norm", c.width)),
        layer_1(child<Linear>("layer_1", c.width, c.file.size("d_inner"))),
        layer_2(child<Linear>("layer_2", c.file.size("d_inner"), c.width)),
        dropout(child<Dropout>("dropout", c.dropout)),
        activation_function(child<Activation>("activation_function", c.file.text_or("ff_activation", "gelu"))) {}

 protected:
  X forward(X inp) override {
    X output = inp;
    output = layer_1(output);
    output = activation_function(output);
    output = dropout(output);
    output = layer_2(output);
    output = dropout(output);
    output = layer_norm(output.add(inp));
    return output;
  }

 private:
  LayerNorm& layer_norm;
  Linear &layer_1, &layer_2;
  Dropout& dropout;
  Activation& activation_function;
};

class XLNetLayer final : public Joint {
 public:
  explicit XLNetLayer(const XLNetConfig& c)
      : Joint("XLNetLayer"), rel_attn(child<XLNetRelativeAttention>("rel_attn", c)), ff(child<XLNetFeedForward>("ff", c)) {
    child<Dropout>("dropout", c.dropout);
  }

 protected:
  X forward(X output_h, X r) override {
    output_h = rel_attn(output_h, r);
    output_h = ff(output_h);
    return output_h;
  }

 private:
  XLNetRelativeAttention& rel_attn;
  XLNetFeedForward& ff;
};

struct XLNetOutput {
  X last_hidden_state;
  std::vector<X> mems;
};

class XLNetModel final : public Base {
 public:
  explicit XLNetModel(const XLNetConfig& c)
      : Base("XLNetModel"),
        width_(c.width),
        clamp_len_(c.file.integer_or("clamp_len", -1)),
        reuse_len_(c.file.integer_or("reuse_len", 0)),
        mem_len_(c.file.integer_or("mem_len", 0)),
        mems_train_(c.file.boolean_or("use_mems_train", false)),
        mems_eval_(c.file.boolean_or("use_mems_eval", true)),
        word_embedding(child<Embedding>("word_embedding", c.file.size("vocab_size"), c.width)),
        layers_(*this, "layer", c.file.size("n_layer"), [&](I) { return std::make_shared<XLNetLayer>(c); }),
        dropout(child<Dropout>("dropout", c.dropout)) {
    new_parameter("mask_emb", {1, 1, c.width});
  }
  XLNetOutput operator()(X input_ids) {
    Entered scope(*this);
    input_ids = input_ids.transpose(0, 1).contiguous();
    const I qlen = input_ids.size(0), bsz = input_ids.size(1);
    X word_emb_k = word_embedding(input_ids);
    X output_h = dropout(word_emb_k);
    X pos_emb = relative_positional_encoding(qlen, bsz);
    pos_emb = dropout(pos_emb);
    std::vector<X> new_mems;
    for (auto& layer : layers_) {
      if (training ? mems_train_ : mems_eval_) new_mems.push_back(cache_mem(output_h));
      output_h = (*layer)(output_h, pos_emb);
    }
    X output = dropout(output_h);
    output = output.permute({1, 0, 2}).contiguous();
    input_ids.reset(), word_emb_k.reset(), output_h.reset(), pos_emb.reset();
    return {output, std::move(new_mems)};
  }

 private:
  X cache_mem(X curr_out) const {
    if (reuse_len_ > 0) curr_out = curr_out.slice(0, 0, reuse_len_);
    return curr_out.slice(0, -mem_len_, std::nullopt).detach();
  }
  X relative_positional_encoding(I qlen, I bsz) const {
    X freq_seq = arange((width_ + 1) / 2).to_float();
    X inv_freq;
    {
      X exponent = freq_seq.div(double(width_));
      X power = X(ops::unary("aten::pow", exponent));
      exponent.reset();
      inv_freq = aten("reciprocal", {Tensor(power)});
      power.reset();
      inv_freq = std::move(inv_freq).mul(1);
    }
    X pos_seq = arange(2 * qlen).to_float();
    if (clamp_len_ > 0) pos_seq = aten("clamp", {Tensor(pos_seq), -clamp_len_, clamp_len_});
    X sinusoid = pos_seq.unsqueeze(1).mul(inv_freq);
    X sine = aten("sin", {Tensor(sinusoid)});
    X cosine = aten("cos", {Tensor(sinusoid)});
    X pos_emb = cat({sine, cosine}, -1);
    sine.reset(), cosine.reset();
    pos_emb = pos_emb.unsqueeze(1).expand({-1, bsz, -1});
    return leave(pos_emb, sinusoid, freq_seq, inv_freq, pos_seq);
  }

  I width_, clamp_len_, reuse_len_, mem_len_;
  bool mems_train_, mems_eval_;
  Embedding& word_embedding;
  Layers<XLNetLayer> layers_;
  Dropout& dropout;
};

class XLNetNetwork final : public Network {
 public:
  XLNetNetwork(const XLNetConfig& c, const std::string& suffix)
      : Network("XLNet" + suffix, c.options), file_(c.file), transformer(child<XLNetModel>("transformer", c)) {
    const Task task = c.options.task;
    if (task == Task::causal_lm || task == Task::pretraining) {
      head = &child<Linear>("lm_loss", c.width, c.file.size("vocab_size"));
      if (c.file.boolean_or("tie_word_embeddings", true)) tie("lm_loss.weight", "transformer.word_embedding.weight");
    } else if (task == Task::question_answering) {
      head = &child<Linear>("qa_outputs", c.width, num_labels(c.file));
    } else if (task == Task::token_cls) {
      head = &child<Linear>("classifier", c.width, num_labels(c.file));
    } else {
      summary_ = register_module("sequence_summary", make_sequence_summary("XLNetSequenceSummary", c.file, c.width));
      head = &child<Linear>("logits_proj", c.width, task == Task::multiple_choice ? 1 : num_labels(c.file));
    }
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    const Task task = options_.task;
    const bool choice = task == Task::multiple_choice;
    X input_ids = choice ? batch.input.view({-1, batch.input.size(-1)}) : batch.input;
    XLNetOutput outputs = transformer(input_ids);
    X output = outputs.last_hidden_state;
    if (task == Task::causal_lm) output = output.whole_slices(3);
    if (summary_) output = (*summary_)(output);
    X logits = (*head)(output);
    if (task == Task::question_answering) return answer_questions(logits, batch);
    if (choice) logits = logits.view({-1, batch.input.size(1)});
    X loss;
    if (batch.labels) {
      if (task == Task::seq_cls)
        loss = sequence_classification_loss(batch.labels, logits, num_labels(file_));
      else if (choice)
        loss = cross_entropy(logits, batch.labels.view({-1}));
      else
        loss = flat_cross_entropy(logits, batch.labels, logits.size(-1));
    }
    return {with_mems({loss, logits}, outputs.mems), loss};
  }
  static Value with_mems(std::initializer_list<X> tensors, const std::vector<X>& mems) {
    Values items;
    for (auto& x : tensors)
      if (x) items.emplace_back(Tensor(x));
    for (auto& x : mems) items.emplace_back(Tensor(x));
    return make_tuple(std::move(items));
  }

 private:
  Config file_;
  XLNetModel& transformer;
  UnaryPtr summary_;
  Linear* head;
};

/// XLNetModel as the root.
class XLNetAlone final : public Network {
 public:
  explicit XLNetAlone(const XLNetConfig& c) : Network("XLNetModel", c.options), model(child<XLNetModel>("transformer", c)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    XLNetOutput outputs = model(batch.input);
    return {XLNetNetwork::with_mems({outputs.last_hidden_state}, outputs.mems), {}};
  }

 private:
  XLNetModel& model;
};

NetworkPtr xlnet_alone(const Config& config, const Options& o) { return std::make_shared<XLNetAlone>(XLNetConfig(config, o)); }
template <const char* Suffix>
NetworkPtr xlnet(const Config& config, const Options& o) {
  return std::make_shared<XLNetNetwork>(XLNetConfig(config, o), Suffix);
}
constexpr char lm[] = "LMHeadModel", sequence[] = "ForSequenceClassification", token[] = "ForTokenClassification",
               answers[] = "ForQuestionAnsweringSimple", choice[] = "ForMultipleChoice";
const Family xlnet_family{{"xlnet"},
                          {{Task::causal_lm, "XLNetLMHeadModel", xlnet<lm>},
                           {Task::seq_cls, "XLNetForSequenceClassification", xlnet<sequence>},
                           {Task::token_cls, "XLNetForTokenClassification", xlnet<token>},
                           {Task::question_answering, "XLNetForQuestionAnsweringSimple", xlnet<answers>},
                           {Task::multiple_choice, "XLNetForMultipleChoice", xlnet<choice>},
                           {Task::base, "XLNetModel", xlnet_alone}}};

}  // namespace
}  // namespace memest::hf
