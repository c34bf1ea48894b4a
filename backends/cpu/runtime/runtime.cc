#include "backends/cpu/runtime/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "backends/cpu/features.h"
#include "backends/cpu/launch_data.h"
#include "backends/cpu/runtime/entry.h"

namespace kiln::cpu {
namespace {

static_assert(std::is_same_v<std::underlying_type_t<LaunchStatus>, uint32_t>, "generated code writes 32 bits");

class CpuExecutable final : public HostExecutable {
 public:
  CpuExecutable(kiln_entry_point entry, uint64_t tasks, uint64_t workspace_bytes)
      : m_entry(entry), m_tasks(tasks), m_workspace_bytes(workspace_bytes) {}

  uint64_t tasks() const override { return m_tasks; }
  uint64_t workspace_bytes() const override { return m_workspace_bytes; }
  void run(void* const* buffers, void* workspace, LaunchStatus* status, uint64_t first, uint64_t last,
           std::span<const int64_t> extents) const override {
    m_entry(buffers, workspace, reinterpret_cast<uint32_t*>(status), static_cast<int64_t>(first),
            static_cast<int64_t>(last), extents.data());
  }

 private:
  kiln_entry_point m_entry;
  uint64_t m_tasks;
  uint64_t m_workspace_bytes;
};

/// Copies at once: there is nothing to be asynchronous to.
class HostQueue final : public Queue {
 public:
  Status upload(void* to, const void* from_host, size_t bytes) override { return copy(to, from_host, bytes); }
  Status download(void* to_host, const void* from, size_t bytes) override { return copy(to_host, from, bytes); }
  Status copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status synchronise() override { return {}; }
};

class HostDevice final : public Device {
 public:
  bool is_host() const override { return true; }
  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) override {
    KILN_ASSIGN_OR_RETURN(auto executable, load_image(launch_data, code));
    return std::unique_ptr<Executable>(std::move(executable));
  }
  Expected<void*> allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(k_alignment_bytes, (bytes / k_alignment_bytes + 1) * k_alignment_bytes);
    if (memory == nullptr) return error(StatusCode::resource_exhausted, "cpu: no memory for {} bytes", bytes);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  Expected<std::unique_ptr<Queue>> create_queue() override {
    return std::unique_ptr<Queue>(std::make_unique<HostQueue>());
  }
  Expected<std::unique_ptr<Queue>> adopt_queue(void*) override { return create_queue(); }

 private:
  static constexpr size_t k_alignment_bytes = 256;
};

/// The processor's name, as the kernel tells it.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown processor";
}

/// As the C library knows it from CPUID; what that does not tell is as usual for the best target.
Machine describe_host(const std::string& name) {
  const std::vector<Target> targets = host_targets();
  Machine machine = targets.empty() ? Machine() : default_machine(*find_target(targets.front().name));
  machine.model = name;
  const auto ask = [](int what, auto& value) {
    if (const long answer = sysconf(what); answer > 0)
      value = static_cast<std::remove_reference_t<decltype(value)>>(answer);
  };
  ask(_SC_NPROCESSORS_ONLN, machine.cores);
  ask(_SC_LEVEL1_DCACHE_SIZE, machine.first_level_bytes);
  ask(_SC_LEVEL2_CACHE_SIZE, machine.second_level_bytes);
  ask(_SC_LEVEL3_CACHE_SIZE, machine.third_level_bytes);
  return machine;
}

Discovery discover_host() {
  const std::string name = processor_name();
  Discovery discovery;
  std::vector<Target> targets = host_targets();
  const bool usable = !targets.empty();
  discovery.components.push_back({"processor", name + ": " + describe(host_features()), usable});
  if (!usable) {
    discovery.status = error(StatusCode::unavailable, "cpu: the processor runs no target; kernels need SSE4.2");
    return discovery;
  }
  const auto memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  discovery.devices.push_back({name, std::move(targets), memory_bytes, describe_host(name)});
  return discovery;
}

}  // namespace

std::vector<Target> host_targets() {
  std::vector<Target> result;
  for (const CpuTarget& target : ladder()) {
    if ((target.features & ~host_features()) == 0) result.push_back({"cpu", std::string(target.name)});
  }
  return result;
}

std::vector<Target> CpuRuntimeBackend::known_targets() const {
  std::vector<Target> result;
  for (const CpuTarget& target : ladder()) result.push_back({"cpu", std::string(target.name)});
  return result;
}

const Discovery& CpuRuntimeBackend::discover() const {
  static const Discovery discovery = discover_host();
  return discovery;
}

Expected<std::unique_ptr<Device>> CpuRuntimeBackend::open(size_t index) const {
  KILN_RETURN_IF_ERROR(discover().status);
  if (index >= discover().devices.size()) return error(StatusCode::not_found, "cpu: no device {}", index);
  return std::unique_ptr<Device>(std::make_unique<HostDevice>());
}

Expected<std::unique_ptr<HostExecutable>> load_image(const Image& launch_data, std::span<const uint8_t> code) {
  if (const uint64_t missing = launch_data.features & ~host_features(); missing != 0) {
    return error(StatusCode::failed_precondition, "cpu: the code needs {}, which this host lacks", describe(missing));
  }
  KILN_RETURN_IF_ERROR(check_launch_data(launch_data, code.size()));
  if (reinterpret_cast<uintptr_t>(code.data()) % 64 != 0) {
    return invalid_argument("cpu: code at {} is not aligned to 64 bytes", static_cast<const void*>(code.data()));
  }
  const auto entry = reinterpret_cast<kiln_entry_point>(const_cast<uint8_t*>(code.data()) + launch_data.entry);
  return std::unique_ptr<HostExecutable>(
      std::make_unique<CpuExecutable>(entry, launch_data.tasks, launch_data.workspace_bytes));
}

}  // namespace kiln::cpu
