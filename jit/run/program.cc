#include "jit/run/program.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "jit/run/arena.h"
#include "jit/run/launch_status.h"
#include "jit/run/team_size.h"
#include "jit/run/team_work.h"

namespace kiln {

namespace {
/// The bytes rounded up to a multiple of what Device::allocate aligns to.
uint64_t aligned_for_device(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
/// With fewer a recording would save nothing: an estimate.
constexpr size_t k_least_recorded_launches = 3;
}  // namespace

bool is_same_layout(const TensorLayout& a, const TensorLayout& b) {
  if (a.dtype != b.dtype || a.dims != b.dims) return false;
  if (std::ranges::find(a.dims, 0) != a.dims.end()) return true;
  uint64_t dense = 1;
  for (size_t d = a.dims.size(); d-- > 0;) {
    const uint64_t in_a = a.strides.empty() ? dense : static_cast<uint64_t>(a.strides[d]);
    const uint64_t in_b = b.strides.empty() ? dense : static_cast<uint64_t>(b.strides[d]);
    if (a.dims[d] != 1 && in_a != in_b) return false;
    dense *= static_cast<uint64_t>(a.dims[d]);
  }
  return true;
}

bool Program::may_overwrite(uint32_t output, uint32_t input) const {
  if (m_stream != nullptr || m_checks_indices || output >= m_outputs.size() || input >= m_inputs.size()) return false;
  if (std::ranges::find(m_aliases, input) != m_aliases.end()) return false;
  return is_same_layout(m_outputs[output], m_inputs[input]) && m_in_place.allows(output, input);
}

Status Program::check_counts(std::span<const void* const> inputs, std::span<void* const> outputs) const {
  if (inputs.size() == m_inputs.size() && outputs.size() == m_outputs.size()) return {};
  return invalid_argument("program takes {} inputs and {} outputs, got {} and {}", m_inputs.size(), m_outputs.size(),
                          inputs.size(), outputs.size());
}

void Program::bind(void** pointers, std::span<const void* const> inputs, std::span<void* const> outputs,
                   uint8_t* scratch) const {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const Argument& argument = m_arguments[i];
    switch (argument.place) {
      case Place::input:
        pointers[i] = const_cast<void*>(inputs[argument.index]);
        break;
      case Place::output:
        pointers[i] = outputs[argument.index];
        break;
      case Place::scratch:
        pointers[i] = scratch + argument.offset;
        break;
      case Place::constant:
        pointers[i] = const_cast<uint8_t*>(argument.constant);
        break;
    }
  }
}

Status Program::run(std::span<const void* const> inputs, std::span<void* const> outputs, uint32_t num_threads) const {
  if (m_stream != nullptr) {
    KILN_RETURN_IF_ERROR(launch(*m_stream, inputs, outputs));
    return m_stream->finish();
  }
  KILN_RETURN_IF_ERROR(check_counts(inputs, outputs));
  const uint32_t threads = team_size(static_cast<uint32_t>(std::min<uint64_t>(std::max(num_threads, 1u), m_max_tasks)));
  const uint64_t pointer_bytes = m_arguments.size() * sizeof(void*);
  const uint64_t team_bytes = TeamWork::state_bytes(m_steps.size(), threads);
  auto arena =
      ArenaPool::shared().acquire(m_scratch_bytes + uint64_t{threads} * m_workspace_bytes + pointer_bytes + team_bytes);
  if (!arena) {
    return error(StatusCode::resource_exhausted, "no memory for {} bytes of scratch", m_scratch_bytes);
  }
  uint8_t* scratch = arena.get();
  uint8_t* workspaces = scratch + m_scratch_bytes;
  auto** pointers = reinterpret_cast<void**>(workspaces + uint64_t{threads} * m_workspace_bytes);

  bind(pointers, inputs, outputs, scratch);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (m_aliases[i] == k_none) advise_huge_pages(outputs[i], m_output_bytes[i]);
  }

  TeamWork work(static_cast<void*>(pointers + m_arguments.size()), m_steps.size(), threads);
  std::atomic<uint32_t> failure{0};
  // The runtime may give fewer threads than asked for (a nested region, a limit): those that came do all the work.
  const auto run_steps = [&](uint32_t thread) {
    void* workspace = workspaces + uint64_t{thread} * m_workspace_bytes;
    for (size_t s = 0; s < m_steps.size(); ++s) {
      const Step& step = m_steps[s];
      const uint64_t start_ns = m_profile ? LaunchProfile::now_ns() : 0;
      while (const auto piece = work.take(s, thread, step.tasks)) {
        auto status = LaunchStatus::ok;
        step.host->run(pointers + step.first_argument, workspace, &status, piece->first, piece->last, extents_of(step));
        if (status != LaunchStatus::ok) failure.store(static_cast<uint32_t>(status), std::memory_order_relaxed);
        work.finish(s, piece->last - piece->first);
      }
      const uint64_t end_ns = m_profile ? LaunchProfile::now_ns() : 0;
      work.wait(s, step.tasks);
      if (m_profile) m_profile->add(s, thread == 0, start_ns, end_ns);
    }
    if (m_profile && thread == 0) m_profile->count_run();
  };
  if (threads == 1) {
    run_steps(0);
  } else {
#pragma omp parallel num_threads(threads)
    run_steps(static_cast<uint32_t>(omp_get_thread_num()));
  }

  return to_status(static_cast<LaunchStatus>(failure.load()));
}

uint64_t Program::launch_scratch_bytes() const { return aligned_for_device(m_scratch_bytes) + m_workspace_bytes; }

Status Program::launch(DeviceStream& stream, std::span<const void* const> inputs, std::span<void* const> outputs,
                       void* scratch, IndexErrors errors, bool may_record) const {
  if (m_stream == nullptr || &m_stream->device() != &stream.device()) {
    return error(StatusCode::failed_precondition, "the program is for another device than the stream");
  }
  KILN_RETURN_IF_ERROR(check_counts(inputs, outputs));
  Device& device = stream.device();
  const bool is_status_used = m_checks_indices && errors == IndexErrors::reported;
  const DeviceStream::Needs needs{.scratch_bytes = scratch ? 0 : launch_scratch_bytes(),
                                  .status = is_status_used || !device.asserts()};
  return stream.put(needs, [&](const DeviceStream::Turn& turn) -> Status {
    uint8_t* memory = scratch ? static_cast<uint8_t*>(scratch) : turn.scratch;
    uint8_t* workspace = memory + aligned_for_device(m_scratch_bytes);
    const auto put = [&](Queue& queue) -> Status {
      std::vector<void*> pointers(m_arguments.size());
      bind(pointers.data(), inputs, outputs, memory);
      for (const Step& step : m_steps) {
        KILN_RETURN_IF_ERROR(step.device->launch(queue, pointers.data() + step.first_argument, workspace, turn.status,
                                                 extents_of(step)));
      }
      return {};
    };
    if (!may_record || m_steps.size() < k_least_recorded_launches) return put(turn.queue);
    std::vector<const void*> addresses(inputs.begin(), inputs.end());
    for (size_t i = 0; i < outputs.size(); ++i) addresses.push_back(m_aliases[i] == k_none ? outputs[i] : nullptr);
    addresses.insert(addresses.end(), {memory, turn.status});
    return m_recordings->put(device, turn.queue, addresses, put);
  });
}

}  // namespace kiln
