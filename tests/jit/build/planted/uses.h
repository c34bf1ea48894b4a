#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "frontend/ops/op.h"
#include "tests/jit/build/planted/linked.h"

namespace kiln::planted {

/// The program's buffers as its calls use them.
class Uses {
 public:
  explicit Uses(const Linked& subject) : m_subject(subject), m_parts(subject.parts()) {
    const auto& regions = subject.partition().regions;
    for (size_t call = 0; call < regions.size(); ++call) {
      const auto& arguments = m_parts.program.calls[call]->arguments;
      for (size_t i = 0; i < arguments.size(); ++i) {
        const bool is_input = i < regions[call].inputs.size();
        const ValueId value =
            is_input ? regions[call].inputs[i] : regions[call].outputs[i - regions[call].inputs.size()];
        const NodeId producer = subject.settled().value(value).producer;
        if (producer != k_none && subject.settled().node(producer).op->kind == OpKind::creation) {
          m_constants.insert(arguments[i]);
        }
        if (is_input && !is_read(static_cast<uint32_t>(call), i)) continue;
        (is_input ? m_reads : m_writes)[arguments[i]].push_back(static_cast<uint32_t>(call));
      }
    }
  }

  const Parts& parts() const { return m_parts; }
  const fb::BufferT& buffer(uint32_t index) const { return *m_parts.program.buffers[index]; }
  uint32_t buffers() const { return static_cast<uint32_t>(m_parts.program.buffers.size()); }
  uint32_t calls() const { return static_cast<uint32_t>(m_parts.program.calls.size()); }
  /// Whether a kernel of the call reads the argument.
  bool is_read(uint32_t call, size_t argument) const {
    const Plan& plan = m_subject.plan(m_parts.program.calls[call]->plan);
    return std::ranges::any_of(plan.launches, [&](const Launch& launch) {
      return std::ranges::any_of(launch.buffers, [&](uint32_t buffer) {
        return plan.buffers[buffer].kind == BufferKind::input && plan.buffers[buffer].index == argument;
      });
    });
  }
  size_t inputs_of(uint32_t call) const { return m_subject.partition().regions[call].inputs.size(); }
  const std::vector<uint32_t>& arguments(uint32_t call) const { return m_parts.program.calls[call]->arguments; }
  bool is_scratch(uint32_t index) const { return buffer(index).place == fb::Place::scratch; }

  /// The call that makes it; k_none for the caller's inputs.
  uint32_t made_by(uint32_t index) const {
    const auto found = m_writes.find(index);
    return found == m_writes.end() ? k_none : found->second.front();
  }
  std::vector<uint32_t> read_by(uint32_t index) const {
    const auto found = m_reads.find(index);
    return found == m_reads.end() ? std::vector<uint32_t>{} : found->second;
  }
  /// Something behind the call that makes it reads it, or it is the caller's.
  bool matters(uint32_t index) const { return buffer(index).place == fb::Place::output || !read_by(index).empty(); }
  /// A constant: another one may well be equal.
  bool is_constant(uint32_t index) const { return m_constants.contains(index); }
  bool is_same_place(uint32_t a, uint32_t b) const {
    return buffer(a).place == buffer(b).place && buffer(a).index == buffer(b).index &&
           buffer(a).offset == buffer(b).offset;
  }
  DType dtype_of(uint32_t call, size_t argument) const {
    const Region& region = m_subject.partition().regions[call];
    const size_t inputs = region.inputs.size();
    const ValueId value = argument < inputs ? region.inputs[argument] : region.outputs[argument - inputs];
    return m_subject.settled().type(value).dtype;
  }

 private:
  const Linked& m_subject;
  Parts m_parts;
  std::set<uint32_t> m_constants;
  std::map<uint32_t, std::vector<uint32_t>> m_reads, m_writes;  // calls, by buffer
};

}  // namespace kiln::planted
