#include "tests/stand_ins/toy/toy_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "backends/cpu/runtime/runtime.h"
#include "backends/device_code.h"
#include "tests/conformance/sealed_code.h"

namespace kiln::toy {
namespace {

/// What a device address is away from the memory behind it: no such address is canonical.
constexpr uintptr_t k_offset = uintptr_t{1} << 56;
constexpr size_t k_alignment = 256;

// NOLINTBEGIN(performance-no-int-to-ptr): an address of the device is no pointer

/// The device's memory, by the real address of each allocation.
class Memory {
 public:
  Expected<void*> allocate(size_t bytes) {
    void* real = std::aligned_alloc(k_alignment, (bytes / k_alignment + 1) * k_alignment);
    if (real == nullptr) return error(StatusCode::resource_exhausted, "toy: no memory for {} bytes", bytes);
    std::memset(real, 0xcd, bytes);
    const std::scoped_lock lock(m_mutex);
    m_sizes[reinterpret_cast<uintptr_t>(real)] = bytes;
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(real) + k_offset);
  }
  void release(void* device) {
    const uintptr_t real = reinterpret_cast<uintptr_t>(device) - k_offset;
    const std::scoped_lock lock(m_mutex);
    m_sizes.erase(real);
    std::free(reinterpret_cast<void*>(real));
  }
  /// Where `bytes` bytes at a device address really are.
  Expected<uint8_t*> real(const void* device, size_t bytes) const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(device) - k_offset;
    const std::scoped_lock lock(m_mutex);
    const auto after = m_sizes.upper_bound(address);
    const auto holder = after == m_sizes.begin() ? m_sizes.end() : std::prev(after);
    if (holder == m_sizes.end() || address + bytes > holder->first + holder->second) {
      return invalid_argument("toy: {} bytes at {} are not memory of the device", bytes, device);
    }
    return reinterpret_cast<uint8_t*>(address);
  }

 private:
  mutable std::mutex m_mutex;
  std::map<uintptr_t, size_t> m_sizes;
};

// NOLINTEND(performance-no-int-to-ptr)

/// Keeps what it is told to do until it is waited for.
class ToyQueue final : public Queue {
 public:
  explicit ToyQueue(const Memory& memory) : m_memory(memory) {}

  Status upload(void* to, const void* from_host, size_t bytes) override {
    const auto* first = static_cast<const uint8_t*>(from_host);
    m_work.emplace_back([this, to, copy = std::vector<uint8_t>(first, first + bytes)]() -> Status {
      KILN_ASSIGN_OR_RETURN(uint8_t* target, m_memory.real(to, copy.size()));
      std::ranges::copy(copy, target);
      return {};
    });
    return {};
  }
  Status download(void* to_host, const void* from, size_t bytes) override {
    m_work.emplace_back([this, to_host, from, bytes]() -> Status {
      KILN_ASSIGN_OR_RETURN(const uint8_t* source, m_memory.real(from, bytes));
      std::memcpy(to_host, source, bytes);
      return {};
    });
    return {};
  }
  Status copy(void* to, const void* from, size_t bytes) override {
    m_work.emplace_back([this, to, from, bytes]() -> Status {
      KILN_ASSIGN_OR_RETURN(uint8_t* target, m_memory.real(to, bytes));
      KILN_ASSIGN_OR_RETURN(const uint8_t* source, m_memory.real(from, bytes));
      std::memcpy(target, source, bytes);
      return {};
    });
    return {};
  }
  Status synchronise() override {
    const auto work = std::exchange(m_work, {});
    for (const auto& each : work) KILN_RETURN_IF_ERROR(each());
    return {};
  }
  void put(std::function<Status()> work) { m_work.push_back(std::move(work)); }

 private:
  const Memory& m_memory;
  std::vector<std::function<Status()>> m_work;
};

class ToyExecutable final : public DeviceExecutable {
 public:
  static Expected<std::unique_ptr<Executable>> create(const Memory& memory, const Image& launch_data,
                                                      std::span<const uint8_t> code, uint32_t buffer_count) {
    auto kernel = std::make_unique<ToyExecutable>(memory, code, buffer_count);
    KILN_ASSIGN_OR_RETURN(kernel->m_kernel, cpu::load_image(launch_data, kernel->m_code.bytes()));
    return std::unique_ptr<Executable>(std::move(kernel));
  }
  ToyExecutable(const Memory& memory, std::span<const uint8_t> code, uint32_t buffer_count)
      : m_memory(memory), m_code(code), m_buffer_count(buffer_count) {}

  uint64_t workspace_bytes() const override { return m_kernel->workspace_bytes(); }
  uint32_t buffer_count() const override { return m_buffer_count; }
  Status launch(Queue& queue, void* const* buffers, void* workspace, void* status,
                std::span<const int64_t> extents) const override {
    std::vector<void*> arguments(buffers, buffers + m_buffer_count);
    const std::vector<int64_t> sizes(extents.begin(), extents.end());
    static_cast<ToyQueue&>(queue).put([this, arguments, workspace, status, sizes]() mutable -> Status {
      for (void*& argument : arguments) {
        KILN_ASSIGN_OR_RETURN(argument, m_memory.real(argument, 1));
      }
      uint8_t* scratch = nullptr;
      if (const uint64_t bytes = m_kernel->workspace_bytes(); bytes != 0) {
        KILN_ASSIGN_OR_RETURN(scratch, m_memory.real(workspace, bytes));
      }
      KILN_ASSIGN_OR_RETURN(uint8_t* report, m_memory.real(status, sizeof(LaunchStatus)));
      m_kernel->run(arguments.data(), scratch, reinterpret_cast<LaunchStatus*>(report), 0, m_kernel->tasks(), sizes);
      return {};
    });
    return {};
  }

 private:
  const Memory& m_memory;
  const conformance::SealedCode m_code;
  const uint32_t m_buffer_count;
  std::unique_ptr<HostExecutable> m_kernel;
};

class ToyDevice final : public Device {
 public:
  explicit ToyDevice(std::string driver) : m_driver(std::move(driver)) {}

  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) override {
    KILN_ASSIGN_OR_RETURN(const DeviceCodeView view, unpack_device_code(code));
    uint32_t buffer_count = 0;
    if (view.launch.size() != sizeof buffer_count) return error(StatusCode::data_loss, "toy: no launch data");
    std::memcpy(&buffer_count, view.launch.data(), sizeof buffer_count);
    const bool native = view.is_native_for(m_driver);
    if (!native && view.portable.empty()) {
      return error(StatusCode::failed_precondition, "toy: native code of driver {}, this is {}", view.driver, m_driver);
    }
    ++(native ? loads().native : loads().portable);
    return ToyExecutable::create(m_memory, launch_data, native ? view.native : view.portable, buffer_count);
  }
  Expected<void*> allocate(size_t bytes) override { return m_memory.allocate(bytes); }
  void release(void* memory) override { m_memory.release(memory); }
  Expected<std::unique_ptr<Queue>> create_queue() override {
    return std::unique_ptr<Queue>(std::make_unique<ToyQueue>(m_memory));
  }
  Expected<std::unique_ptr<Queue>> adopt_queue(void*) override { return create_queue(); }

 private:
  const std::string m_driver;
  Memory m_memory;
};

}  // namespace

std::string driver() {
  const char* version = std::getenv("TOY_DRIVER");
  return version == nullptr ? "" : version;
}

Loads& loads() {
  static Loads counts;
  return counts;
}

std::vector<Target> ToyRuntimeBackend::known_targets() const {
  return {{std::string(k_backend), std::string(k_target)}};
}

const Discovery& ToyRuntimeBackend::discover() const {
  static std::map<std::string, Discovery> by_driver;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  auto [it, is_new] = by_driver.try_emplace(driver());
  Discovery& discovery = it->second;
  if (!is_new) return discovery;
  if (it->first.empty()) {
    discovery.components.push_back({"driver", "TOY_DRIVER is not set", false});
    discovery.status = error(StatusCode::unavailable, "toy: no driver: TOY_DRIVER is not set");
  } else {
    discovery.components.push_back({"driver", "version " + it->first, true});
    discovery.devices.push_back(
        {"Toy", {{std::string(k_backend), std::string(k_target), it->first}}, 1 << 20, k_machine});
  }
  return discovery;
}

Expected<std::unique_ptr<Device>> ToyRuntimeBackend::open(size_t index) const {
  KILN_RETURN_IF_ERROR(discover().status);
  if (index != 0) return error(StatusCode::not_found, "toy: no device {}", index);
  return std::unique_ptr<Device>(std::make_unique<ToyDevice>(driver()));
}

}  // namespace kiln::toy
