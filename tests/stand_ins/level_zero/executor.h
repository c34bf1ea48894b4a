#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kiln::stand_in {

/// Whether a SPIR-V module calls functions that it does not define: whether it declares the capability Linkage.
bool imports_functions(std::span<const uint8_t> spirv);

/// What runs kernels in the device's stead: an OpenCL runtime of the host that takes SPIR-V, opened at run time.
/// Threading: one call at a time.
class Executor {
 public:
  /// Builds and launches of one module.
  class Program {
   public:
    virtual ~Program() = default;
    /// Errors: a sentence; empty when all is well.
    virtual std::string launch(const std::string& kernel, std::span<void* const> arguments, size_t groups,
                               size_t group_size) = 0;
    virtual int argument_count(const std::string& kernel) const = 0;  // -1: no such kernel
    virtual std::vector<uint8_t> binary() const = 0;
  };

  /// `library`: of the OpenCL runtime. Null, with the reason, when it cannot be used.
  static std::unique_ptr<Executor> open(const char* library, std::string& reason);
  virtual ~Executor() = default;

  /// Null, with the compiler's log, when it cannot be built.
  virtual std::unique_ptr<Program> build(std::span<const uint8_t> code, bool is_binary, std::string& log) = 0;
  virtual void* allocate(size_t bytes, size_t alignment) = 0;
  virtual void release(void* memory) = 0;
};

}  // namespace kiln::stand_in
