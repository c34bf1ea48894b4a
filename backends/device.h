#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/machine.h"
#include "base/expected.h"

/// Where kernels run: a device, its memory, its queues, and kernels loaded on it. The host is a device too, the one
/// whose kernels are run in slices by the caller's threads instead of being put on a queue.
namespace kiln {

/// What code is compiled for: a backend and a named, explicit feature set. "x86-64-v4" on cpu, "sm_90a" on cuda.
struct Target {
  std::string backend;
  std::string name;
  /// What native code is bound to besides: the version of the driver that takes it and no other. Empty where code is
  /// bound to none, and for code made where no such driver is (its portable form serves any).
  std::string driver;
  /// Equal bits on every machine of the target: kernels are picked for its default machine, and never by a race.
  bool is_deterministic = false;
  /// That programs of the host run on, where these are fewer than its cores: kernels race on so many. 0: on all.
  uint32_t threads = 0;
  bool operator==(const Target&) const = default;

  /// What it is whoever runs it on whatever part of the machine.
  Target for_all_threads() const { return {backend, name, driver, is_deterministic}; }
};

/// "cpu:x86-64-v4", with the driver in brackets when there is one: for people.
inline std::string to_string(const Target& target) {
  return target.backend + ":" + target.name + (target.driver.empty() ? "" : " (" + target.driver + ")") +
         (target.is_deterministic ? ", deterministic" : "") +
         (target.threads == 0 ? "" : ", threads " + std::to_string(target.threads));
}

enum class LaunchStatus : uint32_t { ok = 0, index_out_of_range = 1 };

/// Work in order, asynchronous to the host. Pointers are what the backend's own API takes for memory of this device;
/// host pointers are pageable memory and may be reused when the call returns (upload) or after synchronise (download).
/// Threading: one thread at a time.
/// Errors: of the call itself, or of earlier work on the queue; after internal or aborted the queue is lost.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual Status upload(void* to, const void* from_host, size_t bytes) = 0;
  virtual Status download(void* to_host, const void* from, size_t bytes) = 0;
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  /// Returns when all work put here so far is done and its results can be read.
  virtual Status synchronise() = 0;
  /// Seconds from where what was put here before is done to where that is which `put` puts, by the device's clock where there is
  /// one, and waits for both. Errors: of `put` and of waiting.
  virtual Expected<double> seconds_of(const std::function<Status()>& put) {
    KILN_RETURN_IF_ERROR(synchronise());
    const auto begin = std::chrono::steady_clock::now();
    KILN_RETURN_IF_ERROR(put());
    KILN_RETURN_IF_ERROR(synchronise());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  /// Whether the queue's owner records what is put here, to run it later: until that ends nothing may be waited for, and no
  /// memory be allocated.
  virtual Expected<bool> is_recorded() { return false; }
};

/// Launches over the addresses that they were recorded with.
///
/// Ownership: needs its device, and what was launched. It may go before it is done.
/// Threading: one thread at a time.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Puts all of it on a queue of the device it was recorded on, at the price of little more than one launch.
  virtual Status replay(Queue& queue) = 0;
};

class HostExecutable;
class DeviceExecutable;

/// A kernel, ready to launch; exactly one of host() and device() is set. Immutable; any thread at once. Must not
/// outlive its device.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Scratch, 64-byte aligned, contents undefined: of each task in flight (host), or of a whole launch (device).
  virtual uint64_t workspace_bytes() const = 0;
  virtual const HostExecutable* host() const { return nullptr; }
  virtual const DeviceExecutable* device() const { return nullptr; }
};

/// How many tasks a launch has: as many as its code, or, of code that leaves them to its launches (0), the first number that the
/// launch carries. 0 where neither says it.
inline uint64_t launch_tasks(uint64_t of_code, std::span<const int64_t> extents) {
  return of_code != 0 || extents.empty() ? of_code : static_cast<uint64_t>(extents.front());
}

/// A grid whose slices any threads of the host run, in any order.
class HostExecutable : public Executable {
 public:
  virtual uint64_t tasks() const = 0;  // 0: launch_tasks
  /// Runs tasks [first, last): buffers in KernelSpec order, workspace for one task, the extents that the launch carries.
  /// Sets *status on a data error, never clears it.
  virtual void run(void* const* buffers, void* workspace, LaunchStatus* status, uint64_t first, uint64_t last,
                   std::span<const int64_t> extents) const = 0;
  const HostExecutable* host() const final { return this; }
};

/// A grid that its device runs by itself.
class DeviceExecutable : public Executable {
 public:
  /// How many buffers launch() takes.
  virtual uint32_t buffer_count() const = 0;
  /// Puts the whole grid on `queue`. All pointers are device memory: buffers in KernelSpec order, workspace (null where
  /// the kernel needs none), and a LaunchStatus that the kernel sets on a data error and never clears; null where the device
  /// asserts instead (Device::asserts). `extents` are the sizes that the launch carries, values and not addresses. `buffers` and
  /// `extents` are read before this returns.
  virtual Status launch(Queue& queue, void* const* buffers, void* workspace, void* status,
                        std::span<const int64_t> extents) const = 0;
  const DeviceExecutable* device() const final { return this; }
};

struct Image;

/// One device of this host.
///
/// Ownership: what it gives refers to it and must not outlive it.
/// Threading: any thread at once.
/// Errors: resource_exhausted without memory; unavailable when the device is gone.
class Device {
 public:
  virtual ~Device() = default;
  /// True: kernels are HostExecutables over code mapped executable, memory is the host's.
  virtual bool is_host() const { return false; }
  /// Errors: failed_precondition when code or device lacks what the other needs; data_loss or invalid_argument for code
  /// that is none. Native code for another driver is not used: the portable form is, else failed_precondition.
  /// Host: `code` is executable and stays mapped as long as the executable lives. Else it may go after the call.
  virtual Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) = 0;
  /// The same for what is judged: where code has several ways to compute one thing, all of them have to load, be it that
  /// another host's library or driver takes what this one's does not.
  virtual Expected<std::unique_ptr<Executable>> load_whole(const Image& launch_data, std::span<const uint8_t> code) {
    return load(launch_data, code);
  }

  /// At least 256-byte aligned; contents undefined. Release waits for nothing: no work may still use it.
  virtual Expected<void*> allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  virtual Expected<std::unique_ptr<Queue>> create_queue() = 0;
  /// A queue over one that the caller owns and keeps alive: a framework's stream, as the backend's API names it.
  virtual Expected<std::unique_ptr<Queue>> adopt_queue(void* native) = 0;

  /// What `put` puts on the queue that it is given, recorded and not run. Nothing may be put there for the first time in the
  /// process: what is loaded lazily cannot be recorded.
  /// Errors: of `put`; unimplemented where the device has no recordings; the driver's.
  virtual Expected<std::unique_ptr<Recording>> record([[maybe_unused]] const std::function<Status(Queue&)>& put) {
    return error(StatusCode::unimplemented, "this device has no recordings");
  }
  /// Whether a kernel that is launched without a LaunchStatus ends in an assertion of the device on a data error: then the
  /// process has lost the device, and finds out when it next waits for it.
  virtual bool asserts() const { return false; }
};

/// What a backend finds out about a device before it is opened.
struct DeviceDescription {
  std::string name;             // its maker's
  std::vector<Target> targets;  // what it runs, best first; none: nothing of this build
  uint64_t memory_bytes = 0;
  Machine machine = {};  // as the driver or the system describes it
};

/// What there is on this host, and why not more.
struct Discovery {
  struct Component {
    std::string name;   // "driver", "loader", "compiler": what was looked for
    std::string found;  // where it is and its version, or why it cannot be used
    bool usable = false;
  };
  std::vector<DeviceDescription> devices;  // by index, as their driver counts them
  std::vector<Component> components;       // for `kiln doctor`
  Status status;                           // why there are no devices; ok when there are
};

}  // namespace kiln
