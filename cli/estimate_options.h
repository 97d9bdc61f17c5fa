// What `memest estimate` is asked, for the subcommands that take the same options.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "estimate.h"

namespace memest::cli {

/// Adds SPEC and the options of model, run, device and PyTorch; the function gives the request they make, once the line is parsed.
std::function<EstimateRequest()> add_request_options(CLI::App& sub);
/// Warnings and notes, to stderr.
void print_notes(const Diagnostics& diagnostics);

}  // namespace memest::cli
