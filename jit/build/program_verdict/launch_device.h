#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "verdict/candidate_runner.h"

namespace kiln {

/// What watches a program as it runs, launch by launch.
class LaunchObserver {
 public:
  /// An argument of a launch: which allocation the program bound, and where in it. `bytes` is from there to the end of
  /// the allocation.
  struct Argument {
    uint32_t allocation = 0;
    uint64_t offset = 0;
    std::span<uint8_t> bytes;
  };
  struct Launch {
    const Image& image;  // lives as long as the device
    std::span<const Argument> arguments;
    std::span<const int64_t> extents;
  };

  /// What a kernel is given for an argument: so many bytes, of a source where they are not in the program's memory.
  struct Given {
    uint64_t bytes = 0;
    SampleSource source = {};
  };

  virtual ~LaunchObserver() = default;
  /// Is called before the kernel runs.
  virtual Expected<std::vector<Given>> begin(const Launch& launch) = 0;
  /// Whether the observer made up what the launch makes: then nothing runs.
  virtual bool stands_in() const = 0;
  virtual uint32_t timeout_ms() const = 0;
  /// One task of the kernel in so many is run, where the host's grid is cut into tasks.
  virtual uint32_t task_step() const = 0;
  /// Is called after it ran, with what it reported; what nothing ran of reports nothing amiss.
  virtual Status end(LaunchStatus reported) = 0;
};

/// An execution worker as a device: a linked program is loaded and launched on it by the code that launches programs on
/// any device, and each launch is one request to the worker, which alone maps the kernel. An observer looks at memory
/// before and after each.
///
/// Addresses are numbers that are looked up again, so a pointer that the program got wrong is an error here and never
/// followed. Memory exists from commit() on; until then allocations and uploads are noted.
/// Ownership: runner and observer must outlive it. Threading: one thread.
class LaunchDevice final : public Device {
 public:
  LaunchDevice(CandidateRunner& runner, LaunchObserver& observer) : m_runner(runner), m_observer(observer) {}

  /// Errors of load and adopt_queue: unimplemented; kernels come from kernel().
  Expected<std::unique_ptr<Executable>> load(const Image&, std::span<const uint8_t>) override;
  Expected<void*> allocate(size_t bytes) override;
  void release(void*) override {}
  Expected<std::unique_ptr<Queue>> create_queue() override;
  Expected<std::unique_ptr<Queue>> adopt_queue(void* native) override;
  /// A launch itself fails on a data error: no place on the device says it.
  bool asserts() const override { return true; }

  /// Memory that holds `source` and cannot be written; `*allocation` becomes its number.
  void* allocate_input(const CandidateBuffer& buffer, uint32_t* allocation);
  /// The kernel with `buffer_count` arguments, launched through the runner. `image` is copied.
  std::shared_ptr<const Executable> kernel(Image image, uint32_t buffer_count);

  /// Makes what was allocated so far. Errors: of CandidateRunner::prepare.
  Status commit();
  std::span<uint8_t> bytes(uint32_t allocation) const { return m_spans[allocation]; }
  /// The arguments of each launch so far.
  const std::vector<std::vector<LaunchArgument>>& launched() const { return m_launched; }

  Status launch(const Image& image, std::span<void* const> pointers, std::span<const int64_t> extents);
  Status upload(void* to, const void* from, size_t bytes);
  Status download(void* to, const void* from, size_t bytes);
  Status copy(void* to, const void* from, size_t bytes);

 private:
  struct Place {
    uint32_t allocation;
    uint64_t offset;
  };
  struct Upload {
    Place to;
    std::vector<uint8_t> bytes;
  };
  Expected<Place> find(const void* pointer, uint64_t bytes) const;
  Expected<std::span<uint8_t>> range(const void* pointer, uint64_t bytes) const;

  CandidateRunner& m_runner;
  LaunchObserver& m_observer;
  std::vector<CandidateBuffer> m_allocations;
  std::map<uintptr_t, uint32_t> m_by_address;
  uintptr_t m_next = uintptr_t{1} << 40;
  std::vector<Upload> m_uploads;  // before commit()
  std::vector<std::span<uint8_t>> m_spans;
  std::vector<std::vector<LaunchArgument>> m_launched;
};

}  // namespace kiln
