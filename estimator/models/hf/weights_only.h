// A class of which memest knows the parameters and not the run: what loading it takes is all that can be told of it.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "models/hf/family.h"
#include "models/hf/weights.h"

namespace memest::hf {

class WeightsOnly final : public Network {
 public:
  using Network::Network;
  Weights& part(const std::string& name, std::string type) { return child<Weights>(name, std::move(type)); }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias) { child<Linear>(name, in, out, bias); }
  std::vector<nn::InputSpec> inputs() const override { return {}; }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {}; }
  nn::Outcome run(Batch) override { return {None{}, {}}; }
};

}  // namespace memest::hf
