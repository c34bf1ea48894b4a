// What the execution worker of a device makes of candidates that lose it, and of a device that is full.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>

#include "backends/cuda/compile/backend.h"
#include "jit/worker/process_runner.h"
#include "tests/conformance/loops_builder.h"

namespace kiln {
namespace {

const Target k_target{"cuda", "sm_90a"};

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override { setenv("KILN_LIBRARIES_PATH", STAND_IN_DRIVER ":" STAND_IN_COMPILER, 1); }
  void TearDown() override { unsetenv("STAND_IN_MEMORY_BYTES"); }

  static std::unique_ptr<CandidateRunner> runner() {
    auto runner = ProcessRunner::create({.executor_path = DEVICE_EXECUTOR, .target = k_target});
    EXPECT_TRUE(runner.ok()) << runner.status().to_string();
    return std::move(*runner);
  }

  /// Copies so many numbers.
  static Image copy_of(int64_t elements) {
    conformance::LoopsBuilder loops({elements}, 1);
    loops.output(loops.input(DType::f32, {1}), {1});
    const KernelSpec spec = loops.build();
    const cuda::CudaCompileBackend backend;
    auto image = backend.compile(spec, default_candidates(backend, spec, k_target).front(), k_target);
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    return std::move(*image);
  }

  /// Whether a copy of `elements` numbers is right over buffers of `prepared`.
  static Status try_copy(CandidateRunner& runner, int64_t elements, int64_t prepared) {
    const CandidateBuffer buffer{.size_bytes = static_cast<uint64_t>(prepared) * sizeof(float)};
    KILN_ASSIGN_OR_RETURN(const auto spans, runner.prepare(std::vector<CandidateBuffer>{buffer, buffer}));
    std::ranges::fill(spans[0], 7);
    std::ranges::fill(spans[1], 0);
    KILN_RETURN_IF_ERROR(runner.run(copy_of(elements), 60'000, 1).status());
    EXPECT_TRUE(std::ranges::equal(spans[0], spans[1]));
    return {};
  }
};

TEST_F(CudaFaults, a_candidate_that_loses_the_device_is_ended_and_the_next_one_runs) {
  const auto worker = runner();
  const Status faulted = try_copy(*worker, 1 << 20, 64);
  EXPECT_EQ(faulted.code(), StatusCode::aborted) << faulted.to_string();
  EXPECT_NE(faulted.message().find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << faulted.message();
  for (int i = 0; i < 2; ++i) {
    const Status ran = try_copy(*worker, 100, 100);
    EXPECT_TRUE(ran.ok()) << ran.to_string();
  }
}

TEST_F(CudaFaults, a_device_that_is_full_is_told_from_a_wrong_candidate) {
  setenv("STAND_IN_MEMORY_BYTES", "100000", 1);
  const auto worker = runner();
  const Status full = try_copy(*worker, 50'000, 50'000);
  EXPECT_EQ(full.code(), StatusCode::resource_exhausted) << full.to_string();
  EXPECT_NE(full.message().find("bytes"), std::string::npos) << full.message();
  const Status ran = try_copy(*worker, 100, 100);
  EXPECT_TRUE(ran.ok()) << ran.to_string();
}

}  // namespace
}  // namespace kiln
