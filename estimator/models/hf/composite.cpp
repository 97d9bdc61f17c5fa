#include "models/hf/composite.h"

#include <algorithm>

#include "base/text.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

std::vector<const VisionModel*>& vision_models() {
  static std::vector<const VisionModel*> models;
  return models;
}

}  // namespace

DecoderParts text_decoder(const Config& section, const Options& options) {
  DecoderParts parts;
  if (const Family* family = find_family(section.model_type())) {
    Options own = options;
    own.task = Task::base;
    own.class_name.clear();
    own.parts = &parts;
    for (auto& c : family->classes)
      if (c.task == Task::base && !parts.config) c.make(section, own);
  }
  if (!parts.config)
    throw section.error("model_type",
                        "memest has no decoder of the type '" + section.model_type().substr(0, 60) + "' for models of several parts");
  return parts;
}

X argument(const Batch& batch, std::string_view name) {
  for (auto& [key, x] : batch.others)
    if (key == name) return x;
  return {};
}

VisionModel::VisionModel(const char* type, VisionTowerPtr (*f)(const Config&, const Options&)) : model_type(type), make(f) {
  vision_models().push_back(this);
}
VisionTowerPtr make_vision_tower(const Config& section, const Options& options) {
  std::vector<std::string> names;
  for (auto* model : vision_models()) {
    if (section.model_type() == model->model_type) return model->make(section, options);
    names.emplace_back(model->model_type);
  }
  std::sort(names.begin(), names.end());
  throw section.error("model_type", "memest has no vision model of the type '" + section.model_type().substr(0, 60) + "'",
                      "it has " + join(names, ", "));
}

void VisionOutput::collect(Values& into) const {
  for (auto* x : {&last_hidden_state, &pooler_output})
    if (*x) into.emplace_back(Tensor(*x));
  for (auto& x : hidden_states) into.emplace_back(Tensor(x));
}

void ImageTextModel::ImageFeatures::collect(Values& into) const {
  if (outputs.last_hidden_state) into.emplace_back(Tensor(outputs.last_hidden_state));
  for (auto& x : pooled) into.emplace_back(Tensor(x));
  for (auto& x : outputs.hidden_states) into.emplace_back(Tensor(x));
}

X pixel_shuffle(X vision_features, double ratio) {
  const I batch_size = vision_features.size(0), height = vision_features.size(1), width = vision_features.size(2),
          channels = vision_features.size(3);
  const auto part = [ratio](I size) { return I(double(size) * ratio); };
  vision_features = vision_features.view({batch_size, height, part(width), I(double(channels) / ratio)});
  vision_features = vision_features.permute({0, 2, 1, 3}).contiguous();
  vision_features = vision_features.view({batch_size, part(height), part(width), I(double(channels) / (ratio * ratio))});
  vision_features = vision_features.permute({0, 2, 1, 3}).contiguous();
  return vision_features;
}

X placeholder_mask(const X& input_ids, const X& inputs_embeds, const X& image_features) {
  X special_image_mask = aten("eq", {Tensor(input_ids), I{0}});
  X n_image_tokens = aten("sum", {Tensor(special_image_mask)});
  special_image_mask = special_image_mask.unsqueeze(-1);
  {  // torch_compilable_check (utils/import_utils.py)
    X cond = n_image_tokens.mul(Scalar(inputs_embeds.size(-1)));
    cond = aten("eq", {Tensor(cond), image_features.numel()});
    aten("all", {Tensor(cond)});
  }
  return leave(std::move(special_image_mask), n_image_tokens);
}

ImageTextModel::Output ImageTextModel::run_merged(DecoderBody& language_model, const Batch& batch, X (*joined)(const ImageFeatures&)) {
  X inputs_embeds = language_model.embed(batch.input);
  ImageFeatures image = image_features_of(batch);
  X image_features, special_image_mask;
  if (image) {
    image_features = joined(image).to(inputs_embeds.dtype());
    special_image_mask = placeholder_mask(batch.input, inputs_embeds, image_features);
    inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(image_features)});
  }
  auto [last_hidden_state, cache] = language_model(inputs_embeds, batch.position_ids, batch.cache);
  Output output{last_hidden_state, cache, {}};
  if (image) image.collect(output.image_outputs);
  inputs_embeds.reset();
  image_features.reset();
  special_image_mask.reset();
  return output;
}

std::vector<nn::InputSpec> ImageTextModel::image_inputs() const {
  const nn::SizeExpression image("image");
  return {{"pixel_values",
           {nn::SizeExpression("batch * images"), nn::SizeExpression(std::to_string(images().channels)), image, image},
           DType::float32}};
}

std::vector<std::pair<std::string, I>> image_text_sizes(const Options& options, const ImageTextModel::Images& images) {
  constexpr I kText = 512;
  return {{"seq", checked_add(kText, checked_mul(options.images, images.tokens))}, {"image", images.image}, {"images", options.images}};
}
void check_image_room(const X& input_ids, const Options& options, const ImageTextModel::Images& images) {
  const I needed = checked_mul(options.images, images.tokens);
  if (input_ids.size(-1) < needed)
    throw Error("a sequence of " + std::to_string(input_ids.size(-1)) + " tokens has no room for " + std::to_string(options.images) +
                    " image(s) of " + std::to_string(images.tokens) + " tokens each",
                "--seq counts the images' tokens too: give at least " + std::to_string(needed) + ", or fewer --images");
}

namespace {

class ImageTextNetwork : public Network {
 public:
  ImageTextNetwork(std::string type, const Options& options, ImageTextModelPtr model)
      : Network(std::move(type), options), model_(register_module("model", std::move(model))), images_(model_->images()) {}
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    if (options_.images == 0) return list;
    const std::vector<nn::InputSpec> more = model_->image_inputs();
    list.insert(list.begin() + 1, more.begin(), more.end());
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return image_text_sizes(options_, images_); }

 protected:
  ImageTextModel::Output outputs_of(const Batch& batch) {
    if (batch.pixel_values) check_image_room(batch.input, options_, images_);
    return (*model_)(batch);
  }
  static Value output_object(std::initializer_list<X> own, const ImageTextModel::Output& outputs) {
    Values items;
    for (auto& x : own)
      if (x) items.emplace_back(Tensor(x));
    if (outputs.cache) outputs.cache->collect(items);
    items.insert(items.end(), outputs.image_outputs.begin(), outputs.image_outputs.end());
    return make_tuple(std::move(items));
  }
  ImageTextModelPtr model_;
  const ImageTextModel::Images images_;
};

class ForConditionalGeneration final : public ImageTextNetwork, public EncodesImages {
 public:
  ForConditionalGeneration(const Options& options, const ImageTextForm& form, ImageTextModelPtr model)
      : ImageTextNetwork(form.prefix + "ForConditionalGeneration", options, std::move(model)),
        softcaps_(form.softcaps),
        lm_head(child<Linear>("lm_head", model_->text.config->hidden, model_->text.config->vocab, false)) {
    if (form.tied) tie("lm_head.weight", "model." + std::string(form.text_name) + "." + model_->text.form->embedding_name + ".weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    ImageTextModel::Output outputs = outputs_of(batch);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, options_.logits_to_keep);
    X logits = lm_head(hidden_states);
    if (softcaps_ && model_->text.form->logits) logits = model_->text.form->logits(std::move(logits), *model_->text.config);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, model_->text.config->vocab);
    Value out = output_object({loss, logits}, outputs);
    outputs.last_hidden_state.reset();
    return {out, loss};
  }
  bool generates() const override { return model_->generating_decoder() != nullptr; }
  CachePtr new_generation_cache() const override { return model_->generating_decoder()->new_generation_cache(*model_->text.config); }
  void encode_images(const Batch& batch) override {
    if (!batch.pixel_values) return;
    check_image_room(batch.input, options_, images_);
    model_->mm_encoder_outputs = model_->get_image_features(batch);
  }
  void forget_images() override { model_->mm_encoder_outputs = {}; }
  X call_positions(X position_ids) const override { return model_->call_positions(std::move(position_ids)); }
  TokenTypes token_types() const override { return model_->token_types(); }
  bool makes_masks() const override { return model_->makes_masks(); }
  Step step(Batch batch) override {
    Entered scope(*this);
    ImageTextModel::Output outputs = (*model_)(batch);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, batch.logits_to_keep);
    X logits = lm_head(hidden_states);
    if (softcaps_ && model_->text.form->logits) logits = model_->text.form->logits(std::move(logits), *model_->text.config);
    if (!batch.logits_to_keep) logits = logits.to_float();
    return {logits, outputs.cache};
  }

 private:
  bool softcaps_;
  Linear& lm_head;
};

/// GenericForSequenceClassification.
class ForSequenceClassification final : public ImageTextNetwork {
 public:
  ForSequenceClassification(const Config& config, const Options& options, const ImageTextForm& form, ImageTextModelPtr model)
      : ImageTextNetwork(form.prefix + "ForSequenceClassification", options, std::move(model)),
        config_(config),
        score(child<Linear>("score", model_->text.config->hidden, num_labels(config), false)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    ImageTextModel::Output outputs = outputs_of(batch);
    X logits = score(outputs.last_hidden_state);
    return classify_last_token(config_, batch.input, logits, batch.labels, outputs.cache.get());
  }

 private:
  Config config_;
  Linear& score;
};

class ImageTextAlone final : public ImageTextNetwork {
 public:
  using ImageTextNetwork::ImageTextNetwork;
  nn::Outcome run(Batch batch) override {
    ImageTextModel::Output outputs = outputs_of(batch);
    return {output_object({outputs.last_hidden_state}, outputs), {}};
  }
};

}  // namespace

NetworkPtr make_image_text(const Config& config, const Options& options, const ImageTextForm& form, ImageTextModelPtr model) {
  switch (options.task) {
    case Task::base: return std::make_shared<ImageTextAlone>(form.prefix + "Model", options, std::move(model));
    case Task::seq_cls: return std::make_shared<ForSequenceClassification>(config, options, form, std::move(model));
    default: return std::make_shared<ForConditionalGeneration>(options, form, std::move(model));
  }
}

std::vector<TaskClass> image_text_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                          bool causal) {
  std::vector<TaskClass> classes{{Task::image_text_to_text, prefix + "ForConditionalGeneration", make},
                                 {Task::base, prefix + "Model", make}};
  if (causal) classes.push_back({Task::causal_lm, prefix + "ForConditionalGeneration", make});
  return classes;
}

I square_size(const Config& config, const std::string& key) {
  auto* value = config.find(key);
  if (!value || !value->list()) return config.size(key);
  const std::vector<I> sides = config.integers(key);
  if (sides.size() != 2 || sides[0] != sides[1] || sides[0] < 1) throw config.error(key, "expected a number, or two that are alike");
  return sides[0];
}

}  // namespace memest::hf
