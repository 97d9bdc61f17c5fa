// Estimate -> JSON (design 5.2; estimate.schema.json) and the trace file of --trace.
#pragma once
#include <string>

#include "report/result.h"

namespace memest::report {

/// Pretty-printed, exact integers, ends with a newline.
std::string to_json(const Estimate& e);
/// The caching allocator's events with phase, module and op.
std::string trace_to_json(const Estimate& e);

}  // namespace memest::report
