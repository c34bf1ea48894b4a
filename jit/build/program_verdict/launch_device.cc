#include "jit/build/program_verdict/launch_device.h"

#include <algorithm>
#include <cstring>

#include "base/ceil_div.h"

namespace kiln {

namespace {

constexpr uintptr_t k_alignment = 4'096;

class LaunchQueue final : public Queue {
 public:
  explicit LaunchQueue(LaunchDevice& device) : m_device(device) {}
  Status upload(void* to, const void* from, size_t bytes) override { return m_device.upload(to, from, bytes); }
  Status download(void* to, const void* from, size_t bytes) override { return m_device.download(to, from, bytes); }
  Status copy(void* to, const void* from, size_t bytes) override { return m_device.copy(to, from, bytes); }
  Status synchronise() override { return {}; }

 private:
  LaunchDevice& m_device;
};

class LaunchKernel final : public DeviceExecutable {
 public:
  LaunchKernel(LaunchDevice& device, Image image, uint32_t buffer_count)
      : m_device(device), m_image(std::move(image)), m_buffer_count(buffer_count) {}
  uint64_t workspace_bytes() const override { return 0; }  // the worker has its own
  uint32_t buffer_count() const override { return m_buffer_count; }
  Status launch(Queue&, void* const* buffers, void*, void*, std::span<const int64_t> extents) const override {
    return m_device.launch(m_image, {buffers, m_buffer_count}, extents);
  }

 private:
  LaunchDevice& m_device;
  const Image m_image;
  const uint32_t m_buffer_count;
};

}  // namespace

Expected<std::unique_ptr<Executable>> LaunchDevice::load(const Image&, std::span<const uint8_t>) {
  return error(StatusCode::unimplemented, "kernels under judgement are not loaded");
}

Expected<std::unique_ptr<Queue>> LaunchDevice::create_queue() {
  return std::unique_ptr<Queue>(std::make_unique<LaunchQueue>(*this));
}

Expected<std::unique_ptr<Queue>> LaunchDevice::adopt_queue(void*) {
  return error(StatusCode::unimplemented, "programs under judgement run on a queue of their own");
}

Expected<void*> LaunchDevice::allocate(size_t bytes) {
  uint32_t allocation = 0;
  return allocate_input({bytes, {}}, &allocation);
}

void* LaunchDevice::allocate_input(const CandidateBuffer& buffer, uint32_t* allocation) {
  *allocation = static_cast<uint32_t>(m_allocations.size());
  m_allocations.push_back(buffer);
  const uintptr_t address = m_next;
  m_by_address[address] = *allocation;
  // A gap that belongs to nobody, so that an address just outside is found to be.
  m_next += round_up(buffer.size_bytes, k_alignment) + k_alignment;
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): a device's address
}

std::shared_ptr<const Executable> LaunchDevice::kernel(Image image, uint32_t buffer_count) {
  return std::make_shared<LaunchKernel>(*this, std::move(image), buffer_count);
}

Status LaunchDevice::commit() {
  KILN_ASSIGN_OR_RETURN(m_spans, m_runner.prepare(m_allocations));
  for (const Upload& upload : m_uploads) {
    const auto target = m_spans[upload.to.allocation].begin() + static_cast<ptrdiff_t>(upload.to.offset);
    std::copy(upload.bytes.begin(), upload.bytes.end(), target);
  }
  m_uploads.clear();
  return {};
}

Expected<LaunchDevice::Place> LaunchDevice::find(const void* pointer, uint64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = m_by_address.upper_bound(address);
  if (after == m_by_address.begin()) return error(StatusCode::internal, "an address that was never given out");
  --after;
  const uint64_t offset = address - after->first, size = m_allocations[after->second].size_bytes;
  if (offset > size || bytes > size - offset) {
    return error(StatusCode::internal, "an address outside what the program was given");
  }
  return Place{after->second, offset};
}

Expected<std::span<uint8_t>> LaunchDevice::range(const void* pointer, uint64_t bytes) const {
  KILN_ASSIGN_OR_RETURN(const Place place, find(pointer, bytes));
  if (m_spans.empty()) return error(StatusCode::failed_precondition, "memory is used before it was made");
  return m_spans[place.allocation].subspan(place.offset, bytes);
}

Status LaunchDevice::launch(const Image& image, std::span<void* const> pointers, std::span<const int64_t> extents) {
  std::vector<LaunchObserver::Argument> arguments;
  std::vector<LaunchArgument> places;
  for (const void* pointer : pointers) {
    KILN_ASSIGN_OR_RETURN(const Place place, find(pointer, 0));
    arguments.push_back({place.allocation, place.offset, m_spans[place.allocation].subspan(place.offset)});
    places.push_back({place.allocation, place.offset});
  }
  KILN_ASSIGN_OR_RETURN(const auto given, m_observer.begin({image, arguments, extents}));
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].bytes = given[i].bytes;
    places[i].source = given[i].source;
  }
  LaunchStatus reported = LaunchStatus::ok;
  if (!m_observer.stands_in()) {
    KILN_ASSIGN_OR_RETURN(const CandidateRun run,
                          m_runner.launch(image, places, extents, m_observer.timeout_ms(), m_observer.task_step()));
    reported = run.status;
  }
  m_launched.push_back(std::move(places));
  return m_observer.end(reported);
}

Status LaunchDevice::upload(void* to, const void* from, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(from);
  if (m_spans.empty()) {
    KILN_ASSIGN_OR_RETURN(const Place place, find(to, bytes));
    m_uploads.push_back({place, {first, first + bytes}});
    return {};
  }
  KILN_ASSIGN_OR_RETURN(const auto target, range(to, bytes));
  std::copy(first, first + bytes, target.begin());
  return {};
}

Status LaunchDevice::download(void* to, const void* from, size_t bytes) {
  KILN_ASSIGN_OR_RETURN(const auto source, range(from, bytes));
  std::copy(source.begin(), source.end(), static_cast<uint8_t*>(to));
  return {};
}

Status LaunchDevice::copy(void* to, const void* from, size_t bytes) {
  KILN_ASSIGN_OR_RETURN(const auto source, range(from, bytes));
  KILN_ASSIGN_OR_RETURN(const auto target, range(to, bytes));
  std::memmove(target.data(), source.data(), bytes);
  return {};
}

}  // namespace kiln
