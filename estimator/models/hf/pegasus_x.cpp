// models/pegasus_x/modeling_pegasus_x.py: Pegasus whose encoder attends within blocks, and to global tokens.
#include "fake/checkpoint.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

X einsum(const char* equation, const X& a, const X& b) {
  return aten("einsum", {std::string(equation), make_list({Tensor(a), Tensor(b)})});
}
X pad(const X& x, const Dims& padding) { return aten("constant_pad_nd", {Tensor(x), list_of(padding), I{0}}); }

/// PegasusXSinusoidalPositionalEmbedding: computed in each forward.
class ComputedPositions final : public PositionEmbedding {
 public:
  explicit ComputedPositions(const Seq2SeqConfig& c) : PositionEmbedding("PegasusXSinusoidalPositionalEmbedding"), hidden_(c.hidden) {}

 protected:
  X forward(const X&, const X& inputs_embeds, X position_ids) override {
    const I batch_size = inputs_embeds.size(0), seq_len = inputs_embeds.size(1), half = hidden_ / 2;
    position_ids = (position_ids ? position_ids : arange(seq_len)).unsqueeze(1);
    X pe = zeros({seq_len, hidden_}, inputs_embeds.dtype());
    X div_term = arange(half).to(inputs_embeds.dtype()).mul(1.0).exp();
    {
      X sine = aten("sin", {Tensor(position_ids.mul(div_term))});
      aten("copy_", {Tensor(pe.slice(1, std::nullopt, half)), Tensor(sine), false});
    }
    {
      X cosine = aten("cos", {Tensor(position_ids.mul(div_term))});
      aten("copy_", {Tensor(pe.slice(1, half, std::nullopt)), Tensor(cosine), false});
    }
    X result = pe.unsqueeze(0).expand({batch_size, -1, -1});
    return leave(std::move(result), position_ids, pe, div_term);
  }

 private:
  I hidden_;
};

class GlobalLocalAttention final : public Base {
 public:
  explicit GlobalLocalAttention(const Seq2SeqConfig& c)
      : Base("PegasusXGlobalLocalAttention"),
        heads_(c.encoder.heads),
        head_dim_(c.hidden / c.encoder.heads),
        block_size_(c.file.size("block_size")),
        dropout_(c.attention_dropout),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden, false)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden, false)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden, false)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden, false)) {}

  struct Output {
    X local, global, global_probs, local_probs;
  };
  Output operator()(X token_hidden_states, X global_hidden_states, X attention_mask) {
    Entered scope(*this);
    X local_q = shape(q_proj(token_hidden_states).mul(1.0));
    X local_k = shape(k_proj(token_hidden_states));
    X local_v = shape(v_proj(token_hidden_states));
    X global_q = shape(q_proj(global_hidden_states).mul(1.0));
    X global_k = shape(k_proj(global_hidden_states));
    X global_v = shape(v_proj(global_hidden_states));
    Output out;
    std::tie(out.global, out.global_probs) = attend_globally(global_q, global_k, global_v, local_k, local_v, attention_mask);
    std::tie(out.local, out.local_probs) = attend_locally(global_k, global_v, local_q, local_k, local_v, attention_mask);
    const I batch = token_hidden_states.size(0), hidden = heads_ * head_dim_;
    out.global = out.global.transpose(1, 2).contiguous().view({batch, global_hidden_states.size(1), hidden});
    out.global = out_proj(out.global);
    out.local = out.local.permute({0, 2, 3, 1, 4}).contiguous();
    out.local = out.local.view({batch, token_hidden_states.size(1), hidden});
    out.local = out_proj(out.local);
    (token_hidden_states.reset(), global_hidden_states.reset(), attention_mask.reset());
    return leave(out, local_q, local_k, local_v, global_q, global_k, global_v);
  }

 private:
  using Base::forward;
  X shape(X tensor) { return tensor.view({tensor.size(0), tensor.size(1), heads_, head_dim_}).transpose(1, 2).contiguous(); }
  X dropped(X probs) { return ops::dropout(std::move(probs), dropout_, training); }

  Pair attend_globally(const X& global_q, const X& global_k, const X& global_v, const X& local_k, const X& local_v, const X& mask) {
    X global_and_local_k = cat({global_k, local_k}, 2);
    X global_and_local_v = cat({global_v, local_v}, 2);
    X extended_mask = pad(mask, {global_q.size(2), 0});
    X attn_weights = einsum("BHGF,BHXF->BHGX", global_q, global_and_local_k);
    attn_weights = attn_weights.add(extended_mask.unsqueeze(1).unsqueeze(2));
    X attn_probs = attn_weights.softmax(-1);
    attn_probs = dropped(attn_probs);
    X attn_output = einsum("BHGX,BHXF->BHGF", attn_probs, global_and_local_v);
    return leave(Pair{attn_output, attn_probs}, global_and_local_k, global_and_local_v, extended_mask, attn_weights);
  }
  Pair attend_locally(const X& global_k, const X& global_v, const X& local_q, const X& local_k, const X& local_v, const X& mask) {
    const I batch = local_q.size(0), blocks = local_q.size(2) / block_size_, global_len = global_k.size(2);
    const Dims blocked{batch, heads_, blocks, block_size_, head_dim_};
    X blocked_local_q = local_q.view(blocked), blocked_local_k = local_k.view(blocked), blocked_local_v = local_v.view(blocked);
    X extended_mask = pad(mask.view({batch, blocks, block_size_}), {global_len, 0});
    X blocked_local2global = einsum("BHNKF,BHGF->BHNKG", blocked_local_q, global_k);
    X blocked_local2local = einsum("BHNKF,BHNXF->BHNKX", blocked_local_q, blocked_local_k);
    X attn_weights = cat({blocked_local2global, blocked_local2local}, -1);
    attn_weights = attn_weights.add(extended_mask.unsqueeze(1).unsqueeze(3));
    X attn_probs = attn_weights.softmax(-1);
    attn_probs = dropped(attn_probs);
    X local2global_attn_probs = attn_probs.slice(4, std::nullopt, global_len);
    X local2local_attn_probs = attn_probs.slice(4, global_len, std::nullopt);
    X local2global_attn_output = einsum("BHNKG,BHGF->BHNKF", local2global_attn_probs, global_v);
    X local2local_attn_output = einsum("BHNKX,BHNXF->BHNKF", local2local_attn_probs, blocked_local_v);
    X attn_output = local2global_attn_output.add(local2local_attn_output);
    return leave(Pair{attn_output, attn_probs}, extended_mask, blocked_local2global, blocked_local2local, attn_weights,
                 local2global_attn_output, local2local_attn_output);
  }

  I heads_, head_dim_, block_size_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

class EncoderLayer final : public Base {
 public:
  EncoderLayer(const Seq2SeqConfig& c, bool staggers)
      : Base("PegasusXEncoderLayer"),
        staggers_(staggers),
        checkpoint_(c.options.checkpoint),
        reentrant_(c.options.reentrant),
        pad_size_(c.file.size("block_size") / 2),
        dropout_(c.dropout),
        activation_dropout_(c.activation_dropout),
        self_attn(child<GlobalLocalAttention>("self_attn", c)),
        self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", c.hidden)),
        global_self_attn_layer_norm(child<LayerNorm>("global_self_attn_layer_norm", c.hidden)),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc1(child<Linear>("fc1", c.hidden, c.encoder.intermediate)),
        fc2(child<Linear>("fc2", c.encoder.intermediate, c.hidden)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}

  Pair operator()(X hidden_states, X global_hidden_states, X attention_mask) {
    Entered scope(*this);
    if (checkpoint_ && training && runtime().grad_mode) {
      Region region = [this](const Tensors& in) {
        auto [local, global] = forward(X(in[0]), X(in[1]), X(in[2]));
        return Tensors{local, global};
      };
      Tensors inputs = {hidden_states, global_hidden_states, attention_mask};
      Tensors out = reentrant_ ? checkpoint_reentrant(std::move(region), std::move(inputs))
                               : memest::checkpoint(std::move(region), std::move(inputs));
      return {out[0], out[1]};
    }
    Pair result = forward(hidden_states, global_hidden_states, attention_mask);
    (hidden_states.reset(), global_hidden_states.reset(), attention_mask.reset());
    return result;
  }

 private:
  using Base::forward;
  Pair forward(X hidden_states, X global_hidden_states, X attention_mask) {
    X residual = hidden_states;
    X global_residual = global_hidden_states;
    hidden_states = self_attn_layer_norm(hidden_states);
    global_hidden_states = global_self_attn_layer_norm(global_hidden_states);
    if (staggers_) {
      X padded_hidden_states = pad(hidden_states, {0, 0, pad_size_, pad_size_});
      X padded_mask = pad(attention_mask, {pad_size_, pad_size_});
      hidden_states = std::move(padded_hidden_states);
      attention_mask = std::move(padded_mask);
    }
    GlobalLocalAttention::Output out = self_attn(hidden_states, global_hidden_states, attention_mask);
    hidden_states = std::move(out.local);
    global_hidden_states = std::move(out.global);
    if (staggers_) hidden_states = hidden_states.slice(1, pad_size_, -pad_size_);
    hidden_states = dropped(hidden_states);
    hidden_states = residual.add(hidden_states);
    global_hidden_states = dropped(global_hidden_states);
    global_hidden_states = global_residual.add(global_hidden_states);
    residual = hidden_states;
    hidden_states = feed_forward(hidden_states);
    hidden_states = residual.add(hidden_states);
    global_residual = global_hidden_states;
    global_hidden_states = feed_forward(global_hidden_states);
    global_hidden_states = global_residual.add(global_hidden_states);
    return leave(Pair{hidden_states, global_hidden_states}, attention_mask, residual, global_residual, out.global_probs, out.local_probs);
  }
  X dropped(X x) { return ops::dropout(x, dropout_, training); }
  X feed_forward(const X& input) {
    X x = final_layer_norm(input);
    x = activation_fn(fc1(x));
    x = ops::dropout(x, activation_dropout_, training);
    x = fc2(x);
    return dropped(x);
  }

  bool staggers_, checkpoint_, reentrant_;
  I pad_size_;
  double dropout_, activation_dropout_;
  GlobalLocalAttention& self_attn;
  LayerNorm &self_attn_layer_norm, &global_self_attn_layer_norm;
  Activation& activation_fn;
  Linear &fc1, &fc2;
  LayerNorm& final_layer_norm;
};

class PegasusXEncoder final : public Seq2SeqEncoder {
 public:
  explicit PegasusXEncoder(const Seq2SeqConfig& c)
      : Seq2SeqEncoder("PegasusXEncoder"),
        block_size_(c.file.size("block_size")),
        global_tokens_(c.file.size("num_global_tokens")),
        dropout_(c.dropout),
        embed_tokens_(register_module("embed_tokens", make_scaled_embedding(c, "PegasusX", c.vocab))),
        embed_global(child<Embedding>("embed_global", global_tokens_, c.hidden)),
        embed_positions_(register_module("embed_positions", std::make_shared<ComputedPositions>(c))),
        layers_(*this, "layers", c.encoder.layers,
                [&](I i) { return std::make_shared<EncoderLayer>(c, i % 2 == 1 && c.file.boolean_or("stagger_local_blocks", true)); }),
        layer_norm(child<LayerNorm>("layer_norm", c.hidden)) {}

 protected:
  X forward(const X& input_ids, X) override {
    X inputs_embeds = (*embed_tokens_)(input_ids);
    X embed_pos = (*embed_positions_)(input_ids, inputs_embeds);
    X hidden_states = inputs_embeds.add(embed_pos);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1);
    X attention_mask = ones({batch_size, seq_len}, inputs_embeds.dtype());
    attention_mask = attention_mask.to(hidden_states.dtype());
    X inverted_mask = aten("rsub", {Tensor(attention_mask), 1.0});
    X filled = aten("masked_fill", {Tensor(inverted_mask), Tensor(inverted_mask.to(DType::boolean)), -1e30});
    attention_mask = std::move(filled);
    if (seq_len % block_size_ != 0) {
      const I pad_len = block_size_ - seq_len % block_size_;
      hidden_states = pad(hidden_states, {0, 0, 0, pad_len});
      attention_mask = pad(attention_mask, {0, pad_len});
    }
    X global_hidden_states = embed_global(arange(global_tokens_).unsqueeze(0).expand({batch_size, -1}));
    for (auto& layer : layers_)
      std::tie(hidden_states, global_hidden_states) = (*layer)(hidden_states, global_hidden_states, attention_mask);
    hidden_states = hidden_states.slice(1, std::nullopt, seq_len);
    hidden_states = layer_norm(hidden_states);
    return leave(std::move(hidden_states), attention_mask, inputs_embeds, embed_pos, inverted_mask, global_hidden_states);
  }

 private:
  I block_size_, global_tokens_;
  double dropout_;
  UnaryPtr embed_tokens_;
  Embedding& embed_global;
  PositionEmbeddingPtr embed_positions_;
  Layers<EncoderLayer> layers_;
  LayerNorm& layer_norm;
};

NetworkPtr pegasus_x(const Config& config, const Options& given) {
  Options o = given;
  o.attention = Attention::eager;  // _supports_sdpa = False
  Seq2SeqForm f;
  f.prefix = "PegasusX";
  f.norm_before = f.norms_end = true;
  f.norms_embedding = f.shifts_input = f.logits_bias = false;
  f.position_ids = Seq2SeqForm::PositionIds::after_mask;
  f.keeps_position_ids = false;
  f.keeps_ones_mask = true;
  f.own_positions = [](const Seq2SeqConfig& c) { return std::make_shared<ComputedPositions>(c); };
  f.generates = false;
  f.encoder = [](const Seq2SeqConfig& c) { return std::make_shared<PegasusXEncoder>(c); };
  f.attention = [](const Seq2SeqConfig& c, I heads, I layer) { return make_cross_attention(c, "PegasusX", heads, layer, false, false); };
  return make_seq2seq(config, o, std::move(f));
}
const Family pegasus_x_family{{"pegasus_x"}, seq2seq_classes("PegasusX", pegasus_x, {Task::seq2seq, Task::base})};

}  // namespace
}  // namespace memest::hf
