#include "models/hf/vision_parts.h"

namespace memest::hf {

X DropPath::forward(X hidden_states) {
  if (drop_prob_ == 0 || !training) return hidden_states;
  Dims shape{hidden_states.size(0)};
  for (I d = 1; d < hidden_states.dim(); ++d) shape = shape + Dims{1};
  X random_tensor = Unbox<Tensor>::from(call_op("aten::rand", {list_of(shape)}, {{"dtype", hidden_states.dtype()}}));
  X shifted = random_tensor.add(1.0);
  shifted = aten("floor", {Tensor(std::move(shifted))});
  random_tensor = std::move(shifted);
  return hidden_states.div(1.0).mul(random_tensor);
}

X Convolution::forward(X input) {
  const Dims stride{form_.stride, form_.stride}, padding{form_.padding, form_.padding}, dilation{form_.dilation, form_.dilation};
  return ops::conv2d(input, parameter(0), parameter(1), stride, padding, dilation, form_.groups);
}
DType BatchNorm2d::default_dtype() { return runtime().default_dtype; }
X BatchNorm2d::forward(X input) {
  return ops::batch_norm(input, parameter(0), parameter(1), buffer(0), buffer(1), training, momentum_, 1e-5, true);
}

std::vector<I> stage_sizes(const Config& file, const std::string& key) {
  std::vector<I> sizes = file.integers(key);
  if (sizes.empty()) throw file.error(key, "expected at least one stage");
  for (I s : sizes)
    if (s < 1 || s > (I{1} << 20)) throw file.error(key, "expected sizes from 1 to 1048576, found " + std::to_string(s));
  return sizes;
}

std::vector<nn::InputSpec> ImageNetwork::inputs() const {
  const nn::SizeExpression batch("batch"), image("image");
  std::vector<nn::InputSpec> list{{"pixel_values", {batch, nn::SizeExpression(std::to_string(channels_)), image, image}, DType::float32}};
  if (options_.labels) list.push_back({"labels", {batch}, DType::int64});
  return list;
}

std::vector<TaskClass> image_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options)) {
  return {{Task::image_cls, prefix + "ForImageClassification", make}, {Task::base, prefix + "Model", make}};
}

}  // namespace memest::hf
