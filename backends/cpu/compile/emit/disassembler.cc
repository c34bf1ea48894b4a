#include "backends/cpu/compile/emit/disassembler.h"

#include <fmt/format.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCExpr.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrAnalysis.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "backends/cpu/compile/emit/target_machine.h"

namespace kiln::cpu {
namespace {

constexpr unsigned k_intel_syntax = 1;

struct Instruction {
  llvm::MCInst code;
  uint64_t bytes = 0;
  bool is_call = false;
  bool ends_flow = false;          // what follows it is not reached from it
  std::optional<uint64_t> target;  // of a direct branch or call
};

using Labels = std::map<uint64_t, std::string>;  // by address

/// The instructions between a branch's target and the last branch back to it.
struct Loop {
  uint64_t first = 0, last = 0;  // addresses
  size_t multiplications = 0, instructions = 0;
};

/// Whether an instruction multiplies vectors, by LLVM's name for it: what the inner loops of products are made of.
bool multiplies_vectors(llvm::StringRef name) {
  return name.contains("MADD") || name.contains("MSUB") || name.contains("MULP") || name.contains("DPBF16");
}

class Disassembly {
 public:
  Disassembly(const Image& image, llvm::LLVMTargetMachine& machine)
      : m_image(image),
        m_subtarget(*machine.getMCSubtargetInfo()),
        m_instruction_info(*machine.getMCInstrInfo()),
        m_context(machine.getTargetTriple(), machine.getMCAsmInfo(), machine.getMCRegisterInfo(), &m_subtarget),
        m_decoder(machine.getTarget().createMCDisassembler(m_subtarget, m_context)),
        m_analysis(machine.getTarget().createMCInstrAnalysis(&m_instruction_info)),
        m_printer(machine.getTarget().createMCInstPrinter(machine.getTargetTriple(), k_intel_syntax,
                                                          *machine.getMCAsmInfo(), m_instruction_info,
                                                          *machine.getMCRegisterInfo())) {}

  Status read() {
    std::vector<uint64_t> unread = {m_image.entry};
    while (!unread.empty()) {
      uint64_t address = unread.back();
      unread.pop_back();
      while (!m_instructions.contains(address)) {
        KILN_ASSIGN_OR_RETURN(const Instruction instruction, read_at(address));
        m_instructions.emplace(address, instruction);
        if (instruction.target) unread.push_back(*instruction.target);
        if (instruction.ends_flow) break;
        address += instruction.bytes;
      }
    }
    return {};
  }

  std::string text() {
    const Labels labels = find_labels();
    const std::optional<Loop> hot = hot_loop();
    std::string text;
    for (const auto& [address, instruction] : m_instructions) {
      if (hot && address == hot->first) {
        text += fmt::format("# hot loop: {} multiplications of vectors in {} instructions\n", hot->multiplications,
                            hot->instructions);
      }
      if (const auto label = labels.find(address); label != labels.end()) text += label->second + ":\n";
      text += fmt::format("{:6x}:  {}\n", address, written(address, instruction, labels));
      if (hot && address == hot->last) text += "# end of the hot loop\n";
    }
    return text;
  }

 private:
  Expected<Instruction> read_at(uint64_t address) const {
    if (address >= m_image.code.size()) {
      return error(StatusCode::data_loss, "cpu: the code leads to byte {:#x}, it has {:#x}", address,
                   m_image.code.size());
    }
    Instruction instruction;
    const llvm::ArrayRef<uint8_t> bytes(m_image.code.data() + address, m_image.code.size() - address);
    if (m_decoder->getInstruction(instruction.code, instruction.bytes, bytes, address, llvm::nulls()) !=
        llvm::MCDisassembler::Success) {
      return error(StatusCode::data_loss, "cpu: no instruction begins at byte {:#x} of the code", address);
    }
    const llvm::MCInstrDesc& facts = m_instruction_info.get(instruction.code.getOpcode());
    instruction.is_call = facts.isCall();
    instruction.ends_flow = facts.isBarrier();
    if (uint64_t target = 0; m_analysis->evaluateBranch(instruction.code, address, instruction.bytes, target)) {
      instruction.target = target;
    }
    return instruction;
  }

  /// Numbered in the order of addresses. What is called is a function, what a branch leads back to begins a loop.
  Labels find_labels() const {
    enum Kind : uint8_t { other, loop, function };
    std::map<uint64_t, Kind> kinds;
    for (const auto& [address, instruction] : m_instructions) {
      if (!instruction.target) continue;
      Kind& kind = kinds[*instruction.target];
      kind = std::max(kind, instruction.is_call ? function : *instruction.target <= address ? loop : other);
    }
    Labels labels;
    std::array<size_t, 3> counts{};
    for (const auto& [address, kind] : kinds) {
      constexpr std::array k_names = {"label", "loop", "function"};
      labels[address] = fmt::format("{}_{}", k_names[kind], ++counts[kind]);
    }
    labels[m_image.entry] = "entry";
    return labels;
  }

  std::vector<Loop> innermost_loops() const {
    std::map<uint64_t, uint64_t> lasts;  // of each loop, by its first instruction
    for (const auto& [address, instruction] : m_instructions) {
      if (instruction.target && !instruction.is_call && *instruction.target <= address) {
        lasts[*instruction.target] = address;
      }
    }
    std::vector<Loop> loops;
    for (auto loop = lasts.begin(); loop != lasts.end(); ++loop) {
      const auto [first, last] = *loop;
      const bool has_inner = std::any_of(std::next(loop), lasts.upper_bound(last),
                                         [last](const auto& inner) { return inner.second <= last; });
      if (!has_inner) loops.push_back(counted({first, last}));
    }
    return loops;
  }

  Loop counted(Loop loop) const {
    const auto end = m_instructions.upper_bound(loop.last);
    for (auto each = m_instructions.find(loop.first); each != end; ++each) {
      loop.multiplications += multiplies_vectors(m_instruction_info.getName(each->second.code.getOpcode())) ? 1 : 0;
      ++loop.instructions;
    }
    return loop;
  }

  std::optional<Loop> hot_loop() const {
    const std::vector<Loop> loops = innermost_loops();
    if (loops.empty()) return std::nullopt;
    return *std::ranges::max_element(
        loops, {}, [](const Loop& loop) { return std::tuple(loop.multiplications, loop.instructions); });
  }

  std::string written(uint64_t address, const Instruction& instruction, const Labels& labels) {
    llvm::MCInst code = instruction.code;
    if (instruction.target) {  // the first operand of direct branches and calls
      llvm::MCSymbol* label = m_context.getOrCreateSymbol(labels.at(*instruction.target));
      code.getOperand(0) = llvm::MCOperand::createExpr(llvm::MCSymbolRefExpr::create(label, m_context));
    }
    std::string words;
    llvm::raw_string_ostream stream(words);
    m_printer->printInst(&code, address, "", m_subtarget, stream);
    const auto [name, operands] = llvm::StringRef(words).trim().split('\t');
    return operands.empty() ? name.str() : fmt::format("{:<15} {}", name.str(), operands.str());
  }

  const Image& m_image;
  const llvm::MCSubtargetInfo& m_subtarget;
  const llvm::MCInstrInfo& m_instruction_info;
  llvm::MCContext m_context;
  const std::unique_ptr<llvm::MCDisassembler> m_decoder;
  const std::unique_ptr<llvm::MCInstrAnalysis> m_analysis;
  const std::unique_ptr<llvm::MCInstPrinter> m_printer;
  std::map<uint64_t, Instruction> m_instructions;  // by address
};

}  // namespace

Expected<std::string> disassemble(const Image& image, const CpuTarget& target) {
  Disassembly disassembly(image, target_machine(target));
  KILN_RETURN_IF_ERROR(disassembly.read());
  return disassembly.text();
}

}  // namespace kiln::cpu
