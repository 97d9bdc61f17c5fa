// models/hrm_text: two stacks of layers run in nested cycles, most of the inner ones without gradients; gated attention, norms without
// weights.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class HrmTextAttention final : public DecoderAttention {
 public:
  HrmTextAttention(const DecoderConfig& c, I layer, Biases biases) : DecoderAttention(c, layer, "HrmTextAttention", biases), first_(layer) {
    gate_proj = &child<Linear>("gate_proj", c.hidden, heads_ * head_dim_, biases.q);
  }
  /// cycle_offset: the cache's layers of this pass through the stack.
  void set_cycle(I offset) { layer_ = first_ + offset; }

 protected:
  void project(Frame& f) override {
    DecoderAttention::project(f);
    f.locals = {(*gate_proj)(f.hidden_states).view(f.hidden_shape)};
  }
  Pair attend(Frame& f, AttentionCall call) override {
    Pair result = DecoderAttention::attend(f, std::move(call));
    X gate = f.locals[0].sigmoid();
    X gated = std::move(gate).mul(result.first);
    result.first = std::move(gated);
    return result;
  }

 private:
  I first_;
  Linear* gate_proj;
};

class HrmTextStack final : public Module<HrmTextStack> {
 public:
  explicit HrmTextStack(const DecoderConfig& c) : Module("HrmTextStack") {
    auto list = register_module("layers", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    const bool b = c.attention_bias;
    for (I i = 0; i < c.file.size("num_layers_per_stack"); ++i) {
      LayerForm form;
      form.type = "HrmTextDecoderLayer";
      form.norm = Norm::weightless;
      form.norm_type = "HrmTextRMSNorm";
      attentions_.push_back(std::make_shared<HrmTextAttention>(c, i, Biases{b, b, b, b}));
      layers_.push_back(make_layer(c, form, attentions_.back(), make_gated_mlp("HrmTextMLP", c.hidden, c.intermediate, c.mlp_bias, c.act)));
      list->append(layers_.back());
    }
    final_norm_ = register_module("final_norm", make_norm(Norm::weightless, c.hidden, "HrmTextRMSNorm"));
  }
  X forward(const X& given, const LayerCall* call, I cycle_offset) {
    for (auto& attention : attentions_) attention->set_cycle(cycle_offset);
    X hidden_states = given;
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, *call);
    return (*final_norm_)(hidden_states);
  }

 private:
  std::vector<std::shared_ptr<HrmTextAttention>> attentions_;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr final_norm_;
};

class HrmTextModel final : public DecoderBody {
 public:
  explicit HrmTextModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("HrmTextModel"), c_(std::move(config)) {
    h_cycles_ = c_->file.size_or("H_cycles", 2);
    l_cycles_ = c_->file.size_or("L_cycles", 3);
    std::vector<std::int64_t> given{2};
    if (c_->file.has("L_bp_cycles")) given = c_->file.integers("L_bp_cycles");
    l_bp_cycles_.assign(std::size_t(std::max<I>(0, h_cycles_ - I(given.size()))), 1);
    l_bp_cycles_.insert(l_bp_cycles_.end(), given.begin(), given.end());
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("HrmTextRotaryEmbedding", c_->file, c_->head_dim));
    L_module = &child<HrmTextStack>("L_module", *c_);
    H_module = &child<HrmTextStack>("H_module", *c_);
    new_parameter("z_L_init", {c_->hidden});
    parameter(0)->requires_grad = false;
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    inputs_embeds = inputs_embeds.mul(1.0);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X attention_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    Pair position_embeddings = (*rotary_emb)(inputs_embeds, position_ids);
    X hidden_states_high_cycle = inputs_embeds;
    X hidden_states_low_cycle = X(parameter(0)).to(hidden_states_high_cycle.dtype()).expand(hidden_states_high_cycle.sizes()).contiguous();
    const LayerCall call{attention_mask, position_embeddings, position_ids, cache.get()};
    const I per_stack = c_->file.size("num_layers_per_stack");
    for (I h = 0; h < h_cycles_; ++h) {
      const I grad_threshold = l_cycles_ - (h < I(l_bp_cycles_.size()) ? l_bp_cycles_[std::size_t(h)] : 1);
      for (I l = 0; l < l_cycles_; ++l) {
        std::optional<NoGrad> guard;
        if (l < grad_threshold) guard.emplace();
        X sum = hidden_states_low_cycle.add(hidden_states_high_cycle);
        hidden_states_low_cycle = (*L_module)(std::move(sum), &call, (h * (l_cycles_ + 1) + l) * per_stack);
      }
      X sum = hidden_states_high_cycle.add(hidden_states_low_cycle);
      hidden_states_high_cycle = (*H_module)(std::move(sum), &call, (h * (l_cycles_ + 1) + l_cycles_) * per_stack);
    }
    return {hidden_states_high_cycle, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  I h_cycles_, l_cycles_;
  std::vector<std::int64_t> l_bp_cycles_;
  Embedding* embed_tokens;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  HrmTextStack *L_module, *H_module;
};

ConfigValue number(I v) {
  ConfigValue value;
  value.value = v;
  return value;
}
/// HrmTextConfig.__post_init__: num_hidden_layers is that of a stack unless num_layers_per_stack is given; then it counts the cache's
/// layers.
NetworkPtr hrm_text(const Config& given, const Options& o) {
  Config config = given;
  if (!config.has("num_layers_per_stack")) {
    const I layers = layer_count(config);
    config.set("num_layers_per_stack", number(layers));
    config.set(
        "num_hidden_layers",
        number(std::min<I>(10'000, checked_mul(layers, checked_mul(config.size_or("H_cycles", 2), config.size_or("L_cycles", 3) + 1)))));
  }
  if (config.size("num_layers_per_stack") > 10'000) throw config.error("num_layers_per_stack", "expected at most 10000 layers");
  config.set("num_key_value_heads", {});
  for (const char* cycles : {"H_cycles", "L_cycles"})
    if (config.size_or(cycles, 2) > 1'000) throw config.error(cycles, "expected at most 1000 cycles");
  DecoderForm f;
  f.prefix = "HrmText";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<HrmTextModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family hrm_text_family{{"hrm_text"}, {{Task::causal_lm, "HrmTextForCausalLM", hrm_text}, {Task::base, "HrmTextModel", hrm_text}}};

}  // namespace
}  // namespace memest::hf
