#include "backends/level_zero/runtime/module.h"

#include "backends/level_zero/spirv_check.h"
#include "backends/level_zero/target.h"

namespace kiln::level_zero {
namespace {

// Addresses are 64-bit: buffers may be larger than 4 GiB.
constexpr const char* k_build_flags = "-ze-opt-greater-than-4GB-buffer-required";
constexpr size_t k_log_bytes = 2000;  // of a compiler's log that a message carries

std::string log_text(const Api& api, ze_module_build_log_handle_t log) {
  size_t bytes = 0;
  if (api.ModuleBuildLogGetString(log, &bytes, nullptr) != ZE_RESULT_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (api.ModuleBuildLogGetString(log, &bytes, text.data()) != ZE_RESULT_SUCCESS) return {};
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text.substr(0, k_log_bytes);
}

}  // namespace

Expected<std::unique_ptr<Context>> Context::create(const Api& api, ze_driver_handle_t driver,
                                                   ze_device_handle_t device) {
  const ze_context_desc_t description{.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
  ze_context_handle_t handle = nullptr;
  KILN_RETURN_IF_ERROR(to_status(api.ContextCreate(driver, &description, &handle), "zeContextCreate"));
  return std::unique_ptr<Context>(new Context(api, device, handle));
}

Expected<std::unique_ptr<Module>> Module::build(const Context& context, ModuleForm form,
                                                std::span<const uint8_t> code) {
  if (form == ModuleForm::portable) KILN_RETURN_IF_ERROR(check_spirv_form(code));
  const Api& api = context.api();
  const ze_module_desc_t description{
      .stype = ZE_STRUCTURE_TYPE_MODULE_DESC,
      .format = form == ModuleForm::native ? ZE_MODULE_FORMAT_NATIVE : ZE_MODULE_FORMAT_IL_SPIRV,
      .inputSize = code.size(),
      .pInputModule = code.data(),
      .pBuildFlags = k_build_flags,
  };
  ze_module_handle_t handle = nullptr;
  ze_module_build_log_handle_t log = nullptr;
  const Status built =
      to_status(api.ModuleCreate(context.handle(), context.device(), &description, &handle, &log), "zeModuleCreate");
  const std::string text = log == nullptr ? std::string() : log_text(api, log);
  if (log != nullptr) api.ModuleBuildLogDestroy(log);
  if (!built.ok()) return text.empty() ? built : Status(built.code(), built.message() + ": " + text);
  std::unique_ptr<Module> module(new Module(api, handle));
  const ze_kernel_desc_t kernel{.stype = ZE_STRUCTURE_TYPE_KERNEL_DESC, .pKernelName = k_kernel_name};
  KILN_RETURN_IF_ERROR(to_status(api.KernelCreate(handle, &kernel, &module->m_kernel), "zeKernelCreate"));
  return module;
}

Module::~Module() {
  if (m_kernel != nullptr) m_api.KernelDestroy(m_kernel);
  m_api.ModuleDestroy(m_handle);
}

Expected<std::vector<uint8_t>> Module::native_code() const {
  size_t bytes = 0;
  KILN_RETURN_IF_ERROR(to_status(m_api.ModuleGetNativeBinary(m_handle, &bytes, nullptr), "zeModuleGetNativeBinary"));
  std::vector<uint8_t> code(bytes);
  KILN_RETURN_IF_ERROR(
      to_status(m_api.ModuleGetNativeBinary(m_handle, &bytes, code.data()), "zeModuleGetNativeBinary"));
  code.resize(bytes);
  return code;
}

}  // namespace kiln::level_zero
