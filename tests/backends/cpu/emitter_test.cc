#include "backends/cpu/compile/emit/emitter.h"

#include <gtest/gtest.h>
#include <llvm/IR/LLVMContext.h>

#include <functional>

#include "backends/cpu/compile/emit/image.h"
#include "tests/backends/cpu/loaded_image.h"

namespace kiln::cpu {
namespace {

class EmitterTest : public testing::TestWithParam<const CpuTarget*> {
 protected:
  /// Compiles what `body` emits for the parameter's target and, when the host can, runs it over `buffers`.
  /// False when the host cannot.
  bool emit_and_run(const std::function<void(Emitter&, const Emitter::Entry&)>& body,
                    const std::vector<void*>& buffers) {
    llvm::LLVMContext context;
    llvm::Module module("test", context);
    Emitter emitter(module, *GetParam());
    const Emitter::Entry entry = emitter.begin_entry();
    body(emitter, entry);
    emitter.ir.CreateRetVoid();
    auto image = make_image(module, *GetParam());
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    if (!image.ok() || !host_runs(*GetParam())) return false;
    LoadedImage(*image).run(buffers);
    return true;
  }
};

TEST_P(EmitterTest, a_square_of_vectors_is_transposed) {
  const int n = GetParam()->vector_bytes / 4;
  std::vector<float> in(n * n), out(n * n, -1);
  for (int i = 0; i < n * n; ++i) in[i] = static_cast<float>(i);
  const bool ran = emit_and_run(
      [&](Emitter& e, const Emitter::Entry& entry) {
        Values rows;
        llvm::Type* type = Emitter::vector(e.f32(), n);
        for (int row = 0; row < n; ++row) rows.push_back(e.load(type, e.advance(e.buffer(entry, 0), row * n * 4)));
        e.transpose(rows);
        for (int row = 0; row < n; ++row) e.store(rows[row], e.advance(e.buffer(entry, 1), row * n * 4));
      },
      {in.data(), out.data()});
  if (!ran) GTEST_SKIP() << "this host does not run " << GetParam()->name;
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < n; ++column) ASSERT_EQ(out[row * n + column], in[column * n + row]);
  }
}

TEST_P(EmitterTest, a_masked_tail_reads_and_writes_nothing_beyond_its_count) {
  const int n = GetParam()->vector_bytes / 4;
  for (int count = 0; count <= n; ++count) {
    std::vector<float> in(n), out(n, -7);
    for (int i = 0; i < n; ++i) in[i] = static_cast<float>(i + 1);
    const bool ran = emit_and_run(
        [&](Emitter& e, const Emitter::Entry& entry) {
          // The count comes from memory, so that the mask is not a constant.
          llvm::Value* live = e.ir.CreateSExt(e.load(e.i32(), e.buffer(entry, 2)), e.i64());
          llvm::Value* mask = e.prefix_mask(live, n);
          llvm::Value* x = e.masked_load(Emitter::vector(e.f32(), n), e.buffer(entry, 0), mask);
          e.masked_store(e.ir.CreateFAdd(x, x), e.buffer(entry, 1), mask);
        },
        {in.data(), out.data(), &count});
    if (!ran) GTEST_SKIP() << "this host does not run " << GetParam()->name;
    for (int i = 0; i < n; ++i) ASSERT_EQ(out[i], i < count ? 2 * in[i] : -7) << "count " << count;
  }
}

TEST_P(EmitterTest, loops_carry_values_and_run_no_round_too_many) {
  for (int64_t end : {0, 1, 5, 6, 7}) {
    int64_t sum = -1;
    const bool ran = emit_and_run(
        [&](Emitter& e, const Emitter::Entry& entry) {
          llvm::Value* bound = e.load(e.i64(), e.buffer(entry, 0));
          const Values sums = e.loop(e.index(0), bound, 2, {e.index(100)}, [&](llvm::Value* i, const Values& carried) {
            return Values{e.ir.CreateAdd(carried[0], i)};
          });
          e.store(sums[0], e.buffer(entry, 1));
        },
        {&end, &sum});
    if (!ran) GTEST_SKIP() << "this host does not run " << GetParam()->name;
    int64_t expected = 100;
    for (int64_t i = 0; i < end; i += 2) expected += i;
    EXPECT_EQ(sum, expected) << "end " << end;
  }
}

TEST_P(EmitterTest, lanes_are_folded_into_one) {
  const int n = GetParam()->vector_bytes / 4;
  std::vector<float> in(n);
  for (int i = 0; i < n; ++i) in[i] = static_cast<float>(i * i);
  float sum = 0;
  const bool ran = emit_and_run(
      [&](Emitter& e, const Emitter::Entry& entry) {
        llvm::Value* x = e.load(Emitter::vector(e.f32(), n), e.buffer(entry, 0));
        e.store(e.fold_lanes(x, [&](llvm::Value* a, llvm::Value* b) { return e.ir.CreateFAdd(a, b); }),
                e.buffer(entry, 1));
      },
      {in.data(), &sum});
  if (!ran) GTEST_SKIP() << "this host does not run " << GetParam()->name;
  const auto squares = (n - 1) * n * (2 * n - 1) / 6;  // a whole number
  EXPECT_EQ(sum, static_cast<float>(squares));
}

std::vector<const CpuTarget*> all_targets() {
  std::vector<const CpuTarget*> result;
  for (const CpuTarget& target : ladder()) result.push_back(&target);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Targets, EmitterTest, testing::ValuesIn(all_targets()), [](const auto& info) {
  std::string name(info.param->name);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace kiln::cpu
