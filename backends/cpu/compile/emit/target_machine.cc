#include "backends/cpu/compile/emit/target_machine.h"

#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Target/TargetOptions.h>

#include <cassert>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace kiln::cpu {
namespace {

constexpr const char* k_triple = "x86_64-unknown-linux-gnu";

void initialise_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86Disassembler();
    // Loop strength reduction turns our constant displacements into base+index addresses, which un-laminates
    // broadcast memory operands: a 30x16 f32 tile falls from 98 % to 88 % of peak, and compiling is 5-25 %
    // slower.
    auto& options = llvm::cl::getRegisteredOptions();
    const auto option = options.find("disable-lsr");
    assert(option != options.end() && "LLVM has no -disable-lsr");
    static_cast<llvm::cl::opt<bool>*>(option->second)->setValue(true);
  });
}

/// LLVM's names of what each of our bits stands for.
std::string llvm_features(const CpuTarget& target) {
  std::string text = "+cx16,+sahf,+popcnt,+sse4.2";
  if (target.has(Feature::avx2)) text += ",+avx2,+bmi,+bmi2,+lzcnt,+movbe";
  if (target.has(Feature::fma)) text += ",+fma";
  if (target.has(Feature::f16c)) text += ",+f16c";
  if (target.has(Feature::avx512)) text += ",+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl,+evex512";
  if (target.has(Feature::avx512_vnni)) text += ",+avx512vnni";
  if (target.has(Feature::avx512_bf16)) text += ",+avx512bf16";
  if (target.has(Feature::avx512_fp16)) text += ",+avx512fp16";
  if (target.has(Feature::amx_tile)) text += ",+amx-tile";
  if (target.has(Feature::amx_bf16)) text += ",+amx-bf16";
  if (target.has(Feature::amx_int8)) text += ",+amx-int8";
  return text;
}

std::unique_ptr<llvm::LLVMTargetMachine> make_machine(const CpuTarget& target) {
  initialise_llvm();
  std::string message;
  const llvm::Target* llvm_target = llvm::TargetRegistry::lookupTarget(k_triple, message);
  assert(llvm_target != nullptr && "this LLVM cannot generate x86-64 code");

  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;  // fused where the IR says fma, nowhere else
  options.NoTrappingFPMath = true;
  options.EmitAddrsig = false;
  options.ExceptionModel = llvm::ExceptionHandling::None;
  auto* machine =
      llvm_target->createTargetMachine(k_triple, target.llvm_cpu, llvm_features(target), options, llvm::Reloc::PIC_,
                                       llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, /*JIT=*/true);
  return std::unique_ptr<llvm::LLVMTargetMachine>(static_cast<llvm::LLVMTargetMachine*>(machine));
}

}  // namespace

llvm::LLVMTargetMachine& target_machine(const CpuTarget& target) {
  thread_local std::map<std::string, std::unique_ptr<llvm::LLVMTargetMachine>, std::less<>> machines;
  auto& machine = machines[std::string(target.name)];
  if (machine == nullptr) machine = make_machine(target);
  return *machine;
}

}  // namespace kiln::cpu
