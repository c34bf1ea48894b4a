#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"
#include "frontend/fuse/kernel_spec.h"
#include "frontend/fuse/plan.h"

/// A backend is two tables: how to compile (workers link it) and how to run (clients link only that).
/// Adding one: docs/adding_a_backend.md. The conformance suite (tests/conformance) says whether it is right.
namespace kiln {

/// What code is compiled for: a backend and a named, explicit feature set. "x86-64-v4" on cpu, "sm_90a" on cuda.
struct Target {
  std::string backend;
  std::string name;
  bool operator==(const Target&) const = default;
};

/// The choices for one kernel spec on one target, as the backend encodes them: canonical bytes for the key, and a
/// sentence for people ("tile 6x64 kc384 pack b").
struct Schedule {
  std::vector<uint8_t> bytes;
  std::string description;
};

/// Compiled code with its launch data: the payload of an artifact of kind `code` (cache/format/artifact.h).
struct Image {
  std::vector<uint8_t> code;     // position independent, self-contained; empty for backends with `blob`
  uint64_t entry = 0;            // offset of the entry point in code
  uint64_t tasks = 1;            // the grid: how many independent slices the launch has
  uint64_t workspace_bytes = 0;  // scratch for one task, 64-byte aligned, contents undefined
  uint64_t features = 0;         // what the code needs, in the backend's feature bits
};

/// Heavy: lowering, code generation. Workers only. Implementations are stateless or internally synchronised; every
/// call may come from any thread.
class CompileBackend {
 public:
  virtual ~CompileBackend() = default;
  virtual std::string_view name() const = 0;

  /// The targets this build can generate code for, best first.
  virtual std::vector<Target> targets() const = 0;
  virtual TargetTraits traits(const Target& target) const = 0;
  /// Everything that decides the bytes besides spec and schedule: toolchain version, generator build id.
  virtual std::string toolchain() const = 0;

  /// Why not, when the spec cannot be compiled; ok otherwise.
  virtual Status claims(const KernelSpec& spec, const Target& target) const = 0;
  /// Best first by the analytic model; 1 to 16. The first one is generation 0.
  virtual std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target) const = 0;
  /// Errors: resource_exhausted when registers spill in a hot loop, internal when the compiler fails.
  virtual Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const = 0;
};

enum class LaunchStatus : uint32_t { ok = 0, index_out_of_range = 1 };

/// A launchable kernel. Immutable; launch may be called from any thread at once.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual uint64_t tasks() const = 0;
  virtual uint64_t workspace_bytes() const = 0;  // per task in flight
  /// Runs tasks [first, last): buffers in KernelSpec order, workspace for one task. Sets *status on a data error,
  /// never clears it.
  virtual void run(void* const* buffers, void* workspace, LaunchStatus* status, uint64_t first,
                   uint64_t last) const = 0;
};

/// Light: load and launch. No compiler, no vendor library beyond the driver.
class RuntimeBackend {
 public:
  virtual ~RuntimeBackend() = default;
  virtual std::string_view name() const = 0;
  /// The targets this host can run, best first. Asks the device, never assumes.
  virtual std::vector<Target> targets() const = 0;
  /// Feature bits this host has; code whose `features` are not a subset is never loaded.
  virtual uint64_t features() const = 0;
  /// `code` stays mapped as long as the executable lives and is executable memory already (cpu).
  virtual Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) const = 0;
};

}  // namespace kiln
