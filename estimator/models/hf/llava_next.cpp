// models/llava_next/modeling_llava_next.py (transformers 5.24): LLaVA's model over the tiles of images of any size.
#include "models/hf/llava.h"

namespace memest::hf {
namespace {

NetworkPtr llava_next(const Config& config, const Options& o) {
  LlavaForm form;
  form.type = "LlavaNextModel";
  form.anyres = true;
  form.make_projector = [](const Config& c, I in, I hidden) { return make_llava_projector("LlavaNextMultiModalProjector", c, in, hidden); };
  return make_image_text(config, o, {.prefix = "LlavaNext", .tied = config.boolean_or("tie_word_embeddings", false)},
                         make_llava_model(config, o, form));
}
const Family llava_next_family{{"llava_next"}, image_text_classes("LlavaNext", llava_next, false)};

}  // namespace
}  // namespace memest::hf
