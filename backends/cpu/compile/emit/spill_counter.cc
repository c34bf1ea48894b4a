#include "backends/cpu/compile/emit/spill_counter.h"

#include <llvm/CodeGen/MachineFunction.h>
#include <llvm/CodeGen/MachineFunctionPass.h>
#include <llvm/CodeGen/MachineInstr.h>
#include <llvm/CodeGen/MachineLoopInfo.h>
#include <llvm/CodeGen/TargetInstrInfo.h>
#include <llvm/CodeGen/TargetSubtargetInfo.h>

namespace kiln::cpu {
namespace {

class SpillCounter final : public llvm::MachineFunctionPass {
 public:
  explicit SpillCounter(int* count) : MachineFunctionPass(s_id), m_count(count) {}

  llvm::StringRef getPassName() const override { return "count spills in innermost loops"; }

  void getAnalysisUsage(llvm::AnalysisUsage& usage) const override {
    usage.addRequired<llvm::MachineLoopInfoWrapperPass>();
    usage.setPreservesAll();
    MachineFunctionPass::getAnalysisUsage(usage);
  }

  bool runOnMachineFunction(llvm::MachineFunction& function) override {
    const auto& loops = getAnalysis<llvm::MachineLoopInfoWrapperPass>().getLI();
    const llvm::TargetInstrInfo* info = function.getSubtarget().getInstrInfo();
    for (const llvm::MachineBasicBlock& block : function) {
      const llvm::MachineLoop* loop = loops.getLoopFor(&block);
      if (loop == nullptr || !loop->isInnermost()) continue;
      for (const llvm::MachineInstr& instruction : block) {
        const bool spills = instruction.getSpillSize(info) || instruction.getFoldedSpillSize(info) ||
                            instruction.getRestoreSize(info) || instruction.getFoldedRestoreSize(info);
        *m_count += spills ? 1 : 0;
      }
    }
    return false;
  }

 private:
  static char s_id;  // its address is how LLVM tells passes apart
  int* m_count;
};

char SpillCounter::s_id = 0;

}  // namespace

llvm::FunctionPass* make_spill_counter(int* count) { return new SpillCounter(count); }

}  // namespace kiln::cpu
