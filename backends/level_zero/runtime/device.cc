#include "backends/level_zero/runtime/device.h"

#include <mutex>

#include "backends/device_code.h"

namespace kiln::level_zero {
namespace {

constexpr size_t k_alignment_bytes = 256;

/// An event that the host waits for, used again and again.
class Signal {
 public:
  static Expected<std::unique_ptr<Signal>> create(const Context& context) {
    std::unique_ptr<Signal> signal(new Signal(context.api()));
    const ze_event_pool_desc_t pool{
        .stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE, .count = 1};
    KILN_RETURN_IF_ERROR(to_status(context.api().EventPoolCreate(context.handle(), &pool, 0, nullptr, &signal->m_pool),
                                   "zeEventPoolCreate"));
    const ze_event_desc_t event{
        .stype = ZE_STRUCTURE_TYPE_EVENT_DESC, .signal = ZE_EVENT_SCOPE_FLAG_HOST, .wait = ZE_EVENT_SCOPE_FLAG_HOST};
    KILN_RETURN_IF_ERROR(
        to_status(context.api().EventCreate(signal->m_pool, &event, &signal->m_event), "zeEventCreate"));
    return signal;
  }
  ~Signal() {
    if (m_event != nullptr) m_api.EventDestroy(m_event);
    if (m_pool != nullptr) m_api.EventPoolDestroy(m_pool);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  ze_event_handle_t event() const { return m_event; }
  /// Waits for it and takes it back.
  Status wait() {
    KILN_RETURN_IF_ERROR(to_status(m_api.EventHostSynchronize(m_event, UINT64_MAX), "zeEventHostSynchronize"));
    return to_status(m_api.EventHostReset(m_event), "zeEventHostReset");
  }

 private:
  explicit Signal(const Api& api) : m_api(api) {}
  const Api& m_api;
  ze_event_pool_handle_t m_pool = nullptr;
  ze_event_handle_t m_event = nullptr;
};

/// An immediate command list: commands start in order, and a barrier after each makes them finish in order.
class LevelZeroQueue final : public Queue {
 public:
  /// mode: whether its calls wait for their work.
  static Expected<std::unique_ptr<Queue>> create(const Context& context, uint32_t queue_group,
                                                 ze_command_queue_mode_t mode) {
    KILN_ASSIGN_OR_RETURN(auto signal, Signal::create(context));
    const ze_command_queue_desc_t description{
        .stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, .ordinal = queue_group, .mode = mode};
    ze_command_list_handle_t list = nullptr;
    KILN_RETURN_IF_ERROR(
        to_status(context.api().CommandListCreateImmediate(context.handle(), context.device(), &description, &list),
                  "zeCommandListCreateImmediate"));
    return std::unique_ptr<Queue>(new LevelZeroQueue(context.api(), list, true, std::move(signal)));
  }
  static Expected<std::unique_ptr<Queue>> adopt(const Context& context, void* native) {
    KILN_ASSIGN_OR_RETURN(auto signal, Signal::create(context));
    auto* list = static_cast<ze_command_list_handle_t>(native);
    return std::unique_ptr<Queue>(new LevelZeroQueue(context.api(), list, false, std::move(signal)));
  }
  ~LevelZeroQueue() override {
    static_cast<void>(synchronise());  // what is under way uses the list and the event
    if (m_owns_list) m_api.CommandListDestroy(m_list);
  }

  Status upload(void* to, const void* from_host, size_t bytes) override {
    KILN_RETURN_IF_ERROR(copy(to, from_host, bytes));
    return synchronise();  // the host's memory may be reused from here on
  }
  Status download(void* to_host, const void* from, size_t bytes) override { return copy(to_host, from, bytes); }
  Status copy(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return {};
    KILN_RETURN_IF_ERROR(to_status(m_api.CommandListAppendMemoryCopy(m_list, to, from, bytes, nullptr, 0, nullptr),
                                   "zeCommandListAppendMemoryCopy"));
    return barrier(nullptr);
  }
  Status synchronise() override {
    KILN_RETURN_IF_ERROR(barrier(m_signal->event()));
    return m_signal->wait();
  }

  Status launch(ze_kernel_handle_t kernel, uint32_t groups) {
    const ze_group_count_t count{groups, 1, 1};
    KILN_RETURN_IF_ERROR(to_status(m_api.CommandListAppendLaunchKernel(m_list, kernel, &count, nullptr, 0, nullptr),
                                   "zeCommandListAppendLaunchKernel"));
    return barrier(nullptr);
  }

 private:
  LevelZeroQueue(const Api& api, ze_command_list_handle_t list, bool owns_list, std::unique_ptr<Signal> signal)
      : m_api(api), m_list(list), m_owns_list(owns_list), m_signal(std::move(signal)) {}

  Status barrier(ze_event_handle_t signal) {
    return to_status(m_api.CommandListAppendBarrier(m_list, signal, 0, nullptr), "zeCommandListAppendBarrier");
  }

  const Api& m_api;
  ze_command_list_handle_t m_list;
  bool m_owns_list;
  std::unique_ptr<Signal> m_signal;
};

class LevelZeroExecutable final : public DeviceExecutable {
 public:
  LevelZeroExecutable(const Api& api, const LaunchForm& form, std::unique_ptr<Module> module)
      : m_api(api), m_form(form), m_module(std::move(module)) {}

  uint64_t workspace_bytes() const override { return 0; }
  uint32_t buffer_count() const override { return m_form.buffers; }

  /// The kernel's arguments: a pointer for each buffer, the status, then the extents.
  Status launch(Queue& queue, void* const* buffers, void*, void* status,
                std::span<const int64_t> extents) const override {
    // Arguments belong to the kernel object until the launch has been appended.
    const std::lock_guard lock(m_mutex);
    uint32_t next = 0;
    const auto set = [&](const void* value, size_t bytes) {
      return to_status(m_api.KernelSetArgumentValue(m_module->kernel(), next++, bytes, value),
                       "zeKernelSetArgumentValue");
    };
    for (uint32_t i = 0; i < m_form.buffers; ++i)
      KILN_RETURN_IF_ERROR(set(static_cast<const void*>(&buffers[i]), sizeof(void*)));
    KILN_RETURN_IF_ERROR(set(static_cast<const void*>(&status), sizeof(void*)));
    for (const int64_t& extent : extents) KILN_RETURN_IF_ERROR(set(&extent, sizeof extent));
    return static_cast<LevelZeroQueue&>(queue).launch(m_module->kernel(), m_form.groups);
  }

 private:
  const Api& m_api;
  const LaunchForm m_form;
  const std::unique_ptr<Module> m_module;
  mutable std::mutex m_mutex;
};

class LevelZeroDevice final : public Device {
 public:
  LevelZeroDevice(const FoundDevice& found, std::unique_ptr<Context> context)
      : m_found(found), m_context(std::move(context)) {}

  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) override {
    if (const uint64_t missing = launch_data.features & ~m_found.features; missing != 0) {
      return error(StatusCode::failed_precondition, "level zero: the code needs {}, which {} lacks", describe(missing),
                   m_found.name);
    }
    KILN_ASSIGN_OR_RETURN(const DeviceCodeView view, unpack_device_code(code));
    KILN_ASSIGN_OR_RETURN(const LaunchForm form, decode_launch_form(view.launch));
    KILN_ASSIGN_OR_RETURN(auto module, build(view));
    KILN_RETURN_IF_ERROR(to_status(m_context->api().KernelSetGroupSize(module->kernel(), form.group_size, 1, 1),
                                   "zeKernelSetGroupSize"));
    return std::unique_ptr<Executable>(
        std::make_unique<LevelZeroExecutable>(m_context->api(), form, std::move(module)));
  }

  Expected<void*> allocate(size_t bytes) override {
    const ze_device_mem_alloc_desc_t description{.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
    void* memory = nullptr;
    KILN_RETURN_IF_ERROR(
        to_status(m_context->api().MemAllocDevice(m_context->handle(), &description, std::max<size_t>(bytes, 1),
                                                  k_alignment_bytes, m_found.handle, &memory),
                  fmt::format("zeMemAllocDevice of {} bytes", bytes)));
    return memory;
  }
  void release(void* memory) override { m_context->api().MemFree(m_context->handle(), memory); }

  Expected<std::unique_ptr<Queue>> create_queue() override {
    return LevelZeroQueue::create(*m_context, m_found.queue_group, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
  }
  /// The API has no default queue: who names none gets one whose calls wait, as nothing else orders its work.
  Expected<std::unique_ptr<Queue>> adopt_queue(void* native) override {
    if (native != nullptr) return LevelZeroQueue::adopt(*m_context, native);
    return LevelZeroQueue::create(*m_context, m_found.queue_group, ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
  }

 private:
  /// Native code where it is this driver's; where it is not, or the driver refuses it all the same, the portable form.
  Expected<std::unique_ptr<Module>> build(const DeviceCodeView& view) const {
    if (view.is_native_for(m_found.driver_name)) {
      auto module = Module::build(*m_context, ModuleForm::native, view.native);
      if (module.ok() || view.portable.empty()) return module;
    }
    if (view.portable.empty()) {
      return error(StatusCode::failed_precondition, "level zero: native code for driver \"{}\", this one is \"{}\"",
                   view.driver, m_found.driver_name);
    }
    return Module::build(*m_context, ModuleForm::portable, view.portable);
  }

  const FoundDevice& m_found;
  const std::unique_ptr<Context> m_context;
};

}  // namespace

Expected<std::unique_ptr<Device>> open_device(const Platform& platform, const FoundDevice& found) {
  KILN_ASSIGN_OR_RETURN(auto context, Context::create(platform.api(), found.driver, found.handle));
  return std::unique_ptr<Device>(std::make_unique<LevelZeroDevice>(found, std::move(context)));
}

}  // namespace kiln::level_zero
