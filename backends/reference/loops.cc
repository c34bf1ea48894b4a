#include "backends/loops_stages.h"
#include "backends/reference/body_runner.h"
#include "backends/reference/kernels.h"

namespace kiln {
namespace {

class LoopsRunner {
 public:
  LoopsRunner(const KernelSpec& spec, const LoopsSpec& loops, std::span<void* const> buffers)
      : m_loops(loops), m_body(spec, loops.body, buffers), m_point(loops.extents.size(), 0) {
    for (const Stage& stage : loops.stages) m_orders.push_back(m_body.order_for(roots_of(m_loops, stage)));
  }

  bool run() {
    const std::span parallel_point = std::span(m_point).first(m_loops.parallel_rank);
    do {
      for (size_t s = 0; s < m_loops.stages.size(); ++s) run_stage(m_loops.stages[s], m_orders[s]);
    } while (next_point(parallel_point, std::span(m_loops.extents).first(m_loops.parallel_rank)));
    return !m_body.index_out_of_range();
  }

 private:
  void run_stage(const Stage& stage, const std::vector<ExprId>& order) {
    std::vector<Number> totals;
    for (const uint32_t r : stage.reductions) totals.push_back(identity_of(m_loops.reductions[r].combiner));
    const std::span reduced_point = std::span(m_point).subspan(m_loops.parallel_rank);
    do {
      m_body.evaluate(order, m_point);
      for (size_t i = 0; i < totals.size(); ++i) {
        const Reduction& reduction = m_loops.reductions[stage.reductions[i]];
        totals[i] = combine(reduction.combiner, m_loops.body.exprs[reduction.value].dtype, totals[i],
                            m_body.value(reduction.value));
      }
      for (const Store& store : stage.stores) m_body.store(store, m_point);
    } while (!stage.per_row && next_point(reduced_point, std::span(m_loops.extents).subspan(m_loops.parallel_rank)));
    for (size_t i = 0; i < totals.size(); ++i) m_body.set_reduced(stage.reductions[i], totals[i]);
  }

  const LoopsSpec& m_loops;
  BodyRunner m_body;
  std::vector<int64_t> m_point;
  std::vector<std::vector<ExprId>> m_orders;  // one per stage
};

}  // namespace

bool run_kernel(const KernelSpec& spec, const LoopsSpec& loops, std::span<void* const> buffers) {
  return LoopsRunner(spec, loops, buffers).run();
}

}  // namespace kiln
