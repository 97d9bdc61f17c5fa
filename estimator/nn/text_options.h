// "name:key=value,key=value", as the command line writes an optimizer or a loss with its arguments.
#pragma once
#include <string>

#include "ops/schema.h"

namespace memest {

struct NamedOptions {
  std::string name;
  KeywordArguments keywords;
};
/// Values are numbers, true, false, none, a tuple "0.9+0.999", or else text. `option` ("--loss") and `example` are for messages.
NamedOptions parse_named_options(const std::string& option, const std::string& text, const char* example);

}  // namespace memest
