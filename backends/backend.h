#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/device.h"
#include "backends/machine.h"
#include "base/digest.h"
#include "base/expected.h"
#include "frontend/kernel/kernel_spec.h"

/// A backend is two tables: how to compile (workers link it) and how to run (clients link only that).
/// Adding one: docs/adding_a_backend.md. The conformance suite (tests/conformance) says whether it is right.
namespace kiln {

/// The choices for one kernel spec on one target. A schedule stands for itself: compile() takes any that fits the spec,
/// from candidates(), from a record or from a tuner.
struct Schedule {
  std::vector<uint8_t> bytes;  // which implementation and its choices (schedule_bytes.h); part of no key
  std::string description;     // for people: "tile 6x64 k 768 slab 320 parts 8 b-panels"
  /// The smallest piece that is computed at a time, tails apart: an extent for each dim of the iteration whose points are
  /// stored (loops: extents; gemm: batch…, m, n; attention: batch, heads, queries, features). The verdict looks into each
  /// such piece. Empty: not said, and taken to be small.
  std::vector<int64_t> tile = {};
};

/// A spec as one of those that one code serves: they differ in nothing but numbers that the code takes from its launch.
struct SizedSpec {
  Digest form;                   // equal for all of them
  std::vector<int64_t> extents;  // what a launch of this one carries, none negative; at most limits::k_launch_extents
  std::vector<Schedule> candidates;  // best first, at least one; equal for all of them
  bool carries_tasks = false;        // the first of `extents` is how many tasks a launch has, any of which do the same
};

/// Compiled code with its launch data: the payload of an artifact of kind `code` (cache/format/artifact.h).
struct Image {
  /// Host: position independent, self-contained machine code. Any other device: what its backend's load reads, and
  /// nothing above knows (device_code.h packs native code, the driver it is bound to, and the portable form).
  std::vector<uint8_t> code;
  uint64_t entry = 0;            // host: offset of the entry point in code
  uint64_t tasks = 1;            // host: how many independent slices the grid has; 0: as the launch says (launch_tasks)
  uint64_t workspace_bytes = 0;  // Executable::workspace_bytes
  uint64_t features = 0;         // what the code needs, in the backend's feature bits
};

/// Heavy: lowering, code generation. Workers only. Implementations are stateless or internally synchronised; every
/// call may come from any thread. A compiler that crashes or hangs takes a worker with it, nothing else.
class CompileBackend {
 public:
  virtual ~CompileBackend() = default;
  virtual std::string_view name() const = 0;

  /// The targets this build can generate code for, best first, without a driver: whether or not such a device, or the
  /// compiler for it, is on this host.
  virtual std::vector<Target> targets() const = 0;
  /// What schedules assume of the machine where nobody has asked one: a usual one of the target, as its row states it.
  virtual Machine default_machine(const Target& target) const = 0;
  /// Everything outside the source tree that decides the bytes besides spec, schedule and target: the compiler's
  /// version. Part of the keys of code.
  virtual std::string toolchain() const = 0;
  /// The same for one spec: with a library's version where its code is among the candidates.
  virtual std::string toolchain_of([[maybe_unused]] const KernelSpec& spec,
                                   [[maybe_unused]] const Target& target) const {
    return toolchain();
  }
  /// Whether compiling starts no thread and opens no device, so that a process may do it before it forks workers.
  virtual bool is_fork_safe() const { return false; }

  /// Whether a product on the target should compute a heavy function that it is multiplied by, instead of reading what another
  /// kernel stored of it.
  virtual bool computes_heavy_factors([[maybe_unused]] const Target& target) const { return false; }
  /// Why not, when the spec cannot be compiled; ok otherwise. unavailable when the compiler is not on this host.
  virtual Status claims(const KernelSpec& spec, const Target& target) const = 0;
  /// Best first by the analytic model of `machine`; 1 to 16. The first one is generation 0.
  virtual std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                           const Machine& machine) const = 0;
  /// How code can serve the spec at other sizes, too; none where each size has code of its own. `like`: Schedule::bytes of a
  /// candidate for other sizes, with whose choices this is to be; none where they do not serve it. Empty: with its own.
  virtual std::optional<SizedSpec> sized([[maybe_unused]] const KernelSpec& spec, [[maybe_unused]] const Target& target,
                                         [[maybe_unused]] std::span<const uint8_t> like = {}) const {
    return std::nullopt;
  }
  /// With a driver in `target`: native code for it, and the portable form beside. Without: what can be made without.
  /// Errors: invalid_argument for bytes that are no schedule, of another version, or none that fits the spec;
  /// resource_exhausted for too much workspace or, where a backend minds, spills; internal when the compiler fails.
  virtual Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const = 0;
  /// Code that was compiled elsewhere, or without target.driver, made native for it where that saves loading time. No code
  /// generation of ours: the driver finishes the portable form. Errors: data_loss for launch data that compile() cannot
  /// have given, where a verdict would not show it.
  virtual Expected<Image> finish(Image image, [[maybe_unused]] const Target& target) const { return image; }
  /// An image as assembly, for people. Errors: unimplemented where this build has no disassembler for such code; data_loss for
  /// what compile() cannot have made.
  virtual Expected<std::string> disassemble([[maybe_unused]] const Image& image,
                                            [[maybe_unused]] const Target& target) const {
    return error(StatusCode::unimplemented, "{}: this build has no disassembler for such code", name());
  }
};

/// Candidates where no machine has been asked.
inline std::vector<Schedule> default_candidates(const CompileBackend& backend, const KernelSpec& spec,
                                                const Target& target) {
  return backend.candidates(spec, target, backend.default_machine(target));
}

/// Light: find, load and launch. No compiler; of vendors' libraries the driver and those that code names, opened at run time.
/// Threading: any thread at once.
class RuntimeBackend {
 public:
  virtual ~RuntimeBackend() = default;
  virtual std::string_view name() const = 0;
  /// Every target there is for this backend, best first, without a driver; asks no device.
  virtual std::vector<Target> known_targets() const = 0;
  /// What this host has. Asks the driver, once in a process; opens libraries, so nothing calls it in passing.
  virtual const Discovery& discover() const = 0;
  /// Device `index` of discover(). Errors: not_found; unavailable, with the driver's words.
  virtual Expected<std::unique_ptr<Device>> open(size_t index) const = 0;
};

}  // namespace kiln
