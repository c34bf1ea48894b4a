#include <random>

#include "backends/reference/number.h"
#include "tests/stand_ins/cuda/emulation.h"

namespace kiln::cuda_emulator {
namespace {

/// c (rows x columns, f32) = a (rows x 32) * b (32 x columns), elements being small whole halves: sums are exact.
class EmulatedMatrices : public testing::Test {
 protected:
  static constexpr uint32_t k_depth = 32;

  void check(uint32_t rows, uint32_t columns, uint32_t threads, const std::string& body, const std::string& finding) {
    Emulation emulation(
        "struct Arguments { const kiln::bf16* a; const kiln::bf16* b; float* c; };\n"
        "namespace kiln { extern \"C\" KILN_KERNEL(128, 1) kernel(KILN_ARGUMENTS(Arguments) args) {\n"
        "const u32 t = thread_index(), lane = t % 32, warp = t / 32;\n"
        "u8* memory = shared_memory(); const u32 shared = shared_address(memory);\n"
        "const auto put = [&](u32 at, bf16 x) { *reinterpret_cast<bf16*>(memory + at) = x; };\n" +
        body + "}}\n");
    std::mt19937 random(7);
    std::vector<uint16_t> a(rows * k_depth), b(k_depth * columns);
    for (auto* matrix : {&a, &b}) {
      for (uint16_t& x : *matrix) store_number(DType::bf16, &x, 0, {.real = (random() % 17 - 8.0) / 2});
    }
    uint64_t found = 0;
    for (uint64_t seed = 0; seed < Emulation::k_seeds; ++seed) {
      std::vector<float> c(rows * columns, -1);
      const struct {
        const uint16_t *a, *b;
        float* c;
      } arguments{a.data(), b.data(), c.data()};
      const std::string problem =
          emulation.run({.threads = threads, .shared_bytes = 1024 + 32768},
                        {buffer_of("a", a), buffer_of("b", b), buffer_of("c", c, true)}, &arguments, seed);
      if (finding.empty()) {
        ASSERT_EQ(problem, "");
        ASSERT_EQ(c, product(a, b, rows, columns)) << "seed " << seed;
      } else if (!problem.empty()) {
        ASSERT_NE(problem.find(finding), std::string::npos) << "seed " << seed << " found: " << problem;
        ++found;
      }
    }
    if (!finding.empty()) {
      EXPECT_EQ(found, Emulation::k_seeds) << "some seeds did not find: " << finding;
    }
  }

  static std::vector<float> product(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b, uint32_t rows,
                                    uint32_t columns) {
    std::vector<float> c(rows * columns, 0);
    const auto real = [](uint16_t bits) { return load_number(DType::bf16, &bits, 0).real; };
    for (uint32_t m = 0; m < rows; ++m) {
      for (uint32_t n = 0; n < columns; ++n) {
        double sum = 0;
        for (uint32_t k = 0; k < k_depth; ++k) sum += real(a[m * k_depth + k]) * real(b[k * columns + n]);
        c[m * columns + n] = static_cast<float>(sum);
      }
    }
    return c;
  }
};

// A warp: a as it is (rows of 32), b as it is (rows of 8, read transposed).
constexpr const char* k_by_a_warp = R"(
  const u32 b_at = 16 * 32 * 2;
  for (u32 i = t; i < 16 * 32; i += 32) put(i * 2, args.a[i]);
  for (u32 i = t; i < 32 * 8; i += 32) put(b_at + i * 2, args.b[i]);
  warp_barrier();
  float c[4] = {0, 0, 0, 0};
  u32 b[4];
  load_matrices_transposed(b, shared + b_at + lane * 16);
  for (u32 k = 0; k < 32; k += 16) {
    u32 a[4];
    load_matrices(a, shared + lane % 16 * 64 + (k + lane / 16 * 8) * 2);
    mma(bf16{}, c, a, b[k / 8], b[k / 8 + 1]);
  }
  for (u32 i = 0; i < 4; ++i) args.c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
)";

TEST_F(EmulatedMatrices, a_warp_multiplies_fragments) { check(16, 8, 32, k_by_a_warp, ""); }

TEST_F(EmulatedMatrices, fragments_read_before_all_lanes_wrote_are_found) {
  check(16, 8, 32, replaced(k_by_a_warp, "warp_barrier();", ""), "shared memory");
}

TEST_F(EmulatedMatrices, lanes_that_part_are_found) {
  check(16, 8, 32, replaced(k_by_a_warp, "mma(bf16{}, c,", "if (lane != 5) mma(bf16{}, c,"), "lanes of its warp");
}

TEST_F(EmulatedMatrices, matrices_are_stored_as_they_are_loaded) {
  const std::string text = replaced(k_by_a_warp, "u32 a[4];", "u32 a[4]; u32 same[4];");
  check(16, 8, 32, replaced(text, "mma(bf16{}, c, a,", R"(
    load_matrices(same, shared + lane % 16 * 64 + (k + lane / 16 * 8) * 2);
    store_matrices(shared + 4096 + lane * 16, same[0], same[1], same[2], same[3]);
    warp_barrier();
    load_matrices(a, shared + 4096 + lane * 16);
    warp_barrier();
    mma(bf16{}, c, a,)"),
        "");
}

// A warpgroup, operands k-major: rows of 64 elements (the second half unused), swizzled by 128 bytes.
constexpr const char* k_by_a_warpgroup = R"(
  const u32 b_at = 64 * 128;
  const auto swizzled = [](u32 row, u32 byte) { return row * 128 + (byte ^ (row % 8 * 16)); };
  for (u32 i = t; i < 64 * 32; i += 128) put(swizzled(i / 32, i % 32 * 2), args.a[i]);
  for (u32 i = t; i < 32 * 64; i += 128) put(b_at + swizzled(i % 64, i / 64 * 2), args.b[i]);
  fence_shared_for_tma();
  block_barrier();
  float d[32];
  for (u32 i = 0; i < 32; ++i) d[i] = 1;
  wgmma_fence();
  for (u32 k = 0; k < 2; ++k) {
    wgmma<false, false>(bf16{}, d, descriptor_k_major(shared) + 2 * k, descriptor_k_major(shared + b_at) + 2 * k, k);
    wgmma_commit();
  }
  wgmma_wait<0>();
  const auto at = [&](u32 i) { return (warp * 16 + lane / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2; };
  for (u32 i = 0; i < 32; ++i) args.c[at(i)] = d[i];
)";

TEST_F(EmulatedMatrices, a_warpgroup_multiplies_from_shared_memory) { check(64, 64, 128, k_by_a_warpgroup, ""); }

TEST_F(EmulatedMatrices, a_warpgroup_multiplies_operands_that_are_not_k_major) {
  // One row for each k, of 64 elements along m or n.
  std::string text = replaced(k_by_a_warpgroup, "put(swizzled(i / 32, i % 32 * 2), args.a[i])",
                              "put(swizzled(i % 32, i / 32 * 2), args.a[i])");
  text = replaced(text, "put(b_at + swizzled(i % 64, i / 64 * 2), args.b[i])",
                  "put(b_at + swizzled(i / 64, i % 64 * 2), args.b[i])");
  text = replaced(text, "wgmma<false, false>", "wgmma<true, true>");
  text = replaced(text, "descriptor_k_major(shared) + 2 * k, descriptor_k_major(shared + b_at) + 2 * k",
                  "descriptor_mn_major(shared, 8192) + 128 * k, descriptor_mn_major(shared + b_at, 8192) + 128 * k");
  check(64, 64, 128, text, "");
}

// The left factor in registers: whole halves of what lies in shared memory.
std::string by_a_warpgroup_with_a_factor_in_registers() {
  std::string text = replaced(k_by_a_warpgroup, "float d[32];", R"(
  u32 left[2][4];
  for (u32 k = 0; k < 2; ++k) {
    for (u32 i = 0; i < 4; ++i) {
      const bf16* from = args.a + (warp * 16 + lane / 4 + i % 2 * 8) * 32 + k * 16 + lane % 4 * 2 + i / 2 * 8;
      left[k][i] = from[0].bits | static_cast<u32>(from[1].bits) << 16;
    }
  }
  float d[32];)");
  return replaced(text, "wgmma<false, false>(bf16{}, d, descriptor_k_major(shared) + 2 * k,",
                  "wgmma<false>(bf16{}, d, left[k],");
}

TEST_F(EmulatedMatrices, a_warpgroup_multiplies_registers) {
  check(64, 64, 128, by_a_warpgroup_with_a_factor_in_registers(), "");
}

TEST_F(EmulatedMatrices, factors_in_registers_changed_while_they_are_read_are_found) {
  const std::string text = by_a_warpgroup_with_a_factor_in_registers();
  check(64, 64, 128, replaced(text, "wgmma_wait<0>();", "left[1][t % 4] = 0; wgmma_wait<0>();"),
        "changes a register that an unfinished wgmma reads");
  check(64, 64, 128, replaced(text, "wgmma_wait<0>();", R"(
    wgmma_wait<0>();
    left[1][t % 4] = 0;
    wgmma<false>(bf16{}, d, left[1], descriptor_k_major(shared + b_at), 1);
    wgmma_commit();
    wgmma_wait<0>();)"),
        "without a wgmma fence");
}

TEST_F(EmulatedMatrices, sums_used_before_they_are_finished_are_found) {
  check(64, 64, 128, replaced(k_by_a_warpgroup, "wgmma_wait<0>();", ""), "uses a register");
  check(64, 64, 128, replaced(k_by_a_warpgroup, "wgmma_wait<0>();", "wgmma_wait<1>();"), "uses a register");
  check(64, 64, 128, replaced(k_by_a_warpgroup, "wgmma_commit();", ""), "uses a register");
}

TEST_F(EmulatedMatrices, operands_overwritten_while_they_are_read_are_found) {
  check(64, 64, 128,
        replaced(k_by_a_warpgroup, "wgmma_wait<0>();",
                 "wgmma_wait<1>(); put(b_at + t * 64 + 48, bf16{0}); wgmma_wait<0>();"),
        "an asynchronous operation still reads it");
}

TEST_F(EmulatedMatrices, missing_fences_are_found) {
  check(64, 64, 128, replaced(k_by_a_warpgroup, "fence_shared_for_tma();", ""), "no proxy fence");
  check(64, 64, 128, replaced(k_by_a_warpgroup, "wgmma_fence();", ""), "without a wgmma fence");
  check(64, 64, 128, replaced(k_by_a_warpgroup, "wgmma_wait<0>();", R"(
    wgmma_wait<0>();
    d[3] = d[3] + 1;
    wgmma<false, false>(bf16{}, d, descriptor_k_major(shared), descriptor_k_major(shared + b_at), 1);
    wgmma_commit();
    wgmma_wait<0>();)"),
        "without a wgmma fence");
  check(64, 64, 128, replaced(k_by_a_warpgroup, "block_barrier();", ""), "shared memory");
}

}  // namespace
}  // namespace kiln::cuda_emulator
