#include "models/hf/mrope.h"
#include "models/hf/release.h"

#include "ops/indexing.h"

namespace memest::hf {
namespace {

class MropeRotaryEmbedding final : public Module<MropeRotaryEmbedding> {
 public:
  MropeRotaryEmbedding(std::string type, const DecoderConfig& c, const MropeForm& form)
      : Module(std::move(type)), form_(form), rope_(rope_type(c.file)), section_(form.section) {
    if (rope_.find("dynamic") != std::string::npos || rope_ == "longrope")
      throw c.file.error("rope_parameters",
                         "memest builds rotary positions of three axes without the rope_type '" + rope_.substr(0, 60) + "'");
    const I width = rotary_width(c.file, c.head_dim), count = ceil_div(width, 2);
    for (const char* key : {"rope_scaling", "rope_parameters"})
      if (auto given = c.file.has(key) ? c.file.section_if(key) : std::nullopt; given && given->has("mrope_section"))
        section_ = given->integers("mrope_section");
    I sum = 0;
    for (I s : section_) sum = checked_add(sum, s);
    if (form_.table != MropeForm::Table::interleaved && sum != count) {
      runtime().diagnostics.add({Diagnostic::Severity::warning, "rope-sections",
                                 "mrope_section adds up to " + std::to_string(sum) + ", and a head has " + std::to_string(count) +
                                     " frequencies: transformers cannot run this; one section is taken",
                                 c.file.pointer() + "/rope_parameters", ""});
      section_ = {count};
    }
    new_buffer("inv_freq", {count}, DType::float32);
    if (release().rotary_registers_original()) new_buffer("original_inv_freq", {count}, DType::float32);
  }
  Pair forward(const X& x, X position_ids) {
    position_ids = position_ids.expand({3, -1, -1});
    X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
    X cos = aten("cos", {Tensor(freqs)}).mul(1.0);
    X sin = aten("sin", {Tensor(freqs)}).mul(1.0);
    sin = recomposition_frequencies(sin);
    cos = recomposition_frequencies(cos);
    Pair result{cos.to(x.dtype()), {}};
    result.second = sin.to(x.dtype());
    return leave(std::move(result), position_ids, freqs, cos, sin);
  }

 private:
  X recomposition_frequencies(X freq) {
    if (form_.table == MropeForm::Table::interleaved) {
      X freqs_thw = freq.select(0, 0);
      X both = cat({freqs_thw, freqs_thw}, -1);
      return leave(std::move(both), freq, freqs_thw);
    }
    {
      std::vector<X> parts = freq.split(Dims(section_), -1), chosen;
      for (std::size_t i = 0; i < parts.size(); ++i) chosen.push_back(parts[i].select(0, I(i % 3)));
      freq = cat(chosen, -1);
    }
    X both = form_.table == MropeForm::Table::repeated ? aten("repeat_interleave", {Tensor(freq), I{2}, I{-1}}) : cat({freq, freq}, -1);
    return leave(std::move(both), freq);
  }
  MropeForm form_;
  std::string rope_;
  std::vector<I> section_;
};

class MropeModel final : public MropeTextModel {
 public:
  MropeModel(std::shared_ptr<const DecoderConfig> c, const std::shared_ptr<const DecoderForm>& form, const MropeForm& mrope)
      : MropeTextModel(form->prefix + "TextModel"), c_(std::move(c)), mrope_(mrope) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [&](I i) { return form->layer(*c_, i); });
    norm_ = register_module("norm", make_norm(form->norm, c_->hidden, form->norm_type));
    rotary_emb = &child<MropeRotaryEmbedding>("rotary_emb", form->prefix + "RotaryEmbedding", *c_, mrope);
  }
  X embed(const X& input_ids) override { return (*embed_tokens)(input_ids); }
  nn::InputEmbedding* input_embedding() override { return embed_tokens; }
  void set_deepstack(Deepstack deepstack) override { deepstack_ = std::move(deepstack); }

 protected:
  std::pair<X, CachePtr> forward(X input) override {
    X inputs_embeds = is_floating(input.dtype()) ? input : embed(input);
    CachePtr cache = new_cache(*c_, training);
    const I axes = mrope_.text_positions ? 4 : 3, batch = inputs_embeds.size(0);
    X position_ids = default_position_ids(inputs_embeds), text_position_ids;
    if (position_ids.dim() == 2) position_ids = position_ids.unsqueeze(0).expand({axes, batch, -1});
    if (position_ids.size(0) == 4) {
      text_position_ids = position_ids.select(0, 0);
      position_ids = position_ids.slice(0, 1, std::nullopt);
    }
    const MaskArguments arguments{c_->options, inputs_embeds, cache.get(), text_position_ids};
    X full = create_causal_mask(arguments), sliding;
    for (I i = 0; i < c_->layers && !sliding; ++i)
      if (c_->sliding(i)) sliding = create_sliding_window_causal_mask(arguments, c_->file.integer("sliding_window"));
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    X layer_outputs;
    for (I i = 0; i < c_->layers; ++i) {
      hidden_states =
          (*layers_[std::size_t(i)])(hidden_states, {c_->sliding(i) ? sliding : full, position_embeddings, text_position_ids, cache.get()});
      if (mrope_.layer_outputs) layer_outputs = hidden_states;
      if (i < I(deepstack_.visual_embeds.size()))
        hidden_states = deepstack_process(hidden_states, deepstack_.visual_pos_masks, deepstack_.visual_embeds[std::size_t(i)]);
    }
    hidden_states = (*norm_)(hidden_states);
    deepstack_ = {};
    return {leave(std::move(hidden_states), position_ids, inputs_embeds, text_position_ids, full, sliding, layer_outputs), cache};
  }

 private:
  X deepstack_process(X hidden_states, const X& visual_pos_masks, X visual_embeds) const {
    const ops::AssumedSelection visual(deepstack_.visual_tokens);
    visual_embeds = visual_embeds.to(hidden_states.dtype());
    hidden_states = hidden_states.clone();
    X local_this = aten("index", {Tensor(hidden_states), make_list({Tensor(visual_pos_masks)})}).add(visual_embeds);
    hidden_states = aten("index_put_", {Tensor(hidden_states), make_list({Tensor(visual_pos_masks)}), Tensor(local_this)});
    return leave(std::move(hidden_states), visual_embeds, local_this);
  }
  std::shared_ptr<const DecoderConfig> c_;
  MropeForm mrope_;
  Embedding* embed_tokens = nullptr;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  MropeRotaryEmbedding* rotary_emb = nullptr;
  Deepstack deepstack_;
};

}  // namespace

DecoderForm mrope_decoder(DecoderForm form, MropeForm mrope) {
  form.body = [mrope](const std::shared_ptr<const DecoderConfig>& c, const std::shared_ptr<const DecoderForm>& f) {
    return std::make_shared<MropeModel>(c, f, mrope);
  };
  return form;
}

}  // namespace memest::hf
