#include "tests/stand_ins/cuda/host_module.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace kiln::cuda_emulator {
namespace {

namespace fs = std::filesystem;

/// A folder that goes when its owner does.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "kiln_emulator_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) m_path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!m_path.empty()) fs::remove_all(m_path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return m_path; }

 private:
  fs::path m_path;
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The read-only parts of the object that `address` lies in.
std::span<const uint8_t> object_around(const void* address) {
  struct Search {
    uintptr_t address;
    std::span<const uint8_t> found;
  } search{reinterpret_cast<uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        uintptr_t first = UINTPTR_MAX, last = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          first = std::min(first, static_cast<uintptr_t>(info->dlpi_addr + segment.p_vaddr));
          last = std::max(last, static_cast<uintptr_t>(info->dlpi_addr + segment.p_vaddr + segment.p_memsz));
        }
        if (wanted.address < first || wanted.address >= last) return 0;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader says addresses as integers
        wanted.found = {reinterpret_cast<const uint8_t*>(first), last - first};
        return 1;
      },
      &search);
  return search.found;
}

/// Kernels look the machine's functions up among what is open to all: a driver is not, nor what it links.
void open_machine_to_kernels() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&open_machine_to_kernels), &info) == 0) return;
  [[maybe_unused]] static void* const opened = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

}  // namespace

Expected<std::vector<uint8_t>> compile_for_host(std::string_view text, std::string_view entry) {
  const TemporaryFolder folder;
  if (folder.path().empty()) return Status(StatusCode::internal, "no temporary folder for the compiler");
  const fs::path source = folder.path() / "kernel.cc", object = folder.path() / "kernel.so",
                 log = folder.path() / "log";
  std::ofstream(source)
      << text << "\nusing namespace kiln;\n"
      << fmt::format(
             "extern \"C\" void kiln_emulated_call(const void* arguments) {{ "
             "kiln::call_kernel(&{0}, arguments); }}\n"
             "extern \"C\" const unsigned kiln_emulated_argument_bytes = kiln::argument_bytes(&{0});\n",
             entry);
  // No contraction that the text does not ask for; structs stay whole, so that a wide access is announced as one.
  const std::string command = fmt::format(
      "{} -std=c++20 -O1 -w -fPIC -shared -nostdlib -fsanitize=thread -fno-exceptions -fno-strict-aliasing "
      "-ffp-contract=off -fno-math-errno -fno-tree-sra -I{} -include tests/stand_ins/cuda/prelude_on_host.h {} -o {} > "
      "{} 2>&1",
      KILN_EMULATOR_COMPILER, KILN_EMULATOR_ROOT, source.string(), object.string(), log.string());
  if (std::system(command.c_str()) != 0) {
    return Status(StatusCode::internal, "the host's compiler refuses the kernel: " + text_of(log).substr(0, 4000));
  }
  const std::string bytes = text_of(object);
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

Expected<HostModule> HostModule::load(std::span<const uint8_t> shared_object) {
  open_machine_to_kernels();
  HostModule module;
  module.m_file = memfd_create("kiln_emulated_kernel", MFD_CLOEXEC);
  if (module.m_file < 0 ||
      write(module.m_file, shared_object.data(), shared_object.size()) != static_cast<ssize_t>(shared_object.size())) {
    return Status(StatusCode::internal, "no memory for an emulated kernel");
  }
  module.m_handle = dlopen(fmt::format("/proc/self/fd/{}", module.m_file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module.m_handle == nullptr) return Status(StatusCode::internal, dlerror());
  module.m_call = reinterpret_cast<void (*)(const void*)>(dlsym(module.m_handle, "kiln_emulated_call"));
  if (module.m_call == nullptr) return Status(StatusCode::invalid_argument, "an emulated kernel without entry");
  const auto* cluster = static_cast<const uint32_t*>(dlsym(module.m_handle, "kiln_emulated_cluster"));
  if (cluster != nullptr) module.m_cluster = *cluster;
  module.m_argument_bytes = *static_cast<const uint32_t*>(dlsym(module.m_handle, "kiln_emulated_argument_bytes"));
  module.m_constants = object_around(reinterpret_cast<const void*>(module.m_call));
  return module;
}

bool HostModule::has(const char* entry) const { return dlsym(m_handle, entry) != nullptr; }

HostModule::HostModule(HostModule&& other) noexcept
    : m_file(std::exchange(other.m_file, -1)),
      m_handle(std::exchange(other.m_handle, nullptr)),
      m_call(other.m_call),
      m_cluster(other.m_cluster),
      m_argument_bytes(other.m_argument_bytes),
      m_constants(other.m_constants) {}

HostModule::~HostModule() {
  if (m_handle != nullptr) dlclose(m_handle);
  if (m_file >= 0) close(m_file);
}

}  // namespace kiln::cuda_emulator
