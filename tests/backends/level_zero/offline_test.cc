#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/attention_problem.h"
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
  /// What is first must not spill.
  void check(const std::string& name, const PortableKernel& kernel, bool is_first) const;
  /// Compiles the module, and leaves code in the folder `name`, assembly in the folder `dumps`.
  void compile(const std::string& name, const std::vector<uint8_t>& spirv, const std::filesystem::path& dumps) const;

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

bool takes_matrix_units(const PortableKernel& kernel) { return (kernel.features & bit(Feature::matrix_units)) != 0; }

void Offline::compile(const std::string& name, const std::vector<uint8_t>& spirv,
                      const std::filesystem::path& dumps) const {
  std::ofstream(m_folder / (name + ".spv"), std::ios::binary)
      .write(reinterpret_cast<const char*>(spirv.data()), static_cast<long>(spirv.size()));
  std::filesystem::create_directory(dumps);
  const std::string command = fmt::format(
      "cd {0} && IGC_ShaderDumpEnable=1 IGC_DumpToCustomDir={3}/ ocloc compile -q -spirv_input -file {1}.spv "
      "-device {2} -out_dir {1} -output {1} -options '-ze-opt-greater-than-4GB-buffer-required' > {1}.log 2>&1",
      m_folder.string(), name, GetParam().device, dumps.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << name << ": " << text_of(m_folder / (name + ".log"));
}

void Offline::check(const std::string& name, const PortableKernel& kernel, bool is_first) const {
  const auto dumps = m_folder / (name + "_dumps");
  compile(name, kernel.spirv, dumps);
  uintmax_t bytes = 0;
  for (const auto& made : std::filesystem::directory_iterator(m_folder / name)) {
    if (text_of(made.path()).find(k_kernel_name) != std::string::npos) bytes += made.file_size();
  }
  EXPECT_GT(bytes, 0U) << name << ": no file names the kernel";
  size_t assemblies = 0;
  for (const auto& dump : std::filesystem::directory_iterator(dumps)) {
    if (dump.path().extension() != ".asm") continue;
    ++assemblies;
    const std::string assembly = text_of(dump.path());
    EXPECT_TRUE(!is_first || spilled_bytes(assembly) <= k_one_value) << name;
    EXPECT_EQ(assembly.find("dpas.8x8") != std::string::npos, takes_matrix_units(kernel)) << name;
  }
  EXPECT_GT(assemblies, 0U) << name << ": no assembly";
}

/// The first candidate, and all that take matrix units.
std::vector<PortableKernel> kernels_of(const KernelSpec& spec, const DeviceFamily& family) {
  std::vector<PortableKernel> kernels;
  for (const Schedule& schedule : candidates(spec, family, default_machine(family))) {
    auto written = write_kernel(spec, schedule, family);
    EXPECT_TRUE(written.ok()) << written.status().to_string();
    if (written.ok() && (kernels.empty() || takes_matrix_units(*written))) kernels.push_back(std::move(*written));
  }
  return kernels;
}

TEST_P(Offline, the_chosen_kernels_compile_and_their_registers_suffice) {
  const DeviceFamily& family = *find_family(GetParam().name);
  for (const NamedKernel& kernel : chosen_kernels()) {
    size_t number = 0;
    for (const PortableKernel& written : kernels_of(kernel.spec, family)) {
      check(fmt::format("{}_{}", kernel.name, number), written, number == 0);
      ++number;
    }
  }
}

/// Products of halves, and attention whose sums fit beside the units' operands: in lanes of a usual sub-group, or few of them.
bool is_for_matrix_units(const KernelSpec& spec, const DeviceFamily& family) {
  if (const auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) return is_half(gemm->dtype);
  if (kind_name(spec) != "attention" && kind_name(spec) != "attention_backward") return false;
  const AttentionProblem problem = attention_problem_of(spec);
  const bool is_small = problem.backward == nullptr && problem.forward->head_dim <= 32;
  return is_half(problem.forward->dtype) && (family.matrix_lanes == k_sub_group_size || is_small);
}

TEST_P(Offline, kernels_of_halves_take_matrix_units_first) {
  const DeviceFamily& family = *find_family(GetParam().name);
  for (const NamedKernel& kernel : chosen_kernels()) {
    const bool takes_them = takes_matrix_units(kernels_of(kernel.spec, family).front());
    EXPECT_EQ(takes_them, is_for_matrix_units(kernel.spec, family)) << kernel.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Offline, testing::ValuesIn(k_families),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kiln::level_zero
