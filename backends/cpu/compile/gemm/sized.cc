#include "backends/cpu/compile/gemm/sized.h"

namespace kiln::cpu {

SizedGemm SizedGemm::open(const KernelSpec& oriented, ReadA read_a, ReadB read_b, int64_t tasks) {
  SizedGemm sized{oriented, {}, 0, 0, 0, 0, {}, {}, {}, {}};
  auto& gemm = std::get<GemmSpec>(sized.form.kernel);
  LaunchNumbers& launch = sized.launch;
  sized.tasks = launch.carry_tasks(tasks);
  sized.m = launch.open(gemm.m);
  sized.n = launch.open(gemm.n);
  sized.k = launch.open(gemm.k);
  for (int64_t& extent : gemm.batch) sized.batch.push_back(launch.open(extent));
  const int outer = static_cast<int>(gemm.batch.size()), inner = outer + 1;
  sized.a = BodyNumbers::open(gemm.a, read_a == ReadA::panels ? outer : inner, launch);
  sized.b = BodyNumbers::open(gemm.b, read_b == ReadB::transposed ? outer : inner, launch);
  sized.epilogue = BodyNumbers::open(gemm.epilogue, inner, launch);
  return sized;
}

SizedGemm SizedGemm::closed(const KernelSpec& oriented) {
  SizedGemm sized{oriented, {}, 0, 0, 0, 0, {}, {}, {}, {}};
  const auto& gemm = std::get<GemmSpec>(sized.form.kernel);
  sized.batch.resize(gemm.batch.size());
  for (const auto& [body, numbers] :
       {std::pair(&gemm.a, &sized.a), std::pair(&gemm.b, &sized.b), std::pair(&gemm.epilogue, &sized.epilogue)}) {
    *numbers = BodyNumbers::closed(*body);
  }
  return sized;
}

const BodyNumbers& SizedGemm::of(const GemmSpec& gemm, const Body& body) const {
  return &body == &gemm.a ? a : &body == &gemm.b ? b : epilogue;
}

const BodyNumbers::OfAccess* SizedGemm::of(const GemmSpec& gemm, const Access& access) const {
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) {
    for (size_t i = 0; i < body->accesses.size(); ++i) {
      if (&body->accesses[i] == &access) return &of(gemm, *body).accesses[i];
    }
  }
  return nullptr;
}

}  // namespace kiln::cpu
