// Ops that PyTorch does not have: a spec describes them, or memest does not know them and assumes what they take.
#pragma once
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "nn/module.h"
#include "ops/schema.h"
#include "ops/value.h"

namespace memest::nn {

/// A call of an op that is described rather than known: a torch.autograd.Function with these tensors.
struct CustomCall {
  struct Made {
    Dims sizes;
    DType dtype;
    bool saved = false;  ///< for the backward pass
  };
  const char* op = "";  ///< in the trace
  Tensors inputs;
  std::vector<bool> saves_input;           ///< one for each input
  std::vector<Made> outputs;               ///< made in order
  std::vector<Made> temporaries;           ///< live until the call returns, saved ones until the backward pass
  std::vector<Made> backward_temporaries;  ///< live while the gradients are made: one for each input that needs one
  bool assumed = false;                    ///< what it makes and what only it keeps is booked as assumed
};
/// The outputs.
Tensors call_custom(const CustomCall& call);

/// What memest assumes of a call that it does not know: `outputs` tensors like its largest input, parameters aside; all inputs and outputs
/// are saved. Throws Error (cannot tell) where no input is a tensor. More than one output come as a tuple.
Value assume_call(const std::string& name, const Values& arguments, const KeywordArguments& keywords, int outputs);

/// A layer that memest does not know: no parameters, an output like its input, both saved; or its layers, one after another.
ModulePtr unknown_layer(const std::string& type, const std::vector<ModulePtr>& layers);

/// "did you mean relu?" among functions and ops, or "".
std::string near_functions(const std::string& name);

/// Adds a diagnostic, or throws Error (cannot tell) where a run is strict.
void report_note(Diagnostic what);

/// Notes the unknown and what is assumed of it, or throws Error (cannot tell), without a place, where a run is strict.
void report_unknown(Diagnostic what, const std::string& assumption);

}  // namespace memest::nn
