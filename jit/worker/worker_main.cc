#include <cstdio>
#include <span>
#include <string_view>

#include "autotune/machine_lock.h"
#include "backends/compile_registry.h"
#include "jit/build/build.h"
#include "jit/worker/disassemble.h"
#include "jit/worker/warm_up.h"
#include "jit/worker/zygote.h"

namespace {

/// A cold compiler is slower, not wrong: the worker goes on.
void warm_up() {
  kiln::MachineLock::make();  // builds may make no file
  for (const kiln::Status& status : {kiln::warm_up_compilers(), kiln::warm_up_samples()}) {
    if (!status.ok()) std::fprintf(stderr, "kiln-worker: warm-up: %s\n", status.to_string().c_str());
  }
}

kiln::Expected<kiln::BuildResult> build(const kiln::BuildRequest& request, const kiln::BuildEnvironment& environment) {
  return kiln::build(request, kiln::find_compile_backend, environment);
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  if (argc > 1 && std::string_view(argv[1]) == "--disassemble") return kiln::disassemble_main(arguments.subspan(2));
  return kiln::zygote_main(argc, argv, warm_up, build);
}
