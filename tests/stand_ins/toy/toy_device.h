#pragma once

#include <string>

#include "backends/backend.h"

/// Host memory that poses as a device (README.md).
namespace kiln::toy {

inline constexpr std::string_view k_backend = "toy", k_target = "toy1";

/// Of the device.
inline const Machine k_machine{.model = "Toy", .cores = 3, .second_level_bytes = 5 << 10};

/// The version of the driver; empty: no device. Read from TOY_DRIVER each time, so that a test can change it.
std::string driver();

class ToyRuntimeBackend final : public RuntimeBackend {
 public:
  std::string_view name() const override { return k_backend; }
  std::vector<Target> known_targets() const override;
  const Discovery& discover() const override;
  Expected<std::unique_ptr<Device>> open(size_t index) const override;
};

/// How often code was loaded in this process.
struct Loads {
  int native = 0, portable = 0;
};
Loads& loads();

}  // namespace kiln::toy
