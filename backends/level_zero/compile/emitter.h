#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <spirv/unified1/OpenCL.std.h>
#include <spirv/unified1/spirv.hpp11>

namespace kiln::level_zero {

/// A SPIR-V result: of a type, a constant, an instruction, a label. 0 is none.
using Id = uint32_t;
using Ids = std::vector<Id>;

/// Writes one SPIR-V module with one kernel, straight into words: OpenCL environment, physical 64-bit addresses, version
/// 1.2. Types and constants are written once each; capabilities as they are needed. Values that change live in
/// function variables: the driver's compiler makes registers of them.
///
/// Threading: one module, one thread.
class Emitter {
 public:
  Emitter();

  // Types.
  Id boolean();
  Id integer(int bits);
  Id real(int bits);
  Id pointer(spv::StorageClass storage, Id pointee);
  Id array(Id element, uint32_t count);
  Id vector(Id element, uint32_t count);
  Id type_of(Id value) const { return m_type_of.at(value); }

  // Constants of a scalar type; integers are cut to its width.
  Id constant(Id type, int64_t value);
  Id constant_real(Id type, double value);
  Id truth(bool value);
  Id null(Id type);
  Id index(int64_t value) { return constant(integer(64), value); }

  // Instructions at the end of the current block.
  Id op(spv::Op code, Id type, std::span<const uint32_t> operands);
  Id op(spv::Op code, Id type, std::initializer_list<uint32_t> operands) {
    return op(code, type, std::span(operands.begin(), operands.size()));
  }
  void statement(spv::Op code, std::initializer_list<uint32_t> operands);
  Id math(OpenCLLIB::Entrypoints function, Id type, std::initializer_list<Id> operands);
  Id add(Id a, Id b) { return op(spv::Op::OpIAdd, type_of(a), {a, b}); }
  Id mul(Id a, Id b) { return op(spv::Op::OpIMul, type_of(a), {a, b}); }
  Id compare(spv::Op code, Id a, Id b) { return op(code, boolean(), {a, b}); }
  Id both(Id a, Id b);  // logical and; 0 counts as true
  /// Not by OpLogicalNot, at which releases of the families' compilers fail without a word.
  Id opposite(Id truth_value) { return op(spv::Op::OpLogicalNotEqual, boolean(), {truth_value, truth(true)}); }
  Id select(Id condition, Id a, Id b) { return op(spv::Op::OpSelect, type_of(a), {condition, a, b}); }
  Id bits_as(Id type, Id value) { return op(spv::Op::OpBitcast, type, {value}); }
  Id compose(Id type, std::span<const Id> components) { return op(spv::Op::OpCompositeConstruct, type, components); }
  Id component(Id vector, uint32_t number) {
    return op(spv::Op::OpCompositeExtract, m_pointee.at(type_of(vector)), {vector, number});
  }
  /// A function that the driver's compiler has under that name.
  Id call(const std::string& name, Id type, std::span<const Id> arguments);
  /// Of an integer to a 64-bit one, unsigned.
  Id widen(Id value);

  // Memory.
  Id element_pointer(Id base, Id element);    // of a pointer parameter
  Id array_pointer(Id variable, Id element);  // of a variable of array type
  Id load(Id pointer, uint32_t alignment_bytes);
  void store(Id pointer, Id value, uint32_t alignment_bytes);
  Id variable(Id type);                        // of this work-item
  Id local_array(Id element, uint32_t count);  // of the work-group
  Id load(Id variable) { return op(spv::Op::OpLoad, m_pointee.at(type_of(variable)), {variable}); }
  void store(Id variable, Id value) { statement(spv::Op::OpStore, {variable, value}); }

  // Control.
  void if_then(Id condition, const std::function<void()>& body);
  /// for (index = begin; index < end; index += step), unsigned; all of one type. A trip count of 0 is possible.
  void loop(Id begin, Id end, Id step, const std::function<void(Id index)>& body,
            spv::LoopControlMask control = spv::LoopControlMask::MaskNone);
  void barrier(bool global_memory);

  // Work-items.
  Id group_id();      // 64 bits, of dimension 0
  Id local_id();      // 64 bits, of dimension 0
  Id lane();          // in the sub-group, 32 bits
  Id sub_group_id();  // in the work-group, 32 bits; the compiler knows that all lanes have the same
  Id shuffle(Id value, Id lane);
  Id shuffle_xor(Id value, uint32_t mask);

  /// Begins the kernel; gives its pointer parameters (work-items read and write the global memory behind them).
  Ids begin_kernel(const std::string& name, std::span<const Id> pointees, uint32_t group_size, uint32_t sub_group_size);
  /// Ends the kernel and gives the module's words.
  std::vector<uint32_t> finish();

 private:
  using Words = std::vector<uint32_t>;
  struct Global {
    spv::Op code;
    Words operands;
    auto operator<=>(const Global&) const = default;
  };

  Id fresh() { return m_bound++; }
  void write(Words& section, spv::Op code, std::span<const uint32_t> operands);
  void write(Words& section, spv::Op code, std::initializer_list<uint32_t> operands) {
    write(section, code, std::span(operands.begin(), operands.size()));
  }
  Id declare(spv::Op code, Words operands);  // a type
  Id declare_constant(spv::Op code, Id type, Words operands);
  void require(spv::Capability capability);
  void extension(const char* name);
  void require_shuffles();
  Id built_in(spv::BuiltIn which, Id type);
  Id first_component(spv::BuiltIn which);
  void begin_block(Id label);

  Id m_bound = 1;
  std::set<spv::Capability> m_capabilities;
  std::set<std::string> m_extensions;
  Words m_execution_modes, m_decorations, m_globals, m_imports, m_head, m_variables, m_body;
  std::map<Global, Id> m_known;
  std::map<Id, Id> m_type_of, m_pointee;  // the latter: also the elements of arrays and vectors
  std::map<std::string, Id> m_imported;
  std::map<Id, int> m_real_bits, m_integer_bits;
  std::map<spv::BuiltIn, Id> m_built_ins, m_built_in_values;
  Id m_math = 0, m_kernel = 0, m_sub_group_id = 0;
  std::string m_name;
};

/// A null-terminated string as SPIR-V writes it in words.
std::vector<uint32_t> string_words(const std::string& text);

}  // namespace kiln::level_zero
