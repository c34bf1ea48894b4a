#include "frontend/fuse/check_plan.h"

#include <algorithm>

#include "frontend/fuse/facts.h"
#include "frontend/fuse/kernels.h"
#include "frontend/kernel/affine.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

class Check {
 public:
  explicit Check(const Plan& plan) : m_plan(plan), m_holds(plan.buffers.size(), k_none) {
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer& buffer = plan.buffers[b];
      if (buffer.kind == BufferKind::input) m_holds[b] = plan.graph.inputs()[buffer.index];
    }
  }

  Status run() {
    for (const Launch& launch : m_plan.launches) {
      KILN_RETURN_IF_ERROR(check(launch));
    }
    return check_outputs();
  }

 private:
  template <typename... Args>
  Status broken(const Launch& launch, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string_view op = launch.nodes.empty() ? "copy" : m_plan.graph.node(launch.nodes.back()).op->name;
    return error(StatusCode::internal, "fuse: {}: {}", op, fmt::format(format, std::forward<Args>(args)...));
  }

  Status check(const Launch& launch) {
    const KernelSpec& spec = m_plan.specs[launch.spec];
    if (launch.buffers.size() != spec.buffers.size())
      return broken(launch, "a launch with other buffers than its kernel");
    for (size_t i = 0; i < launch.buffers.size(); ++i) {
      KILN_RETURN_IF_ERROR(check_layout(launch, i));
      const BufferRole role = spec.buffers[i].role;
      const ValueId wanted = role == BufferRole::inout ? launch.initial[i] : launch.values[i];
      const ValueId held = m_holds[launch.buffers[i]];
      if (role != BufferRole::output && held != wanted) {
        return broken(launch, "reads %{} where {}", wanted,
                      held == k_none ? "nothing was written" : "another value lies");
      }
      if (role != BufferRole::input) KILN_RETURN_IF_ERROR(check_write(launch, i));
    }
    for (size_t i = 0; i < launch.buffers.size(); ++i) {
      if (spec.buffers[i].role != BufferRole::input) m_holds[launch.buffers[i]] = launch.values[i];
    }
    return {};
  }

  /// The value lies in the buffer as the buffer says.
  Status check_layout(const Launch& launch, size_t i) const {
    const PlanBuffer& buffer = m_plan.buffers[launch.buffers[i]];
    const TensorType& type = m_plan.graph.type(launch.values[i]);
    const std::vector<int64_t> extents = constants_of(type.shape);
    const bool fits = buffer.dtype == type.dtype && buffer.strides.size() == extents.size() &&
                      footprint(extents, buffer.strides) == buffer.elements &&
                      m_plan.specs[launch.spec].buffers[i].elements == buffer.elements;
    return fits ? Status() : broken(launch, "%{} in a buffer of another layout", launch.values[i]);
  }

  Status check_write(const Launch& launch, size_t i) const {
    const BufferKind kind = m_plan.buffers[launch.buffers[i]].kind;
    if (kind == BufferKind::input || kind == BufferKind::constant) return broken(launch, "writes an input");
    if (std::ranges::count(launch.buffers, launch.buffers[i]) > 1) return broken(launch, "writes what it reads");
    return {};
  }

  Status check_outputs() const {
    std::vector<bool> is_made(m_plan.graph.outputs().size(), false);
    for (size_t b = 0; b < m_plan.buffers.size(); ++b) {
      const PlanBuffer& buffer = m_plan.buffers[b];
      if (buffer.kind != BufferKind::output) continue;
      if (buffer.elements > 0 && m_holds[b] == k_none) {
        return error(StatusCode::internal, "fuse: nothing writes output {}", buffer.index);
      }
      KILN_RETURN_IF_ERROR(check_output(buffer));
      is_made[buffer.index] = true;
    }
    if (std::ranges::find(is_made, false) == is_made.end()) return {};
    return error(StatusCode::internal, "fuse: an output has no buffer");
  }

  /// The buffer reaches as far as the caller's strides do. Its own may be of a renaming of the output.
  Status check_output(const PlanBuffer& buffer) const {
    const TensorType& type = m_plan.graph.type(m_plan.graph.outputs()[buffer.index]);
    const std::vector<Dim>& wanted = m_plan.graph.output_strides()[buffer.index];
    const std::vector<int64_t> extents = constants_of(type.shape);
    const std::vector<int64_t> strides = wanted.empty() ? dense_strides(extents) : constants_of(wanted);
    if (buffer.dtype == type.dtype && buffer.elements == footprint(extents, strides)) return {};
    return error(StatusCode::internal, "fuse: output {} in another layout than is asked for", buffer.index);
  }

  const Plan& m_plan;
  std::vector<ValueId> m_holds;  // of each buffer
};

}  // namespace

Status check_plan(const Plan& plan) { return Check(plan).run(); }

}  // namespace kiln
