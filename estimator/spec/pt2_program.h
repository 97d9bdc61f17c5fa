// From an exported program to modules that run: a module for each that the program was exported from, a frame for each call of one.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "nn/model.h"
#include "spec/pt2_schema.h"
#include "spec/reader.h"

namespace memest::spec::pt2 {

/// Of each weight's name the bytes in the file that hold it: tied weights share them.
using Payloads = std::map<std::string, std::string>;

/// Throws Error for a program that does not fit together, a size that has no value, or one that the program does not hold for.
std::unique_ptr<nn::Model> build(const Program& program, const Payloads& payloads, const ReadOptions& options);

/// Whether memest knows the target of a node; the outputs of others have the sizes that the program gives.
bool knows_target(const std::string& target);

}  // namespace memest::spec::pt2
