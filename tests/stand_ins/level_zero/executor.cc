#include "tests/stand_ins/level_zero/executor.h"

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/stand_ins/level_zero/matrix_functions.h"

namespace kiln::stand_in {
namespace {

#define KILN_OPENCL_FUNCTIONS(X)      \
  X(GetPlatformIDs)                   \
  X(GetDeviceIDs)                     \
  X(CreateContext)                    \
  X(CreateCommandQueueWithProperties) \
  X(CreateProgramWithIL)              \
  X(CreateProgramWithBinary)          \
  X(CreateProgramWithSource)          \
  X(CompileProgram)                   \
  X(LinkProgram)                      \
  X(BuildProgram)                     \
  X(GetProgramInfo)                   \
  X(GetProgramBuildInfo)              \
  X(CreateKernel)                     \
  X(GetKernelInfo)                    \
  X(EnqueueNDRangeKernel)             \
  X(Finish)                           \
  X(ReleaseKernel)                    \
  X(ReleaseProgram)                   \
  X(GetExtensionFunctionAddressForPlatform)

struct OpenCl {
#define KILN_OPENCL_MEMBER(name) decltype(&cl##name) name = nullptr;
  KILN_OPENCL_FUNCTIONS(KILN_OPENCL_MEMBER)
#undef KILN_OPENCL_MEMBER
  clSharedMemAllocINTEL_fn SharedMemAlloc = nullptr;
  clMemFreeINTEL_fn MemFree = nullptr;
  clSetKernelArgMemPointerINTEL_fn SetKernelArgMemPointer = nullptr;
  cl_device_id device = nullptr;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
};

template <typename Function>
bool find(Function& function, void* symbol) {
  function = reinterpret_cast<Function>(symbol);
  return function != nullptr;
}

// Most of a test's time would be the optimiser's. Sub-groups are made by the vectoriser, which is on all the same.
constexpr const char* k_build_options = "-cl-opt-disable";

std::string open_runtime(OpenCl& cl, const char* path) {
  setenv("CL_CONFIG_CPU_O0_VECTORIZATION", "1", 1);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
#define KILN_OPENCL_FIND(name) \
  if (!find(cl.name, dlsym(library, "cl" #name))) return "no cl" #name;
  KILN_OPENCL_FUNCTIONS(KILN_OPENCL_FIND)
#undef KILN_OPENCL_FIND
  cl_platform_id platform = nullptr;
  if (cl.GetPlatformIDs(1, &platform, nullptr) != CL_SUCCESS) return "no platform";
  if (cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &cl.device, nullptr) != CL_SUCCESS) return "no CPU device";
  const auto extension = [&](const char* name) { return cl.GetExtensionFunctionAddressForPlatform(platform, name); };
  if (!find(cl.SharedMemAlloc, extension("clSharedMemAllocINTEL")) || !find(cl.MemFree, extension("clMemFreeINTEL")) ||
      !find(cl.SetKernelArgMemPointer, extension("clSetKernelArgMemPointerINTEL"))) {
    return "no unified shared memory";
  }
  cl_int result = CL_SUCCESS;
  cl.context = cl.CreateContext(nullptr, 1, &cl.device, nullptr, nullptr, &result);
  if (result != CL_SUCCESS) return "no context";
  cl.queue = cl.CreateCommandQueueWithProperties(cl.context, cl.device, nullptr, &result);
  return result == CL_SUCCESS ? "" : "no queue";
}

class ClProgram final : public Executor::Program {
 public:
  ClProgram(const OpenCl& cl, cl_program program) : m_cl(cl), m_program(program) {}
  ~ClProgram() override {
    for (const auto& [name, kernel] : m_kernels) m_cl.ReleaseKernel(kernel);
    m_cl.ReleaseProgram(m_program);
  }

  std::string launch(const std::string& name, std::span<void* const> arguments, size_t groups,
                     size_t group_size) override {
    const cl_kernel kernel = find_kernel(name);
    for (cl_uint i = 0; i < arguments.size(); ++i) {
      if (const cl_int result = m_cl.SetKernelArgMemPointer(kernel, i, arguments[i]); result != CL_SUCCESS) {
        return "argument " + std::to_string(i) + ": " + std::to_string(result);
      }
    }
    const size_t items = groups * group_size;
    cl_int result = m_cl.EnqueueNDRangeKernel(m_cl.queue, kernel, 1, nullptr, &items, &group_size, 0, nullptr, nullptr);
    if (result == CL_SUCCESS) result = m_cl.Finish(m_cl.queue);
    return result == CL_SUCCESS ? "" : "launch: " + std::to_string(result);
  }

  int argument_count(const std::string& name) const override {
    const cl_kernel kernel = find_kernel(name);
    cl_uint count = 0;
    if (kernel == nullptr) return -1;
    m_cl.GetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, nullptr);
    return static_cast<int>(count);
  }

  std::vector<uint8_t> binary() const override {
    size_t bytes = 0;
    m_cl.GetProgramInfo(m_program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr);
    std::vector<uint8_t> code(bytes);
    unsigned char* data = code.data();
    m_cl.GetProgramInfo(m_program, CL_PROGRAM_BINARIES, sizeof data, static_cast<void*>(&data), nullptr);
    return code;
  }

 private:
  cl_kernel find_kernel(const std::string& name) const {
    cl_kernel& kernel = m_kernels[name];
    cl_int result = CL_SUCCESS;
    if (kernel == nullptr) kernel = m_cl.CreateKernel(m_program, name.c_str(), &result);
    if (kernel == nullptr) m_kernels.erase(name);
    return result == CL_SUCCESS ? kernel : nullptr;
  }

  const OpenCl& m_cl;
  cl_program m_program;
  mutable std::map<std::string, cl_kernel> m_kernels;
};

class ClExecutor final : public Executor {
 public:
  explicit ClExecutor(const OpenCl& cl) : m_cl(cl) {}
  ~ClExecutor() override {
    if (m_matrix_functions != nullptr) m_cl.ReleaseProgram(m_matrix_functions);
  }

  std::unique_ptr<Program> build(std::span<const uint8_t> code, bool is_binary, std::string& log) override {
    cl_int result = CL_SUCCESS;
    cl_program program = nullptr;
    if (is_binary) {
      const unsigned char* data = code.data();
      const size_t bytes = code.size();
      program = m_cl.CreateProgramWithBinary(m_cl.context, 1, &m_cl.device, &bytes, &data, nullptr, &result);
    } else {
      program = m_cl.CreateProgramWithIL(m_cl.context, code.data(), code.size(), &result);
    }
    if (result != CL_SUCCESS) {
      log = "the program was refused: " + std::to_string(result);
      return nullptr;
    }
    auto built = std::make_unique<ClProgram>(m_cl, program);
    if (!is_binary && imports_functions(code)) return link(program, log);
    if (m_cl.BuildProgram(program, 1, &m_cl.device, k_build_options, nullptr, nullptr) == CL_SUCCESS) return built;
    log = log_of(program);
    return nullptr;
  }

  void* allocate(size_t bytes, size_t alignment) override {
    cl_int result = CL_SUCCESS;
    void* memory =
        m_cl.SharedMemAlloc(m_cl.context, m_cl.device, nullptr, bytes, static_cast<cl_uint>(alignment), &result);
    return result == CL_SUCCESS ? memory : nullptr;
  }
  void release(void* memory) override { m_cl.MemFree(m_cl.context, memory); }

 private:
  std::string log_of(cl_program program) const {
    size_t bytes = 0;
    m_cl.GetProgramBuildInfo(program, m_cl.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
    std::string log(bytes, '\0');
    m_cl.GetProgramBuildInfo(program, m_cl.device, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
    return log;
  }

  bool compile(cl_program program, const std::string& options, std::string& log) const {
    const cl_int result =
        m_cl.CompileProgram(program, 1, &m_cl.device, options.c_str(), 0, nullptr, nullptr, nullptr, nullptr);
    if (result != CL_SUCCESS) log = log_of(program);
    return result == CL_SUCCESS;
  }

  /// With the functions of matrix units, which a processor's runtime does not have.
  std::unique_ptr<Program> link(cl_program module, std::string& log) {
    cl_int result = CL_SUCCESS;
    if (m_matrix_functions == nullptr) {
      const char* text = k_matrix_functions;
      m_matrix_functions = m_cl.CreateProgramWithSource(m_cl.context, 1, &text, nullptr, &result);
      if (!compile(m_matrix_functions, std::string(k_build_options) + " -cl-std=CL3.0", log)) return nullptr;
    }
    if (!compile(module, k_build_options, log)) return nullptr;
    const cl_program parts[] = {module, m_matrix_functions};
    const cl_program linked = m_cl.LinkProgram(m_cl.context, 1, &m_cl.device, "", 2, parts, nullptr, nullptr, &result);
    if (linked == nullptr) {
      log = "the program was not linked: " + std::to_string(result);
      return nullptr;
    }
    auto built = std::make_unique<ClProgram>(m_cl, linked);
    if (result == CL_SUCCESS) return built;
    log = log_of(linked);
    return nullptr;
  }

  const OpenCl m_cl;
  cl_program m_matrix_functions = nullptr;  // compiled when first they are asked for
};

}  // namespace

bool imports_functions(std::span<const uint8_t> spirv) {
  constexpr size_t k_header_words = 5;
  constexpr uint32_t k_capability = 2u << 16 | 17, k_linkage = 5;
  std::vector<uint32_t> words(spirv.size() / 4);
  std::memcpy(words.data(), spirv.data(), words.size() * 4);
  for (size_t at = k_header_words; at + 1 < words.size() && words[at] == k_capability; at += 2) {
    if (words[at + 1] == k_linkage) return true;
  }
  return false;
}

std::unique_ptr<Executor> Executor::open(const char* library, std::string& reason) {
  if (library == nullptr || *library == '\0') {
    reason = "no OpenCL runtime is named";
    return nullptr;
  }
  OpenCl cl;
  reason = open_runtime(cl, library);
  return reason.empty() ? std::make_unique<ClExecutor>(cl) : nullptr;
}

}  // namespace kiln::stand_in
