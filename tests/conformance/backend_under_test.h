#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backends/backend.h"

namespace kiln::conformance {

/// One target of one backend: a parameter of every test.
struct BackendUnderTest {
  std::shared_ptr<const CompileBackend> compile;
  Target target;                   // with the device's driver, when there is one
  std::shared_ptr<Device> device;  // that runs the target; null when this host has none

  bool host_runs() const { return device != nullptr; }
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.target.backend << ":" << backend.target.name;
}

/// The target as a device of this host runs it, and that device; the target alone where there is none.
BackendUnderTest on_this_host(std::shared_ptr<const CompileBackend> compile, const RuntimeBackend& runtime,
                              const Target& target);

/// All backends this build has, each with all its targets. Written out: a new backend is a line here.
std::vector<BackendUnderTest> backends_under_test();

/// For test names: letters, digits and underscores.
std::string name_of(const BackendUnderTest& backend);

}  // namespace kiln::conformance
