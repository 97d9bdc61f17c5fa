// Modules of which only the parameters count: the parts of a model that its call leaves out, a vision tower without images.
#pragma once
#include <string>
#include <utility>

#include "models/hf/module.h"

namespace memest::hf {

class Weights final : public Base {
 public:
  using Base::Base;
  using Base::new_buffer;
  using Base::new_parameter;
  Weights& part(const std::string& name, std::string type) { return child<Weights>(name, std::move(type)); }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) { child<Linear>(name, in, out, bias); }
  void norm(const std::string& name, std::int64_t width) { child<LayerNorm>(name, width); }
  void embedding(const std::string& name, std::int64_t count, std::int64_t width) { child<Embedding>(name, count, width); }
  void conv(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t kernel, bool bias = true) {
    Weights& module = part(name, "Conv2d");
    module.new_parameter("weight", {out, in, kernel, kernel});
    module.new_parameter("bias", {out}, bias);
  }
  void conv1d(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t kernel, bool bias = true) {
    child<Conv1d>(name, in, out, kernel, 1, 0, bias);
  }
};

}  // namespace memest::hf
