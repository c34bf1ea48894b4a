#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/level_zero/compile/write_kernel.h"
#include "tests/backends/level_zero/kernels.h"

// The families' own compiler takes the chosen kernels and makes device code of each. Skips where `ocloc` is absent.
namespace kiln::level_zero {
namespace {

struct Family {
  const char* name;
  const char* device;  // as ocloc calls one of the family
};
constexpr Family k_families[] = {{"dg2", "acm-g10"}, {"pvc", "pvc"}};

class Offline : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (std::system("command -v ocloc > /dev/null 2>&1") != 0) GTEST_SKIP() << "ocloc is not installed";
    char folder[] = "/tmp/kiln_offline_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    m_folder = folder;
  }
  void TearDown() override {
    if (!m_folder.empty()) std::filesystem::remove_all(m_folder);
  }
  std::filesystem::path m_folder;
};

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

constexpr size_t k_one_value = 64;  // of a sub-group: an address that is computed before a loop

/// The compiler says it nowhere but in the assembly that it leaves for people.
size_t spilled_bytes(const std::string& assembly) {
  constexpr std::string_view k_line = "//.spill size ";
  const size_t at = assembly.find(k_line);
  return at == std::string::npos ? 0 : std::stoul(assembly.substr(at + k_line.size()));
}

TEST_P(Offline, the_chosen_kernels_compile_and_their_registers_suffice) {
  const DeviceFamily& family = *find_family(GetParam().name);
  for (const NamedKernel& kernel : chosen_kernels()) {
    const auto written =
        write_kernel(kernel.spec, candidates(kernel.spec, family, default_machine(family)).front(), family);
    ASSERT_TRUE(written.ok()) << written.status().to_string();
    const auto file = m_folder / (kernel.name + ".spv");
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(written->spirv.data()), static_cast<long>(written->spirv.size()));
    const auto dumps = m_folder / (kernel.name + "_dumps");
    std::filesystem::create_directory(dumps);
    const std::string command = fmt::format(
        "cd {0} && IGC_ShaderDumpEnable=1 IGC_DumpToCustomDir={3}/ ocloc compile -q -spirv_input -file {1}.spv "
        "-device {2} -out_dir {1} -output {1} -options '-ze-opt-greater-than-4GB-buffer-required' > {1}.log 2>&1",
        m_folder.string(), kernel.name, GetParam().device, dumps.string());
    EXPECT_EQ(std::system(command.c_str()), 0) << kernel.name << ": " << text_of(m_folder / (kernel.name + ".log"));
    uintmax_t bytes = 0;
    for (const auto& made : std::filesystem::directory_iterator(m_folder / kernel.name)) {
      if (text_of(made.path()).find(k_kernel_name) != std::string::npos) bytes += made.file_size();
    }
    EXPECT_GT(bytes, 0U) << kernel.name << ": no file names the kernel";
    size_t assemblies = 0;
    for (const auto& dump : std::filesystem::directory_iterator(dumps)) {
      if (dump.path().extension() != ".asm") continue;
      ++assemblies;
      EXPECT_LE(spilled_bytes(text_of(dump.path())), k_one_value) << kernel.name;
    }
    EXPECT_GT(assemblies, 0U) << kernel.name << ": no assembly";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Offline, testing::ValuesIn(k_families),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kiln::level_zero
