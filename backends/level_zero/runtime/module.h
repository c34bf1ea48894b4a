#pragma once

#include <span>
#include <vector>

#include "backends/level_zero/runtime/api.h"

namespace kiln::level_zero {

enum class ModuleForm : uint8_t { portable, native };

/// A context on one device. Owns nothing else: what is made in it must be gone before it.
class Context {
 public:
  static Expected<std::unique_ptr<Context>> create(const Api& api, ze_driver_handle_t driver,
                                                   ze_device_handle_t device);
  ~Context() { m_api.ContextDestroy(m_handle); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Api& api() const { return m_api; }
  ze_device_handle_t device() const { return m_device; }
  ze_context_handle_t handle() const { return m_handle; }

 private:
  Context(const Api& api, ze_device_handle_t device, ze_context_handle_t handle)
      : m_api(api), m_device(device), m_handle(handle) {}
  const Api& m_api;
  ze_device_handle_t m_device;
  ze_context_handle_t m_handle;
};

/// One kernel, built and loaded by the driver.
class Module {
 public:
  /// `form` portable: SPIR-V, compiled here, which takes the driver's compiler 50 ms to seconds and may crash it.
  /// Errors: data_loss for SPIR-V that is none; internal with the compiler's log; failed_precondition for native code
  /// of another device or driver.
  static Expected<std::unique_ptr<Module>> build(const Context& context, ModuleForm form,
                                                 std::span<const uint8_t> code);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  ze_kernel_handle_t kernel() const { return m_kernel; }
  Expected<std::vector<uint8_t>> native_code() const;

 private:
  Module(const Api& api, ze_module_handle_t handle) : m_api(api), m_handle(handle) {}
  const Api& m_api;
  ze_module_handle_t m_handle;
  ze_kernel_handle_t m_kernel = nullptr;
};

}  // namespace kiln::level_zero
