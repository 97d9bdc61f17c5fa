// Estimate -> what a person reads: the answer first, then what it is made of, then where to look.
#pragma once
#include <string>

#include "report/result.h"

namespace memest::report {

struct TableOptions {
  int depth = 1;  ///< levels of modules in the list of those that hold most; above 1 a table of all down to it
  bool colour = false;
};
std::string to_table(const Estimate& e, const TableOptions& options);

}  // namespace memest::report
