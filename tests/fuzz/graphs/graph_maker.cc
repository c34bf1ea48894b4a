#include "tests/fuzz/graphs/graph_maker.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "frontend/decompose/decompose.h"
#include "frontend/fuse/facts.h"
#include "frontend/fuse/kernels.h"
#include "frontend/kernel/affine.h"
#include "tests/fuzz/graphs/reference.h"

namespace kiln::fuzz {
namespace {

constexpr int64_t k_elements_max = 4096;
constexpr int k_tries = 8;

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = op_samples();
  return all;
}

/// How often each kind is drawn; within a kind all rows are alike.
int weight_of(OpKind kind) {
  switch (kind) {
    case OpKind::pointwise:
    case OpKind::view:
    case OpKind::composite:
      return 6;
    case OpKind::indexing:
      return 4;
    case OpKind::reduction:
    case OpKind::contraction:
      return 2;
    case OpKind::creation:
    case OpKind::attention:
    case OpKind::ordering:
      return 1;
  }
  return 0;
}

std::vector<int64_t> extents_of(const Graph& graph, ValueId value) { return constants_of(graph.type(value).shape); }
Shape shape_of_extents(const std::vector<int64_t>& extents) { return {extents.begin(), extents.end()}; }

}  // namespace

GraphMaker::GraphMaker(uint64_t seed) : m_random(seed), m_builder(m_graph), m_main(DType::f32), m_samples(samples()) {
  static const std::vector<DType> mains = {DType::f32, DType::f32,  DType::f32, DType::f32, DType::f64,
                                           DType::f64, DType::bf16, DType::f16, DType::f64};
  m_main = any_of(mains);
  static const std::vector<int64_t> small = {1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 16, 20, 32};
  for (int i = 0; i < 4; ++i) m_extents.push_back(any_of(small));
  if (chance(0.06)) m_extents.push_back(0);
  if (chance(0.2)) m_extents.push_back(1);
  if (chance(0.1)) m_extents.push_back(between(33, 300));
}

int64_t GraphMaker::between(int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(m_random); }
bool GraphMaker::chance(double probability) { return std::uniform_real_distribution()(m_random) < probability; }

DType GraphMaker::some_dtype() { return chance(0.75) ? m_main : static_cast<DType>(between(0, k_dtype_count - 1)); }

std::vector<int64_t> GraphMaker::some_extents(int64_t elements_max) {
  std::vector<int64_t> extents;
  int64_t elements = 1;
  for (int64_t rank = between(0, 9) / 2; rank > 0; --rank) {
    const int64_t extent = any_of(m_extents);
    if (elements * extent > elements_max) break;
    elements *= extent;
    extents.push_back(extent);
  }
  return extents;
}

/// Dims in any order, with gaps; for inputs also expanded or overlapping.
std::vector<Dim> GraphMaker::some_strides(const Shape& shape, bool may_overlap) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (chance(0.8)) std::shuffle(order.begin(), order.end(), m_random);
  std::vector<Dim> strides(shape.size());
  int64_t stride = chance(0.15) ? between(2, 3) : 1;
  for (const size_t d : order) {
    strides[d] = stride;
    stride = std::max<int64_t>(1, stride * std::max<int64_t>(1, shape[d].constant()));
    if (chance(0.2)) stride += between(1, 5);
    if (may_overlap && chance(0.08)) stride = std::max<int64_t>(1, stride / 2);
    if (may_overlap && chance(0.08)) strides[d] = 0;
  }
  return strides;
}

ValueId GraphMaker::add_input(DType dtype, const std::vector<int64_t>& extents) {
  TensorType type{dtype, shape_of_extents(extents), {}};
  if (chance(0.5)) type.strides = some_strides(type.shape, true);
  const ValueId input = m_graph.add_input(std::move(type));
  m_pool.push_back(input);
  return input;
}

ValueId GraphMaker::some_value() {
  // Mostly what was made last, so that chains grow.
  const auto last = static_cast<int64_t>(m_pool.size()) - 1;
  return m_pool[static_cast<size_t>(chance(0.4) ? between(0, last) : std::max<int64_t>(0, last - between(0, 3)))];
}

ValueId GraphMaker::squashed(ValueId value) {
  if (!is_floating(m_graph.type(value).dtype)) return value;
  return m_builder.op(chance(0.5) ? "tanh" : "sigmoid", {value});
}

ValueId GraphMaker::bounded(ValueId integers, int64_t bound) {
  return m_builder.op("remainder", {integers, m_builder.full(static_cast<double>(std::max<int64_t>(bound, 1)),
                                                             m_graph.type(integers).dtype)});
}

ValueId GraphMaker::some_operand(const OpDef& op, const std::vector<ValueId>& before) {
  ValueId value = some_value();
  if (!before.empty() && before[0] != k_none && chance(0.8)) {
    const TensorType& first = m_graph.type(before[0]);
    std::vector<ValueId> alike;
    for (const ValueId other : m_pool) {
      if (m_graph.type(other).dtype == first.dtype && m_graph.type(other).shape == first.shape) alike.push_back(other);
    }
    value = any_of(alike);
  }
  const bool takes_indices = op.kind == OpKind::indexing || op.kind == OpKind::composite;
  if (takes_indices && !before.empty() && is_integral(m_graph.type(value).dtype)) {
    int64_t bound = INT64_MAX;
    for (const ValueId operand : before) {
      if (operand == k_none) continue;
      for (const int64_t extent : extents_of(m_graph, operand)) bound = std::min(bound, extent);
    }
    return bounded(value, bound == INT64_MAX ? 1 : bound);
  }
  return chance(0.25) ? squashed(value) : value;
}

Shape GraphMaker::some_shape(ValueId like) {
  std::vector<int64_t> extents = extents_of(m_graph, like);
  if (chance(0.3)) {  // as expand asks for
    for (int64_t& extent : extents) {
      if (extent == 1) extent = any_of(m_extents);
    }
    if (chance(0.5)) extents.insert(extents.begin(), any_of(m_extents));
    return shape_of_extents(extents);
  }
  for (int64_t changes = between(0, 3); changes > 0; --changes) {  // as reshape does
    const int64_t at = between(0, static_cast<int64_t>(extents.size()));
    if (chance(0.4) && at + 1 < static_cast<int64_t>(extents.size())) {
      extents[static_cast<size_t>(at)] *= extents[static_cast<size_t>(at) + 1];
      extents.erase(extents.begin() + at + 1);
    } else if (at < static_cast<int64_t>(extents.size()) && chance(0.7)) {
      const int64_t extent = extents[static_cast<size_t>(at)], by = between(2, 4);
      if (extent == 0 || extent % by != 0) continue;
      extents[static_cast<size_t>(at)] = by;
      extents.insert(extents.begin() + at + 1, extent / by);
    } else {
      extents.insert(extents.begin() + at, 1);
    }
  }
  return shape_of_extents(extents);
}

std::optional<Attribute> GraphMaker::some_attribute(AttributeType type, const std::vector<ValueId>& operands) {
  static const std::vector<double> numbers = {0.5, 1.0, 2.0, 0.0, -1.0, 0.125, 1e-5, 3.0};
  const int64_t rank = operands.empty() ? 2 : static_cast<int64_t>(m_graph.type(operands[0]).rank());
  switch (type) {
    case AttributeType::boolean:
      return chance(0.5);
    case AttributeType::integer:
      return between(chance(0.1) ? -2 : 0, std::max<int64_t>(0, chance(0.9) ? rank - 1 : 8));
    case AttributeType::number:
      return any_of(numbers);
    case AttributeType::string:
      return std::nullopt;
    case AttributeType::dtype:
      return some_dtype();
    case AttributeType::integers: {
      std::vector<int64_t> list(static_cast<size_t>(rank));
      std::iota(list.begin(), list.end(), 0);
      std::shuffle(list.begin(), list.end(), m_random);
      if (chance(0.4)) list.resize(static_cast<size_t>(between(0, rank)));
      if (chance(0.2)) {
        for (int64_t& each : list) each = between(0, 2);
      }
      return list;
    }
    case AttributeType::shape:
      return operands.empty() ? shape_of_extents(some_extents(k_elements_max)) : some_shape(operands[0]);
    case AttributeType::extent:
      return between(0, any_of(m_extents));
  }
  return std::nullopt;
}

Attributes GraphMaker::some_attributes(const OpDef& op, const std::vector<ValueId>& operands) {
  Attributes attributes;
  for (const AttributeDef& row : op.attributes) {
    if (!row.required && chance(0.5)) continue;
    if (auto value = some_attribute(row.type, operands)) attributes.emplace_back(row.name, std::move(*value));
  }
  return attributes;
}

bool GraphMaker::add(const OpDef& op, const std::vector<ValueId>& operands, Attributes attributes) {
  auto stored = normalise_attributes(op, std::move(attributes));
  if (!stored.ok()) return false;
  std::vector<const TensorType*> types;
  for (const ValueId operand : operands) types.push_back(operand == k_none ? nullptr : &m_graph.type(operand));
  std::vector<Guard> guards;
  const auto results = infer_types(op, types, *stored, guards);
  if (!results.ok()) return false;
  for (const TensorType& type : *results) {
    if (product(constants_of(type.shape)) > 2 * k_elements_max) return false;
  }
  const auto added = m_builder.add(op, operands, std::move(*stored));
  if (!added.ok()) return false;
  // Products of whole random words pass 2^53, beyond which the f64 reference does not tell integers apart.
  const bool is_wide = op.scalar == ScalarOp::philox;
  for (const ValueId value : *added) m_pool.push_back(is_wide ? bounded(value, int64_t{1} << 16) : value);
  return true;
}

bool GraphMaker::add_freely(const OpDef& op) {
  for (int attempt = 0; attempt < k_tries; ++attempt) {
    std::vector<ValueId> operands;
    for (const OperandDef& row : op.operands) {
      int64_t count = row.kind == OperandKind::variadic ? between(1, 4) : 1;
      for (; count > 0; --count) {
        const bool absent = row.kind == OperandKind::optional && chance(0.5);
        operands.push_back(absent ? k_none : some_operand(op, operands));
      }
    }
    if (add(op, operands, some_attributes(op, operands))) return true;
  }
  return false;
}

ValueId GraphMaker::adapted(DType dtype, const std::vector<int64_t>& extents, int64_t bound) {
  const int64_t elements = product(extents);
  std::vector<ValueId> large;
  for (const ValueId value : m_pool) {
    const TensorType& type = m_graph.type(value);
    const bool fits = is_floating(dtype) == is_floating(type.dtype);
    if (fits && product(constants_of(type.shape)) >= elements) large.push_back(value);
  }
  ValueId value = k_none;
  if (large.empty() || chance(0.15)) {
    value = add_input(dtype, extents);
  } else {
    value = chance(0.5) ? large.back() : any_of(large);
    if (extents_of(m_graph, value) != extents) {
      const int64_t have = product(extents_of(m_graph, value));
      const int64_t start = between(0, have - elements);
      value = m_builder.reshape(value, {Dim(have)});
      if (have != elements) value = m_builder.slice(value, 0, start, start + elements);
      value = m_builder.reshape(value, shape_of_extents(extents));
    }
  }
  value = m_builder.cast(value, dtype);
  if (is_integral(dtype)) return bounded(value, bound);
  return chance(0.3) ? squashed(value) : value;
}

bool GraphMaker::add_like_sample(const OpDef& op) {
  std::vector<const Sample*> fitting;
  for (const Sample& sample : m_samples) {
    if (sample.op == op.name) fitting.push_back(&sample);
  }
  if (fitting.empty()) return false;
  const Sample& sample = *any_of(fitting);
  std::vector<ValueId> operands;
  for (const std::optional<Tensor>& tensor : sample.operands) {
    if (!tensor) {
      operands.push_back(k_none);
      continue;
    }
    double largest = 0;
    for (int64_t i = 0; i < tensor->elements(); ++i) largest = std::max(largest, tensor->at(i));
    const DType dtype = tensor->dtype == DType::f64 ? m_main : tensor->dtype;
    operands.push_back(adapted(dtype, tensor->dims, static_cast<int64_t>(largest) + 1));
  }
  if (op.name == "attention_backward") {  // of another forward pass, probabilities would be of any size
    std::vector<ValueId> forward(operands.begin() + 1, operands.begin() + 4);
    forward.push_back(operands.size() > 6 ? operands[6] : k_none);
    std::ranges::copy(m_builder.ops("attention", forward, sample.attributes), operands.begin() + 4);
  }
  return add(op, operands, sample.attributes);
}

const OpDef& GraphMaker::some_op() {
  static const std::map<OpKind, std::vector<const OpDef*>> by_kind = [] {
    std::map<OpKind, std::vector<const OpDef*>> map;
    for (const OpDef* op : all_ops()) map[op->kind].push_back(op);
    return map;
  }();
  std::vector<OpKind> drawn;
  for (const auto& [kind, ops] : by_kind) drawn.insert(drawn.end(), static_cast<size_t>(weight_of(kind)), kind);
  return *any_of(by_kind.at(any_of(drawn)));
}

/// A product of bytes, or one with weights that are bytes, scaled by groups along k.
void GraphMaker::add_quantized_product() {
  const int64_t m = any_of(m_extents), n = any_of(m_extents), groups = between(1, 4), size = any_of(m_extents);
  const int64_t k = groups * size;
  if (std::max(m, n) * k > k_elements_max) return;
  const ValueId bytes = m_builder.transpose(add_input(DType::i8, {n, k}));
  ValueId product = k_none;
  if (chance(0.4)) {
    const DType sums = chance(0.7) ? DType::i32 : DType::i8;
    const ValueId left = add_input(DType::i8, {m, k});
    product = m_builder.matmul(m_builder.cast(left, sums), m_builder.cast(bytes, sums));
  } else {
    const ValueId scales = adapted(m_main, {groups, 1, n}, 1);
    const ValueId grouped = m_builder.reshape(m_builder.cast(bytes, m_main), {groups, size, n});
    const ValueId weights = m_builder.reshape(m_builder.mul(grouped, scales), {k, n});
    product = m_builder.matmul(adapted(m_main, {m, k}, 1), weights);
  }
  if (product != k_none) m_pool.push_back(product);
}

void GraphMaker::add_some() {
  if (chance(0.02)) return add_quantized_product();
  const OpDef& op = some_op();
  if (chance(0.65) && add_freely(op)) return;
  add_like_sample(op);
}

/// A part of the graph that takes a value to one of its type, and copies of it in a row.
void GraphMaker::add_blocks() {
  const ValueId from = some_value();
  const auto first = static_cast<NodeId>(m_graph.nodes().size());
  const std::vector<ValueId> before = m_pool;
  if (chance(0.7)) m_pool = {from, any_of(before)};
  if (chance(0.5)) add_input(m_graph.type(from).dtype, extents_of(m_graph, from));
  for (int64_t count = between(2, 9); count > 0; --count) add_some();
  const TensorType type = m_graph.type(from);
  ValueId result = adapted(type.dtype, constants_of(type.shape), 4);
  if (chance(0.6) && type.dtype != DType::boolean) result = squashed(m_builder.add(result, from));
  m_pool.insert(m_pool.begin(), before.begin(), before.end());
  m_pool.push_back(result);
  const auto last = static_cast<NodeId>(m_graph.nodes().size());
  ValueId next = result;
  const int64_t copies = std::min<int64_t>(between(1, 11), 160 / std::max<int64_t>(1, last - first));
  for (int64_t copy = 0; copy < copies; ++copy) next = repeat_block(first, last, from, result, next);
}

ValueId GraphMaker::repeat_block(NodeId first, NodeId last, ValueId from, ValueId result, ValueId next) {
  std::map<ValueId, ValueId> mapped{{from, next}};
  for (NodeId id = first; id < last; ++id) {
    const Node node = m_graph.node(id);
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) {
      if (operand != k_none && !mapped.contains(operand)) {
        const Value& value = m_graph.value(operand);
        const bool is_weight = value.producer == k_none && chance(0.5);
        const TensorType type = value.type;
        mapped[operand] = is_weight ? m_graph.add_input(type) : operand;
      }
      operands.push_back(operand == k_none ? k_none : mapped.at(operand));
    }
    std::vector<TensorType> types;
    for (const ValueId each : node.results) types.push_back(m_graph.type(each));
    const NodeId added = m_graph.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) {
      mapped[node.results[i]] = m_graph.node(added).results[i];
      m_pool.push_back(m_graph.node(added).results[i]);
    }
  }
  return mapped.contains(result) ? mapped.at(result) : next;
}

void GraphMaker::choose_outputs() {
  const std::vector<bool> sound = sound_values(m_graph, input_memory(m_graph));
  std::vector<ValueId> candidates;
  for (ValueId value = 0; value < sound.size(); ++value) {
    if (sound[value] && m_graph.value(value).producer != k_none) candidates.push_back(value);
  }
  std::vector<ValueId> outputs;
  if (!candidates.empty()) outputs.push_back(candidates.back());
  const double share = any_of(std::vector<double>{0.03, 0.1, 0.3});
  for (const ValueId value : candidates) {
    if (chance(share)) outputs.push_back(value);
  }
  std::shuffle(outputs.begin(), outputs.end(), m_random);
  for (int extra = 0; extra < 3; ++extra) {
    if (!outputs.empty() && chance(0.12)) outputs.push_back(any_of(outputs));
    if (chance(0.06)) outputs.push_back(any_of(m_graph.inputs()));
  }
  m_graph.set_outputs(outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorType& type = m_graph.type(outputs[i]);
    if (m_graph.value(outputs[i]).producer == k_none && chance(0.5)) {
      m_graph.set_output_strides(i, type.strides);
    } else if (chance(0.4)) {
      m_graph.set_output_strides(i, some_strides(type.shape, false));
    }
  }
}

Graph GraphMaker::make() {
  for (int64_t count = between(1, 4); count > 0; --count) add_input(some_dtype(), some_extents(k_elements_max / 8));
  const int64_t nodes = between(5, 60);
  const bool repeats = chance(0.4);
  bool repeated = false;
  for (int attempt = 0; attempt < 200 && static_cast<int64_t>(m_pool.size()) < nodes; ++attempt) {
    if (repeats && !repeated && attempt > 2) {
      add_blocks();
      repeated = true;
    } else {
      add_some();
    }
  }
  choose_outputs();
  return without_dead_nodes(m_graph);
}

Graph GraphMaker::make_with(const OpDef& op) {
  add_input(m_main, some_extents(64));
  if (!(chance(0.5) && add_freely(op))) add_like_sample(op);
  choose_outputs();
  return without_dead_nodes(m_graph);
}

std::vector<std::vector<std::byte>> input_memory(const Graph& graph) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<std::vector<std::byte>> memory;
  for (const ValueId input : graph.inputs()) {
    const TensorType& type = graph.type(input);
    const std::vector<int64_t> extents = constants_of(type.shape);
    const std::vector<int64_t> strides = type.strides.empty() ? dense_strides(extents) : constants_of(type.strides);
    const int64_t elements = footprint(extents, strides);
    std::vector<std::byte> bytes(static_cast<size_t>(elements) * size_of(type.dtype));
    for (int64_t i = 0; i < elements; ++i) {
      double value = static_cast<double>(random() % (type.dtype == DType::boolean ? 2 : 4));
      if (is_floating(type.dtype)) value = normal(random);
      store_element(type.dtype, bytes.data(), i, value);
    }
    memory.push_back(std::move(bytes));
  }
  return memory;
}

}  // namespace kiln::fuzz
