#include "backends/runtime_registry.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "backends/cpu/runtime/runtime.h"

namespace kiln {

std::span<const RuntimeBackend* const> runtime_backends() {
  static const cpu::CpuRuntimeBackend cpu;
  static const std::array<const RuntimeBackend*, 1> backends = {&cpu};
  return backends;
}

Expected<Target> find_target(std::string_view name) {
  std::string known;
  for (const RuntimeBackend* backend : runtime_backends()) {
    for (const Target& target : backend->known_targets()) {
      if (target.name == name) return target;
      known += (known.empty() ? "" : ", ") + target.name;
    }
  }
  return invalid_argument("no target is called {}; there are {}", name.substr(0, 80), known);
}

Expected<OpenDevice> open_device(std::string_view name) {
  const size_t colon = std::min(name.find(':'), name.size());
  const std::string_view backend_name = name.substr(0, colon);
  const std::string_view digits = colon == name.size() ? "0" : name.substr(colon + 1);
  size_t index = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (failure != std::errc() || end != digits.data() + digits.size()) {
    return invalid_argument("device {}: expected a backend, or a backend:index", name.substr(0, 80));
  }
  const auto backends = runtime_backends();
  const auto found = name.empty() ? backends.begin() : std::ranges::find(backends, backend_name, &RuntimeBackend::name);
  if (found == backends.end()) return invalid_argument("device {}: this build has no such backend", name.substr(0, 80));
  const Discovery& discovery = (*found)->discover();
  KILN_RETURN_IF_ERROR(discovery.status);
  if (index >= discovery.devices.size()) {
    return error(StatusCode::not_found, "device {}: there are {}", name, discovery.devices.size());
  }
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, (*found)->open(index));
  return OpenDevice{fmt::format("{}:{}", (*found)->name(), index), discovery.devices[index].targets, std::move(device)};
}

}  // namespace kiln
