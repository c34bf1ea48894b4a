// From a partition and its plans to what each launch must find and leave.
//
// Identity of values. A value of a plan's graph is one of its region's graph (Plan::values), which is one of the settled
// graph (the region is walked in step with its graph), which is one of the canonical graph, which is one the client
// asked for. So what a launch stores is, as a rule, a value of the client's graph: its reference is the client's op over
// the client's values made before. What has no such name (half of a composite) is named by its plan's graph alone, and
// has its reference there; the composite's result, some launches later, has the client's again.

#include "jit/build/program_verdict/program_script.h"

#include <algorithm>
#include <map>
#include <set>

#include "frontend/ops/op.h"
#include "jit/build/kernels/launch_reference.h"
#include "jit/build/program_verdict/walk_in_step.h"
#include "verdict/sample_data.h"

namespace kiln {

namespace {

using Cells = std::map<ValueId, ScriptCell>;

/// A part of `graph` that grows from targets back to what is known.
class FragmentWriter {
 public:
  FragmentWriter(const Graph& graph, const Cells& known) : m_graph(graph), m_known(known) {}

  void add_target(ValueId value, ScriptCell made, std::string name) {
    m_targets.push_back({value, std::move(made), std::move(name)});
    need_producer(value);
    while (!m_pending.empty()) {
      const ValueId next = m_pending.back();
      m_pending.pop_back();
      if (!m_known.contains(next)) need_producer(next);
    }
  }
  bool is_empty() const { return m_targets.empty(); }

  ScriptFragment finish() {
    ScriptFragment fragment;
    std::map<ValueId, ValueId> mapped;
    for (const NodeId id : m_nodes) {
      for (const ValueId operand : m_graph.node(id).operands) {
        if (operand != k_none && m_known.contains(operand)) m_read.insert(operand);
      }
    }
    for (const ValueId value : m_read) {
      const ScriptCell& cell = m_known.at(value);
      const ValueId input = fragment.graph.add_input(cell.layout.type(), m_graph.value(value).name);
      mapped[value] = in_dtype(m_graph.type(value).dtype, input, fragment.graph);
      fragment.inputs.push_back(cell.storage);
    }
    std::map<ValueId, ValueId> made;  // apart: a target may be known already, from another launch
    for (const NodeId id : m_nodes) copy(m_graph.node(id), mapped, made, fragment.graph);
    std::vector<ValueId> outputs;
    for (Target& target : m_targets) {
      outputs.push_back(made.at(target.value));
      fragment.coarsest = coarser(fragment.coarsest, target.made.layout.dtype);
      fragment.targets.push_back({outputs.back(), std::move(target.made), std::move(target.name)});
    }
    fragment.graph.set_outputs(std::move(outputs));
    return fragment;
  }

  static DType coarser(DType a, DType b) {
    if (!is_floating(b)) return a;
    if (a == DType::bf16 || b == DType::bf16) return DType::bf16;
    return size_of(b) < size_of(a) ? b : a;
  }

 private:
  struct Target {
    ValueId value;
    ScriptCell made;
    std::string name;
  };

  void need_producer(ValueId value) {
    const NodeId producer = m_graph.value(value).producer;
    if (producer == k_none || !m_nodes.insert(producer).second) return;
    for (const ValueId operand : m_graph.node(producer).operands) {
      if (operand != k_none) m_pending.push_back(operand);
    }
  }

  /// A value as it is known where it was stored before it was rounded.
  static ValueId in_dtype(DType dtype, ValueId value, Graph& graph) {
    TensorType type = graph.type(value);
    if (type.dtype == dtype) return value;
    type.dtype = dtype;
    type.strides = {};
    return graph.node(graph.add_node(find_op("cast"), {value}, {{"dtype", dtype}}, {std::move(type)})).results[0];
  }

  void copy(const Node& node, const std::map<ValueId, ValueId>& known, std::map<ValueId, ValueId>& made,
            Graph& to) const {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) {
      const auto found = known.find(operand);
      operands.push_back(operand == k_none ? k_none : found != known.end() ? found->second : made.at(operand));
    }
    std::vector<TensorType> types;
    for (const ValueId result : node.results) types.push_back(m_graph.type(result));
    const NodeId added = to.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) made[node.results[i]] = to.node(added).results[i];
  }

  const Graph& m_graph;
  const Cells& m_known;
  std::vector<Target> m_targets;
  std::vector<ValueId> m_pending;
  std::set<NodeId> m_nodes;  // ascending: operands before users
  std::set<ValueId> m_read;
};

/// How far rounding may have gone in a value that no op of the client's stands for.
struct Growth {
  int64_t reduction_length = 0;
  DType coarsest = DType::f64;
};

class ScriptWriter {
 public:
  explicit ScriptWriter(const ProgramOrigin& origin) : m_origin(origin) {}

  Expected<ProgramScript> write() {
    KILN_RETURN_IF_ERROR(name_values());
    begin_with_inputs();
    for (uint32_t call = 0; call < m_origin.partition.regions.size(); ++call) KILN_RETURN_IF_ERROR(write_call(call));
    for (const ValueId output : m_origin.settled.outputs()) {
      KILN_ASSIGN_OR_RETURN(ScriptCell cell, known(m_settled, output, m_origin.settled));
      m_script.outputs.push_back(std::move(cell));
    }
    find_masks();
    add_up();
    return std::move(m_script);
  }

 private:
  /// A region call in the making.
  struct Call {
    uint32_t index;
    const Region& region;
    const RegionClass& region_class;
    const Plan& plan;
    std::vector<ValueId> settled;                        // of the class's graph: the settled graph's values
    std::map<ValueId, std::vector<ValueId>> names = {};  // of the plan's graph: the client's values
    Cells made = {};                                     // of the plan's graph
    std::map<std::pair<uint32_t, ValueId>, ScriptCell> contents = {};  // of the plan's buffers
    std::map<ValueId, Growth> growth = {};                             // of values without names
  };

  static Expected<std::vector<ValueId>> same_values(const Graph& here, const Graph& there) {
    std::vector<SameValue> ends;
    for (size_t i = 0; i < here.outputs().size(); ++i) ends.push_back({here.outputs()[i], there.outputs()[i]});
    return walk_in_step(here, there, ends, there.inputs());
  }

  Status name_values() {
    KILN_ASSIGN_OR_RETURN(const auto canonical, same_values(m_origin.settled, m_origin.canonical));
    KILN_ASSIGN_OR_RETURN(const auto client, same_values(m_origin.canonical, m_origin.client));
    KILN_ASSIGN_OR_RETURN(const auto merged, same_values(m_origin.client, m_origin.canonical));
    for (ValueId value = 0; value < merged.size(); ++value) {
      if (merged[value] != k_none && client[merged[value]] != k_none) m_twins[client[merged[value]]].push_back(value);
    }
    m_client_of.assign(canonical.size(), k_none);
    for (ValueId value = 0; value < canonical.size(); ++value) {
      if (canonical[value] != k_none) m_client_of[value] = client[canonical[value]];
    }
    return {};
  }

  void begin_with_inputs() {
    const auto& inputs = m_origin.client.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorType& type = m_origin.client.type(inputs[i]);
      const ScriptCell cell{ValueLayout::of(type, type.strides), add_storage(ValueLayout::of(type, type.strides), 0)};
      m_settled[m_origin.settled.inputs()[i]] = m_client[inputs[i]] = cell;
    }
    m_script.index_bounds.assign(inputs.size(), 0);
  }

  uint32_t add_storage(const ValueLayout& layout, uint32_t step) {
    m_script.storages.push_back({layout.bytes(), step, step});
    return static_cast<uint32_t>(m_script.storages.size() - 1);
  }

  /// What no launch makes because it has no elements is known, too.
  Expected<ScriptCell> known(const Cells& cells, ValueId value, const Graph& graph) {
    if (const auto found = cells.find(value); found != cells.end()) return found->second;
    const ValueLayout layout = ValueLayout::of(graph.type(value), graph.type(value).strides);
    if (layout.elements() == 0) return ScriptCell{layout, add_storage(layout, step_number())};
    return error(StatusCode::internal, "value {} is read and nothing makes it", value);
  }

  uint32_t step_number() const { return static_cast<uint32_t>(m_script.steps.size()); }

  Status write_call(uint32_t index) {
    const Region& region = m_origin.partition.regions[index];
    const RegionClass& region_class = m_origin.partition.classes[region.class_index];
    Call call{index, region, region_class, *m_origin.plans[region.class_index], {}};
    std::vector<SameValue> ends;
    for (size_t i = 0; i < region.outputs.size(); ++i) {
      ends.push_back({region_class.graph.outputs()[i], region.outputs[i]});
    }
    KILN_ASSIGN_OR_RETURN(call.settled, walk_in_step(region_class.graph, m_origin.settled, ends, region.inputs));
    for (ValueId value = 0; value < call.plan.values.size(); ++value) {
      const ValueId now = call.plan.values[value];
      if (now == k_none || call.settled[value] == k_none || m_client_of[call.settled[value]] == k_none) continue;
      call.names[now].push_back(m_client_of[call.settled[value]]);
    }
    for (size_t i = 0; i < region.inputs.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(call.made[call.plan.graph.inputs()[i]],
                            known(m_settled, region.inputs[i], m_origin.settled));
    }
    for (uint32_t launch = 0; launch < call.plan.launches.size(); ++launch) {
      KILN_RETURN_IF_ERROR(write_step(call, launch).with_context(fmt::format("call {}, launch {}", index, launch)));
    }
    return {};
  }

  /// A value that a launch has stored, in one buffer.
  struct Made {
    uint32_t argument, buffer;
    ValueId value;  // of the plan's graph
    ScriptCell cell;
    std::optional<std::pair<ValueId, ScriptCell>>
        output;  // of the settled graph, where the buffer is the region's output
  };

  Status write_step(Call& call, uint32_t number) {
    const Launch& launch = call.plan.launches[number];
    ScriptStep step{call.index, number, &call.plan, {}, {}};
    std::vector<Made> made;
    for (uint32_t i = 0; i < launch.buffers.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(ScriptArgument argument,
                            write_argument(call, launch, i, step.spec().buffers[i].role, made));
      step.arguments.push_back(std::move(argument));
    }
    follow_indices(call, step);
    write_fragments(call, launch, made, step);
    for (Made& each : made) keep(call, each);
    m_script.steps.push_back(std::move(step));
    return {};
  }

  Expected<ScriptArgument> write_argument(Call& call, const Launch& launch, uint32_t i, BufferRole role,
                                          std::vector<Made>& made) {
    const uint32_t buffer = launch.buffers[i];
    const auto layout_of = [&](ValueId value) {
      return ValueLayout::of(call.plan.graph.type(value), call.plan.buffers[buffer].strides);
    };
    ScriptArgument argument{role, layout_of(launch.values[i]), name_of(call, launch.values[i]), {}, k_none, {}};
    if (role != BufferRole::output) {
      const ValueId value = role == BufferRole::inout ? launch.initial[i] : launch.values[i];
      const auto kept = call.contents.find({buffer, value});
      if (kept != call.contents.end()) {
        argument.read = kept->second;
      } else {
        KILN_ASSIGN_OR_RETURN(argument.read, known(call.made, value, call.plan.graph));
      }
      read(argument.read->storage);
    }
    if (role == BufferRole::input) return argument;
    argument.written = add_storage(argument.layout, step_number());
    Made each{i, buffer, launch.values[i], {argument.layout, argument.written}, {}};
    KILN_RETURN_IF_ERROR(find_output(call, each));
    made.push_back(std::move(each));
    return argument;
  }

  static Status find_output(const Call& call, Made& made) {
    const PlanBuffer& buffer = call.plan.buffers[made.buffer];
    if (buffer.kind != BufferKind::output || !is_output(call.plan.graph, buffer.index, made.value)) return {};
    const Graph& graph = call.region_class.graph;
    ValueLayout layout =
        ValueLayout::of(graph.type(graph.outputs()[buffer.index]), graph.output_strides()[buffer.index]);
    if (layout.elements() != made.cell.layout.elements() || layout.bytes() != made.cell.layout.bytes()) return {};
    made.output = {call.region.outputs[buffer.index], {std::move(layout), made.cell.storage}};
    return {};
  }

  /// Whether the graph's output is `value`, or a view of it: what a scatter begins with is not, though it lies there.
  static bool is_output(const Graph& graph, uint32_t output, ValueId value) {
    ValueId now = graph.outputs()[output];
    while (now != value) {
      const NodeId producer = graph.value(now).producer;
      if (producer == k_none || graph.node(producer).op->kind != OpKind::view) return false;
      now = graph.node(producer).operands[0];
    }
    return true;
  }

  void read(uint32_t storage) { m_script.storages[storage].last_step = step_number(); }

  std::string name_of(const Call& call, ValueId value) const {
    const auto names = call.names.find(value);
    const Value& described = call.plan.graph.value(value);
    const std::string op =
        described.producer == k_none ? "an input" : std::string(call.plan.graph.node(described.producer).op->name);
    if (names == call.names.end()) return fmt::format("an inner value ({})", op);
    return fmt::format("value {} ({})", names->second.front(), op);
  }

  void write_fragments(Call& call, const Launch& launch, const std::vector<Made>& made, ScriptStep& step) {
    FragmentWriter named(m_origin.client, m_client), inner(call.plan.graph, call.made);
    for (const Made& each : made) {
      if (launch.nodes.empty() && call.made.contains(each.value)) {
        step.arguments[each.argument].copied = call.made.at(each.value);
        read(call.made.at(each.value).storage);
        continue;
      }
      const std::string& name = step.arguments[each.argument].name;
      const ValueId value = computed_name(call, each.value);
      if (value != k_none) {
        named.add_target(value, each.cell, name);
      } else if (call.plan.graph.value(each.value).producer != k_none) {
        inner.add_target(each.value, each.cell, name);
      }
      if (!each.output) continue;
      const ValueId output = m_client_of[each.output->first];
      if (output == value || output == k_none || m_origin.client.value(output).producer == k_none) continue;
      named.add_target(output, each.output->second, name);
    }
    const Growth growth = growth_of(call, launch, step.spec());
    for (FragmentWriter* writer : {&named, &inner}) {
      if (writer->is_empty()) continue;
      ScriptFragment fragment = writer->finish();
      fragment.reduction_length = growth.reduction_length;
      fragment.coarsest = FragmentWriter::coarser(growth.coarsest, fragment.coarsest);
      for (const uint32_t storage : fragment.inputs) read(storage);
      step.fragments.push_back(std::move(fragment));
    }
    for (const Made& each : made) {
      if (!call.names.contains(each.value)) call.growth[each.value] = {growth.reduction_length, each.cell.layout.dtype};
    }
  }

  /// The last of the client's values that this one is: its reference covers those before. k_none: none is computed.
  ValueId computed_name(const Call& call, ValueId value) const {
    const auto names = call.names.find(value);
    if (names == call.names.end()) return k_none;
    const ValueId last = *std::ranges::max_element(names->second);
    return m_origin.client.value(last).producer == k_none ? k_none : last;
  }

  /// Roundings between the client's values that are read and those that are made.
  static Growth growth_of(const Call& call, const Launch& launch, const KernelSpec& spec) {
    Growth inner;
    for (size_t i = 0; i < launch.values.size(); ++i) {
      for (const ValueId value : {launch.values[i], launch.initial[i]}) {
        const auto found = call.growth.find(value);
        if (found == call.growth.end()) continue;
        inner.reduction_length = std::max(inner.reduction_length, found->second.reduction_length);
        inner.coarsest = FragmentWriter::coarser(inner.coarsest, found->second.coarsest);
      }
    }
    inner.reduction_length += reduction_length(spec);
    return inner;
  }

  void keep(Call& call, Made& made) {
    call.contents[{made.buffer, made.value}] = made.cell;
    // An input is still read where the call found it.
    const bool is_input = call.plan.graph.value(made.value).producer == k_none;
    if (!is_input) call.made[made.value] = made.cell;
    for (const ValueId name : names_of(call, made.value)) {
      if (!is_input) note_another(name, made.cell);
      know(name, made.cell);
    }
    for (const ValueId name : names_of(call, rounded_of(call.plan.graph, made.value))) {
      if (!m_client.contains(name)) know(name, made.cell);
    }
    if (!made.output) return;
    m_settled[made.output->first] = made.output->second;
    if (m_client_of[made.output->first] != k_none) know(m_client_of[made.output->first], made.output->second);
  }

  /// What `value` was widened from, though it was never rounded to that: a kernel keeps it as it computed it.
  static ValueId rounded_of(const Graph& graph, ValueId value) {
    const NodeId producer = graph.value(value).producer;
    if (producer == k_none || graph.node(producer).op->name != "cast") return k_none;
    const ValueId operand = graph.node(producer).operands[0];
    return is_half(graph.type(operand).dtype) && is_floating(graph.type(value).dtype) ? operand : k_none;
  }

  static std::span<const ValueId> names_of(const Call& call, ValueId value) {
    const auto names = call.names.find(value);
    return names == call.names.end() ? std::span<const ValueId>() : names->second;
  }

  /// What the client has computed several times is made once, and all of these are known then.
  void know(ValueId value, const ScriptCell& cell) {
    for (const ValueId twin : m_twins.at(value)) m_client[twin] = cell;
  }

  /// A value of which launches have made two is read as either.
  void note_another(ValueId value, const ScriptCell& made) {
    const auto before = m_client.find(value);
    if (before == m_client.end() || before->second.storage == made.storage) return;
    m_script.storages[before->second.storage].has_twin = m_script.storages[made.storage].has_twin = true;
  }

  /// Which of the client's inputs the launch takes indices from, and how large these may be.
  void follow_indices(const Call& call, ScriptStep& step) {
    const Launch& launch = call.plan.launches[step.launch];
    const SampleData data(step.spec(), 0);
    step.computes_indices = data.computes_indices();
    for (uint32_t i = 0; i < launch.buffers.size(); ++i) {
      const int64_t bound = data.index_bound(i);
      if (bound == 0) continue;
      for (const ValueId value : numbers_behind(call.plan.graph, launch.values[i], step.computes_indices)) {
        const ValueId outside = call.region.inputs[call.plan.graph.value(value).result_index];
        if (m_client_of[outside] == k_none) continue;
        for (const ValueId input : numbers_behind(m_origin.client, m_client_of[outside], step.computes_indices)) {
          int64_t& known = m_script.index_bounds[m_origin.client.value(input).result_index];
          known = known == 0 ? bound : std::min(known, bound);
        }
      }
    }
  }

  /// The inputs of the graph whose numbers `value` is made of; `computed` becomes true when anything but views and casts of
  /// integers stands between. Floats are followed through views and what is computed element by element.
  static std::vector<ValueId> numbers_behind(const Graph& graph, ValueId value, bool& computed) {
    std::vector<ValueId> pending{value}, inputs;
    std::set<ValueId> seen;
    while (!pending.empty()) {
      const ValueId next = pending.back();
      pending.pop_back();
      if (graph.type(next).dtype == DType::boolean || !seen.insert(next).second) continue;
      computed = computed || is_floating(graph.type(next).dtype);
      const NodeId producer = graph.value(next).producer;
      if (producer == k_none) {
        inputs.push_back(next);
        continue;
      }
      const Node& node = graph.node(producer);
      computed = computed || (node.op->kind != OpKind::view && node.op->name != "cast");
      const bool keeps_place = node.op->kind == OpKind::view || node.op->kind == OpKind::pointwise;
      for (const ValueId operand : node.operands) {
        if (operand != k_none && (keeps_place || !is_floating(graph.type(operand).dtype))) pending.push_back(operand);
      }
    }
    return inputs;
  }

  void find_masks() {
    const Graph& graph = m_origin.client;
    std::vector<bool> floats(graph.values().size(), false);  // integers that a float is made of
    for (NodeId id = static_cast<NodeId>(graph.nodes().size()); id-- > 0;) {
      const Node& node = graph.node(id);
      const bool reaches = std::ranges::any_of(
          node.results, [&](ValueId result) { return is_floating(graph.type(result).dtype) || floats[result]; });
      for (const ValueId operand : node.operands) {
        if (operand != k_none && reaches && !is_floating(graph.type(operand).dtype)) floats[operand] = true;
      }
    }
    for (const ValueId input : graph.inputs()) m_script.becomes_float.push_back(floats[input]);
  }

  /// The most that is alive at a step.
  void add_up() {
    std::vector<int64_t> change(m_script.steps.size() + 2, 0);
    for (size_t i = m_origin.client.inputs().size(); i < m_script.storages.size(); ++i) {
      const ScriptStorage& storage = m_script.storages[i];
      change[storage.first_step] += static_cast<int64_t>(storage.bytes);
      change[storage.last_step + 1] -= static_cast<int64_t>(storage.bytes);
    }
    int64_t now = 0;
    for (const int64_t each : change) {
      now += each;
      m_script.kept_bytes = std::max(m_script.kept_bytes, static_cast<uint64_t>(now));
    }
  }

  const ProgramOrigin& m_origin;
  ProgramScript m_script;
  std::vector<ValueId> m_client_of;  // of the settled graph
  std::map<ValueId, std::vector<ValueId>>
      m_twins;  // of the client's graph: equal values, by the one that stands for them
  Cells m_settled, m_client;
};

}  // namespace

Expected<ProgramScript> ProgramScript::write(const ProgramOrigin& origin) { return ScriptWriter(origin).write(); }

}  // namespace kiln
