#include "backends/cuda/compile/body_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdlib>

#include "backends/cuda/compile/kernel_source.h"

namespace kiln::cuda {
namespace {

std::string constant_text(const ScalarNode& node) {
  switch (node.dtype) {
    case DType::boolean:
      return node.immediate_int != 0 ? "true" : "false";
    case DType::f64:
      return fmt::format("f64_of_bits({:#x}ull)", std::bit_cast<uint64_t>(node.immediate));
    case DType::f32:
    case DType::f16:
    case DType::bf16: {
      const auto value = static_cast<float>(node.immediate);
      const std::string plain = fmt::format("{}", value);
      if (std::isfinite(value) && plain.find_first_of(".e") != std::string::npos) return plain + "f";
      if (std::isfinite(value)) return plain + ".0f";
      return fmt::format("f32_of_bits({:#x}u)", std::bit_cast<uint32_t>(value));
    }
    case DType::i64:
      if (node.immediate_int == INT64_MIN) return "k_least_i64";
      return fmt::format("static_cast<i64>({}ll)", node.immediate_int);
    default:
      return fmt::format("static_cast<{}>({}ll)", register_type(node.dtype), node.immediate_int);
  }
}

}  // namespace

std::string_view register_type(DType dtype) {
  if (dtype == DType::boolean) return "bool";
  return is_half(dtype) ? "f32" : memory_type(dtype);
}

std::string_view memory_type(DType dtype) { return dtype == DType::boolean ? "u8" : to_string(dtype); }

std::string buffer_name(uint32_t buffer) { return fmt::format("args.b{}", buffer); }

std::string entry_name(const KernelSpec& spec, std::string_view implementation) {
  return fmt::format("kiln_{}{}{}", kernel_name(spec), implementation.empty() ? "" : "_", implementation);
}

std::string opening(const KernelSpec& spec, std::string_view entry, size_t maps) {
  std::string text = fmt::format("#define {} {}\n\nnamespace kiln {{\n\nstruct Arguments {{\n", k_entry, entry);
  for (size_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    const std::string_view constness = buffer.role == BufferRole::input ? "const " : "";
    text += fmt::format("  {}{}* b{};\n", constness, memory_type(buffer.dtype), i);
  }
  text += "  u32* status;\n";
  for (size_t i = 0; i < maps; ++i) text += fmt::format("  TensorMap map{};\n", i);
  return text + "};\n";
}

Total total_of(Combiner combiner, DType dtype) {
  const DType accumulator = accumulator_of(dtype);
  const std::string_view type = register_type(accumulator);
  const bool is_real = is_floating(accumulator);
  const auto infinity = [&](bool is_negative) {
    return accumulator == DType::f64
               ? fmt::format("f64_of_bits({}ull)", is_negative ? "0xfff0000000000000" : "0x7ff0000000000000")
               : fmt::format("f32_of_bits({}u)", is_negative ? "0xff800000" : "0x7f800000");
  };
  switch (combiner) {
    case Combiner::sum:
      return {type, "0", "Sum"};
    case Combiner::product:
      return {type, "1", "Product"};
    case Combiner::maximum:
      return {type, is_real ? infinity(true) : "k_least_i64", "Maximum"};
    case Combiner::minimum:
      return {type, is_real ? infinity(false) : "k_greatest_i64", "Minimum"};
    case Combiner::logical_and:
      return {"i32", "1", "Minimum"};
    case Combiner::logical_or:
      return {"i32", "0", "Maximum"};
  }
  assert(false && "unknown combiner");
  return {};
}

BodySource::BodySource(const KernelSpec& spec, const Body& body, std::span<const int64_t> extents)
    : m_spec(spec), m_body(body), m_extents(extents.begin(), extents.end()), m_overwrites(overwrites(spec)) {}

std::vector<ExprId> BodySource::roots_of(const Body& body, std::span<const Store> stores) {
  std::vector<ExprId> roots;
  for (const Store& store : stores) {
    roots.push_back(store.value);
    for (const IndirectTerm& term : body.accesses[store.access].indirect) roots.push_back(term.index);
  }
  return roots;
}

/// Whether every partial sum of the address fits i32.
bool BodySource::is_narrow(const Access& access) const {
  int64_t farthest = std::abs(access.offset);
  const auto reach = [&](int64_t stride, int64_t extent) {
    if (__builtin_mul_overflow(std::abs(stride), extent, &extent)) extent = INT32_MAX;
    farthest = std::min<int64_t>(farthest + std::min<int64_t>(extent, INT32_MAX), INT32_MAX);
  };
  for (size_t d = 0; d < access.strides.size(); ++d) reach(access.strides[d], m_extents[d]);
  for (const IndirectTerm& term : access.indirect) reach(term.stride, term.bound);
  return farthest < INT32_MAX;
}

std::string BodySource::address(const Access& access, const LeafNames& names) const {
  const std::string_view type = is_narrow(access) ? "i32" : "i64";
  std::string text;
  const auto add = [&](int64_t stride, std::string_view factor) {
    if (stride == 0) return;
    if (!text.empty()) text += " + ";
    if (stride != 1) text += fmt::format("static_cast<{}>({}ll) * ", type, stride);
    text += fmt::format("static_cast<{}>({})", type, factor);
  };
  for (size_t d = 0; d < access.strides.size(); ++d) add(access.strides[d], names.dims[d]);
  for (const IndirectTerm& term : access.indirect) add(term.stride, value_name(term.index));
  if (access.offset != 0 || text.empty()) add(1, fmt::format("{}ll", access.offset));
  return text;
}

/// A condition; empty where there is nothing indirect.
std::string BodySource::in_range(const Access& access) const {
  std::string text;
  for (const IndirectTerm& term : access.indirect) {
    if (!text.empty()) text += " && ";
    text += fmt::format("static_cast<u64>({}) < {}ull", value_name(term.index), term.bound);
  }
  return text;
}

std::string BodySource::load(const ScalarNode& node, ExprId id, const LeafNames& names, std::string_view indent) const {
  const std::string_view type = register_type(node.dtype);
  const std::string name = value_name(id);
  if (const auto held = names.loaded.find(node.slot); held != names.loaded.end()) {
    return fmt::format("{}const {} {} = from_memory({}{{}}, {});\n", indent, type, name, type, held->second);
  }
  const Access& access = m_body.accesses[node.slot];
  const std::string pointer = fmt::format("{} + {}", buffer_name(access.buffer), address(access, names));
  const std::string_view how = is_only_read(access.buffer) ? "load_input" : "*";
  const std::string element = fmt::format("{}({})", how, pointer);
  const std::string condition = in_range(access);
  const bool has_predicate = node.operands[0] != k_no_expr;
  if (!has_predicate && condition.empty()) {
    return fmt::format("{}const {} {} = from_memory({}{{}}, {});\n", indent, type, name, type, element);
  }
  std::string read = fmt::format("{} = from_memory({}{{}}, {});", name, type, element);
  if (!condition.empty()) read = fmt::format("if ({}) {} else set_status(args.status, 1);", condition, read);
  if (has_predicate) read = fmt::format("if ({}) {{ {} }}", value_name(node.operands[0]), read);
  return fmt::format("{}{} {} = 0;\n{}{}\n", indent, type, name, indent, read);
}

/// An output that is written over an input makes it something else meanwhile.
bool BodySource::is_only_read(uint32_t buffer) const {
  return m_spec.buffers[buffer].role == BufferRole::input &&
         std::ranges::find(m_overwrites, buffer, &Overwrite::input) == m_overwrites.end();
}

std::string BodySource::cast(const ScalarNode& node) const {
  const DType from = m_body.exprs[node.operands[0]].dtype;
  std::string value = value_name(node.operands[0]);
  if (from == node.dtype) return value;
  if (!is_half(node.dtype)) {
    if (is_half(from) && node.dtype == DType::f32) return value;
    return fmt::format("cast_to<{}>({})", register_type(node.dtype), value);
  }
  return fmt::format("round_to({}{{}}, cast_to<f32>({}))", memory_type(node.dtype), value);
}

std::string BodySource::expression(const ScalarNode& node, const LeafNames& names) const {
  switch (node.op) {
    case ScalarOp::constant:
      return constant_text(node);
    case ScalarOp::index:
      return fmt::format("static_cast<i64>({})", names.dims[node.slot]);
    case ScalarOp::reduced:
      return node.dtype == DType::boolean ? names.reduced[node.slot] + " != 0" : names.reduced[node.slot];
    case ScalarOp::accumulator:
      return names.accumulator;
    case ScalarOp::cast:
      return cast(node);
    default:
      break;
  }
  std::string text = fmt::format("op_{}(", to_string(node.op));
  for (int i = 0; i < arity(node.op); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", value_name(node.operands[static_cast<size_t>(i)]));
  }
  return text + ")";
}

std::string BodySource::evaluate(std::span<const ExprId> order, const LeafNames& names, std::string_view indent) const {
  std::string text;
  for (const ExprId id : order) {
    const ScalarNode& node = m_body.exprs[id];
    if (node.op == ScalarOp::load) {
      text += load(node, id, names, indent);
    } else {
      text += fmt::format("{}const {} {} = {};\n", indent, register_type(node.dtype), value_name(id),
                          expression(node, names));
    }
  }
  return text;
}

std::string BodySource::store(const Store& store, const LeafNames& names, std::string_view guard,
                              std::string_view indent) const {
  const Access& access = m_body.accesses[store.access];
  const DType dtype = m_spec.buffers[access.buffer].dtype;
  const std::string value = value_name(store.value);
  std::string write;
  if (const auto held = names.stored.find(store.access); held != names.stored.end()) {
    return fmt::format("{}to_memory({}, {});\n", indent, held->second, value);
  }
  const std::string element = fmt::format("{}[{}]", buffer_name(access.buffer), address(access, names));
  if (store.mode == StoreMode::add) {
    write = fmt::format("to_memory({}, op_add(from_memory({}{{}}, {}), {}));", element, register_type(dtype), element,
                        value);
  } else {
    write = fmt::format("to_memory({}, {});", element, value);
  }
  if (const std::string condition = in_range(access); !condition.empty()) {
    write = fmt::format("if ({}) {{ {} }} else set_status(args.status, 1);", condition, write);
  }
  if (!guard.empty()) write = fmt::format("if ({}) {{ {} }}", guard, write);
  return fmt::format("{}{}\n", indent, write);
}

}  // namespace kiln::cuda
