#include "backends/cuda/compile/nvrtc.h"

#include <gtest/gtest.h>

#include <chrono>

#include "backends/cuda/compile/backend.h"
#include "tests/backends/cuda/chosen_loops.h"

namespace kiln::cuda {
namespace {

/// A folder of the build tree with a fake library in it.
SearchPath fakes(const std::string& kind) { return {{{std::string(KILN_FAKE_NVRTC) + "/" + kind, "test"}}}; }

TEST(Nvrtc, what_is_not_there_is_not_found_and_named) {
  const auto nvrtc = Nvrtc::open({{{"/nonexistent", "test"}}});
  if (nvrtc.ok()) GTEST_SKIP() << "the loader finds one of its own: " << nvrtc->library().path();
  EXPECT_EQ(nvrtc.status().code(), StatusCode::not_found);
  EXPECT_NE(nvrtc.status().message().find("libnvrtc.so.13"), std::string::npos) << nvrtc.status().to_string();
}

TEST(Nvrtc, a_missing_symbol_is_named) {
  const auto nvrtc = Nvrtc::open(fakes("lacks"));
  ASSERT_FALSE(nvrtc.ok());
  EXPECT_EQ(nvrtc.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(nvrtc.status().message().find("nvrtcCompileProgram"), std::string::npos) << nvrtc.status().to_string();
}

TEST(Nvrtc, an_old_library_is_refused_with_its_version) {
  const auto nvrtc = Nvrtc::open(fakes("old"));
  ASSERT_FALSE(nvrtc.ok());
  EXPECT_EQ(nvrtc.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(nvrtc.status().message().find("11.0"), std::string::npos) << nvrtc.status().to_string();
}

TEST(Nvrtc, an_error_carries_the_log) {
  const auto nvrtc = Nvrtc::open(fakes("fails"));
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.status().to_string();
  const auto compiled = nvrtc->compile("x", "sm_80", 10'000);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::internal);
  EXPECT_NE(compiled.status().message().find("expected a semicolon"), std::string::npos);
}

TEST(Nvrtc, a_compiler_that_hangs_meets_its_deadline) {
  const auto nvrtc = Nvrtc::open(fakes("hangs"));
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.status().to_string();
  const auto start = std::chrono::steady_clock::now();
  const auto compiled = nvrtc->compile("x", "sm_80", 50);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::deadline_exceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Nvrtc, a_backend_without_one_says_so_and_still_writes_sources) {
  const Expected<Nvrtc> none = error(StatusCode::not_found, "libnvrtc.so.13 was not found");
  const CudaCompileBackend backend(&none);
  const Target target{"cuda", "sm_80"};
  const KernelSpec spec = conformance::row_softmax(DType::f32, 8, 100);
  const auto candidates = default_candidates(backend, spec, target);
  ASSERT_FALSE(candidates.empty());
  EXPECT_TRUE(CudaCompileBackend::source(spec, candidates.front(), target).ok());
  const auto image = backend.compile(spec, candidates.front(), target);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), StatusCode::not_found);
}

TEST(Nvrtc, the_real_one_stops_a_long_compilation_when_asked) {
  const auto& nvrtc = Nvrtc::of_process();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().to_string();
  std::string source;
  for (int i = 0; i < 3000; ++i) {
    source += "__global__ void k" + std::to_string(i) + "(double* x) { x[0] = sin(x[1]) * pow(x[2], x[3]); }\n";
  }
  const auto compiled = nvrtc->compile(source, "sm_80", 100);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::deadline_exceeded) << compiled.status().to_string();
}

TEST(Nvrtc, an_architecture_it_does_not_know_is_unimplemented) {
  const auto& nvrtc = Nvrtc::of_process();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().to_string();
  const auto compiled = nvrtc->compile("extern \"C\" __global__ void k() {}", "sm_12345", 10'000);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::unimplemented) << compiled.status().to_string();
}

TEST(Nvrtc, registers_and_spills_are_read_from_the_log) {
  const auto resources = resources_of_log(
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas         .     1040 bytes stack frame, 1404 bytes spill stores, 1400 bytes spill loads\n"
      "ptxas info    : Used 232 registers, used 2 barriers, 1040 bytes cumulative stack size, 512 bytes smem\n");
  ASSERT_TRUE(resources.ok());
  EXPECT_EQ(*resources, (Resources{232, 512, 1040, 1404, 1400}));
  EXPECT_EQ(resources_of_log("nothing").status().code(), StatusCode::internal);
  EXPECT_NE(complaints_of_log("a\nptxas info : (C7512) Potential Performance Loss: wgmma\nb").find("C7512"),
            std::string::npos);
  EXPECT_EQ(complaints_of_log("ptxas info : Used 3 registers"), "");
}

}  // namespace
}  // namespace kiln::cuda
