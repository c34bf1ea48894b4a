#pragma once

#include "backends/backend.h"

namespace kiln::fuzz {

/// A backend of the host that compiles nothing: its code is a kernel spec's canonical bytes, its executable hands the
/// spec to the reference interpreter. So thousands of programs can be linked and run while a compiler makes one, and
/// whatever is wrong lies between kernels. Specs are kept in this process: code of another one is unknown.
class InterpreterBackend final : public CompileBackend {
 public:
  static constexpr std::string_view k_name = "interpreter";
  static Target target() { return {std::string(k_name), "spec", {}}; }

  std::string_view name() const override { return k_name; }
  std::vector<Target> targets() const override { return {target()}; }
  Machine default_machine(const Target&) const override { return {}; }
  std::string toolchain() const override { return "none"; }
  Status claims(const KernelSpec&, const Target&) const override { return {}; }
  std::vector<Schedule> candidates(const KernelSpec&, const Target&, const Machine&) const override {
    return {{{}, "interpreted"}};
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;
};

/// The host's backend and the interpreter, by name.
const CompileBackend* find_backend(std::string_view name);
/// Forgets all specs, so that memory does not grow with the number of graphs.
void forget_interpreted();
/// Errors: not_found for code that this process has not compiled.
Expected<std::shared_ptr<const Executable>> load_interpreted(std::span<const uint8_t> code);

}  // namespace kiln::fuzz
