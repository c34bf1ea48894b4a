// Where libraries are, said in a YAML file alone, reaches kiln, the daemon that it starts, and that daemon's workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cli/cli_process.h"

namespace kiln {
namespace {

using testing::HasSubstr;

constexpr const char* k_graph = "graph(%x: f32[37, 65]) {\n  %y = exp(%x)\n  return %y\n}\n";

class Configured : public testing::Test {
 protected:
  /// Nothing in the environment says where libraries are.
  void SetUp() override {
    const char* folders = std::getenv("KILN_LIBRARIES_PATH");
    m_folders_of_environment = folders == nullptr ? "" : folders;
    for (const char* name : {"KILN_LIBRARIES_PATH", "KILN_PYTHON_PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"})
      m_world.set(name, "");
    m_world.set("PATH", "/nonexistent");
  }

  std::string yaml(const std::string& folders) const {
    return m_world.write("config.yaml", "libraries:\n  path: " + folders + "\n");
  }
  /// What doctor says of one thing.
  std::string found(const std::string& config, const std::string& check) const {
    const auto doctor = m_world.kiln({"doctor", "--json", "--config", config}).json();
    for (const auto& each : doctor["checks"]) {
      if (each["check"] == check) return each["found"];
    }
    return "";
  }
  CliResult warm(const std::string& config) const {
    return m_world.kiln({"warm", m_world.write("exp.kiln", k_graph), "--target", "sm_90a", "--config", config});
  }

  CliWorld m_world;
  std::string m_folders_of_environment;
};

std::string fake(const std::string& kind) { return std::string(KILN_FAKES) + "/" + kind; }

TEST_F(Configured, doctor_shows_what_was_found_where_in_the_order_of_the_folders) {
  const std::string both = yaml("/nonexistent:" + fake("good") + ":" + fake("empty") + ":" + fake("old"));
  EXPECT_THAT(found(both, "cuda:0"), HasSubstr("fake device"));
  EXPECT_THAT(found(both, "cuda driver"), HasSubstr(fake("good") + "/libcuda.so.1 (libraries.path)"));
  EXPECT_THAT(found(both, "cuda compiler"), HasSubstr(fake("old") + "/libnvrtc.so.13 (libraries.path)"));
  EXPECT_THAT(found(yaml(fake("empty") + ":" + fake("good")), "cuda"), HasSubstr("finds no device"));
}

TEST_F(Configured, a_worker_opens_the_compiler_in_the_folder_that_only_yaml_names) {
  const CliResult warmed = warm(yaml(fake("old")));
  EXPECT_NE(warmed.exit_status, 0);
  EXPECT_THAT(warmed.out + warmed.err, HasSubstr(fake("old") + "/libnvrtc.so.13 is version 11.0"));
}

TEST_F(Configured, a_worker_compiles_with_the_real_one) {
  if (m_folders_of_environment.find("nvidia") == std::string::npos) GTEST_SKIP() << "KILN_LIBRARIES_PATH names none";
  const CliResult warmed = warm(yaml(m_folders_of_environment));
  EXPECT_EQ(warmed.exit_status, 0) << warmed.out << warmed.err;
}

}  // namespace
}  // namespace kiln
