// A model of diffusers (0.42.1): its class by _class_name, what it is built and called with. One file each; it registers itself.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "fake/checkpoint.h"
#include "models/hf/module.h"
#include "nn/model.h"

namespace memest::diffusers {

using hf::aten;
using hf::Base;
using hf::cat;
using hf::Conv2d;
using hf::I;
using hf::LayerNorm;
using hf::Layers;
using hf::leave;
using hf::Linear;
using hf::Module;
using hf::Pair;
using hf::X;

struct Options {
  bool training = true;     ///< a target is given, and the loss computed
  bool checkpoint = false;  ///< enable_gradient_checkpointing()
  std::string task;         ///< --task; empty: the class's forward
};

/// The root of a run: a call as pipelines and training scripts make it, and the loss of the latter.
class Network : public Base {
 public:
  Network(std::string type, const Options& options) : Base(std::move(type)), options_(options) {}
  /// pred = model(*batch).sample, and F.mse_loss(pred.float(), target.float()) where a target is there.
  nn::Outcome run(const Tensors& batch);
  /// The arguments of the call and, in training, the target behind them. Sizes are expressions over batch, seq, height and width: these
  /// two in pixels of the image.
  std::vector<nn::InputSpec> inputs() const;
  virtual std::vector<std::pair<std::string, I>> default_sizes() const = 0;
  /// False: memest knows the parameters alone, and loading them is all that can be told.
  virtual bool runs() const { return true; }
  /// What the model sees of an image; empty: the pixels.
  virtual std::string latents() const { return "the latents are an eighth of it in height and width"; }

 protected:
  virtual std::vector<nn::InputSpec> arguments() const = 0;
  /// The target's shape; none: the model learns to give its first argument back.
  virtual std::vector<nn::SizeExpression> target() const = 0;
  virtual X sample(const std::vector<X>& arguments) = 0;

  const Options options_;
};
using NetworkPtr = std::shared_ptr<Network>;

struct ModelClass {
  ModelClass(const char* class_name, NetworkPtr (*make_network)(const Config& config, const Options& options), bool has_tasks = false);
  const char* name;
  NetworkPtr (*make)(const Config& config, const Options& options);
  bool tasks;  ///< --task chooses among its methods
};
const std::vector<const ModelClass*>& all_classes();

template <class N>
NetworkPtr make_class(const Config& config, const Options& options) {
  return std::make_shared<N>(config, options);
}

/// "height//8": a size of the latents, an eighth of the image's.
inline nn::SizeExpression latent(const char* side) { return nn::SizeExpression(std::string(side) + "//8"); }
inline nn::SizeExpression number(I n) { return nn::SizeExpression(std::to_string(n)); }
/// {"height", n}, {"width", n}: pixels, unless --image says otherwise.
std::vector<std::pair<std::string, I>> image_sizes(I pixels);

/// self._gradient_checkpointing_func(module, *inputs) where `enabled` and gradients are recorded, else module(*inputs). The call must own
/// what it holds: it is made again in backward.
Tensors called(bool enabled, Region call, const Tensors& inputs);

}  // namespace memest::diffusers
