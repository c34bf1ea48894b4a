// Bytes to Program. Everything read here came from a file: the flatbuffer verifier bounds every access, and
// each index and extent is checked before it is kept, so that run() need check nothing.

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "base/aligned_elements.h"
#include "base/ceil_div.h"
#include "base/flatbuffer_values.h"
#include "base/limits.h"
#include "frontend/ir/graph.h"
#include "jit/run/artifact_digest.h"
#include "jit/run/data_flow.h"
#include "jit/run/program.h"
#include "jit/run/program_generated.h"
#include "jit/run/sized_numbers.h"

namespace kiln {

namespace {

uint64_t bytes_of(const TensorLayout& layout) {
  uint64_t bytes = size_of(layout.dtype);
  for (int64_t dim : layout.dims) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

Expected<TensorLayout> read_layout(const fb::Tensor* stored) {
  if (stored == nullptr) return damaged("a buffer without layout");
  if (stored->dtype() >= k_dtype_count) return damaged("unknown dtype");
  if (!has_aligned_elements(stored->dims()) || !has_aligned_elements(stored->strides())) {
    return damaged("sizes are not aligned");
  }
  TensorLayout layout{static_cast<DType>(stored->dtype()), {}, {}};
  if (stored->dims()) layout.dims.assign(stored->dims()->begin(), stored->dims()->end());
  if (stored->strides()) layout.strides.assign(stored->strides()->begin(), stored->strides()->end());
  if (!layout.strides.empty() && layout.strides.size() != layout.dims.size()) return damaged("strides of another rank");
  return layout;
}

Expected<std::vector<TensorLayout>> read_layouts(const flatbuffers::Vector<flatbuffers::Offset<fb::Tensor>>* list) {
  std::vector<TensorLayout> layouts;
  for (size_t i = 0; i < size_of_list(list); ++i) {
    KILN_ASSIGN_OR_RETURN(TensorLayout layout, read_layout(list->Get(static_cast<uint32_t>(i))));
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

}  // namespace

/// Flattens calls of plans into steps over one argument list.
class ProgramLoader {
 public:
  ProgramLoader(const fb::Program& stored, ArtifactSource& source, std::span<const int64_t> sizes)
      : m_stored(stored), m_source(source), m_sizes(sizes) {}

  Expected<std::shared_ptr<const Program>> load() {
    if (m_stored.version() != k_program_version) return damaged("another version");
    m_program->m_stream = m_source.stream();
    KILN_ASSIGN_OR_RETURN(m_program->m_inputs, read_layouts(m_stored.inputs()));
    KILN_ASSIGN_OR_RETURN(m_program->m_outputs, read_layouts(m_stored.outputs()));
    for (const TensorLayout& layout : m_program->m_outputs) m_program->m_output_bytes.push_back(bytes_of(layout));
    m_program->m_target = m_stored.target() ? m_stored.target()->str() : "";
    m_program->m_generation = m_stored.generation();
    m_program->m_is_tuned = m_stored.is_tuned();
    m_program->m_node_count = m_stored.node_count();
    KILN_RETURN_IF_ERROR(read_aliases());
    KILN_RETURN_IF_ERROR(read_buffers());
    m_flow.emplace(m_program->m_outputs.size());
    for (size_t i = 0; i < size_of_list(m_stored.plans()); ++i) {
      KILN_RETURN_IF_ERROR(read_plan(to_digest(*m_stored.plans()->Get(static_cast<uint32_t>(i)))));
    }
    for (size_t i = 0; i < size_of_list(m_stored.calls()); ++i) {
      KILN_RETURN_IF_ERROR(read_call(*m_stored.calls()->Get(static_cast<uint32_t>(i))));
    }
    KILN_RETURN_IF_ERROR(check_outputs());
    m_program->m_scratch_bytes = round_up(m_stored.scratch_bytes() + m_plan_scratch_bytes, 64);
    m_program->m_workspace_bytes = round_up(m_program->m_workspace_bytes, 64);
    if (m_program->m_stream) m_program->m_recordings = std::make_unique<Recordings>(m_program->m_steps.size());
    if (LaunchProfile::is_wanted()) m_program->m_profile = std::make_unique<LaunchProfile>(m_program->m_steps.size());
    return std::shared_ptr<const Program>(std::move(m_program));
  }

 private:
  struct ProgramBuffer {
    Program::Argument argument;
    TensorLayout layout;
    uint64_t bytes = 0;  // in scratch
  };
  struct BoundBuffer {
    Program::Argument argument;
    uint64_t bytes = 0;  // in scratch or the constants
  };
  struct LoadedPlan {
    const fb::Plan* stored;
    std::vector<const Executable*> executables;
    const uint8_t* constants;  // where kernels read them
  };

  Status read_aliases() {
    m_program->m_aliases.assign(m_program->m_outputs.size(), k_none);
    for (size_t i = 0; i < size_of_list(m_stored.aliases()); ++i) {
      const auto* alias = m_stored.aliases()->Get(static_cast<uint32_t>(i));
      if (alias->output() >= m_program->m_outputs.size() || alias->input() >= m_program->m_inputs.size()) {
        return damaged("alias out of range");
      }
      if (!is_same_layout(m_program->m_outputs[alias->output()], m_program->m_inputs[alias->input()])) {
        return damaged("an output is an input in another layout");
      }
      m_program->m_aliases[alias->output()] = alias->input();
    }
    return {};
  }

  Expected<Program::Argument> read_buffer(const fb::Buffer& buffer, size_t inputs, size_t outputs,
                                          uint64_t scratch_bytes, std::span<const uint8_t> constants) {
    const auto fits = [&](uint64_t total) {
      return buffer.bytes() <= total && buffer.offset() <= total - buffer.bytes();
    };
    switch (buffer.place()) {
      case fb::Place::input:
        if (buffer.index() >= inputs) return damaged("input out of range");
        return Program::Argument{Program::Place::input, buffer.index(), 0, nullptr};
      case fb::Place::output:
        if (buffer.index() >= outputs) return damaged("output out of range");
        return Program::Argument{Program::Place::output, buffer.index(), 0, nullptr};
      case fb::Place::scratch:
        if (!fits(scratch_bytes)) return damaged("scratch out of range");
        return Program::Argument{Program::Place::scratch, 0, buffer.offset(), nullptr};
      case fb::Place::constant:
        if (!fits(constants.size())) return damaged("constant out of range");
        return Program::Argument{Program::Place::constant, 0, 0, constants.data() + buffer.offset()};
    }
    return damaged("unknown place");
  }

  Status read_buffers() {
    if (m_stored.scratch_bytes() > std::numeric_limits<uint64_t>::max() / 4) return damaged("scratch too large");
    for (size_t i = 0; i < size_of_list(m_stored.buffers()); ++i) {
      const fb::Buffer& buffer = *m_stored.buffers()->Get(static_cast<uint32_t>(i));
      KILN_ASSIGN_OR_RETURN(auto argument, read_buffer(buffer, m_program->m_inputs.size(), m_program->m_outputs.size(),
                                                       m_stored.scratch_bytes(), {}));
      KILN_ASSIGN_OR_RETURN(const TensorLayout layout, layout_of(buffer));
      m_buffers.push_back({argument, layout, buffer.bytes()});
    }
    return {};
  }

  Expected<TensorLayout> layout_of(const fb::Buffer& buffer) const {
    if (buffer.place() == fb::Place::input) return m_program->m_inputs[buffer.index()];
    if (buffer.place() == fb::Place::output) return m_program->m_outputs[buffer.index()];
    return read_layout(buffer.tensor());
  }

  Status read_plan(const Digest& digest) {
    KILN_ASSIGN_OR_RETURN(auto bytes, m_source.plan(digest));
    if (!m_sizes.empty()) {
      KILN_ASSIGN_OR_RETURN(auto resized, resized_plan(bytes, m_sizes));
      bytes = m_program->m_resized.emplace_back(std::move(resized));
    }
    const auto* plan = verified<fb::Plan>(bytes);
    if (!plan || plan->version() != k_program_version) return damaged("plan of another version");
    if (plan->scratch_bytes() > std::numeric_limits<uint64_t>::max() / 4) return damaged("scratch too large");
    LoadedPlan loaded{plan, {}, nullptr};
    KILN_ASSIGN_OR_RETURN(loaded.constants, place_constants(constants_of(*plan)));
    for (size_t i = 0; i < size_of_list(plan->codes()); ++i) {
      KILN_ASSIGN_OR_RETURN(const Executable* executable,
                            executable_of(to_digest(*plan->codes()->Get(static_cast<uint32_t>(i)))));
      loaded.executables.push_back(executable);
    }
    m_plan_scratch_bytes = std::max(m_plan_scratch_bytes, plan->scratch_bytes());
    m_program->m_checks_indices |= plan->checks_indices();
    m_plans.push_back(std::move(loaded));
    m_program->m_plans.push_back(digest);
    return {};
  }

  static std::span<const uint8_t> constants_of(const fb::Plan& plan) {
    if (plan.constants() == nullptr) return {};
    return {plan.constants()->data(), plan.constants()->size()};
  }

  /// The host reads them where they are; a device has a copy.
  Expected<const uint8_t*> place_constants(std::span<const uint8_t> constants) {
    if (m_program->m_stream == nullptr || constants.empty()) return constants.data();
    KILN_ASSIGN_OR_RETURN(auto memory, DeviceMemory::allocate(m_program->m_stream->device(), constants.size()));
    KILN_RETURN_IF_ERROR(m_program->m_stream->upload(memory.get(), constants.data(), constants.size()));
    m_program->m_constants.push_back(std::move(memory));
    return m_program->m_constants.back().get();
  }

  Expected<const Executable*> executable_of(const Digest& digest) {
    auto [it, is_new] = m_executables.try_emplace(digest, nullptr);
    if (is_new) {
      KILN_ASSIGN_OR_RETURN(auto executable, m_source.executable(digest));
      it->second = executable.get();
      if ((executable->host() != nullptr) != (m_program->m_stream == nullptr)) {
        return damaged("a kernel is for another device");
      }
      m_program->m_executables.push_back(std::move(executable));
    }
    return it->second;
  }

  /// The argument a plan's buffer is in one call: the caller's, or the plan's own scratch behind the
  /// program's.
  Expected<BoundBuffer> bind(const LoadedPlan& plan, const fb::Call& call, uint32_t buffer_index) {
    if (buffer_index >= size_of_list(plan.stored->buffers())) return damaged("buffer out of range");
    const auto& buffer = *plan.stored->buffers()->Get(buffer_index);
    const std::span<const uint8_t> constant_bytes(plan.constants, constants_of(*plan.stored).size());
    const size_t argument_count = size_of_list(call.arguments());
    KILN_ASSIGN_OR_RETURN(Program::Argument argument, read_buffer(buffer, argument_count, argument_count,
                                                                  plan.stored->scratch_bytes(), constant_bytes));
    if (argument.place == Program::Place::input || argument.place == Program::Place::output) {
      const uint32_t outer = call.arguments()->Get(argument.index);
      if (outer >= m_buffers.size()) return damaged("argument out of range");
      KILN_ASSIGN_OR_RETURN(const TensorLayout wanted, read_layout(buffer.tensor()));
      if (!is_same_layout(wanted, m_buffers[outer].layout)) return damaged("an argument in another layout");
      return BoundBuffer{m_buffers[outer].argument, m_buffers[outer].bytes};
    }
    if (argument.place == Program::Place::scratch) argument.offset += m_stored.scratch_bytes();
    return BoundBuffer{argument, buffer.bytes()};
  }

  uint64_t bytes_behind(const BoundBuffer& bound) const {
    if (bound.argument.place == Program::Place::input) return bytes_of(m_program->m_inputs[bound.argument.index]);
    if (bound.argument.place == Program::Place::output) return bytes_of(m_program->m_outputs[bound.argument.index]);
    return bound.bytes;
  }

  /// The arguments of a launch, and whether what it reads is there by then.
  Status read_arguments(const LoadedPlan& plan, const fb::Call& call, const fb::Launch& launch, Program::Step& step) {
    const size_t count = size_of_list(launch.buffers());
    if (size_of_list(launch.roles()) != count) return damaged("a launch without the roles of its buffers");
    std::vector<DataFlow::Access> accesses;
    for (uint32_t b = 0; b < count; ++b) {
      const uint8_t role = launch.roles()->Get(b);
      if (role > static_cast<uint8_t>(DataFlow::Role::changed)) return damaged("unknown role of a buffer");
      KILN_ASSIGN_OR_RETURN(const BoundBuffer bound, bind(plan, call, launch.buffers()->Get(b)));
      const Program::Argument& argument = bound.argument;
      accesses.push_back({static_cast<DataFlow::Place>(argument.place), static_cast<DataFlow::Role>(role),
                          argument.index, argument.offset, bound.bytes});
      m_program->m_arguments.push_back(argument);
      step.bytes += bytes_behind(bound);
    }
    KILN_RETURN_IF_ERROR(m_flow->add(accesses));
    std::vector<InPlace::Pair> pairs;
    for (size_t i = 0; i < size_of_list(launch.overwrites()); ++i) {
      const fb::Alias& pair = *launch.overwrites()->Get(static_cast<uint32_t>(i));
      if (pair.output() >= count || pair.input() >= count) return damaged("overwritten buffer out of range");
      pairs.push_back({pair.output(), pair.input()});
    }
    m_program->m_in_place.add(accesses, pairs);
    return {};
  }

  Status read_extents(const fb::Launch& launch) {
    if (size_of_list(launch.extents()) > limits::k_launch_extents) return damaged("a launch with too many extents");
    if (!has_aligned_elements(launch.extents())) return damaged("sizes are not aligned");
    for (uint32_t i = 0; i < size_of_list(launch.extents()); ++i) {
      const int64_t extent = launch.extents()->Get(i);
      if (extent < 0 || extent > limits::k_tensor_elements) return damaged("an extent that no tensor has");
      m_program->m_extents.push_back(extent);
    }
    return {};
  }

  /// Every output is an input or written by some launch, never both.
  Status check_outputs() const {
    for (uint32_t i = 0; i < m_program->m_outputs.size(); ++i) {
      const bool is_alias = m_program->m_aliases[i] != k_none;
      if (is_alias && m_flow->is_written(i)) return damaged("an output that is an input is written");
      if (!is_alias && !m_flow->is_written(i) && bytes_of(m_program->m_outputs[i]) > 0) {
        return damaged("nothing writes an output");
      }
    }
    return {};
  }

  Status read_call(const fb::Call& call) {
    if (call.plan() >= m_plans.size()) return damaged("plan out of range");
    const LoadedPlan& plan = m_plans[call.plan()];
    for (size_t i = 0; i < size_of_list(plan.stored->launches()); ++i) {
      const auto& launch = *plan.stored->launches()->Get(static_cast<uint32_t>(i));
      if (launch.code() >= plan.executables.size()) return damaged("code out of range");
      const Executable* executable = plan.executables[launch.code()];
      Program::Step step{executable->host(),
                         executable->device(),
                         static_cast<uint32_t>(m_program->m_arguments.size()),
                         static_cast<uint32_t>(size_of_list(launch.buffers())),
                         static_cast<uint32_t>(m_program->m_extents.size()),
                         static_cast<uint32_t>(size_of_list(launch.extents())),
                         0,
                         0};
      if (step.device != nullptr && step.device->buffer_count() != step.argument_count) {
        return damaged("a launch with another number of buffers than its kernel has");
      }
      KILN_RETURN_IF_ERROR(read_arguments(plan, call, launch, step));
      KILN_RETURN_IF_ERROR(read_extents(launch));
      if (step.host != nullptr) step.tasks = launch_tasks(step.host->tasks(), m_program->extents_of(step));
      if (step.tasks > std::numeric_limits<uint32_t>::max()) return damaged("too many tasks");
      if (step.host != nullptr && step.tasks == 0) return damaged("a launch without tasks");
      m_program->m_workspace_bytes = std::max(m_program->m_workspace_bytes, executable->workspace_bytes());
      m_program->m_max_tasks = std::max(m_program->m_max_tasks, step.tasks);
      m_program->m_steps.push_back(step);
      const auto* names = plan.stored->names();
      m_program->m_launch_names.push_back(launch.code() < size_of_list(names) ? names->Get(launch.code())->str() : "");
    }
    return {};
  }

  const fb::Program& m_stored;
  ArtifactSource& m_source;
  const std::span<const int64_t> m_sizes;
  std::unique_ptr<Program> m_program = std::make_unique<Program>();
  std::vector<ProgramBuffer> m_buffers;
  std::optional<DataFlow> m_flow;
  std::vector<LoadedPlan> m_plans;
  std::unordered_map<Digest, const Executable*> m_executables;
  uint64_t m_plan_scratch_bytes = 0;
};

Expected<std::shared_ptr<const Program>> Program::load(std::span<const uint8_t> bytes, ArtifactSource& source,
                                                       std::span<const int64_t> sizes) {
  std::vector<uint8_t> resized;
  if (!sizes.empty()) {
    KILN_ASSIGN_OR_RETURN(resized, resized_program(bytes, sizes));
    bytes = resized;
  }
  const auto* stored = verified<fb::Program>(bytes);
  if (!stored) return damaged("not a program");
  return ProgramLoader(*stored, source, sizes).load();
}

}  // namespace kiln
