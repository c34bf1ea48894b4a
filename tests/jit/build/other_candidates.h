#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/compile/gemm/outer_product.h"
#include "backends/schedule_bytes.h"

namespace kiln {

/// The host's backend with other candidates for products.
class OtherCandidates : public CompileBackend {
 public:
  using Edit = std::function<void(const GemmSpec&, std::vector<Schedule>&)>;
  explicit OtherCandidates(Edit edit) : m_edit(std::move(edit)) {}

  std::string_view name() const override { return m_backend.name(); }
  std::vector<Target> targets() const override { return m_backend.targets(); }
  Machine default_machine(const Target& target) const override { return m_backend.default_machine(target); }
  std::string toolchain() const override { return m_backend.toolchain(); }
  Status claims(const KernelSpec& spec, const Target& target) const override { return m_backend.claims(spec, target); }
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const Machine& machine) const override {
    std::vector<Schedule> schedules = m_backend.candidates(spec, target, machine);
    if (const auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) m_edit(*gemm, schedules);
    return schedules;
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override {
    return m_backend.compile(spec, schedule, target);
  }

 private:
  const Edit m_edit;
  cpu::CpuCompileBackend m_backend;
};

/// Puts a schedule first that the model would never list: one row by one vector at a time, several times slower than any.
inline const CompileBackend* badly_ordered(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec&, std::vector<Schedule>& schedules) {
    const cpu::OuterProductSchedule slow{.unroll = 1, .tile_rows = 1, .tile_vectors = 1, .k_block = 16};
    schedules.insert(schedules.begin(), {encode_choices(slow), "planted"});
  });
  return name == backend.name() ? &backend : nullptr;
}

}  // namespace kiln
