#include "jit/worker/disassemble.h"

#include <cstdio>
#include <string>

#include "backends/compile_registry.h"
#include "jit/build/published.h"

namespace kiln {
namespace {

Expected<std::string> disassemble(const std::string& cache_directory, const std::string& digest, const Target& target) {
  const CompileBackend* backend = find_compile_backend(target.backend);
  if (backend == nullptr) return error(StatusCode::not_found, "this build has no backend {}", target.backend);
  const auto name = Digest::from_hex(digest);
  if (!name) return invalid_argument("'{}' is no digest", digest);
  const auto image = Published(cache_directory).image_named(*name);
  if (!image) return error(StatusCode::not_found, "no code of digest {} is mapped in {}", digest, cache_directory);
  return backend->disassemble(*image, target);
}

}  // namespace

int disassemble_main(std::span<const char* const> arguments) {
  if (arguments.size() != 4) return 2;
  const auto text = disassemble(arguments[0], arguments[1], {arguments[2], arguments[3]});
  if (!text.ok()) {
    std::fprintf(stderr, "%s\n", text.status().message().c_str());
    return 1;
  }
  const bool is_written = std::fwrite(text->data(), 1, text->size(), stdout) == text->size();
  return is_written && std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace kiln
