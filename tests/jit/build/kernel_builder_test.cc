// Candidates that are wrong, hang, crash or scribble are planted before a right one: the right one is taken, and when
// there is none the error names what each did.

#include "jit/build/kernels/kernel_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/infer/builder.h"
#include "jit/worker/process_runner.h"

namespace kiln {
namespace {

/// A candidate by name, and what the error must say of it when it is rejected.
struct Plant {
  std::string name;
  std::function<Expected<Image>(const KernelSpec& spec)> compile;
  std::string complaint;
};

/// The convention (backends/cpu/runtime/entry.h): rdi buffers, rsi workspace, rdx status, rcx first task, r8 last task,
/// r9 extents.
Plant code(std::string name, const std::vector<uint8_t>& bytes, std::string complaint) {
  return {std::move(name), [bytes](const KernelSpec&) { return Image{.code = bytes, .tasks = 1}; },
          std::move(complaint)};
}

const cpu::CpuCompileBackend& real_backend() {
  static const cpu::CpuCompileBackend backend;
  return backend;
}

Target host_target() {
  for (const cpu::CpuTarget& target : cpu::ladder()) {
    if ((target.features & ~cpu::host_features()) == 0) return {"cpu", std::string(target.name)};
  }
  return {};
}

Expected<Image> real_image(const KernelSpec& spec) {
  return real_backend().compile(spec, default_candidates(real_backend(), spec, host_target()).front(), host_target());
}

Plant right() { return {"right", real_image, {}}; }

/// Computes expm1 where exp is asked for.
Plant wrong() {
  return {"wrong",
          [](KernelSpec spec) {
            for (ScalarNode& node : std::get<LoopsSpec>(spec.kernel).body.exprs) {
              if (node.op == ScalarOp::exp) node.op = ScalarOp::expm1;
            }
            return real_image(spec);
          },
          "element "};
}

std::vector<Plant> bad_plants() {
  return {
      {"fails to compile", [](const KernelSpec&) { return error(StatusCode::resource_exhausted, "9 spills"); },
       "9 spills"},
      wrong(),
      code("does nothing", {0xc3}, "was not written"),                                 // ret
      code("crashes", {0x0f, 0x0b}, "signal 4"),                                       // ud2
      code("hangs", {0xeb, 0xfe}, "did not end within"),                               // jmp to itself
      code("calls the system", {0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3}, "signal 31"),  // getpid
      code("writes before its output", {0x48, 0x8b, 0x47, 0x10, 0xc6, 0x40, 0xff, 0x01, 0xc3}, "outside its buffers"),
      code("changes its input", {0x48, 0x8b, 0x07, 0x80, 0x30, 0x01, 0xc3}, "died of signal 11"),
      code("reports bad data", {0xc7, 0x02, 0x01, 0, 0, 0, 0xc3}, "index out of range on valid indices"),
      {"enters beyond its code", [](const KernelSpec&) { return Image{.code = {0xc3}, .entry = 64, .tasks = 1}; },
       "entry 64 is outside"},
  };
}

class PlantedBackend : public CompileBackend {
 public:
  explicit PlantedBackend(std::vector<Plant> plants) : m_plants(std::move(plants)) {}
  std::string_view name() const override { return "cpu"; }
  std::vector<Target> targets() const override { return {host_target()}; }
  Machine default_machine(const Target& target) const override { return real_backend().default_machine(target); }
  std::string toolchain() const override { return "planted"; }
  Status claims(const KernelSpec&, const Target&) const override { return {}; }
  std::vector<Schedule> candidates(const KernelSpec&, const Target&, const Machine&) const override {
    std::vector<Schedule> list;
    for (size_t i = 0; i < m_plants.size(); ++i) list.push_back({{static_cast<uint8_t>(i)}, m_plants[i].name});
    return list;
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target&) const override {
    return m_plants[schedule.bytes[0]].compile(spec);
  }

 private:
  std::vector<Plant> m_plants;
};

/// exp(x) * y: buffers x, y, result.
class KernelBuilderTest : public testing::Test {
 protected:
  KernelBuilderTest() {
    GraphBuilder b(m_graph);
    const ValueId x = m_graph.add_input({DType::f32, {37, 65}, {}}), y = m_graph.add_input({DType::f32, {37, 65}, {}});
    m_graph.set_outputs({b.mul(b.exp(x), y)});
    m_plan = fuse(m_graph).value();
    m_runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}).value();
  }

  Expected<BuiltKernel> build(std::vector<Plant> plants) {
    const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
    return build_kernel(job, PlantedBackend(std::move(plants)), host_target(), m_runner.get());
  }

  Graph m_graph;
  Plan m_plan;
  std::unique_ptr<CandidateRunner> m_runner;
};

TEST_F(KernelBuilderTest, TheBestCandidateIsTakenWhenItIsRight) {
  const auto built = build({right(), wrong()});
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_EQ(built->schedule, "right");
  EXPECT_EQ(built->compilations, 1U);
  EXPECT_EQ(built->checked, 37U * 65);
}

TEST_F(KernelBuilderTest, AfterAnyBadCandidateTheNextOneIsTaken) {
  for (const Plant& bad : bad_plants()) {
    const auto built = build({bad, right()});
    ASSERT_TRUE(built.ok()) << bad.name << ": " << built.status().to_string();
    EXPECT_EQ(built->schedule, "right") << bad.name;
    EXPECT_EQ(built->compilations, 2U) << bad.name;
  }
}

TEST_F(KernelBuilderTest, WhenAllAreBadTheErrorNamesWhatEachDid) {
  const auto built = build(bad_plants());
  ASSERT_EQ(built.status().code(), StatusCode::internal);
  for (const Plant& bad : bad_plants()) {
    const std::string& message = built.status().message();
    const size_t at = message.find("; " + bad.name + ": ");
    ASSERT_NE(at, std::string::npos) << bad.name << " in " << message;
    const std::string own = message.substr(at, message.find("; ", at + 2) - at);
    EXPECT_NE(own.find(bad.complaint), std::string::npos) << own;
  }
}

/// Clears its whole output before it adds: right only where no input lies there.
Plant clears_first() {
  return code("clears its output first",
              {0x48, 0x8b, 0x47, 0x10,                                //    mov rax,[rdi+16]: the output
               0x4c, 0x8b, 0x17, 0x4c, 0x8b, 0x5f, 0x08,              //    mov r10,[rdi]; mov r11,[rdi+8]
               0x31, 0xc9,                                            //    xor ecx,ecx
               0xc7, 0x04, 0x88, 0,    0,    0,    0,                 // 1: mov dword [rax+rcx*4],0
               0x48, 0xff, 0xc1, 0x48, 0x81, 0xf9, 0x65, 0x09, 0, 0,  //    inc rcx; cmp rcx,37*65
               0x7c, 0xed, 0x31, 0xc9,                                //    jl 1b; xor ecx,ecx
               0xf3, 0x41, 0x0f, 0x10, 0x04, 0x8a,                    // 2: movss xmm0,[r10+rcx*4]
               0xf3, 0x41, 0x0f, 0x58, 0x04, 0x8b,                    //    addss xmm0,[r11+rcx*4]
               0xf3, 0x0f, 0x11, 0x04, 0x88,                          //    movss [rax+rcx*4],xmm0
               0x48, 0xff, 0xc1, 0x48, 0x81, 0xf9, 0x65, 0x09, 0, 0,  //    inc rcx; cmp rcx,37*65
               0x7c, 0xe3, 0xc3},                                     //    jl 2b; ret
              "with outputs over inputs: outputs are others when output 2 is made over input ");
}

TEST_F(KernelBuilderTest, AKernelThatIsWrongOnlyWithItsOutputOverAnInputIsRejected) {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = graph.add_input({DType::f32, {37, 65}, {}}), y = graph.add_input({DType::f32, {37, 65}, {}});
  graph.set_outputs({b.add(x, y)});
  const Plan plan = fuse(graph).value();
  const KernelJob job{{}, "{}", &plan, &plan.launches.front()};
  const auto built = build_kernel(job, PlantedBackend({clears_first()}), host_target(), m_runner.get());
  EXPECT_NE(built.status().message().find(clears_first().complaint), std::string::npos) << built.status().to_string();
}

/// Runs on a machine that says what it is, and is not the host; notes how far buffers missed an alignment.
class MachineRunner final : public CandidateRunner {
 public:
  MachineRunner(CandidateRunner& real, Machine machine) : m_real(real), m_machine(std::move(machine)) {}
  Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> buffers) override {
    misalignments.push_back(std::ranges::max(buffers, {}, &CandidateBuffer::offset_bytes).offset_bytes);
    return m_real.prepare(buffers);
  }
  std::vector<uint64_t> misalignments;  // of each preparation
  Expected<CandidateRun> run(const Image& image, uint32_t timeout_ms, uint32_t repetitions, uint32_t task_step,
                             std::span<const int64_t> extents) override {
    return m_real.run(image, timeout_ms, repetitions, task_step, extents);
  }
  const Machine* machine() const override { return &m_machine; }

 private:
  CandidateRunner& m_real;
  Machine m_machine;
};

/// Notes the machine that candidates are asked for.
class AskedBackend final : public PlantedBackend {
 public:
  AskedBackend() : PlantedBackend({right()}) {}
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const Machine& machine) const override {
    asked = machine;
    return PlantedBackend::candidates(spec, target, machine);
  }
  mutable Machine asked;
};

TEST_F(KernelBuilderTest, SchedulesAreForTheMachineThatCandidatesRunOnElseForTheTargetsDefault) {
  const AskedBackend backend;
  MachineRunner runner(*m_runner, {.model = "of a test", .cores = 7});
  const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  EXPECT_TRUE(build_kernel(job, backend, host_target(), &runner).ok());
  EXPECT_EQ(backend.asked, *runner.machine());
  EXPECT_TRUE(build_kernel(job, backend, host_target(), nullptr).ok());
  EXPECT_EQ(backend.asked, backend.default_machine(host_target()));
}

TEST_F(KernelBuilderTest, CodeOfADeviceMeetsHarshNumbersAtAddressesOfBothKinds) {
  MachineRunner runner(*m_runner, {});
  const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  EXPECT_TRUE(build_kernel(job, PlantedBackend({right()}), host_target(), &runner).ok());
  EXPECT_EQ(runner.misalignments, (std::vector<uint64_t>{0, 4, 0}));
}

/// Has kernels for all but one scalar op.
class BackendWithout final : public PlantedBackend {
 public:
  explicit BackendWithout(ScalarOp missing) : PlantedBackend({right()}), m_missing(missing) {}
  Status claims(const KernelSpec& spec, const Target&) const override {
    for (const ScalarNode& node : std::get<LoopsSpec>(spec.kernel).body.exprs) {
      if (node.op == m_missing) return error(StatusCode::unimplemented, "an op of this kernel is unknown here");
    }
    return {};
  }

 private:
  ScalarOp m_missing;
};

TEST_F(KernelBuilderTest, AKernelThatNoBackendHasNamesTheOpThatIsMissing) {
  const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  for (const auto& [missing, op] : {std::pair(ScalarOp::exp, "exp"), std::pair(ScalarOp::mul, "mul")}) {
    const auto built = build_kernel(job, BackendWithout(missing), host_target(), m_runner.get());
    EXPECT_EQ(built.status().code(), StatusCode::unimplemented);
    EXPECT_EQ(built.status().op(), op);
  }
  EXPECT_NE(build_kernel(job, PlantedBackend({wrong()}), host_target(), m_runner.get()).status().op(), "");
}

TEST_F(KernelBuilderTest, WithoutADeviceTheFirstThatCompilesIsTakenUnchecked) {
  const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  const auto built = build_kernel(job, PlantedBackend({bad_plants()[0], wrong()}), host_target(), nullptr);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_EQ(built->schedule, wrong().name);
  EXPECT_EQ(built->checked, 0U);
}

TEST_F(KernelBuilderTest, CodeMadeBeforeIsCheckedInsteadOfCompiledAndWhenItIsWrongCompiledAnew) {
  KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  job.made_before = right().compile(job.spec()).value();
  const auto checked = build_kernel(job, PlantedBackend({wrong()}), host_target(), m_runner.get());
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  EXPECT_EQ(checked->compilations, 0U);
  EXPECT_EQ(checked->checked, 37U * 65);

  job.made_before = wrong().compile(job.spec()).value();
  const auto anew = build_kernel(job, PlantedBackend({right()}), host_target(), m_runner.get());
  ASSERT_TRUE(anew.ok()) << anew.status().to_string();
  EXPECT_EQ(anew->schedule, "right");
  EXPECT_EQ(anew->compilations, 1U);
}

TEST_F(KernelBuilderTest, ARightKernelWithAPlantedNeighbourIsStillTheOnlyOneBuilt) {
  const KernelJob job{{}, "{}", &m_plan, &m_plan.launches.front()};
  const std::vector<KernelJob> jobs(4, job);
  const BuildEnvironment environment{
      .make_runner = [](const Target&) { return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}); }};
  const Target target = host_target();
  const PlantedBackend beside_right({bad_plants()[3], right()}), only_wrong({wrong()});
  const auto built = build_kernels(jobs, {beside_right, target, Proof::verified}, environment);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  for (const BuiltKernel& kernel : *built) EXPECT_EQ(kernel.schedule, "right");

  const auto none = build_kernels(jobs, {only_wrong, target, Proof::verified}, environment);
  EXPECT_EQ(none.status().code(), StatusCode::internal);
}

TEST_F(KernelBuilderTest, WhatIsDoneBesideTheVerdictsIsGivenTheFirstCandidatesThatCompile) {
  const BuildEnvironment environment{
      .make_runner = [](const Target&) { return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}); },
      .threads = [] { return size_t{2}; }};
  const Target target = host_target();
  const auto is_foreseen = [&](size_t count, const std::vector<Plant>& plants) -> std::optional<bool> {
    const std::vector<KernelJob> jobs(count, {{}, "{}", &m_plan, &m_plan.launches.front()});
    std::vector<Digest> first, made;
    const PlantedBackend backend(plants);
    const auto built =
        build_kernels(jobs, {backend, target, Proof::verified}, environment, [&](std::span<const BuiltArtifact> each) {
          EXPECT_EQ(each.size(), jobs.size());
          for (const BuiltArtifact& artifact : each) first.push_back(artifact.digest);
        });
    EXPECT_TRUE(built.ok()) << built.status().to_string();
    if (!built.ok() || first.empty()) return std::nullopt;
    for (const BuiltKernel& kernel : *built) made.push_back(kernel.artifact.digest);
    for (const BuiltKernel& kernel : *built) EXPECT_EQ(kernel.schedule, "right");
    return first == made;
  };
  for (const size_t count : {1, 3}) {
    EXPECT_EQ(is_foreseen(count, {right()}), true);
    EXPECT_EQ(is_foreseen(count, {wrong(), right()}), false);
    EXPECT_EQ(is_foreseen(count, {bad_plants()[0], right()}), std::nullopt);
  }
}

}  // namespace
}  // namespace kiln
