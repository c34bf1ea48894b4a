#include <numeric>

#include "tests/stand_ins/cuda/emulation.h"

namespace kiln::cuda_emulator {
namespace {

/// 64 threads move 16 rows of 64 f16 from one tensor to another through shared memory, twice.
class EmulatedCopies : public testing::Test {
 protected:
  static constexpr uint64_t k_rows = 24, k_columns = 72;  // the tensors; boxes stand over two of their edges

  void check(const std::string& body, const std::string& finding, uint32_t blocks = 1, uint32_t cluster = 1) {
    Emulation emulation(
        "struct Arguments { const kiln::u16* from; kiln::u16* to; kiln::u32* status; alignas(64) kiln::TensorMap in, "
        "out; };\n"
        "namespace kiln { extern \"C\" KILN_KERNEL(64, 1) kernel(KILN_ARGUMENTS(Arguments) args) {\n"
        "const u32 t = thread_index(); u8* memory = shared_memory(); const u32 shared = shared_address(memory);\n" +
        body + "}}\n");
    std::vector<uint16_t> from(k_rows * k_columns);
    std::iota(from.begin(), from.end(), uint16_t{1});
    uint64_t found = 0;
    for (uint64_t seed = 0; seed < Emulation::k_seeds; ++seed) {
      std::vector<uint16_t> to(from.size(), 0);
      std::vector<uint32_t> status(1, 0);
      struct {
        const uint16_t* from;
        uint16_t* to;
        uint32_t* status;
        alignas(64) EmulatedTensorMap in;
        alignas(64) EmulatedTensorMap out;
      } arguments{from.data(), to.data(), status.data(), map_of(from.data()), map_of(to.data())};
      static_assert(sizeof arguments == 64 + 128 + 128);
      const std::string problem = emulation.run(
          {.blocks = blocks, .threads = 64, .cluster = cluster, .shared_bytes = 8192},
          {buffer_of("from", from), buffer_of("to", to, true), buffer_of("status", status, true)}, &arguments, seed);
      if (finding.empty()) {
        ASSERT_EQ(problem, "");
        ASSERT_EQ(to, from) << "seed " << seed;
      } else if (!problem.empty()) {
        ASSERT_NE(problem.find(finding), std::string::npos) << "seed " << seed << " found: " << problem;
        ++found;
      }
    }
    if (!finding.empty()) {
      EXPECT_EQ(found, Emulation::k_seeds) << "some seeds did not find: " << finding;
    }
  }

  static EmulatedTensorMap map_of(const uint16_t* data) {
    EmulatedTensorMap map;
    map.data = reinterpret_cast<uint8_t*>(const_cast<uint16_t*>(data));
    map.extents = {k_columns, k_rows, 1, 1};
    map.strides_bytes = {2, k_columns * 2, k_columns * k_rows * 2, k_columns * k_rows * 2};
    map.box = {64, 16, 1, 1};
    map.swizzle = Swizzle::bytes_128;
    return map;
  }
};

// Row by row: 9 chunks of 8 elements each.
constexpr const char* k_by_chunks = R"(
  for (u32 row = t / 9; row < 24; row += 7) {
    if (t >= 63) break;
    const u32 chunk = t % 9, at = shared + (row % 14 * 9 + chunk) * 16;
    copy16_async(at, args.from + row * 72 + chunk * 8, 16);
    commit_copies();
    wait_copies<0>();
    const u16* mine = reinterpret_cast<const u16*>(memory + (at - shared));
    for (u32 i = 0; i < 8; ++i) args.to[row * 72 + chunk * 8 + i] = mine[i];
  }
)";

TEST_F(EmulatedCopies, a_thread_sees_its_copies_after_the_wait) {
  check(k_by_chunks, "");
  check(replaced(k_by_chunks, "wait_copies<0>();", ""), "an asynchronous copy still writes it");
  check(replaced(k_by_chunks, "wait_copies<0>();", "wait_copies<1>();"), "an asynchronous copy still writes it");
  check(replaced(k_by_chunks, "commit_copies();", ""), "an asynchronous copy still writes it");
}

TEST_F(EmulatedCopies, others_see_copies_after_a_barrier_only) {
  const std::string text = R"(
    for (u32 at = t; at < 216; at += 64) copy16_async(shared + at * 16, args.from + at * 8, 16);
    commit_copies();
    wait_copies<0>();
    block_barrier();
    for (u32 at = 63 - t; at < 1728; at += 64) args.to[at] = reinterpret_cast<const u16*>(memory)[at];
  )";
  check(text, "");
  check(replaced(text, "block_barrier();", ""), "shared memory");
  check(replaced(text, "wait_copies<0>();\n    block_barrier();", "block_barrier();"),
        "an asynchronous copy still writes it");
}

TEST_F(EmulatedCopies, bytes_not_asked_for_become_zero_and_are_not_read) {
  // The last chunk of the last row would reach past the buffer.
  check("copy16_async(shared, args.from + 1720 + 4, 16); ", "misaligned");
  check("copy16_async(shared, args.from + 1728, 16);", "this is byte 3456");
  const std::string text = std::string(k_by_chunks) + R"(
    block_barrier();
    if (t == 0) {
      copy16_async(shared, args.from + 1728, 0);
      commit_copies();
      wait_copies<0>();
      for (u32 i = 0; i < 8; ++i) if (reinterpret_cast<const u16*>(memory)[i] != 0) args.to[0] = 9;
    }
  )";
  check(text, "");
}

// Four boxes, over the edges, one after another through two buffers; the copy back is by TMA as well.
constexpr const char* k_by_boxes = R"(
  const u32 full = shared + 6144;
  if (t == 0) {
    transaction_barrier_init(full, 1);
    transaction_barrier_init(full + 8, 1);
    publish_transaction_barriers();
  }
  block_barrier();
  u32 n = 0;
  for (i32 row = 0; row < 24; row += 16) {
    for (i32 column = 0; column < 72; column += 64) {
      const u32 in = shared, out = shared + 2048 + n % 2 * 2048;
      if (t == 0) {
        arrive_and_expect(full, 2048);
        tma_load(in, args.in, full, column, row, 0, 0);
      }
      wait_for_parity(full, n % 2);
      if (t == 0) wait_stores_read<1>();
      block_barrier();
      for (u32 i = t; i < 512; i += 64) {
        reinterpret_cast<u32*>(memory + (out - shared))[i] = reinterpret_cast<const u32*>(memory)[i];
      }
      fence_shared_for_tma();
      part_barrier(1, 64);
      if (t == 0) {
        tma_store(args.out, out, column, row, 0, 0);
        commit_stores();
      }
      ++n;
    }
  }
  if (t == 0) wait_stores<0>();
)";

TEST_F(EmulatedCopies, boxes_go_through_shared_memory) { check(k_by_boxes, ""); }

TEST_F(EmulatedCopies, boxes_used_before_they_arrive_are_found) {
  check(replaced(k_by_boxes, "wait_for_parity(full, n % 2);", ""), "shared memory");
  check(replaced(k_by_boxes, "wait_for_parity(full, n % 2);", "wait_for_parity(full, n % 2 ^ 1);"), "of block 0");
}

TEST_F(EmulatedCopies, a_wrong_count_of_bytes_or_arrivals_is_found) {
  check(replaced(k_by_boxes, "arrive_and_expect(full, 2048);", "arrive_and_expect(full, 2064);"), "deadlock");
  check(replaced(k_by_boxes, "arrive_and_expect(full, 2048);", "arrive_and_expect(full, 0);"), "shared memory");
  check(replaced(k_by_boxes, "transaction_barrier_init(full, 1);", "transaction_barrier_init(full, 2);"), "deadlock");
  check(replaced(k_by_boxes, "transaction_barrier_init(full, 1);", ""), "none was made there");
}

TEST_F(EmulatedCopies, barriers_made_and_not_published_are_found) {
  check(replaced(k_by_boxes, "publish_transaction_barriers();", ""), "no proxy fence");
  check(replaced(k_by_boxes, "publish_transaction_barriers();\n  }\n  block_barrier();",
                 "publish_transaction_barriers();\n  }"),
        "shared memory");
}

TEST_F(EmulatedCopies, a_buffer_written_while_it_is_stored_from_is_found) {
  check(replaced(k_by_boxes, "if (t == 0) wait_stores_read<1>();", ""), "an asynchronous operation still reads it");
  check(replaced(k_by_boxes, "part_barrier(1, 64);", ""), "shared memory");
  check(replaced(k_by_boxes, "fence_shared_for_tma();", ""), "no proxy fence");
}

TEST_F(EmulatedCopies, stores_nobody_waits_for_are_found) {
  check(replaced(k_by_boxes, "if (t == 0) wait_stores<0>();", ""), "ends before its bulk stores");
  check(replaced(k_by_boxes, "commit_stores();", ""), "still reads it");
}

TEST_F(EmulatedCopies, a_box_at_an_address_without_room_for_its_swizzle_is_found) {
  check(replaced(k_by_boxes, "const u32 in = shared,", "const u32 in = shared + 512,"), "no multiple of 1024");
}

}  // namespace
}  // namespace kiln::cuda_emulator
