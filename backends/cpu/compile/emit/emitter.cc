#include "backends/cpu/compile/emit/emitter.h"

#include <bit>
#include <cassert>

#include "backends/cpu/compile/emit/image.h"
#include "backends/cpu/compile/emit/target_machine.h"

#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/Target/TargetMachine.h>

namespace kiln::cpu {

Emitter::Emitter(llvm::Module& module, const CpuTarget& target)
    : ir(module.getContext()), m_module(module), m_target(target) {
  const llvm::LLVMTargetMachine& machine = target_machine(target);
  module.setDataLayout(machine.createDataLayout());
  module.setTargetTriple(machine.getTargetTriple().str());
}

llvm::Type* Emitter::vector(llvm::Type* element, int lanes) {
  return lanes == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
}

int Emitter::lanes_of(const llvm::Value* value) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
  return type == nullptr ? 1 : static_cast<int>(type->getNumElements());
}

llvm::Type* Emitter::like(const llvm::Value* shape, llvm::Type* element) { return vector(element, lanes_of(shape)); }

llvm::Constant* Emitter::real(llvm::Type* type, double value) { return llvm::ConstantFP::get(type, value); }

llvm::Constant* Emitter::integer(llvm::Type* type, int64_t value) {
  return llvm::ConstantInt::get(type, static_cast<uint64_t>(value), /*IsSigned=*/true);
}

llvm::Constant* Emitter::iota(llvm::Type* element, int lanes) {
  if (lanes == 1) return integer(element, 0);
  std::vector<llvm::Constant*> values;
  for (int lane = 0; lane < lanes; ++lane) values.push_back(integer(element, lane));
  return llvm::ConstantVector::get(values);
}

// Functions.

llvm::Function* Emitter::make_function(const std::string& name, llvm::Type* result,
                                       llvm::ArrayRef<llvm::Type*> parameters, bool exported) {
  auto* type = llvm::FunctionType::get(result, parameters, false);
  const auto linkage = exported ? llvm::GlobalValue::ExternalLinkage : llvm::GlobalValue::InternalLinkage;
  auto* function = llvm::Function::Create(type, linkage, name, m_module);
  const llvm::LLVMTargetMachine& machine = target_machine(m_target);
  function->addFnAttr("target-cpu", machine.getTargetCPU());
  function->addFnAttr("target-features", machine.getTargetFeatureString());
  // Without both, x86-64-v4 splits 64-byte vectors in two: 99 % of peak becomes 41 %.
  const std::string width = std::to_string(m_target.vector_bytes * 8);
  function->addFnAttr("prefer-vector-width", width);
  function->addFnAttr("min-legal-vector-width", width);
  function->addFnAttr("no-builtins");  // or loops become calls of memset and memcpy
  function->addFnAttr("no-trapping-math", "true");
  function->addFnAttr("no-stack-arg-probe");
  function->addFnAttr(llvm::Attribute::NoUnwind);
  function->addFnAttr(llvm::Attribute::MustProgress);
  if (!exported) function->addFnAttr(llvm::Attribute::NoInline);
  for (llvm::Argument& argument : function->args()) {
    if (argument.getType()->isPointerTy()) argument.addAttr(llvm::Attribute::NoAlias);
  }
  ir.SetInsertPoint(llvm::BasicBlock::Create(context(), "start", function));
  return function;
}

Emitter::Entry Emitter::begin_entry() {
  auto* function = make_function(k_entry_name, ir.getVoidTy(),
                                 {pointer(), pointer(), pointer(), i64(), i64(), pointer()}, /*exported=*/true);
  auto* argument = function->arg_begin();
  Entry entry{function, argument, argument + 1, argument + 2, argument + 3, argument + 4, argument + 5};
  function->addParamAttr(1, llvm::Attribute::getWithAlignment(context(), llvm::Align(64)));
  return entry;
}

llvm::Function* Emitter::begin_function(const std::string& name, llvm::Type* result,
                                        llvm::ArrayRef<llvm::Type*> parameters) {
  return make_function(name, result, parameters, /*exported=*/false);
}

llvm::Value* Emitter::buffer(const Entry& entry, uint32_t number) {
  return ir.CreateAlignedLoad(pointer(), advance(entry.buffers, int64_t{number} * 8), llvm::Align(8));
}

// Control.

llvm::BasicBlock* Emitter::block(const char* name) {
  return llvm::BasicBlock::Create(context(), name, ir.GetInsertBlock()->getParent());
}

llvm::MDNode* Emitter::keep_loop() {
  const auto text = [&](const char* name) {
    return llvm::MDNode::get(context(), llvm::MDString::get(context(), name));
  };
  auto* node =
      llvm::MDNode::getDistinct(context(), {nullptr, text("llvm.loop.unroll.disable"), text("llvm.loop.mustprogress")});
  node->replaceOperandWith(0, node);
  return node;
}

Values Emitter::loop(llvm::Value* begin, llvm::Value* end, int64_t step, const Values& initial, const LoopBody& body) {
  const auto* first = llvm::dyn_cast<llvm::ConstantInt>(begin);
  const auto* last = llvm::dyn_cast<llvm::ConstantInt>(end);
  const bool known = first != nullptr && last != nullptr;
  if (known && first->getSExtValue() >= last->getSExtValue()) return initial;
  if (known && first->getSExtValue() + step >= last->getSExtValue()) return body(begin, initial);

  llvm::BasicBlock* before = ir.GetInsertBlock();
  llvm::BasicBlock* inside = block("loop");
  llvm::BasicBlock* after = block("done");
  if (known) {
    ir.CreateBr(inside);
  } else {
    ir.CreateCondBr(ir.CreateICmpSLT(begin, end), inside, after);
  }

  ir.SetInsertPoint(inside);
  auto* i = ir.CreatePHI(i64(), 2);
  i->addIncoming(begin, before);
  std::vector<llvm::PHINode*> phis;
  for (llvm::Value* value : initial) {
    phis.push_back(ir.CreatePHI(value->getType(), 2));
    phis.back()->addIncoming(value, before);
  }
  const Values next = body(i, Values(phis.begin(), phis.end()));
  assert(next.size() == initial.size() && "a loop's body returns what it carries");

  llvm::BasicBlock* latch = ir.GetInsertBlock();
  llvm::Value* next_i = ir.CreateAdd(i, index(step), "", /*HasNUW=*/false, /*HasNSW=*/true);
  i->addIncoming(next_i, latch);
  for (size_t n = 0; n < phis.size(); ++n) phis[n]->addIncoming(next[n], latch);
  ir.CreateCondBr(ir.CreateICmpSLT(next_i, end), inside, after)->setMetadata("llvm.loop", keep_loop());

  ir.SetInsertPoint(after);
  if (known) return next;
  Values result;
  for (size_t n = 0; n < initial.size(); ++n) {
    auto* phi = ir.CreatePHI(initial[n]->getType(), 2);
    phi->addIncoming(initial[n], before);
    phi->addIncoming(next[n], latch);
    result.push_back(phi);
  }
  return result;
}

void Emitter::loop(llvm::Value* begin, llvm::Value* end, int64_t step, const std::function<void(llvm::Value*)>& body) {
  loop(begin, end, step, {}, [&](llvm::Value* i, const Values&) {
    body(i);
    return Values{};
  });
}

Values Emitter::loop_while(const Values& initial, const std::function<llvm::Value*(const Values&)>& condition,
                           const std::function<Values(const Values&)>& body) {
  llvm::BasicBlock* before = ir.GetInsertBlock();
  llvm::BasicBlock* head = block("while");
  llvm::BasicBlock* inside = block("loop");
  llvm::BasicBlock* after = block("done");
  ir.CreateBr(head);
  ir.SetInsertPoint(head);
  Values carried;
  for (llvm::Value* value : initial) {
    auto* phi = ir.CreatePHI(value->getType(), 2);
    phi->addIncoming(value, before);
    carried.push_back(phi);
  }
  ir.CreateCondBr(condition(carried), inside, after);

  ir.SetInsertPoint(inside);
  const Values next = body(carried);
  assert(next.size() == initial.size() && "a loop's body returns what it carries");
  for (size_t n = 0; n < carried.size(); ++n) {
    llvm::cast<llvm::PHINode>(carried[n])->addIncoming(next[n], ir.GetInsertBlock());
  }
  ir.CreateBr(head)->setMetadata("llvm.loop", keep_loop());
  ir.SetInsertPoint(after);
  return carried;
}

void Emitter::if_then(llvm::Value* condition, const std::function<void()>& then) {
  llvm::BasicBlock* inside = block("then");
  llvm::BasicBlock* after = block("joined");
  ir.CreateCondBr(condition, inside, after);
  ir.SetInsertPoint(inside);
  then();
  ir.CreateBr(after);
  ir.SetInsertPoint(after);
}

Values Emitter::if_else(llvm::Value* condition, const std::function<Values()>& then,
                        const std::function<Values()>& otherwise) {
  llvm::BasicBlock* yes = block("then");
  llvm::BasicBlock* no = block("else");
  llvm::BasicBlock* after = block("joined");
  ir.CreateCondBr(condition, yes, no);
  ir.SetInsertPoint(yes);
  const Values from_yes = then();
  yes = ir.GetInsertBlock();
  ir.CreateBr(after);
  ir.SetInsertPoint(no);
  const Values from_no = otherwise();
  no = ir.GetInsertBlock();
  ir.CreateBr(after);
  ir.SetInsertPoint(after);
  assert(from_yes.size() == from_no.size() && "both branches give as many values");
  Values result;
  for (size_t n = 0; n < from_yes.size(); ++n) {
    auto* phi = ir.CreatePHI(from_yes[n]->getType(), 2);
    phi->addIncoming(from_yes[n], yes);
    phi->addIncoming(from_no[n], no);
    result.push_back(phi);
  }
  return result;
}

// Memory.

uint64_t Emitter::natural_alignment(llvm::Type* type) const {
  return std::max<uint64_t>(1, type->getScalarType()->getPrimitiveSizeInBits().getFixedValue() / 8);
}

llvm::Value* Emitter::load(llvm::Type* type, llvm::Value* pointer, uint64_t alignment) {
  return ir.CreateAlignedLoad(type, pointer, llvm::Align(alignment != 0 ? alignment : natural_alignment(type)));
}

void Emitter::store(llvm::Value* value, llvm::Value* pointer, uint64_t alignment) {
  ir.CreateAlignedStore(value, pointer, llvm::Align(alignment != 0 ? alignment : natural_alignment(value->getType())));
}

llvm::Value* Emitter::masked_load(llvm::Type* type, llvm::Value* pointer, llvm::Value* mask) {
  return ir.CreateMaskedLoad(type, pointer, llvm::Align(natural_alignment(type)), mask,
                             llvm::Constant::getNullValue(type));
}

void Emitter::masked_store(llvm::Value* value, llvm::Value* pointer, llvm::Value* mask) {
  ir.CreateMaskedStore(value, pointer, llvm::Align(natural_alignment(value->getType())), mask);
}

/// As many loads as the stride says, each joined with those before. The last begins early enough to end with the last lane.
llvm::Value* Emitter::interleaved_load(llvm::Type* type, llvm::Value* pointer, int64_t stride, llvm::Value* mask) {
  const auto lanes = static_cast<int64_t>(llvm::cast<llvm::FixedVectorType>(type)->getNumElements());
  llvm::Value* joined = nullptr;
  for (int64_t part = 0; part < stride; ++part) {
    const int64_t first = part + 1 < stride ? part * lanes : part * (lanes - 1);
    std::vector<int> lane_of, taken;  // of each element that is loaded; of both operands' elements, for each lane
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t element = first + i, of_part = i * stride - first;
      lane_of.push_back(static_cast<int>(element % stride == 0 ? element / stride : lanes));
      const int64_t before = part == 1 ? std::min(i * stride, lanes - 1) : i;
      taken.push_back(static_cast<int>(of_part >= 0 && of_part < lanes ? lanes + of_part : before));
    }
    llvm::Value* from = advance(pointer, first * static_cast<int64_t>(natural_alignment(type)));
    const auto elements_of = [&](llvm::Value* all) {
      return ir.CreateShuffleVector(all, llvm::Constant::getNullValue(all->getType()), lane_of);
    };
    llvm::Value* loaded = mask == nullptr ? load(type, from) : masked_load(type, from, elements_of(mask));
    joined = part == 0 ? loaded : ir.CreateShuffleVector(joined, loaded, taken);
  }
  return joined;
}

/// As many stores as the stride says, each of the lanes that lie in a vector's length of memory.
void Emitter::interleaved_store(llvm::Value* value, llvm::Value* pointer, int64_t stride, llvm::Value* mask) {
  const int lanes = lanes_of(value);
  if (mask == nullptr) mask = integer(vector(i1(), lanes), 1);
  for (int64_t first = 0; first < stride * lanes; first += lanes) {
    std::vector<int> lane_of, masked_by;  // of each element; `lanes` is one that does not exist
    for (int64_t element = first; element < first + lanes; ++element) {
      const bool is_between = element % stride != 0;
      lane_of.push_back(is_between ? -1 : static_cast<int>(element / stride));
      masked_by.push_back(is_between ? lanes : lane_of.back());
    }
    llvm::Value* none = llvm::Constant::getNullValue(mask->getType());
    masked_store(ir.CreateShuffleVector(value, lane_of),
                 advance(pointer, first * static_cast<int64_t>(natural_alignment(value->getType()))),
                 ir.CreateShuffleVector(mask, none, masked_by));
  }
}

llvm::Value* Emitter::prefix_mask(llvm::Value* count, int lanes) {
  if (const auto* known = llvm::dyn_cast<llvm::ConstantInt>(count); known != nullptr && lanes > 1) {
    std::vector<llvm::Constant*> bits;
    for (int lane = 0; lane < lanes; ++lane) bits.push_back(ir.getInt1(lane < known->getSExtValue()));
    return llvm::ConstantVector::get(bits);
  }
  // Counts are compared as 32-bit lanes, which every target compares in one vector; they are clamped first.
  llvm::Value* clamped = ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, count, index(lanes));
  return ir.CreateICmpSLT(iota(i32(), lanes), splat(ir.CreateTrunc(clamped, i32()), lanes));
}

// Arithmetic.

llvm::Value* Emitter::splat(llvm::Value* scalar, int lanes) {
  return lanes == 1 ? scalar : ir.CreateVectorSplat(static_cast<unsigned>(lanes), scalar);
}

llvm::Value* Emitter::fma(llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  if (!m_target.has(Feature::fma)) return ir.CreateFAdd(ir.CreateFMul(a, b), c);
  return ir.CreateIntrinsic(a->getType(), llvm::Intrinsic::fma, {a, b, c});
}

llvm::Value* Emitter::unary(llvm::Intrinsic::ID intrinsic, llvm::Value* value) {
  return ir.CreateUnaryIntrinsic(intrinsic, value);
}

llvm::Value* Emitter::fold_lanes(llvm::Value* vector,
                                 const std::function<llvm::Value*(llvm::Value*, llvm::Value*)>& combine) {
  for (int lanes = lanes_of(vector); lanes > 1; lanes /= 2) {
    assert(std::has_single_bit(static_cast<unsigned>(lanes)) && "lanes are a power of two");
    std::vector<int> low, high;
    for (int lane = 0; lane < lanes / 2; ++lane) {
      low.push_back(lane);
      high.push_back(lane + lanes / 2);
    }
    if (lanes == 2) {
      vector = combine(ir.CreateExtractElement(vector, uint64_t{0}), ir.CreateExtractElement(vector, uint64_t{1}));
    } else {
      vector = combine(ir.CreateShuffleVector(vector, low), ir.CreateShuffleVector(vector, high));
    }
  }
  return vector;
}

llvm::Value* Emitter::fma_of_pairs(llvm::Value* a, llvm::Value* b, llvm::Value* sum) {
  assert(m_target.has(Feature::avx512_bf16) && lanes_of(sum) == 16 && "the instruction takes 16 pairs of bf16");
  llvm::Type* pairs = vector(ir.getBFloatTy(), 2 * lanes_of(sum));
  return ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {},
                            {sum, ir.CreateBitCast(b, pairs), ir.CreateBitCast(a, pairs)});
}

llvm::Value* Emitter::bf16_of(llvm::Value* low, llvm::Value* high) {
  assert(m_target.has(Feature::avx512_bf16) && lanes_of(low) == 16 && "the instruction takes 16 numbers twice");
  return ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtne2ps2bf16_512, {}, {high, low});
}

llvm::Value* Emitter::pairs_of(llvm::Value* low, llvm::Value* high) {
  std::vector<int> side_by_side;
  for (int lane = 0; lane < lanes_of(low); ++lane)
    side_by_side.insert(side_by_side.end(), {lane, lane + lanes_of(low)});
  return ir.CreateBitCast(ir.CreateShuffleVector(bf16_of(low, high), side_by_side), like(low, i32()));
}

namespace {

/// Rows whose elements are blocks of four lanes; gives the transpose. The even rows of the result come from
/// the even blocks of neighbouring rows, the odd from the odd ones: two halves of the same problem.
Values transpose_blocks(llvm::IRBuilder<>& ir, const Values& rows) {
  if (rows.size() == 1) return rows;
  const int lanes = Emitter::lanes_of(rows[0]);
  Values halves[2];
  for (int odd = 0; odd < 2; ++odd) {
    std::vector<int> mask;
    for (int lane = 0; lane < lanes; ++lane) mask.push_back((lane / 4 * 2 + odd) * 4 + lane % 4);
    for (size_t row = 0; row < rows.size(); row += 2) {
      halves[odd].push_back(ir.CreateShuffleVector(rows[row], rows[row + 1], mask));
    }
    halves[odd] = transpose_blocks(ir, halves[odd]);
  }
  Values result;
  for (size_t row = 0; row < halves[0].size(); ++row) {
    result.push_back(halves[0][row]);
    result.push_back(halves[1][row]);
  }
  return result;
}

}  // namespace

void Emitter::transpose(Values& rows) {
  const int n = static_cast<int>(rows.size());
  assert((n == 4 || n == 8 || n == 16) && lanes_of(rows[0]) == n && "n vectors of n lanes");
  // First 4x4 within each 128-bit lane (unpack instructions do that), then the blocks of four among the rows.
  const auto shuffle = [&](llvm::Value* a, llvm::Value* b, const std::array<int, 4>& four) {
    std::vector<int> mask;
    for (int lane = 0; lane < n; ++lane) {
      const int source = four[static_cast<size_t>(lane % 4)];
      mask.push_back(lane / 4 * 4 + (source < 4 ? source : source - 4 + n));
    }
    return ir.CreateShuffleVector(a, b, mask);
  };
  Values columns[4];  // columns[c][g]: elements 4L + c of rows 4g…4g+3, in block L
  for (size_t g = 0; g < rows.size(); g += 4) {
    llvm::Value* low01 = shuffle(rows[g], rows[g + 1], {0, 4, 1, 5});
    llvm::Value* high01 = shuffle(rows[g], rows[g + 1], {2, 6, 3, 7});
    llvm::Value* low23 = shuffle(rows[g + 2], rows[g + 3], {0, 4, 1, 5});
    llvm::Value* high23 = shuffle(rows[g + 2], rows[g + 3], {2, 6, 3, 7});
    columns[0].push_back(shuffle(low01, low23, {0, 1, 4, 5}));
    columns[1].push_back(shuffle(low01, low23, {2, 3, 6, 7}));
    columns[2].push_back(shuffle(high01, high23, {0, 1, 4, 5}));
    columns[3].push_back(shuffle(high01, high23, {2, 3, 6, 7}));
  }
  for (size_t c = 0; c < 4; ++c) {
    const Values blocks = transpose_blocks(ir, columns[c]);
    for (size_t block = 0; block < blocks.size(); ++block) rows[block * 4 + c] = blocks[block];
  }
}

/// Pairs of vectors are halved and joined, so n vectors cost about 2n shuffles instead of n * log2(lanes).
llvm::Value* Emitter::sum_of_each(const Values& vectors) {
  const int lanes = lanes_of(vectors[0]);
  const auto add = [&](llvm::Value* a, llvm::Value* b) {
    return a->getType()->isFPOrFPVectorTy() ? ir.CreateFAdd(a, b) : ir.CreateAdd(a, b);
  };
  Values level = vectors;
  for (int block = lanes; block > 1; block /= 2) {
    std::vector<int> low, high;
    for (int lane = 0; lane < 2 * lanes; ++lane) (lane % block < block / 2 ? low : high).push_back(lane);
    Values next;
    for (size_t i = 0; i < level.size(); i += 2) {
      llvm::Value* a = level[i];
      llvm::Value* b = level[std::min(i + 1, level.size() - 1)];
      next.push_back(add(ir.CreateShuffleVector(a, b, low), ir.CreateShuffleVector(a, b, high)));
    }
    level = next;
  }
  return level[0];
}

}  // namespace kiln::cpu
