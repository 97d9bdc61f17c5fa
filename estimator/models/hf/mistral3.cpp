// models/mistral3/modeling_mistral3.py (transformers 5.24): LLaVA's model over Pixtral, with patches merged before the projection.
#include "models/hf/llava.h"

namespace memest::hf {
namespace {

class Mistral3PatchMerger final : public Base {
 public:
  Mistral3PatchMerger(const Config& c, I patch, I hidden)
      : Base("Mistral3PatchMerger"),
        merge_(c.size("spatial_merge_size")),
        patch_(patch),
        merging_layer(child<Linear>("merging_layer", checked_mul(hidden, merge_ * merge_), hidden, false)) {}
  X operator()(X image_features, const ImageSizes& given) {
    Entered scope(*this);
    std::vector<X> image_sizes, tokens_per_image;  // numbers on the device
    const I images = given.tensor.size(0), rows = given.height / patch_, columns = given.width / patch_, d = image_features.size(-1);
    for (I i = 0; i < images; ++i) {
      const X size = given.tensor.select(0, i);
      for (I side : {0, 1}) image_sizes.emplace_back(aten("floor_divide", {Tensor(size.select(0, side)), patch_}));
    }
    for (std::size_t i = 0; i < image_sizes.size(); i += 2) tokens_per_image.push_back(image_sizes[i].mul(image_sizes[i + 1]));
    std::vector<X> permuted_tensor;
    X image_grid, grid;
    for (X& image_tokens : image_features.split(Dims::filled(int(images), rows * columns), 0)) {
      image_grid = image_tokens.view({rows, columns, d}).permute({2, 0, 1}).unsqueeze(0);
      const Dims kernel{merge_, merge_}, one{1, 1}, none{0, 0};
      grid = aten("im2col", {Tensor(image_grid), list_of(kernel), list_of(one), list_of(none), list_of(kernel)});
      grid = grid.view({d * merge_ * merge_, -1}).t();
      permuted_tensor.push_back(grid);
    }
    image_features = cat(permuted_tensor, 0);
    image_features = merging_layer(image_features);
    image_sizes.clear();
    tokens_per_image.clear();
    permuted_tensor.clear();
    return leave(std::move(image_features), image_grid, grid);
  }

 private:
  I merge_, patch_;
  Linear& merging_layer;
};

class Mistral3MultiModalProjector final : public LlavaProjector {
 public:
  Mistral3MultiModalProjector(const Config& c, I in, I hidden)
      : LlavaProjector("Mistral3MultiModalProjector"),
        norm(register_module("norm", make_norm(Norm::llama, c.section("vision_config").size("hidden_size"), "Mistral3RMSNorm"))),
        patch_merger(child<Mistral3PatchMerger>("patch_merger", c, square_size(c.section("vision_config"), "patch_size"),
                                                c.section("vision_config").size("hidden_size"))),
        projection_(*this, c, in, hidden) {}
  X operator()(X image_features, const ImageSizes& sizes) override {
    Entered scope(*this);
    image_features = (*norm)(image_features);
    image_features = patch_merger(image_features, sizes);
    X hidden_states = projection_(image_features);
    image_features.reset();
    return hidden_states;
  }

 private:
  UnaryPtr norm;
  Mistral3PatchMerger& patch_merger;
  LlavaProjection projection_;
};

NetworkPtr mistral3(const Config& config, const Options& o) {
  LlavaForm form;
  form.type = "Mistral3Model";
  form.merge = config.size("spatial_merge_size");
  form.takes_rows = true;
  form.make_projector = [](const Config& c, I in, I hidden) -> std::shared_ptr<LlavaProjector> {
    return std::make_shared<Mistral3MultiModalProjector>(c, in, hidden);
  };
  if (config.section("vision_config").model_type() != "pixtral")
    throw config.section("vision_config").error("model_type", "memest builds Mistral 3 over a vision model of the type 'pixtral'");
  return make_image_text(config, o, {.prefix = "Mistral3", .tied = config.boolean_or("tie_word_embeddings", true)},
                         make_llava_model(config, o, form));
}
const Family mistral3_family{{"mistral3"}, image_text_classes("Mistral3", mistral3, false)};

}  // namespace
}  // namespace memest::hf
