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
  std::shared_ptr<const RuntimeBackend> runtime;
  Target target;

  bool host_runs() const {
    for (const Target& runnable : runtime->targets()) {
      if (runnable == target) return true;
    }
    return false;
  }
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.target.backend << ":" << backend.target.name;
}

/// All backends this build has, each with all its targets. Written out: a new backend is a line here.
std::vector<BackendUnderTest> backends_under_test();

/// For test names: letters, digits and underscores.
std::string name_of(const BackendUnderTest& backend);

}  // namespace kiln::conformance
