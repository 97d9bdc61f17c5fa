// Models of text and images in grids of patches, over a tower (grid_vision.h) and a decoder with positions of three axes (mrope.h).
#pragma once
#include "models/hf/grid_vision.h"
#include "models/hf/mrope.h"

namespace memest::hf {

struct GridTextForm {
  std::string prefix;          ///< of the class names: "Qwen2VL"
  bool text_ties = true;       ///< the text_config's tie_word_embeddings ties, too
  bool float_interval = true;  ///< get_vision_position_ids multiplies an image's time by 1.0; else by 1
};

/// PREFIXForConditionalGeneration, or PREFIXModel, of config.vision_config and config.text_config.
NetworkPtr make_grid_text(const Config& config, const Options& options, const GridTextForm& form, std::shared_ptr<GridTower> visual);
std::vector<TaskClass> grid_text_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options));

}  // namespace memest::hf
