// Attention whose keys are in parts, by every template, beside the reference: numbers that are none, and equal bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backends/cuda/compile/attention_schedule.h"
#include "backends/reference/number.h"
#include "backends/reference/reference.h"
#include "tests/conformance/attention_case.h"
#include "tests/stand_ins/cuda/emulated_backend.h"

namespace kiln::cuda_emulator {
namespace {

using cuda::AttentionSchedule;
using Kind = AttentionSchedule::Kind;

constexpr int64_t k_part = 128;  // keys in each part of the schedules below

struct Way {
  DType dtype;
  AttentionSchedule schedule;
};
const std::vector<Way>& ways() {
  static const std::vector<Way> all{{DType::f64, {Kind::simple, 16, 32, 1, 2}},
                                    {DType::f32, {Kind::simple, 32, 16, 1, 2}},
                                    {DType::bf16, {Kind::mma, 16, 32, 3, 2}},
                                    {DType::f16, {Kind::mma, 64, 64, 2, 2}},
                                    {DType::bf16, {Kind::wgmma, 64, 64, 2, 2}}};
  return all;
}

class Tensors {
 public:
  explicit Tensors(const KernelSpec& spec) : m_spec(spec) {
    std::mt19937_64 random(17);
    std::normal_distribution<double> normal(0, 1);
    for (const BufferSpec& buffer : spec.buffers) {
      m_buffers.emplace_back(buffer.bytes() / sizeof(Line) + 1);
      std::memset(m_buffers.back().data(), 0xff, m_buffers.back().size() * sizeof(Line));  // NaN
      if (buffer.role == BufferRole::output) continue;
      for (int64_t i = 0; i < buffer.elements; ++i) {
        store_number(buffer.dtype, m_buffers.back().data(), i, {normal(random), 0});
      }
    }
  }
  double at(uint32_t buffer, int64_t i) const {
    return load_number(m_spec.buffers[buffer].dtype, m_buffers[buffer].data(), i).real;
  }
  void set(uint32_t buffer, int64_t i, double value) {
    store_number(m_spec.buffers[buffer].dtype, m_buffers[buffer].data(), i, {value, 0});
  }
  std::vector<void*> pointers() {
    std::vector<void*> all;
    for (auto& buffer : m_buffers) all.push_back(buffer.data());
    return all;
  }
  bool operator==(const Tensors& other) const { return m_buffers == other.m_buffers; }

 private:
  struct alignas(16) Line {
    uint8_t bytes[16];
    bool operator==(const Line&) const = default;
  };
  const KernelSpec& m_spec;
  std::vector<std::vector<Line>> m_buffers;
};

Tensors computed(const KernelSpec& spec, const AttentionSchedule& schedule, Tensors tensors, uint64_t seed) {
  auto source = cuda::CudaCompileBackend::source(spec, to_schedule(schedule), {"cuda", "sm_90a"});
  EXPECT_TRUE(source.ok()) << source.status().to_string();
  for (cuda::KernelSource& kernel : source->kernels) kernel.text = full_text(kernel);
  const auto kernels = EmulatedKernels::compile(*source, spec.buffers);
  EXPECT_TRUE(kernels.ok()) << kernels.status().to_string();
  uint32_t status = 0;
  EXPECT_EQ(kernels->run(tensors.pointers().data(), &status, seed), "");
  return tensors;
}

void expect_alike(const KernelSpec& spec, const Tensors& got, const Tensors& exact, double tolerance) {
  for (uint32_t buffer = 0; buffer < spec.buffers.size(); ++buffer) {
    for (int64_t i = 0; i < spec.buffers[buffer].elements; ++i) {
      const double ours = got.at(buffer, i), theirs = exact.at(buffer, i);
      const bool is_same = std::isnan(theirs)   ? std::isnan(ours)
                           : std::isinf(theirs) ? ours == theirs
                                                : std::fabs(ours - theirs) <= tolerance * (1 + std::fabs(theirs));
      ASSERT_TRUE(is_same) << "buffer " << buffer << ", element " << i << ": " << ours << ", not " << theirs;
    }
  }
}

// Some queries have no key in the second part, where others do: what is there is nothing to them, be it NaN.
TEST(PartsOfKeys, spread_numbers_that_are_none_as_the_reference_does) {
  constexpr double k_infinity = std::numeric_limits<double>::infinity();
  conformance::AttentionCase c{.heads = 2, .kv_heads = 1, .q_len = 25, .k_len = 2 * k_part, .causal = true};
  c.causal_offset = k_part - 13;
  for (const auto& [dtype, schedule] : ways()) {
    SCOPED_TRACE(schedule.describe());
    c.dtype = dtype;
    const KernelSpec spec = conformance::AttentionBuilder(c).forward();
    const auto& attention = std::get<AttentionSpec>(spec.kernel);
    Tensors tensors(spec);
    tensors.set(attention.v.buffer, k_part * c.head_dim + 3, std::nan(""));
    tensors.set(attention.v.buffer, 5 * c.head_dim + 7, -k_infinity);
    tensors.set(attention.q.buffer, 20 * c.head_dim + 1, std::nan(""));
    tensors.set(attention.k.buffer, 40 * c.head_dim + 2, k_infinity);  // for some queries the highest score
    Tensors exact = tensors;
    ASSERT_TRUE(run_reference(spec, exact.pointers()).ok());
    int64_t spoilt = 0, all = spec.buffers[attention.out.buffer].elements;
    for (int64_t i = 0; i < all; ++i) spoilt += std::isfinite(exact.at(attention.out.buffer, i)) ? 0 : 1;
    ASSERT_TRUE(0 < spoilt && spoilt < all) << spoilt;
    expect_alike(spec, computed(spec, schedule, tensors, 1), exact, is_half(dtype) ? 2e-2 : 1e-4);
    if (HasFailure()) return;
  }
}

TEST(PartsOfKeys, have_the_same_bits_in_whatever_order_blocks_run) {
  const conformance::AttentionCase c{.heads = 4, .kv_heads = 2, .q_len = 25, .k_len = 2 * k_part};
  for (const auto& [dtype, schedule] : ways()) {
    SCOPED_TRACE(schedule.describe());
    conformance::AttentionCase of_dtype = c;
    of_dtype.dtype = dtype;
    const KernelSpec spec = conformance::AttentionBuilder(of_dtype).forward();
    const Tensors tensors(spec), first = computed(spec, schedule, tensors, 0);
    for (uint64_t seed = 1; seed < 4; ++seed) EXPECT_TRUE(computed(spec, schedule, tensors, seed) == first) << seed;
  }
}

}  // namespace
}  // namespace kiln::cuda_emulator
