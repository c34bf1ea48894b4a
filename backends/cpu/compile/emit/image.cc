#include "backends/cpu/compile/emit/image.h"

#include <llvm/ADT/BitmaskEnum.h>
#include <llvm/CodeGen/MachineModuleInfo.h>
#include <llvm/CodeGen/Passes.h>
#include <llvm/CodeGen/TargetPassConfig.h>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/JITLink/x86_64.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <chrono>

#include "backends/cpu/compile/emit/spill_counter.h"
#include "backends/cpu/compile/emit/target_machine.h"
#include "base/limits.h"

// How an image is made.
//
// Code generation writes an ELF object to memory. JITLink then links it as if it were to run at a made-up
// address, with all segments placed one after another in a single buffer. Since every edge that remains must
// be relative to the program counter, the made-up address cancels out, and the buffer after fix-ups is the
// image: it can be stored, and mapped anywhere that is aligned to 64 bytes. Text and constants stay at a
// fixed distance because they are one buffer, mapped read+execute as a whole.
namespace kiln::cpu {
namespace {

namespace jitlink = llvm::jitlink;
LLVM_ENABLE_BITMASK_ENUMS_IN_NAMESPACE();
using Clock = std::chrono::steady_clock;

constexpr uint64_t k_base = 0x200000;  // any address does
constexpr uint64_t k_segment_alignment = 64;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

llvm::Error refuse(const llvm::Twine& reason) {
  return llvm::make_error<llvm::StringError>(reason, llvm::inconvertibleErrorCode());
}

/// Lays all segments out in one buffer.
class FlatMemory final : public jitlink::JITLinkMemoryManager {
 public:
  explicit FlatMemory(std::vector<uint8_t>* bytes) : m_bytes(bytes) {}

  void allocate(const jitlink::JITLinkDylib*, jitlink::LinkGraph& graph, OnAllocatedFunction done) override {
    jitlink::BasicLayout layout(graph);
    std::vector<std::pair<size_t, jitlink::BasicLayout::Segment*>> placed;
    size_t size = 0;
    for (auto& entry : layout.segments()) {
      auto& segment = entry.second;
      size = llvm::alignTo(size, std::max(k_segment_alignment, segment.Alignment.value()));
      placed.emplace_back(size, &segment);
      size += segment.ContentSize + segment.ZeroFillSize;
    }
    if (size > limits::k_code_bytes) {
      return done(
          refuse("the code has " + llvm::Twine(size) + " bytes, the limit is " + llvm::Twine(limits::k_code_bytes)));
    }
    m_bytes->assign(size, 0);
    for (const auto& [offset, segment] : placed) {
      segment->Addr = llvm::orc::ExecutorAddr(k_base + offset);
      segment->WorkingMem = reinterpret_cast<char*>(m_bytes->data() + offset);
    }
    if (llvm::Error failure = layout.apply()) return done(std::move(failure));
    done(std::make_unique<Allocation>());
  }

  void deallocate(std::vector<FinalizedAlloc> allocations, OnDeallocatedFunction done) override {
    for (FinalizedAlloc& allocation : allocations) allocation.release();
    done(llvm::Error::success());
  }

 private:
  struct Allocation final : InFlightAlloc {
    void abandon(OnAbandonedFunction done) override { done(llvm::Error::success()); }
    void finalize(OnFinalizedFunction done) override { done(FinalizedAlloc(llvm::orc::ExecutorAddr(k_base))); }
  };

  std::vector<uint8_t>* m_bytes;
};

struct LinkResult {
  std::vector<uint8_t> bytes;
  uint64_t entry = UINT64_MAX;
  std::string failure;
};

bool is_absolute(jitlink::Edge::Kind kind) {
  switch (kind) {
    case jitlink::x86_64::Pointer64:
    case jitlink::x86_64::Pointer32:
    case jitlink::x86_64::Pointer32Signed:
    case jitlink::x86_64::Pointer16:
    case jitlink::x86_64::Pointer8:
      return true;
    default:
      return false;
  }
}

/// The proof that the code can lie anywhere and change nothing but its arguments.
llvm::Error check_self_contained(jitlink::LinkGraph& graph) {
  for (const jitlink::Block* block : graph.blocks()) {
    for (const jitlink::Edge& edge : block->edges()) {
      if (!edge.isRelocation() || !is_absolute(edge.getKind())) continue;
      const auto& target = edge.getTarget();
      return refuse("absolute relocation to " + (target.hasName() ? target.getName() : llvm::StringRef("a section")));
    }
  }
  for (const jitlink::Section& section : graph.sections()) {
    if (section.empty() || (section.getMemProt() & llvm::orc::MemProt::Write) == llvm::orc::MemProt::None) continue;
    return refuse("writable section " + section.getName());
  }
  return llvm::Error::success();
}

class FlatContext final : public jitlink::JITLinkContext {
 public:
  explicit FlatContext(LinkResult* result) : JITLinkContext(nullptr), m_result(result), m_memory(&result->bytes) {}

  jitlink::JITLinkMemoryManager& getMemoryManager() override { return m_memory; }
  void notifyFailed(llvm::Error failure) override { m_result->failure = llvm::toString(std::move(failure)); }

  void lookup(const LookupMap& symbols, std::unique_ptr<jitlink::JITLinkAsyncLookupContinuation> done) override {
    if (symbols.empty()) return done->run(jitlink::AsyncLookupResult());
    std::string names;
    for (const auto& symbol : symbols) names += " " + symbol.first.str();
    done->run(refuse("external symbols:" + names));
  }

  llvm::Error notifyResolved(jitlink::LinkGraph& graph) override {
    for (const jitlink::Symbol* symbol : graph.defined_symbols()) {
      if (!symbol->hasName() || symbol->getScope() == jitlink::Scope::Local) continue;
      if (symbol->getName() == k_entry_name) m_result->entry = symbol->getAddress().getValue() - k_base;
    }
    return llvm::Error::success();
  }

  void notifyFinalized(jitlink::JITLinkMemoryManager::FinalizedAlloc allocation) override { allocation.release(); }

  llvm::Error modifyPassConfig(jitlink::LinkGraph&, jitlink::PassConfiguration& passes) override {
    passes.PreFixupPasses.push_back(check_self_contained);
    return llvm::Error::success();
  }

 private:
  LinkResult* m_result;
  FlatMemory m_memory;
};

LinkResult link_flat(llvm::StringRef object) {
  LinkResult result;
  auto graph = jitlink::createLinkGraphFromObject(llvm::MemoryBufferRef(object, "kernel"));
  if (!graph) {
    result.failure = llvm::toString(graph.takeError());
    return result;
  }
  jitlink::link(std::move(*graph), std::make_unique<FlatContext>(&result));
  return result;
}

/// What LLVMTargetMachine::addPassesToEmitFile does, with a pass of ours before the printer.
Status generate(llvm::Module& module, llvm::LLVMTargetMachine& machine, llvm::raw_pwrite_stream& out, int* hot_spills) {
  module.setDataLayout(machine.createDataLayout());
  module.setTargetTriple(machine.getTargetTriple().str());
  module.setPICLevel(llvm::PICLevel::BigPIC);
#ifndef NDEBUG
  std::string message;
  llvm::raw_string_ostream stream(message);
  if (llvm::verifyModule(module, &stream)) return error(StatusCode::internal, "cpu: invalid module: {}", message);
#endif
  llvm::legacy::PassManager passes;
  auto* modules = new llvm::MachineModuleInfoWrapperPass(&machine);  // the pass manager owns what it is given
  llvm::TargetPassConfig* config = machine.createPassConfig(passes);
  config->setDisableVerify(true);
  passes.add(config);
  passes.add(modules);
  if (config->addISelPasses()) return error(StatusCode::internal, "cpu: no instruction selection");
  config->addMachinePasses();
  passes.add(make_spill_counter(hot_spills));
  config->setInitialized();
  if (machine.addAsmPrinter(passes, out, nullptr, llvm::CodeGenFileType::ObjectFile, modules->getMMI().getContext())) {
    return error(StatusCode::internal, "cpu: no assembly printer");
  }
  passes.add(llvm::createFreeMachineFunctionPass());
  passes.run(module);
  return {};
}

}  // namespace

Expected<Image> make_image(llvm::Module& module, const CpuTarget& target, ImageReport* report) {
  ImageReport measured;
  const auto codegen_start = Clock::now();
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream out(object);
  KILN_RETURN_IF_ERROR(generate(module, target_machine(target), out, &measured.hot_spills));
  measured.codegen_ms = ms_since(codegen_start);
  if (report != nullptr) *report = measured;

  const auto link_start = Clock::now();
  LinkResult linked = link_flat(llvm::StringRef(object.data(), object.size()));
  measured.link_ms = ms_since(link_start);
  if (report != nullptr) *report = measured;
  if (!linked.failure.empty()) return error(StatusCode::internal, "cpu: not self-contained: {}", linked.failure);
  if (linked.entry == UINT64_MAX) return error(StatusCode::internal, "cpu: no function named {}", k_entry_name);

  Image image;
  image.code = std::move(linked.bytes);
  image.entry = linked.entry;
  image.features = target.features;
  return image;
}

}  // namespace kiln::cpu
