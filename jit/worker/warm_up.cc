#include "jit/worker/warm_up.h"

#include "backends/compile_registry.h"
#include "verdict/sample_pool.h"

namespace kiln {
namespace {

/// y[i] = exp(x[i]): a load, vector math, a store.
KernelSpec small_kernel() {
  constexpr int64_t k_elements = 1'024;
  LoopsSpec loops;
  loops.extents = {k_elements};
  loops.parallel_rank = 1;
  loops.body.accesses = {{.buffer = 0, .strides = {1}}, {.buffer = 1, .strides = {1}}};
  loops.body.exprs = {{.op = ScalarOp::load, .slot = 0}, {.op = ScalarOp::exp, .operands = {0, k_no_expr, k_no_expr}}};
  loops.stages = {{.stores = {{.value = 1, .access = 1}}}};
  KernelSpec spec;
  spec.buffers = {{.elements = k_elements, .role = BufferRole::input},
                  {.elements = k_elements, .role = BufferRole::output}};
  spec.kernel = std::move(loops);
  return spec;
}

}  // namespace

Status warm_up_samples() {
  for (const SamplePool::Kind kind : {SamplePool::Kind::even, SamplePool::Kind::uneven, SamplePool::Kind::small}) {
    if (const auto pool = SamplePool::of(DType::f32, kind); !pool.ok()) return pool.status();
  }
  return {};
}

Status warm_up_compilers() {
  const KernelSpec spec = small_kernel();
  KILN_RETURN_IF_ERROR(validate(spec));
  for (const CompileBackend* backend : compile_backends()) {
    if (!backend->is_fork_safe()) continue;
    const std::vector<Target> targets = backend->targets();
    if (targets.empty() || !backend->claims(spec, targets.front()).ok()) continue;
    const std::vector<Schedule> schedules = default_candidates(*backend, spec, targets.front());
    if (schedules.empty()) continue;
    const auto image = backend->compile(spec, schedules.front(), targets.front());
    if (!image.ok()) return image.status().with_context(backend->name());
  }
  return {};
}

}  // namespace kiln
