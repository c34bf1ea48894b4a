#pragma once

#include <memory>

#include "backends/backend.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/runtime/driver.h"

namespace kiln::cuda {

/// What kernels and queues need of their device: the driver and the retained primary context. Shared by them, so the
/// context is released when the last of them is gone.
class DeviceContext {
 public:
  static Expected<std::shared_ptr<const DeviceContext>> retain(std::shared_ptr<const Driver> driver,
                                                               DeviceNumber number);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Driver& driver() const { return *m_driver; }
  const DriverFunctions& api() const { return m_driver->api(); }
  Context handle() const { return m_context; }
  uint32_t multiprocessors() const { return m_multiprocessors; }

 private:
  DeviceContext(std::shared_ptr<const Driver> driver, DeviceNumber number)
      : m_driver(std::move(driver)), m_number(number) {}

  std::shared_ptr<const Driver> m_driver;
  DeviceNumber m_number = 0;
  Context m_context = nullptr;
  uint32_t m_multiprocessors = 0;
};

/// Whether code may do without its call of a library: the kernels beside it compute the same.
enum class CallUse : bool { optional, required };

/// Loads the library's call and the kernels of a launch record.
/// Errors: failed_precondition for a driver that is too old or a device that cannot run them, data_loss for no such code; those
/// of a call that is required.
Expected<std::unique_ptr<Executable>> load_executable(std::shared_ptr<const DeviceContext> context,
                                                      std::span<const uint8_t> code, CallUse use);

Expected<std::unique_ptr<Device>> make_device(std::shared_ptr<const DeviceContext> context);

/// The stream of a queue made by one of these devices.
Stream stream_of(Queue& queue);

}  // namespace kiln::cuda
