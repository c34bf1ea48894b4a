#include <numeric>

#include "tests/stand_ins/cuda/emulation.h"

namespace kiln::cuda_emulator {
namespace {

/// to[i] = f(from[…]): a kernel over floats. `finding`: what each seed must find; empty for a correct kernel.
struct Case {
  uint32_t blocks = 1, threads = 64, shared_bytes = 2048;
  std::string finding;
  bool some_seeds_suffice = false;
};

class EmulatedThreads : public testing::Test {
 protected:
  static constexpr size_t k_elements = 256;

  void check(const std::string& body, const Case& c) {
    Emulation emulation(
        "struct Arguments { const float* from; float* to; kiln::u32* status; };\n"
        "namespace kiln { extern \"C\" KILN_KERNEL(256, 1) kernel(KILN_ARGUMENTS(Arguments) args) {\n"
        "const u32 t = thread_index(); float* shared = reinterpret_cast<float*>(shared_memory());\n" +
        body + "}}\n");
    std::vector<float> from(k_elements);
    std::iota(from.begin(), from.end(), 0.0F);
    int found = 0;
    for (uint64_t seed = 0; seed < Emulation::k_seeds; ++seed) {
      m_to.assign(k_elements, -1);
      std::vector<uint32_t> status(1, 0);
      const struct {
        const float* from;
        float* to;
        uint32_t* status;
      } arguments{from.data(), m_to.data(), status.data()};
      GlobalBuffer status_buffer = buffer_of("status", status, true);
      const std::string problem =
          emulation.run({.blocks = c.blocks, .threads = c.threads, .shared_bytes = c.shared_bytes},
                        {buffer_of("from", from), buffer_of("to", m_to, true), status_buffer}, &arguments, seed);
      m_status = status[0];
      if (c.finding.empty()) {
        ASSERT_EQ(problem, "");
      } else if (!c.some_seeds_suffice || !problem.empty()) {
        ASSERT_NE(problem.find(c.finding), std::string::npos) << "seed " << seed << " found: " << problem;
        ++found;
      }
    }
    if (!c.finding.empty()) {
      EXPECT_GT(found, 0) << "no seed found it";
    }
  }
  std::vector<float> m_to;
  uint32_t m_status = 0;
};

TEST_F(EmulatedThreads, a_barrier_orders_shared_memory) {
  check("shared[t] = args.from[t]; block_barrier(); args.to[t] = shared[63 - t];", {});
  EXPECT_EQ(m_to[0], 63);
  EXPECT_EQ(m_to[63], 0);
}

TEST_F(EmulatedThreads, a_missing_barrier_is_found_whatever_the_order) {
  check("shared[t] = 0; block_barrier(); shared[t] = args.from[t]; args.to[t] = shared[63 - t];",
        {.finding = "shared memory"});
}

TEST_F(EmulatedThreads, a_write_before_all_have_read_is_found) {
  check("shared[t] = 0; block_barrier(); args.to[t] = shared[63 - t]; shared[t] = 1;", {.finding = "shared memory"});
}

TEST_F(EmulatedThreads, neighbouring_bytes_are_no_race) {
  check("u8* bytes = reinterpret_cast<u8*>(shared); bytes[t] = t; block_barrier(); args.to[t] = bytes[63 - t];", {});
}

TEST_F(EmulatedThreads, shared_memory_nobody_wrote_is_found) {
  check("args.to[t] = shared[t];", {.finding = "nobody has written it"});
}

TEST_F(EmulatedThreads, shared_memory_beyond_the_launch_is_found) {
  check("shared[300] = 1;", {.shared_bytes = 1024, .finding = "outside of every buffer"});
}

TEST_F(EmulatedThreads, a_block_does_not_see_another_blocks_shared_memory) {
  check("if (block_index() == 0) shared[t] = 1; block_barrier(); if (block_index() == 1) args.to[t] = shared[t];",
        {.blocks = 2, .finding = "nobody has written it"});
}

TEST_F(EmulatedThreads, global_memory_has_ends) {
  check("args.to[t * 4 + 4] = args.from[t];", {.finding = "to has 1024 bytes, this is byte 1024"});
  check("args.to[t] = args.from[t + 193];", {.finding = "from has 1024 bytes, this is byte 1024"});
  check("*const_cast<float*>(args.from + t) = 0;", {.finding = "only read"});
  check("args.to[t] = args.to[t] + 1;", {.finding = "nobody has written it"});
}

TEST_F(EmulatedThreads, blocks_must_not_write_the_same_place) {
  check("args.to[t] = args.from[t];", {.blocks = 2, .finding = "nothing orders this after an earlier write"});
}

TEST_F(EmulatedThreads, misaligned_vectors_are_found) {
  check(
      "const Words2 w = *reinterpret_cast<const Words2*>(args.from + 1); *reinterpret_cast<Words2*>(args.to + 2 * t) = "
      "w;",
      {.finding = "misaligned"});
}

TEST_F(EmulatedThreads, the_status_may_be_set_by_all) {
  check("set_status(args.status, 1u << (t & 3)); args.to[t + 64 * block_index()] = 0;", {.blocks = 2});
  EXPECT_EQ(m_status, 15U);
}

TEST_F(EmulatedThreads, a_shuffle_orders_nothing_but_its_value) {
  check("args.to[t] = shuffle_xor(args.from[t], 5u);", {});
  EXPECT_EQ(m_to[0], 5);
  EXPECT_EQ(m_to[33], 36);
  check("shared[t] = args.from[t]; shuffle_xor(args.from[t], 1u); args.to[t] = shared[t ^ 1];",
        {.finding = "nothing orders this after the write"});
  check("shared[t] = args.from[t]; warp_barrier(); args.to[t] = shared[t ^ 1];", {});
}

TEST_F(EmulatedThreads, part_barriers_hold_only_their_part) {
  const std::string text =
      "shared[t] = args.from[t]; part_barrier(1 + t / 64, 64); args.to[t] = shared[t ^ 63]; part_barrier(1 + t / 64, "
      "64); shared[t] = 1;";
  check(text, {.threads = 128});
  check(replaced(text, "shared[t ^ 63]", "shared[t ^ 127]"), {.threads = 128, .finding = "shared memory"});
}

TEST_F(EmulatedThreads, who_only_arrives_at_a_barrier_holds_the_others_and_is_not_held) {
  const std::string text =
      "if (t < 64) { shared[t] = args.from[t]; part_arrive(1, 128); args.to[t] = 0; } else { part_barrier(1, 128); "
      "args.to[t] = shared[t - 64]; }";
  check(text, {.threads = 128});
  EXPECT_EQ(m_to[127], m_to[64] + 63);
  check(replaced(text, "part_arrive(1, 128);", ""), {.threads = 128, .finding = "deadlock"});
  check(replaced(text, "part_arrive(1, 128);", "part_arrive(1, 64);"), {.threads = 128, .finding = "others for"});
  check(replaced(text, "shared[t] = args.from[t]; part_arrive(1, 128);",
                 "part_arrive(1, 128); shared[t] = args.from[t];"),
        {.threads = 128, .finding = "shared memory"});
}

TEST_F(EmulatedThreads, a_barrier_that_not_all_reach_is_a_deadlock) {
  check("if (t < 63) block_barrier(); args.to[t] = 0;", {.finding = "deadlock"});
  check("if (t == 3) warp_barrier(); else block_barrier();", {.finding = "deadlock"});
}

}  // namespace
}  // namespace kiln::cuda_emulator
