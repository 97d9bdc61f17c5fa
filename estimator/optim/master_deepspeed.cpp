// DeepSpeed without ZeRO partitions, or with one process: FP16_Optimizer (deepspeed/runtime/fp16/fused_optimizer.py) and BF16_Optimizer
// (runtime/bf16_optimizer.py), with the helpers of runtime/utils.py; 0.19. The parameters become views of one flat tensor for each
// group, and the optimizer sees its float32 copy alone.
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/pointwise.h"
#include "ops/views.h"
#include "optim/master_weights.h"

namespace memest::optim {
namespace {

/// _flatten_dense_tensors: cat of each one's contiguous().view(-1).
Tensor flattened(const Tensors& tensors) {
  Tensors rows;
  for (auto& x : tensors) rows.push_back(share(x, {x.numel()}, {1}, x->offset));
  return ops::cat(rows, 0);
}

/// One param_group.
struct Group {
  List parameters;
  Tensor flat, master;
  /// p.data = q.data for the views q of the flat tensor: the storages go one by one.
  void point_at_flat() {
    std::int64_t offset = 0;
    for (auto& p : parameters) {
      p->storage = flat->storage;
      p->offset = offset;
      p->strides = strides_of(p.sizes(), MemoryFormat::contiguous);
      offset += p.numel();
    }
  }
};

class DeepSpeed : public MasterWeights {
 public:
  explicit DeepSpeed(Optimizer& optimizer) : optimizer_(optimizer) {
    for (auto& g : optimizer.groups()) groups_.push_back({List(g.parameters), {}, {}});
  }
  bool zeroes_after_step() const override { return true; }

 protected:
  void give_masters() {
    std::vector<Tensors> masters;
    for (auto& g : groups_) masters.push_back({g.master});
    optimizer_.replace_parameters(std::move(masters));
  }
  void drop_gradients() {
    for (auto& g : groups_)
      for (auto& p : g.parameters) p->grad.reset();
  }

  Optimizer& optimizer_;
  std::vector<Group> groups_;
};

class Fp16 final : public DeepSpeed {
 public:
  explicit Fp16(Optimizer& optimizer) : DeepSpeed(optimizer) {
    NoGrad guard;
    for (auto& g : groups_) {
      CategoryScope category(Category::parameter);
      List clones;
      for (auto& p : g.parameters) clones.push_back(ops::clone(p, std::nullopt));
      g.flat = flattened(clones);
      clones.drop();
      g.point_at_flat();
      g.master = new_master(g.flat);
      g.master->requires_grad = true;
    }
    give_masters();
    // initialize_optimizer_states: a step on gradients of zeros
    for (auto& g : groups_) {
      CategoryScope category(Category::gradient);
      g.master->grad = ops::zeros(g.master.sizes(), DType::float32);
    }
    optimizer_.step();
    for (auto& g : groups_) g.master->grad.reset();
  }

  Tensor before_backward(Tensor loss) override { return ops::mul_scalar(ops::to(loss, DType::float32), 1.0); }
  void clip_grad_norm() override {}  // a factor of the scale, on the host
  void step() override {
    for (auto& g : groups_)
      for (auto& p : g.parameters)
        if (p->grad) sum_of(ops::to_copy(p->grad, DType::float32));  // _has_inf_or_nan
    scalar(DType::uint8);
    List flat_gradients;
    for (auto& g : groups_) {
      CategoryScope category(Category::gradient);
      List gradients;
      for (auto& p : g.parameters)
        gradients.push_back(p->grad ? ops::to_copy(p->grad, DType::float32) : ops::zeros(p.sizes(), DType::float32));
      flat_gradients.push_back(flattened(gradients));
      gradients.drop();
      g.master->grad = flat_gradients.back();
      for (auto& p : g.parameters) p->grad.reset();
    }
    {
      Tensor norm;
      for (auto& g : groups_) norm = vector_norm(g.master->grad);
      scalar();
    }
    optimizer_.step();
    for (auto& g : groups_) g.master->grad.reset();
  }
  void zero_grad() override { drop_gradients(); }
};

class Bf16 final : public DeepSpeed {
 public:
  explicit Bf16(Optimizer& optimizer) : DeepSpeed(optimizer) {
    NoGrad guard;
    for (auto& g : groups_) {
      CategoryScope category(Category::parameter);
      Tensors tensors = g.parameters;
      std::int64_t count = 0;
      for (auto& p : tensors) count += p.numel();
      if (count % 2) tensors.push_back(ops::zeros({1}, DType::bfloat16));  // aligned to 4 bytes
      g.flat = flattened(tensors);
      tensors.clear();
      g.point_at_flat();
      g.master = new_master(g.flat);
      g.master->requires_grad = true;
      CategoryScope gradient(Category::gradient);
      buffers_.push_back(ops::zeros(g.flat.sizes(), DType::float32));
    }
    give_masters();
  }

  /// update_hp_grads: added to the buffer, each cast by itself.
  void after_backward() override {
    for (auto& g : groups_)
      for (auto& p : g.parameters)
        if (p->grad) ops::to_copy(p->grad, DType::float32);
  }
  void clip_grad_norm() override { clips_ = true; }
  void step() override {
    Tensor norm = global_norm();
    fresh_as("aten::gt", DType::boolean, norm);
    if (clips_) {
      Tensor coefficient = number_over(fresh("aten::add", norm));
      fresh_as("aten::lt", DType::boolean, coefficient);
    }
    for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].master->grad = detached(buffers_[i]);
    optimizer_.step();
    norm_ = norm;  // the engine holds the former one until now
  }
  void zero_grad() override { drop_gradients(); }

 private:
  /// get_global_norm_of_tensors, whose buffer of scalars stays.
  Tensor global_norm() {
    std::size_t count = 0;
    for (auto& g : groups_) count += g.parameters.size();
    while (norms_.size() < count) norms_.push_back(scalar());
    for (auto& g : groups_)
      for (auto& p : g.parameters) fresh("aten::pow", vector_norm(gradient_view(p)));
    Tensor total = fresh("aten::pow", norms_[0]);
    Tensor infinite = fresh_as("aten::eq", DType::boolean, fresh("aten::abs", total));
    Tensor nan = fresh_as("aten::ne", DType::boolean, total, total);
    Tensor bad = fresh_as("aten::logical_or", DType::boolean, nan, infinite);
    Tensor minus_one = scalar();
    return total;
  }
  /// The view of the float32 buffer that belongs to a parameter.
  Tensor gradient_view(T p) const {
    for (std::size_t i = 0; i < groups_.size(); ++i)
      if (p->storage.get() == groups_[i].flat->storage.get()) return share(buffers_[i], {p.numel()}, {1}, p->offset);
    throw Error("--master-weights: a parameter left its flat tensor");
  }

  Tensors buffers_;
  List norms_;
  Tensor norm_;
  bool clips_ = false;
};

const MasterWeightsRecord fp16{"deepspeed", DType::float16,
                               [](Optimizer& optimizer) -> std::unique_ptr<MasterWeights> { return std::make_unique<Fp16>(optimizer); }};
const MasterWeightsRecord bf16{"deepspeed", DType::bfloat16,
                               [](Optimizer& optimizer) -> std::unique_ptr<MasterWeights> { return std::make_unique<Bf16>(optimizer); }};

}  // namespace
}  // namespace memest::optim
