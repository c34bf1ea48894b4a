#include "backends/devices.h"

#include <algorithm>
#include <charconv>

namespace kiln {

const RuntimeBackend& host_backend() { return *runtime_backends().front(); }

const RuntimeBackend* find_runtime_backend(std::string_view name) {
  const auto backends = runtime_backends();
  const auto found = std::ranges::find(backends, name, &RuntimeBackend::name);
  return found == backends.end() ? nullptr : *found;
}

bool is_of_host(const Target& target) { return find_runtime_backend(target.backend) == &host_backend(); }

std::optional<size_t> device_for(const RuntimeBackend& backend, const Target& target) {
  const auto& devices = backend.discover().devices;
  Target described = target.for_all_threads();
  described.is_deterministic = false;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (std::ranges::find(devices[i].targets, described) != devices[i].targets.end()) return i;
  }
  return std::nullopt;
}

Expected<Target> find_target(std::string_view name) {
  std::string known;
  for (const RuntimeBackend* backend : runtime_backends()) {
    for (const Target& target : backend->known_targets()) {
      if (target.name == name) {
        for (const DeviceDescription& device : backend->discover().devices) {
          const auto found = std::ranges::find(device.targets, name, &Target::name);
          if (found != device.targets.end()) return *found;
        }
        return target;
      }
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
  const RuntimeBackend* backend = name.empty() ? &host_backend() : find_runtime_backend(backend_name);
  if (backend == nullptr) return invalid_argument("device {}: this build has no such backend", name.substr(0, 80));
  const Discovery& discovery = backend->discover();
  KILN_RETURN_IF_ERROR(discovery.status);
  if (index >= discovery.devices.size()) {
    return error(StatusCode::not_found, "device {}: there are {}", name, discovery.devices.size());
  }
  const DeviceDescription& description = discovery.devices[index];
  if (description.targets.empty()) {
    return error(StatusCode::failed_precondition, "device {} ({}): this build has no code for it", name,
                 description.name);
  }
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, backend->open(index));
  return OpenDevice{fmt::format("{}:{}", backend->name(), index), description.targets, std::move(device)};
}

}  // namespace kiln
