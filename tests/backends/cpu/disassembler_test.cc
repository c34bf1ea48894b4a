#include "backends/cpu/compile/emit/disassembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/compile/backend.h"
#include "tests/conformance/gemm_case.h"

namespace kiln::cpu {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const CpuTarget& any_target() { return *find_target("x86-64-v2"); }

Expected<std::string> text_of(std::vector<uint8_t> code, uint64_t entry = 0) {
  return disassemble({.code = std::move(code), .entry = entry}, any_target());
}

/// The first candidate of a product of two matrices, as assembly.
std::string product_on(const std::string& target, DType dtype) {
  const CpuCompileBackend backend;
  const KernelSpec spec = conformance::gemm({.m = 128, .n = 128, .k = 256, .dtype = dtype});
  const auto image = backend.compile(spec, default_candidates(backend, spec, {"cpu", target}).front(), {"cpu", target});
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  const auto text = backend.disassemble(*image, {"cpu", target});
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return text.ok() ? *text : "";
}

/// From the mark to its end.
std::string hot_loop_in(const std::string& text) {
  const size_t start = text.find("# hot loop: "), end = text.find("# end of the hot loop");
  EXPECT_NE(start, std::string::npos) << text;
  EXPECT_NE(end, std::string::npos) << text;
  return start < end && end != std::string::npos ? text.substr(start, end - start) : "";
}

TEST(Disassembler, the_hot_loop_of_a_product_multiplies_in_the_targets_vectors) {
  struct Row {
    const char* target;
    DType dtype;
    const char *multiplication, *another_targets;
  };
  for (const auto& [target, dtype, multiplication, another_targets] :
       {Row{"x86-64-v2", DType::f32, "mulps +xmm", "ymm"}, Row{"x86-64-v3", DType::f32, "vfmadd...ps +ymm", "zmm"},
        Row{"x86-64-v4", DType::f32, "vfmadd...ps +zmm", "mulps"},
        Row{"x86-64-v4-bf16", DType::bf16, "vdpbf16ps +zmm", "vfmadd"}}) {
    const std::string text = product_on(target, dtype), loop = hot_loop_in(text);
    EXPECT_THAT(text, HasSubstr("entry:\n")) << target;
    EXPECT_THAT(loop, Not(HasSubstr("# hot loop: 0 "))) << target;
    EXPECT_THAT(loop, ContainsRegex(multiplication)) << target;
    EXPECT_THAT(loop, Not(HasSubstr(another_targets))) << target;
    const size_t label = loop.find("loop_"), label_end = loop.find(':', label);
    ASSERT_NE(label, std::string::npos) << loop;
    EXPECT_THAT(loop, ContainsRegex(" j[a-z]+ +" + loop.substr(label, label_end - label) + "\n"))
        << "it branches back to its label";
  }
}

TEST(Disassembler, branches_and_calls_lead_to_labels_and_the_longest_innermost_loop_is_hot) {
  const std::vector<uint8_t> code = {
      0xc3,                          // nothing leads here
      0x90,                          // nop, the entry
      0x90,                          // nop
      0x48, 0xff, 0xcf,              // dec rdi
      0x75, 0xfb,                    // jne to it
      0x90,                          // nop
      0x48, 0xff, 0xce,              // dec rsi
      0x75, 0xfa,                    // jne to the nop before it
      0x48, 0xff, 0xca,              // dec rdx
      0x75, 0xef,                    // jne to the second nop: around both loops
      0x74, 0x05,                    // je to the first ret
      0xe8, 0x01, 0x00, 0x00, 0x00,  // call of the second one
      0xc3,                          // ret
      0xc3,                          // ret
  };
  const auto text = text_of(code, 1);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, R"(entry:
     1:  nop
loop_1:
     2:  nop
loop_2:
     3:  dec             rdi
     6:  jne             loop_2
# hot loop: 0 multiplications of vectors in 3 instructions
loop_3:
     8:  nop
     9:  dec             rsi
     c:  jne             loop_3
# end of the hot loop
     e:  dec             rdx
    11:  jne             loop_1
    13:  je              label_1
    15:  call            function_1
label_1:
    1a:  ret
function_1:
    1b:  ret
)");
}

TEST(Disassembler, code_without_a_loop_has_no_mark) {
  const auto text = text_of({0xc3});
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, "entry:\n     0:  ret\n");
}

TEST(Disassembler, what_leads_out_of_the_code_or_is_no_instruction_is_refused) {
  EXPECT_THAT(text_of({}).status().message(), HasSubstr("leads to byte 0x0, it has 0x0"));
  EXPECT_THAT(text_of({0xc3}, 1).status().message(), HasSubstr("leads to byte 0x1, it has 0x1"));
  EXPECT_THAT(text_of({0x90}).status().message(), HasSubstr("leads to byte 0x1")) << "it runs off its end";
  EXPECT_THAT(text_of({0xeb, 0x10}).status().message(), HasSubstr("leads to byte 0x12"));
  EXPECT_THAT(text_of({0xeb, 0xf0}).status().message(), HasSubstr("leads to byte 0xfffffffffffffff2"));
  EXPECT_THAT(text_of({0x90, 0x06}).status().message(), HasSubstr("no instruction begins at byte 0x1"));
  EXPECT_THAT(text_of({0xe8, 0x00}).status().message(), HasSubstr("no instruction begins at byte 0x0"));
  EXPECT_EQ(text_of({0x06}).status().code(), StatusCode::data_loss);
}

TEST(Disassembler, an_unknown_target_is_refused) {
  EXPECT_EQ(CpuCompileBackend().disassemble({}, {"cpu", "x86-64-v9"}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace kiln::cpu
