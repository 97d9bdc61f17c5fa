// The C interface of a plugin.
#include "torch/plugin.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "spec/torch_plugin_abi.h"

namespace memest::plugin {
namespace {

struct NamedType {
  const char* name;
  c10::ScalarType type;
};
constexpr std::array kTypes = {
    NamedType{"float32", c10::kFloat},
    NamedType{"float64", c10::kDouble},
    NamedType{"float16", c10::kHalf},
    NamedType{"bfloat16", c10::kBFloat16},
    NamedType{"int64", c10::kLong},
    NamedType{"int32", c10::kInt},
    NamedType{"int16", c10::kShort},
    NamedType{"int8", c10::kChar},
    NamedType{"uint8", c10::kByte},
    NamedType{"bool", c10::kBool},
    NamedType{"complex64", c10::kComplexFloat},
    NamedType{"complex128", c10::kComplexDouble},
};

/// LibTorch's warnings are about its own interfaces, not about the user's file.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// The first line of LibTorch's message, which may carry a stack trace or a script's source.
std::string first_lines(std::string text) {
  const auto runtime = text.rfind("RuntimeError: ");  // of a script: the trace stands before it
  if (runtime != std::string::npos) text = text.substr(runtime + 14);
  if (text.find("INTERNAL ASSERT FAILED") != std::string::npos)
    if (const auto report = text.find("report a bug to PyTorch. "); report != std::string::npos) text = text.substr(report + 25);
  const auto start = text.find_first_not_of(" \n");
  if (start == std::string::npos) return "LibTorch failed without a message";
  text = text.substr(start);
  return text.substr(0, std::min<std::size_t>({text.find('\n'), text.find("  (Could this error message be improved?"), 300}));
}

}  // namespace

std::string message_of(const std::exception& e) {
  auto* c10_error = dynamic_cast<const c10::Error*>(&e);
  return first_lines(c10_error ? c10_error->what_without_backtrace() : e.what());
}

std::string name_of(c10::ScalarType type) {
  for (auto& t : kTypes)
    if (t.type == type) return t.name;
  throw BadRequest{std::string("a tensor has the type ") + c10::toString(type) + ", which memest does not know", ""};
}
c10::ScalarType type_named(const std::string& name) {
  for (auto& t : kTypes)
    if (name == t.name) return t.type;
  throw BadRequest{"LibTorch has no type '" + name + "'", ""};
}

}  // namespace memest::plugin

extern "C" {
__attribute__((visibility("default"))) int memest_torch_abi() { return MEMEST_TORCH_PLUGIN_ABI; }

__attribute__((visibility("default"))) char* memest_torch_run(const char* request) noexcept {
  using namespace memest::plugin;
  static Silent silent;
  c10::WarningUtils::set_warning_handler(&silent);
  Json reply;
  try {
    try {
      reply = dispatch(Json::parse(request));
    } catch (const BadRequest& e) {
      reply = {{"error", e.message}, {"hint", e.hint}};
    } catch (const std::exception& e) {
      reply = {{"error", message_of(e)}};
    } catch (...) {
      reply = {{"error", "LibTorch failed without a message"}};
    }
    return strdup(reply.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } catch (...) {
    return strdup("{\"error\": \"out of memory\"}");
  }
}
}
