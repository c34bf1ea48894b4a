#include "backends/level_zero/compile/emitter.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace kiln::level_zero {
namespace {

constexpr uint32_t k_version = 0x00010200;
constexpr uint32_t k_generator = 0;  // not a registered one

constexpr uint32_t word(auto value) { return static_cast<uint32_t>(value); }

}  // namespace

std::vector<uint32_t> string_words(const std::string& text) {
  std::vector<uint32_t> words(text.size() / 4 + 1, 0);
  std::memcpy(words.data(), text.data(), text.size());
  return words;
}

Emitter::Emitter() {
  require(spv::Capability::Addresses);
  require(spv::Capability::Kernel);
  require(spv::Capability::Int64);
  require(spv::Capability::Int16);
  require(spv::Capability::Int8);
  m_math = fresh();
}

void Emitter::write(Words& section, spv::Op code, std::span<const uint32_t> operands) {
  section.push_back(word(operands.size() + 1) << 16 | word(code));
  section.insert(section.end(), operands.begin(), operands.end());
}

void Emitter::require(spv::Capability capability) { m_capabilities.insert(capability); }

void Emitter::extension(const char* name) { m_extensions.insert(name); }

// Types.

Id Emitter::declare(spv::Op code, Words operands) {
  const auto [it, is_new] = m_known.try_emplace({code, operands}, 0);
  if (is_new) {
    it->second = fresh();
    operands.insert(operands.begin(), it->second);
    write(m_globals, code, operands);
  }
  return it->second;
}

Id Emitter::boolean() { return declare(spv::Op::OpTypeBool, {}); }

Id Emitter::integer(int bits) {
  const Id type = declare(spv::Op::OpTypeInt, {word(bits), 0});
  m_integer_bits[type] = bits;
  return type;
}

Id Emitter::real(int bits) {
  if (bits == 64) require(spv::Capability::Float64);
  if (bits == 16) require(spv::Capability::Float16);
  const Id type = declare(spv::Op::OpTypeFloat, {word(bits)});
  m_real_bits[type] = bits;
  return type;
}

Id Emitter::pointer(spv::StorageClass storage, Id pointee) {
  const Id type = declare(spv::Op::OpTypePointer, {word(storage), pointee});
  m_pointee[type] = pointee;
  return type;
}

Id Emitter::array(Id element, uint32_t count) {
  const Id type = declare(spv::Op::OpTypeArray, {element, constant(integer(32), count)});
  m_pointee[type] = element;
  return type;
}

Id Emitter::vector(Id element, uint32_t count) {
  if (count > 4) require(spv::Capability::Vector16);
  const Id type = declare(spv::Op::OpTypeVector, {element, count});
  m_pointee[type] = element;
  return type;
}

// Constants.

Id Emitter::declare_constant(spv::Op code, Id type, Words operands) {
  operands.insert(operands.begin(), type);
  const auto [it, is_new] = m_known.try_emplace({code, operands}, 0);
  if (is_new) {
    it->second = fresh();
    m_type_of[it->second] = type;
    operands.insert(operands.begin() + 1, it->second);
    write(m_globals, code, operands);
  }
  return it->second;
}

Id Emitter::constant(Id type, int64_t value) {
  const int bits = m_integer_bits.at(type);
  const auto raw = static_cast<uint64_t>(value);
  if (bits == 64) return declare_constant(spv::Op::OpConstant, type, {word(raw), word(raw >> 32)});
  // Narrow constants of an unsigned type fill the word with zeros.
  const uint32_t mask = bits == 32 ? UINT32_MAX : (1U << bits) - 1;
  return declare_constant(spv::Op::OpConstant, type, {word(raw) & mask});
}

Id Emitter::constant_real(Id type, double value) {
  if (m_real_bits.at(type) == 32) {
    return declare_constant(spv::Op::OpConstant, type, {std::bit_cast<uint32_t>(static_cast<float>(value))});
  }
  assert(m_real_bits.at(type) == 64 && "half precision lives in memory only");
  const auto raw = std::bit_cast<uint64_t>(value);
  return declare_constant(spv::Op::OpConstant, type, {word(raw), word(raw >> 32)});
}

Id Emitter::truth(bool value) {
  return declare_constant(value ? spv::Op::OpConstantTrue : spv::Op::OpConstantFalse, boolean(), {});
}

Id Emitter::null(Id type) { return declare_constant(spv::Op::OpConstantNull, type, {}); }

// Instructions.

Id Emitter::op(spv::Op code, Id type, std::span<const uint32_t> operands) {
  const Id result = fresh();
  m_type_of[result] = type;
  Words words{type, result};
  words.insert(words.end(), operands.begin(), operands.end());
  write(m_body, code, words);
  return result;
}

void Emitter::statement(spv::Op code, std::initializer_list<uint32_t> operands) { write(m_body, code, operands); }

Id Emitter::math(OpenCLLIB::Entrypoints function, Id type, std::initializer_list<Id> operands) {
  const Id result = fresh();
  m_type_of[result] = type;
  Words words{type, result, m_math, word(function)};
  words.insert(words.end(), operands);
  write(m_body, spv::Op::OpExtInst, words);
  return result;
}

Id Emitter::call(const std::string& name, Id type, std::span<const Id> arguments) {
  Id& function = m_imported[name];
  if (function == 0) {
    require(spv::Capability::Linkage);
    function = fresh();
    Words signature{type};
    for (const Id argument : arguments) signature.push_back(type_of(argument));
    const auto none = word(spv::FunctionControlMask::MaskNone);
    write(m_imports, spv::Op::OpFunction, {type, function, none, declare(spv::Op::OpTypeFunction, signature)});
    for (size_t i = 1; i < signature.size(); ++i) {
      write(m_imports, spv::Op::OpFunctionParameter, {signature[i], fresh()});
    }
    write(m_imports, spv::Op::OpFunctionEnd, {});
    Words decoration{function, word(spv::Decoration::LinkageAttributes)};
    const Words name_words = string_words(name);
    decoration.insert(decoration.end(), name_words.begin(), name_words.end());
    decoration.push_back(word(spv::LinkageType::Import));
    write(m_decorations, spv::Op::OpDecorate, decoration);
  }
  Ids operands{function};
  operands.insert(operands.end(), arguments.begin(), arguments.end());
  return op(spv::Op::OpFunctionCall, type, operands);
}

Id Emitter::both(Id a, Id b) {
  if (a == 0 || b == 0) return a == 0 ? b : a;
  return op(spv::Op::OpLogicalAnd, boolean(), {a, b});
}

Id Emitter::widen(Id value) {
  return type_of(value) == integer(64) ? value : op(spv::Op::OpUConvert, integer(64), {value});
}

// Memory.

Id Emitter::element_pointer(Id base, Id element) {
  return op(spv::Op::OpInBoundsPtrAccessChain, type_of(base), {base, element});
}

Id Emitter::array_pointer(Id variable, Id element) {
  const Id element_type = m_pointee.at(m_pointee.at(type_of(variable)));
  return op(spv::Op::OpInBoundsAccessChain, pointer(spv::StorageClass::Workgroup, element_type), {variable, element});
}

Id Emitter::load(Id pointer, uint32_t alignment_bytes) {
  return op(spv::Op::OpLoad, m_pointee.at(type_of(pointer)),
            {pointer, word(spv::MemoryAccessMask::Aligned), alignment_bytes});
}

void Emitter::store(Id pointer, Id value, uint32_t alignment_bytes) {
  statement(spv::Op::OpStore, {pointer, value, word(spv::MemoryAccessMask::Aligned), alignment_bytes});
}

Id Emitter::variable(Id type) {
  const Id result = fresh();
  const Id variable_type = pointer(spv::StorageClass::Function, type);
  m_type_of[result] = variable_type;
  write(m_variables, spv::Op::OpVariable, {variable_type, result, word(spv::StorageClass::Function)});
  return result;
}

Id Emitter::local_array(Id element, uint32_t count) {
  const Id type = pointer(spv::StorageClass::Workgroup, array(element, count));
  const Id result = fresh();
  m_type_of[result] = type;
  write(m_globals, spv::Op::OpVariable, {type, result, word(spv::StorageClass::Workgroup)});
  return result;
}

// Control.

void Emitter::begin_block(Id label) { statement(spv::Op::OpLabel, {label}); }

void Emitter::if_then(Id condition, const std::function<void()>& body) {
  const Id inside = fresh(), after = fresh();
  statement(spv::Op::OpSelectionMerge, {after, word(spv::SelectionControlMask::MaskNone)});
  statement(spv::Op::OpBranchConditional, {condition, inside, after});
  begin_block(inside);
  body();
  statement(spv::Op::OpBranch, {after});
  begin_block(after);
}

void Emitter::loop(Id begin, Id end, Id step, const std::function<void(Id)>& body, spv::LoopControlMask control) {
  const Id counter = variable(type_of(begin));
  const Id header = fresh(), test = fresh(), inside = fresh(), next = fresh(), after = fresh();
  store(counter, begin);
  statement(spv::Op::OpBranch, {header});
  begin_block(header);
  statement(spv::Op::OpLoopMerge, {after, next, word(control)});
  statement(spv::Op::OpBranch, {test});
  begin_block(test);
  const Id index = load(counter);
  statement(spv::Op::OpBranchConditional, {compare(spv::Op::OpULessThan, index, end), inside, after});
  begin_block(inside);
  body(index);
  statement(spv::Op::OpBranch, {next});
  begin_block(next);
  store(counter, add(index, step));
  statement(spv::Op::OpBranch, {header});
  begin_block(after);
}

void Emitter::barrier(bool global_memory) {
  const auto semantics = word(spv::MemorySemanticsMask::SequentiallyConsistent) |
                         word(spv::MemorySemanticsMask::WorkgroupMemory) |
                         (global_memory ? word(spv::MemorySemanticsMask::CrossWorkgroupMemory) : 0);
  const Id scope = constant(integer(32), word(spv::Scope::Workgroup));
  statement(spv::Op::OpControlBarrier, {scope, scope, constant(integer(32), semantics)});
}

// Work-items.

/// A read of a built-in, made once at the head of the kernel, so that it dominates every use.
Id Emitter::built_in(spv::BuiltIn which, Id type) {
  Id& value = m_built_in_values[which];
  if (value != 0) return value;
  const Id variable_type = pointer(spv::StorageClass::Input, type);
  const Id variable = fresh();
  m_built_ins[which] = variable;
  write(m_globals, spv::Op::OpVariable, {variable_type, variable, word(spv::StorageClass::Input)});
  write(m_decorations, spv::Op::OpDecorate, {variable, word(spv::Decoration::BuiltIn), word(which)});
  write(m_decorations, spv::Op::OpDecorate, {variable, word(spv::Decoration::Constant)});
  value = fresh();
  m_type_of[value] = type;
  write(m_head, spv::Op::OpLoad, {type, value, variable});
  return value;
}

Id Emitter::first_component(spv::BuiltIn which) {
  const bool is_known = m_built_in_values.contains(which);
  const Id components = built_in(which, vector(integer(64), 3));
  if (is_known) return components;
  const Id value = fresh();
  m_type_of[value] = integer(64);
  write(m_head, spv::Op::OpCompositeExtract, {integer(64), value, components, 0});
  return m_built_in_values[which] = value;
}

Id Emitter::group_id() { return first_component(spv::BuiltIn::WorkgroupId); }
Id Emitter::local_id() { return first_component(spv::BuiltIn::LocalInvocationId); }
Id Emitter::lane() { return built_in(spv::BuiltIn::SubgroupLocalInvocationId, integer(32)); }

/// The first lane's, also made at the head: of the built-in compilers do not know that it is every lane's, and keep what is
/// computed of it in a register for each.
Id Emitter::sub_group_id() {
  if (m_sub_group_id != 0) return m_sub_group_id;
  const Id type = integer(32), of_lane = built_in(spv::BuiltIn::SubgroupId, type);
  require_shuffles();
  m_sub_group_id = fresh();
  m_type_of[m_sub_group_id] = type;
  write(m_head, spv::Op::OpSubgroupShuffleINTEL, {type, m_sub_group_id, of_lane, constant(type, 0)});
  return m_sub_group_id;
}

void Emitter::require_shuffles() {
  require(spv::Capability::SubgroupShuffleINTEL);
  extension("SPV_INTEL_subgroups");
}

Id Emitter::shuffle(Id value, Id lane) {
  require_shuffles();
  return op(spv::Op::OpSubgroupShuffleINTEL, type_of(value), {value, lane});
}

Id Emitter::shuffle_xor(Id value, uint32_t mask) {
  require_shuffles();
  return op(spv::Op::OpSubgroupShuffleXorINTEL, type_of(value), {value, constant(integer(32), mask)});
}

// The kernel and the module.

Ids Emitter::begin_kernel(const std::string& name, std::span<const Id> pointees, uint32_t group_size,
                          uint32_t sub_group_size) {
  m_name = name;
  const Id nothing = declare(spv::Op::OpTypeVoid, {});
  Words signature{nothing};
  for (const Id pointee : pointees) signature.push_back(pointer(spv::StorageClass::CrossWorkgroup, pointee));
  const Id function_type = declare(spv::Op::OpTypeFunction, signature);
  m_kernel = fresh();
  write(m_head, spv::Op::OpFunction, {nothing, m_kernel, word(spv::FunctionControlMask::MaskNone), function_type});
  Ids parameters;
  for (size_t i = 1; i < signature.size(); ++i) {
    const Id parameter = fresh();
    m_type_of[parameter] = signature[i];
    write(m_head, spv::Op::OpFunctionParameter, {signature[i], parameter});
    write(m_decorations, spv::Op::OpDecorate,
          {parameter, word(spv::Decoration::FuncParamAttr), word(spv::FunctionParameterAttribute::NoAlias)});
    parameters.push_back(parameter);
  }
  write(m_head, spv::Op::OpLabel, {fresh()});
  require(spv::Capability::SubgroupDispatch);
  write(m_execution_modes, spv::Op::OpExecutionMode, {m_kernel, word(spv::ExecutionMode::LocalSize), group_size, 1, 1});
  write(m_execution_modes, spv::Op::OpExecutionMode,
        {m_kernel, word(spv::ExecutionMode::SubgroupSize), sub_group_size});
  // A product and a sum are one operation only where the kernel says so.
  write(m_execution_modes, spv::Op::OpExecutionMode, {m_kernel, word(spv::ExecutionMode::ContractionOff)});
  return parameters;
}

std::vector<uint32_t> Emitter::finish() {
  statement(spv::Op::OpReturn, {});
  statement(spv::Op::OpFunctionEnd, {});

  Words words{spv::MagicNumber, k_version, k_generator, m_bound, 0};
  for (const auto capability : m_capabilities) write(words, spv::Op::OpCapability, {word(capability)});
  for (const auto& name : m_extensions) write(words, spv::Op::OpExtension, string_words(name));
  Words import{m_math};
  const Words math_name = string_words("OpenCL.std");
  import.insert(import.end(), math_name.begin(), math_name.end());
  write(words, spv::Op::OpExtInstImport, import);
  write(words, spv::Op::OpMemoryModel, {word(spv::AddressingModel::Physical64), word(spv::MemoryModel::OpenCL)});
  Words entry{word(spv::ExecutionModel::Kernel), m_kernel};
  const Words name = string_words(m_name);
  entry.insert(entry.end(), name.begin(), name.end());
  for (const auto& [which, variable] : m_built_ins) entry.push_back(variable);
  write(words, spv::Op::OpEntryPoint, entry);
  // The first block: its label and built-ins are in the head; variables must stand before any other instruction.
  const auto split = [&] {
    size_t at = 0;
    while ((m_head[at] & 0xffff) != word(spv::Op::OpLabel)) at += m_head[at] >> 16;
    return at + (m_head[at] >> 16);
  }();
  words.insert(words.end(), m_execution_modes.begin(), m_execution_modes.end());
  words.insert(words.end(), m_decorations.begin(), m_decorations.end());
  words.insert(words.end(), m_globals.begin(), m_globals.end());
  words.insert(words.end(), m_imports.begin(), m_imports.end());
  words.insert(words.end(), m_head.begin(), m_head.begin() + static_cast<long>(split));
  words.insert(words.end(), m_variables.begin(), m_variables.end());
  words.insert(words.end(), m_head.begin() + static_cast<long>(split), m_head.end());
  words.insert(words.end(), m_body.begin(), m_body.end());
  return words;
}

}  // namespace kiln::level_zero
