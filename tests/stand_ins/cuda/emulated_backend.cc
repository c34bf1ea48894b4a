#include "tests/stand_ins/cuda/emulated_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include <fmt/format.h>

#include "backends/cuda/compile/texts.h"
#include "tests/stand_ins/cuda/tensor_map.h"

namespace kiln::cuda_emulator {
namespace {

/// Targets often share a text, and so do candidates.
Expected<std::vector<uint8_t>> compiled_once(const std::string& text) {
  static std::map<std::string, std::vector<uint8_t>> made;
  const auto found = made.find(text);
  if (found != made.end()) return found->second;
  KILN_ASSIGN_OR_RETURN(std::vector<uint8_t> object, compile_for_host(text, cuda::k_entry));
  return made[text] = std::move(object);
}

EmulatedTensorMap encode(const cuda::TensorMapRecord& record, void* const* buffers) {
  EmulatedTensorMap map;
  map.data = static_cast<uint8_t*>(buffers[record.buffer]) + record.offset_bytes;
  map.extents = record.extents;
  map.strides_bytes = {size_of(record.dtype), record.stride_bytes[0], record.stride_bytes[1]};
  map.box = record.box;
  map.swizzle = record.is_swizzled ? Swizzle::bytes_128 : Swizzle::none;
  return map;
}

class EmulatedExecutable : public HostExecutable {
 public:
  explicit EmulatedExecutable(EmulatedKernels kernels) : m_kernels(std::move(kernels)) {}
  uint64_t tasks() const override { return 1; }
  uint64_t workspace_bytes() const override { return 0; }
  void run(void* const* buffers, void*, LaunchStatus* status, uint64_t, uint64_t,
           std::span<const int64_t>) const override {
    static uint64_t launches = 0;
    uint32_t bits = 0;
    const std::string problem = m_kernels.run(buffers, &bits, launches++);
    EXPECT_EQ(problem, "");
    if ((bits & static_cast<uint32_t>(LaunchStatus::index_out_of_range)) != 0)
      *status = LaunchStatus::index_out_of_range;
  }

 private:
  EmulatedKernels m_kernels;
};

std::vector<EmulatedKernels>& images() {
  static std::vector<EmulatedKernels> all;
  return all;
}

Target real_target(const Target& target) { return {"cuda", target.name}; }

}  // namespace

std::string full_text(const cuda::KernelSource& source) { return fmt::format("{}{}", cuda::scalar_text, source.text); }

bool EmulatedKernels::differs(const std::string& text, const std::string& other) {
  const auto one = compiled_once(text), two = compiled_once(other);
  return !one.ok() || !two.ok() || *one != *two;
}

Expected<EmulatedKernels> EmulatedKernels::compile(const std::vector<cuda::KernelSource>& alternatives,
                                                   std::vector<BufferSpec> buffers) {
  EmulatedKernels kernels;
  kernels.m_buffers = std::move(buffers);
  for (const cuda::KernelSource& source : alternatives) {
    KILN_ASSIGN_OR_RETURN(const auto object, compiled_once(source.text));
    KILN_ASSIGN_OR_RETURN(HostModule module, HostModule::load(object));
    if (module.cluster() != source.record.cluster) {
      return error(StatusCode::internal, "a kernel of clusters of {} is recorded with {}", module.cluster(),
                   source.record.cluster);
    }
    kernels.m_kernels.push_back(std::make_shared<const Kernel>(Kernel{source.record, std::move(module)}));
  }
  return kernels;
}

std::string EmulatedKernels::run(void* const* buffers, uint32_t* status, uint64_t seed) const {
  for (size_t i = 0; i < m_kernels.size(); ++i) {
    bool takes = true;
    for (const uint32_t buffer : m_kernels[i]->record.aligned_buffers) {
      takes &= reinterpret_cast<uintptr_t>(buffers[buffer]) % 16 == 0;
    }
    if (takes) return run(i, buffers, status, seed);
  }
  return "no kernel takes these addresses";
}

std::string EmulatedKernels::run(size_t alternative, void* const* buffers, uint32_t* status, uint64_t seed) const {
  const Kernel& kernel = *m_kernels.at(alternative);
  const cuda::LaunchRecord record{.buffers = static_cast<uint32_t>(m_buffers.size())};
  const size_t size = cuda::argument_bytes(record, kernel.record);
  std::vector<uint8_t> storage(size + 128);
  uint8_t* argument = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
  std::memcpy(argument, static_cast<const void*>(buffers), m_buffers.size() * sizeof(void*));
  std::memcpy(argument + m_buffers.size() * sizeof(void*), static_cast<const void*>(&status), sizeof status);
  for (size_t i = 0; i < kernel.record.maps.size(); ++i) {
    const EmulatedTensorMap map = encode(kernel.record.maps[i], buffers);
    if (const std::string refusal = why_refused(map); !refusal.empty()) return refusal;
    std::memcpy(argument + cuda::maps_offset(record) + i * 128, &map, sizeof map);
  }
  std::vector<GlobalBuffer> uses;
  for (size_t i = 0; i < m_buffers.size(); ++i) {
    uses.push_back({fmt::format("buffer {}", i), static_cast<uint8_t*>(buffers[i]),
                    static_cast<size_t>(m_buffers[i].elements) * size_of(m_buffers[i].dtype),
                    m_buffers[i].role != BufferRole::output, m_buffers[i].role != BufferRole::input});
  }
  uses.push_back({"the status", reinterpret_cast<uint8_t*>(status), sizeof *status});
  LaunchShape shape{.blocks = static_cast<uint32_t>(kernel.record.blocks),
                    .threads = kernel.record.threads,
                    .cluster = kernel.record.cluster,
                    .shared_bytes = kernel.record.shared_bytes,
                    .constants = kernel.module.constants()};
  // Devices differ in how many there are: each launch takes another number.
  if (kernel.record.is_persistent) {
    shape.blocks = std::min<uint32_t>(shape.blocks, shape.cluster * (1 + static_cast<uint32_t>(seed / 3 % 3)));
  }
  return Machine::launch(shape, uses, seed, [&] { kernel.module.call(argument); });
}

std::vector<Target> EmulatedCompileBackend::targets() const {
  std::vector<Target> targets = m_real.targets();
  for (Target& target : targets) target.backend = name();
  return targets;
}

kiln::Machine EmulatedCompileBackend::default_machine(const Target& target) const {
  return m_real.default_machine(real_target(target));
}

Status EmulatedCompileBackend::claims(const KernelSpec& spec, const Target& target) const {
  return m_real.claims(spec, real_target(target));
}

std::vector<Schedule> EmulatedCompileBackend::candidates(const KernelSpec& spec, const Target& target,
                                                         const kiln::Machine& machine) const {
  static size_t turn = 0;
  std::vector<Schedule> all = m_real.candidates(spec, real_target(target), machine);
  if (all.size() <= 2) return all;
  return {all.front(), all[1 + turn++ % (all.size() - 1)]};
}

Expected<Image> EmulatedCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                                const Target& target) const {
  KILN_ASSIGN_OR_RETURN(auto sources, cuda::CudaCompileBackend::sources(spec, schedule, real_target(target)));
  for (cuda::KernelSource& source : sources) source.text = full_text(source);
  KILN_ASSIGN_OR_RETURN(EmulatedKernels kernels, EmulatedKernels::compile(sources, spec.buffers));
  const uint64_t index = images().size();
  images().push_back(std::move(kernels));
  Image image;
  image.code.resize(sizeof index);
  std::memcpy(image.code.data(), &index, sizeof index);
  return image;
}

Expected<std::unique_ptr<Executable>> EmulatedDevice::load(const Image&, std::span<const uint8_t> code) {
  uint64_t index = 0;
  if (code.size() != sizeof index) return invalid_argument("no emulated image");
  std::memcpy(&index, code.data(), sizeof index);
  if (index >= images().size()) return invalid_argument("no emulated image {}", index);
  return std::unique_ptr<Executable>(std::make_unique<EmulatedExecutable>(images()[index]));
}

Expected<void*> EmulatedDevice::allocate(size_t) { return error(StatusCode::unimplemented, "emulated: no memory"); }
void EmulatedDevice::release(void*) {}

Expected<std::unique_ptr<Queue>> EmulatedDevice::create_queue() {
  return error(StatusCode::unimplemented, "emulated: no queues");
}
Expected<std::unique_ptr<Queue>> EmulatedDevice::adopt_queue(void*) { return create_queue(); }

}  // namespace kiln::cuda_emulator
