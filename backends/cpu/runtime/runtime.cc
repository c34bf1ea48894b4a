#include "backends/cpu/runtime/runtime.h"

#include <type_traits>

#include "backends/cpu/features.h"
#include "backends/cpu/runtime/entry.h"
#include "base/limits.h"

namespace kiln::cpu {
namespace {

static_assert(std::is_same_v<std::underlying_type_t<LaunchStatus>, uint32_t>, "generated code writes 32 bits");

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(EntryPoint entry, uint64_t tasks, uint64_t workspace_bytes)
      : m_entry(entry), m_tasks(tasks), m_workspace_bytes(workspace_bytes) {}

  uint64_t tasks() const override { return m_tasks; }
  uint64_t workspace_bytes() const override { return m_workspace_bytes; }
  void run(void* const* buffers, void* workspace, LaunchStatus* status, uint64_t first, uint64_t last) const override {
    m_entry(buffers, workspace, reinterpret_cast<uint32_t*>(status), static_cast<int64_t>(first),
            static_cast<int64_t>(last));
  }

 private:
  EntryPoint m_entry;
  uint64_t m_tasks;
  uint64_t m_workspace_bytes;
};

}  // namespace

std::vector<Target> CpuRuntimeBackend::targets() const {
  std::vector<Target> result;
  for (const CpuTarget& target : ladder()) {
    if ((target.features & ~host_features()) == 0) result.push_back({"cpu", std::string(target.name)});
  }
  return result;
}

uint64_t CpuRuntimeBackend::features() const { return host_features(); }

Expected<std::unique_ptr<Executable>> CpuRuntimeBackend::load(const Image& launch_data,
                                                              std::span<const uint8_t> code) const {
  if (const uint64_t missing = launch_data.features & ~host_features(); missing != 0) {
    return error(StatusCode::failed_precondition, "cpu: the code needs {}, which this host lacks", describe(missing));
  }
  if (code.empty() || launch_data.entry >= code.size()) {
    return invalid_argument("cpu: the entry point is at {}, the code has {} bytes", launch_data.entry, code.size());
  }
  if (reinterpret_cast<uintptr_t>(code.data()) % 64 != 0) {
    return invalid_argument("cpu: code at {} is not aligned to 64 bytes", static_cast<const void*>(code.data()));
  }
  if (launch_data.tasks == 0) return invalid_argument("cpu: the code has no tasks");
  if (launch_data.workspace_bytes > limits::k_task_workspace_bytes) {
    return invalid_argument("cpu: the code wants {} bytes of workspace, the limit is {}", launch_data.workspace_bytes,
                            limits::k_task_workspace_bytes);
  }
  const auto entry = reinterpret_cast<EntryPoint>(reinterpret_cast<uintptr_t>(code.data()) + launch_data.entry);
  return std::unique_ptr<Executable>(
      std::make_unique<CpuExecutable>(entry, launch_data.tasks, launch_data.workspace_bytes));
}

}  // namespace kiln::cpu
