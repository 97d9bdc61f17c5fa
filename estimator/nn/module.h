// torch.nn.Module: parameters, buffers and children in registration order, and a call that names the module in the trace.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fake/runtime.h"
#include "ops/schema.h"
#include "ops/value.h"

namespace memest::nn {

class Module;
using ModulePtr = std::shared_ptr<Module>;

class Module {
 public:
  explicit Module(std::string type) : type_(std::move(type)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// module(*arguments, **keywords): the caller's arguments live until it returns. Errors get the module's path.
  Value call(const Values& arguments, const KeywordArguments& keywords = {});
  /// A module of one tensor.
  Tensor operator()(T input);
  /// What call() does instead of the module's own forward, as CheckpointWrapper does; it may call `call_unwrapped`.
  using Wrapper = std::function<Value(Module&, const Values& arguments, const KeywordArguments& keywords)>;
  void wrap(Wrapper wrapper) { wrapper_ = std::move(wrapper); }
  Value call_unwrapped(const Values& arguments, const KeywordArguments& keywords = {});

  const std::string& type() const { return type_; }
  const std::string& path() const { return path_; }
  bool training = true;
  /// For modules whose forward has C++ types: names the module in the trace while the forward runs.
  class Entered {
   public:
    explicit Entered(const Module& m) : scope_(runtime().module, m.entered_ ? m.id_ : runtime().module) {}

   private:
    Scoped<ModuleId> scope_;
  };

  // ---- what it holds
  void register_parameter(std::string name, Tensor parameter);
  void register_buffer(std::string name, Tensor buffer);
  template <class M>
  std::shared_ptr<M> register_module(std::string name, std::shared_ptr<M> module) {
    children_.emplace_back(std::move(name), module);
    return module;
  }
  const std::vector<std::pair<std::string, ModulePtr>>& children() const { return children_; }
  const std::vector<std::pair<std::string, Tensor>>& own_parameters() const { return parameters_; }
  const std::vector<std::pair<std::string, Tensor>>& own_buffers() const { return buffers_; }
  /// The child at a dotted path ("down.0"); null where there is none.
  Module* find(const std::string& path);
  ModulePtr find_shared(const std::string& path);
  /// Replaces the parameter at a dotted path by that of another: tied weights. False where either is missing.
  bool tie(const std::string& path, const std::string& to);
  /// Whether registering a child at this name would repeat one.
  bool has_child(const std::string& name) const;
  /// Gives the i-th child another name: layers of a container that a spec names.
  void rename_child(std::size_t i, std::string name) { children_.at(i).first = std::move(name); }

  /// model.parameters(): own ones before the children's, a shared one once.
  Tensors parameters();
  std::vector<std::pair<std::string, Tensor>> named_parameters();
  std::vector<std::pair<std::string, Tensor>> named_buffers();
  /// Module.to("cuda"): children first, then own parameters, then buffers, each moved once.
  void to_device(MemoryFormat format = MemoryFormat::preserve);
  void train(bool mode);
  /// Gives this module and its descendants their paths in the trace.
  void enter_trace(const std::string& path = "");

 protected:
  /// The module's own forward; arguments are as the caller gave them.
  virtual Value forward(const Values& arguments, const KeywordArguments& keywords) = 0;
  /// Registers a new parameter on the host, in the default dtype, requiring grad. With `wanted` false the place stays empty (bias=False).
  void new_parameter(std::string name, const Dims& sizes, bool wanted = true);
  void new_buffer(std::string name, const Dims& sizes, DType dtype, bool wanted = true);
  /// The i-th own parameter or buffer. Layers ask for it at each call, so that tying and moving need no second handle.
  T parameter(std::size_t i) const { return parameters_[i].second; }
  T buffer(std::size_t i) const { return buffers_[i].second; }

 private:
  void visit(const std::string& path, const std::function<void(const std::string&, Module&)>& f, std::unordered_set<const Module*>& seen);

  std::string type_, path_;
  Wrapper wrapper_;
  ModuleId id_ = 0;
  bool entered_ = false;
  std::vector<std::pair<std::string, Tensor>> parameters_, buffers_;
  std::vector<std::pair<std::string, ModulePtr>> children_;
};

/// A module whose forward takes one tensor and gives one.
class UnaryModule : public Module {
 public:
  using Module::Module;

 protected:
  virtual Tensor forward(T input) = 0;
  Value forward(const Values& arguments, const KeywordArguments& keywords) final;
};

/// nn.Sequential: `for module in self: input = module(input)`.
class Sequential : public UnaryModule {
 public:
  Sequential() : UnaryModule("Sequential") {}
  explicit Sequential(const std::vector<ModulePtr>& layers);
  void append(ModulePtr layer);

 protected:
  Tensor forward(T input) override;
};

/// nn.ModuleList and nn.ModuleDict: children called by path.
class ModuleList final : public Module {
 public:
  explicit ModuleList(const std::vector<ModulePtr>& layers, std::string type = "ModuleList");
  void append(ModulePtr layer);

 protected:
  Value forward(const Values&, const KeywordArguments&) override;
};

}  // namespace memest::nn
