#include "backends/cpu/compile/emit/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/SourceMgr.h>

#include "tests/backends/cpu/loaded_image.h"

namespace kiln::cpu {
namespace {

using testing::HasSubstr;

Expected<Image> image_of(const char* text, ImageReport* report = nullptr) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseAssemblyString(text, diagnostic, context);
  EXPECT_NE(module, nullptr) << diagnostic.getMessage().str();
  return make_image(*module, *find_target("x86-64-v2"), report);
}

TEST(Image, code_with_constants_runs_wherever_it_is_mapped) {
  const auto image = image_of(R"(
    @table = private unnamed_addr constant [4 x i64] [i64 5, i64 6, i64 9, i64 1]
    define void @entry(ptr %buffers, ptr %w, ptr %s, i64 %first, i64 %last, ptr %extents) nounwind {
      %p = load ptr, ptr %buffers
      %q = getelementptr [4 x i64], ptr @table, i64 0, i64 %first
      %v = load i64, ptr %q
      store i64 %v, ptr %p
      ret void
    })");
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(image->features, find_target("x86-64-v2")->features);

  const LoadedImage here(*image), there(*image);
  for (const LoadedImage* loaded : {&here, &there}) {
    int64_t value = -1;
    std::vector<void*> buffers{&value};
    auto status = LaunchStatus::ok;
    loaded->executable().run(buffers.data(), nullptr, &status, 2, 3, {});
    EXPECT_EQ(value, 9);
  }
}

TEST(Image, a_call_out_of_the_image_is_refused_by_name) {
  const auto image = image_of(R"(
    define void @entry(ptr %buffers, ptr %w, ptr %s, i64 %first, i64 %last, ptr %extents) nounwind {
      %x = load float, ptr %w
      %y = frem float %x, 3.0
      store float %y, ptr %w
      ret void
    })");
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), StatusCode::internal);
  EXPECT_THAT(image.status().message(), HasSubstr("external symbols: fmodf"));
}

TEST(Image, a_writable_global_is_refused) {
  const auto image = image_of(R"(
    @state = internal global i32 7
    define void @entry(ptr %buffers, ptr %w, ptr %s, i64 %first, i64 %last, ptr %extents) nounwind {
      %x = load volatile i32, ptr @state
      store volatile i32 %x, ptr @state
      ret void
    })");
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr("writable section"));
}

TEST(Image, an_absolute_address_is_refused) {
  const auto image = image_of(R"(
    @table = private constant [2 x ptr] [ptr @one, ptr @two]
    define internal void @one() nounwind { ret void }
    define internal void @two() nounwind { ret void }
    define void @entry(ptr %buffers, ptr %w, ptr %s, i64 %first, i64 %last, ptr %extents) nounwind {
      %p = getelementptr [2 x ptr], ptr @table, i64 0, i64 %first
      %f = load ptr, ptr %p
      call void %f()
      ret void
    })");
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), testing::AnyOf(HasSubstr("absolute relocation"), HasSubstr("writable")));
}

TEST(Image, code_without_an_entry_is_refused) {
  const auto image = image_of("define void @other() nounwind { ret void }");
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.status().message(), HasSubstr("no function named entry"));
}

/// A loop that keeps `live` vectors alive: sixteen registers hold fewer than that.
std::string loop_with_live_vectors(int live) {
  std::string text =
      "define void @entry(ptr %p, ptr %w, ptr %s, i64 %first, i64 %last, ptr %extents) nounwind {\n"
      "start:\n  br label %loop\nloop:\n  %i = phi i64 [%first, %start], [%j, %loop]\n";
  for (int n = 0; n < live; ++n) {
    text += fmt::format("  %a{0} = phi <4 x float> [zeroinitializer, %start], [%b{0}, %loop]\n", n);
  }
  text += "  %q = getelementptr <4 x float>, ptr %p, i64 %i\n  %x = load <4 x float>, ptr %q\n";
  for (int n = 0; n < live; ++n) {
    text += fmt::format("  %m{0} = fmul <4 x float> %x, %a{1}\n  %b{0} = fadd <4 x float> %m{0}, %a{0}\n", n,
                        (n + 1) % live);
  }
  text +=
      "  %j = add nsw i64 %i, 1\n  %c = icmp slt i64 %j, %last\n  br i1 %c, label %loop, label "
      "%done\ndone:\n";
  for (int n = 0; n < live; ++n) {
    text +=
        fmt::format("  %w{0} = getelementptr <4 x float>, ptr %w, i64 {0}\n  store <4 x float> %b{0}, ptr %w{0}\n", n);
  }
  return text + "  ret void\n}\n";
}

TEST(Image, spills_in_a_hot_loop_are_counted) {
  ImageReport few, many;
  ASSERT_TRUE(image_of(loop_with_live_vectors(8).c_str(), &few).ok());
  ASSERT_TRUE(image_of(loop_with_live_vectors(24).c_str(), &many).ok());
  EXPECT_EQ(few.hot_spills, 0);
  EXPECT_GT(many.hot_spills, 8);
}

TEST(Runtime, code_for_features_the_host_lacks_is_not_loaded) {
  auto image = image_of("define void @entry(ptr %b, ptr %w, ptr %s, i64 %f, i64 %l, ptr %e) nounwind { ret void }");
  ASSERT_TRUE(image.ok());
  image->features |= uint64_t{1} << 63;
  const conformance::SealedCode code(image->code);
  const auto loaded = load_image(*image, code.bytes());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::failed_precondition);
}

TEST(Runtime, an_entry_point_outside_the_code_is_refused) {
  auto image = image_of("define void @entry(ptr %b, ptr %w, ptr %s, i64 %f, i64 %l, ptr %e) nounwind { ret void }");
  ASSERT_TRUE(image.ok());
  image->entry = image->code.size();
  const conformance::SealedCode code(image->code);
  EXPECT_EQ(load_image(*image, code.bytes()).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace kiln::cpu
