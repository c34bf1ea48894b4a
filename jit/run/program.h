#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "jit/run/device_stream.h"
#include "jit/run/in_place.h"
#include "jit/run/launch_profile.h"
#include "jit/run/recordings.h"

namespace kiln {

/// Version of the meaning of program.fbs; part of every plan and program key.
inline constexpr uint32_t k_program_version = 5;

/// Where a program's plans and kernels come from: the mapped cache, or a test.
class ArtifactSource {
 public:
  virtual ~ArtifactSource() = default;
  /// The plan's bytes; valid as long as the source.
  virtual Expected<std::span<const uint8_t>> plan(const Digest& digest) = 0;
  /// The kernel, ready to launch; shared by all programs of the source.
  virtual Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) = 0;
  /// The stream of the device that kernels are for, for callers who bring none of their own; null on the host.
  virtual DeviceStream* stream() { return nullptr; }
};

/// A tensor as a program expects it. Dims and strides in elements; empty strides mean dense row-major.
struct TensorLayout {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
};

/// Whether every element lies at the same place in both.
bool is_same_layout(const TensorLayout& a, const TensorLayout& b);

/// What comes of an index outside its tensor: the stream says it when it finishes; or, where the device can, the device asserts,
/// and nobody has to wait.
enum class IndexErrors : bool { reported, asserted };

/// An executable graph: region calls flattened to launches over inputs, outputs, constants and one scratch
/// arena.
///
/// Ownership: shares its kernels; the source must outlive it (the host reads constants in place).
/// Threading: immutable; run may be called from any thread at once.
/// Cost of run: one OpenMP region for all launches; between two of them threads wait for tasks, not for one another.
class Program {
 public:
  /// Checks the bytes before anything is used: flatbuffer verifier, indices, bounds; that launches read what others have
  /// written and still is there (data_flow.h), in the layout it was written in; that every output is made. Errors:
  /// data_loss, with what does not fit; the source's.
  /// `sizes`: of a program for many sizes (sized_numbers.h), those that it is to be loaded for; none: those that its bytes state.
  static Expected<std::shared_ptr<const Program>> load(std::span<const uint8_t> bytes, ArtifactSource& source,
                                                       std::span<const int64_t> sizes = {});

  const std::vector<TensorLayout>& inputs() const { return m_inputs; }
  const std::vector<TensorLayout>& outputs() const { return m_outputs; }
  /// k_none, or the input that output `index` is.
  uint32_t output_alias(size_t index) const { return m_aliases[index]; }
  /// Whether output `output` may be given the memory of input `input`, in whose layout it is: each of several outputs that of
  /// another input. Never on a device, nor where an index may be found wrong when something has been written already.
  bool may_overwrite(uint32_t output, uint32_t input) const;
  /// What its launches allow of that, wherever it runs.
  const InPlace& in_place() const { return m_in_place; }
  const std::string& target() const { return m_target; }
  uint32_t generation() const { return m_generation; }
  /// Whether each of its products and attentions has raced, so that tuning has nothing to add.
  bool is_tuned() const { return m_is_tuned; }
  uint32_t node_count() const { return m_node_count; }
  /// Kernel names in launch order, for profiles.
  const std::vector<std::string>& launch_names() const { return m_launch_names; }
  /// What launches took so far, in their order; null unless LaunchProfile::is_wanted() when this was loaded.
  const LaunchProfile* profile() const { return m_profile.get(); }
  /// Bytes of the buffers that launch `index` names.
  uint64_t launch_bytes(size_t index) const { return m_steps[index].bytes; }
  size_t kernel_count() const { return m_executables.size(); }
  /// Digests of the distinct region plans that it calls.
  const std::vector<Digest>& plans() const { return m_plans; }
  uint64_t scratch_bytes() const { return m_scratch_bytes; }
  /// Whether a kernel may find an index outside its tensor; without one there is nothing to wait for.
  bool checks_indices() const { return m_checks_indices; }
  /// What launch() works in on a device: scratch, and room for the kernel that runs.
  uint64_t launch_scratch_bytes() const;

  /// Base pointers in the order of inputs() and outputs(), of the memory of the program's device; an aliased output's
  /// pointer is not used. Outputs overlap neither one another nor inputs, but for what may_overwrite allows. On the host at
  /// most `num_threads` threads of the caller's OpenMP pool; on any other device the source's stream, and this waits for it.
  /// Errors: out_of_range when an index from data was outside its tensor; resource_exhausted without memory.
  Status run(std::span<const void* const> inputs, std::span<void* const> outputs, uint32_t num_threads) const;
  /// Puts all launches on `stream`, of the program's device, and does not wait: what kernels report is the stream's to
  /// say. `scratch`: launch_scratch_bytes() of device memory, 256-byte aligned, in use until the work is done; null: the
  /// stream's own. Over addresses that were there before it is a recording that is put there, where `may_record` and the device
  /// has recordings. Errors: failed_precondition for a program of the host.
  Status launch(DeviceStream& stream, std::span<const void* const> inputs, std::span<void* const> outputs,
                void* scratch = nullptr, IndexErrors errors = IndexErrors::reported, bool may_record = false) const;
  Recordings::Counts recordings() const { return m_recordings ? m_recordings->counts() : Recordings::Counts(); }

 private:
  enum class Place : uint8_t { input, output, scratch, constant };
  struct Argument {
    Place place;
    uint32_t index;   // input or output
    uint64_t offset;  // into scratch
    const uint8_t* constant;
  };
  struct Step {
    const HostExecutable* host;  // one of the two is null
    const DeviceExecutable* device;
    uint32_t first_argument, argument_count;
    uint32_t first_extent, extent_count;
    uint64_t tasks;
    uint64_t bytes;  // of its buffers, for profiles
  };
  friend class ProgramLoader;

  std::span<const int64_t> extents_of(const Step& step) const {
    return std::span(m_extents).subspan(step.first_extent, step.extent_count);
  }
  Status check_counts(std::span<const void* const> inputs, std::span<void* const> outputs) const;
  /// One pointer for each argument.
  void bind(void** pointers, std::span<const void* const> inputs, std::span<void* const> outputs,
            uint8_t* scratch) const;

  DeviceStream* m_stream = nullptr;  // null: a program of the host
  std::vector<TensorLayout> m_inputs, m_outputs;
  std::vector<uint32_t> m_aliases;
  InPlace m_in_place;
  std::vector<uint64_t> m_output_bytes;
  std::vector<Argument> m_arguments;
  std::vector<int64_t> m_extents;
  std::vector<Step> m_steps;
  std::vector<std::shared_ptr<const Executable>> m_executables;
  std::vector<DeviceMemory> m_constants;        // of the plans, where they cannot be read in place
  std::vector<std::vector<uint8_t>> m_resized;  // plans of a program for many sizes, for its own
  std::vector<std::string> m_launch_names;
  std::vector<Digest> m_plans;
  std::unique_ptr<LaunchProfile> m_profile;
  std::unique_ptr<Recordings> m_recordings;  // of launches on a device; null on the host
  std::string m_target;
  uint64_t m_scratch_bytes = 0;    // arena for all steps
  uint64_t m_workspace_bytes = 0;  // per thread of the host, or of a device's one launch at a time
  uint64_t m_max_tasks = 1;
  uint32_t m_generation = 0, m_node_count = 0;
  bool m_is_tuned = false;
  bool m_checks_indices = false;
};

}  // namespace kiln
