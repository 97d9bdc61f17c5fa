// models/granite_swa: granite with sliding windows, sinks in its attention (eager only), and rotary embeddings by layer.
#include <set>

#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class GraniteSWAAttention final : public DecoderAttention {
 public:
  GraniteSWAAttention(const DecoderConfig& c, I layer, Biases biases) : DecoderAttention(c, layer, "GraniteSWAAttention", biases) {
    new_parameter("sinks", {heads_});
  }

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    if (call.position_embeddings.first) DecoderAttention::rotate(f, call);
  }
  /// eager_attention_forward of granite_swa.
  Pair attend(Frame& f, AttentionCall call) override {
    X key_states = repeat_kv(f.key, groups_);
    X value_states = repeat_kv(f.value, groups_);
    X attn_weights = f.query.matmul(key_states.transpose(2, 3)).mul(1.0);
    if (call.mask) attn_weights = attn_weights.add(call.mask);
    X lse = aten("logsumexp", {Tensor(attn_weights), list_of(Dims{-1})});
    X sink_scale = lse.sub(X(parameter(0)).view({1, -1, 1})).to(DType::float32).sigmoid();
    attn_weights = attn_weights.softmax(-1, DType::float32).to(f.query.dtype());
    attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
    X attn_output = attn_weights.matmul(value_states);
    X scale = sink_scale.unsqueeze(-1).to(attn_output.dtype());
    attn_output = attn_output.mul(std::move(scale));
    attn_output = attn_output.transpose(1, 2).contiguous();
    return leave(Pair{attn_output, attn_weights}, key_states, value_states, lse, sink_scale);
  }
};

class GraniteSWAModel final : public DecoderBody {
 public:
  explicit GraniteSWAModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("GraniteSWAModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [this](I i) {
      LayerForm form;
      form.type = "GraniteSWADecoderLayer";
      form.norm_type = "GraniteSWARMSNorm";
      form.multiplier = true;
      const bool b = c_->attention_bias;
      return make_layer(*c_, form, std::make_shared<GraniteSWAAttention>(*c_, i, Biases{b, b, b, b}),
                        make_gated_mlp("GraniteSWAMLP", c_->hidden, c_->intermediate, c_->mlp_bias, c_->act));
    });
    norm_ = register_module("norm", make_norm(Norm::llama, c_->hidden, "GraniteSWARMSNorm"));
    register_module("rotary_emb", std::make_shared<RotaryEmbedding>("GraniteSWARotaryEmbedding", c_->file, c_->head_dim));
    auto list = register_module("rotary_embs", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    read_thetas();
    for (double theta : std::set<double>(thetas_.begin(), thetas_.end())) {
      if (theta == 0) continue;
      rotary_embs_.emplace_back(theta, std::make_shared<RotaryEmbedding>("GraniteSWARotaryEmbedding", c_->file, c_->head_dim));
      list->append(rotary_embs_.back().second);
    }
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    inputs_embeds = inputs_embeds.mul(1.0);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{
        .options = c_->options, .inputs_embeds = inputs_embeds, .cache = cache.get(), .position_ids = position_ids};
    X full = create_causal_mask(arguments);
    X sliding = create_sliding_window_causal_mask(arguments, c_->sliding_window.value_or(128));
    X hidden_states = inputs_embeds;
    std::vector<Pair> tables;
    for (auto& [theta, rotary_emb] : rotary_embs_) tables.push_back((*rotary_emb)(hidden_states, position_ids));
    for (I i = 0; i < c_->layers; ++i) {
      Pair embeddings;
      for (std::size_t t = 0; t < tables.size(); ++t)
        if (rotary_embs_[t].first == thetas_[std::size_t(i)]) embeddings = tables[t];
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, {c_->sliding(i) ? sliding : full, embeddings, position_ids, cache.get()});
    }
    hidden_states = (*norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  /// layer_rope_theta: a base for each layer, 0 for none; by default one for all.
  void read_thetas() {
    thetas_.assign(std::size_t(c_->layers), 1.0);
    const ConfigValue* given = c_->file.find("layer_rope_theta");
    if (!given || given->is_null()) return;
    if (!given->list() || I(given->list()->size()) < c_->layers)
      throw c_->file.error("layer_rope_theta", "expected a list of " + std::to_string(c_->layers) + " numbers");
    for (std::size_t i = 0; i < thetas_.size(); ++i) {
      const auto& value = (*given->list())[i].value;
      if (auto* n = std::get_if<std::int64_t>(&value))
        thetas_[i] = double(*n);
      else if (auto* d = std::get_if<double>(&value))
        thetas_[i] = *d;
      else
        throw c_->file.error("layer_rope_theta", "expected numbers, found " + (*given->list())[i].describe());
    }
  }

  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::vector<double> thetas_;
  std::vector<std::pair<double, std::shared_ptr<RotaryEmbedding>>> rotary_embs_;
};

NetworkPtr granite_swa(const Config& given, const Options& options) {
  Options o = options;
  o.attention = Attention::eager;  // the class has no sdpa
  Config config = given;
  default_layer_types(config, [](I i) { return i % 4 ? "sliding_attention" : "full_attention"; });
  DecoderForm f;
  f.prefix = "GraniteSWA";
  f.logits = [](X logits, const DecoderConfig&) { return logits.div(1.0); };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GraniteSWAModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family granite_swa_family{{"granite_swa"},
                                {{Task::causal_lm, "GraniteSWAForCausalLM", granite_swa}, {Task::base, "GraniteSWAModel", granite_swa}}};

}  // namespace
}  // namespace memest::hf
