#include "tests/stand_ins/cuda/emulated_backend.h"

#include <gtest/gtest.h>

#include <array>
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
  map.strides_bytes = {size_of(record.dtype), record.stride_bytes[0], record.stride_bytes[1], record.stride_bytes[2]};
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

Expected<EmulatedKernels> EmulatedKernels::compile(const cuda::LaunchSource& source, std::vector<BufferSpec> buffers) {
  EmulatedKernels kernels;
  kernels.m_record.buffers = static_cast<uint32_t>(buffers.size());
  kernels.m_record.workspace_parts = source.workspace_parts;
  kernels.m_buffers = std::move(buffers);
  for (const cuda::KernelSource& kernel : source.kernels) {
    KILN_ASSIGN_OR_RETURN(const auto object, compiled_once(kernel.text));
    KILN_ASSIGN_OR_RETURN(HostModule module, HostModule::load(object));
    if (module.cluster() != kernel.record.cluster) {
      return error(StatusCode::internal, "a kernel of clusters of {} is recorded with {}", module.cluster(),
                   kernel.record.cluster);
    }
    kernels.m_record.kernels.push_back(kernel.record);
    kernels.m_modules.push_back(std::make_shared<const HostModule>(std::move(module)));
  }
  return kernels;
}

std::string EmulatedKernels::run(void* const* buffers, uint32_t* status, uint64_t seed) const {
  struct alignas(128) Line {
    std::array<uint8_t, 128> bytes;
  };
  std::vector<Line> workspace(cuda::workspace_bytes(m_record) / sizeof(Line) + 1);
  std::memset(workspace.data(), 0xff, workspace.size() * sizeof(Line));  // NaN
  const std::vector<void*> pointers = cuda::argument_pointers(m_record, buffers, workspace.data(), status);
  for (const cuda::KernelRecord& kernel : cuda::alternative_for(m_record, pointers.data())) {
    if (std::string problem = run(kernel, pointers, status, seed); !problem.empty()) return problem;
  }
  return {};
}

std::string EmulatedKernels::run(const cuda::KernelRecord& kernel, std::span<void* const> pointers, uint32_t* status,
                                 uint64_t seed) const {
  const HostModule& module = *m_modules[static_cast<size_t>(&kernel - m_record.kernels.data())];
  std::vector<uint8_t> storage(cuda::argument_bytes(m_record, kernel) + 128);
  uint8_t* argument = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
  std::memcpy(argument, static_cast<const void*>(pointers.data()), pointers.size_bytes());
  for (size_t i = 0; i < kernel.maps.size(); ++i) {
    const EmulatedTensorMap map = encode(kernel.maps[i], pointers.data());
    if (const std::string refusal = why_refused(map); !refusal.empty()) return refusal;
    std::memcpy(argument + cuda::maps_offset(m_record) + i * 128, &map, sizeof map);
  }
  std::vector<GlobalBuffer> uses;
  for (size_t i = 0; i < m_buffers.size(); ++i) {
    uses.push_back({fmt::format("buffer {}", i), static_cast<uint8_t*>(pointers[i]), m_buffers[i].bytes(),
                    m_buffers[i].role != BufferRole::output, m_buffers[i].role != BufferRole::input});
  }
  for (size_t i = 0; i < m_record.workspace_parts.size(); ++i) {
    uses.push_back({fmt::format("part {} of the workspace", i), static_cast<uint8_t*>(pointers[m_buffers.size() + i]),
                    m_record.workspace_parts[i], true, true});
  }
  uses.push_back({"the status", reinterpret_cast<uint8_t*>(status), sizeof *status});
  LaunchShape shape{.blocks = static_cast<uint32_t>(kernel.blocks),
                    .threads = kernel.threads,
                    .cluster = kernel.cluster,
                    .shared_bytes = kernel.shared_bytes,
                    .constants = module.constants()};
  // Devices differ in how many there are: each launch takes another number.
  if (kernel.is_persistent) {
    shape.blocks = std::min<uint32_t>(shape.blocks, shape.cluster * (1 + static_cast<uint32_t>(seed / 3 % 3)));
  }
  return Machine::launch(shape, uses, seed, [&] { module.call(argument); });
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
  KILN_ASSIGN_OR_RETURN(auto source, cuda::CudaCompileBackend::source(spec, schedule, real_target(target)));
  for (cuda::KernelSource& kernel : source.kernels) kernel.text = full_text(kernel);
  KILN_ASSIGN_OR_RETURN(EmulatedKernels kernels, EmulatedKernels::compile(source, spec.buffers));
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
