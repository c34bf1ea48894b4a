#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/compile/gemm/outer_product.h"
#include "backends/schedule_bytes.h"
#include "frontend/kernel/expensive.h"

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

/// One row by one vector at a time: several times slower than any schedule that the model lists.
inline cpu::OuterProductSchedule slow_schedule() {
  return {.unroll = 1, .tile_rows = 1, .tile_vectors = 1, .k_block = 16};
}

/// Puts a schedule first that the model would never list.
inline const CompileBackend* badly_ordered(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec&, std::vector<Schedule>& schedules) {
    schedules.insert(schedules.begin(), {encode_choices(slow_schedule()), "planted"});
  });
  return name == backend.name() ? &backend : nullptr;
}

/// Behind its first candidate: one that does nothing at all, the fastest, and wrong; one that crashes; and a slow one.
class BadCandidates final : public OtherCandidates {
 public:
  BadCandidates()
      : OtherCandidates([](const GemmSpec&, std::vector<Schedule>& schedules) {
          const std::vector<uint8_t> bytes = schedules.front().bytes;
          schedules.insert(schedules.begin() + 1,
                           {{bytes, "idle"}, {bytes, "crashing"}, {encode_choices(slow_schedule()), "slow"}});
        }) {}
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override {
    KILN_ASSIGN_OR_RETURN(Image image, OtherCandidates::compile(spec, schedule, target));
    if (schedule.description == "idle") image.code.assign(image.code.size(), 0xc3);      // ret
    if (schedule.description == "crashing") image.code.assign(image.code.size(), 0xf4);  // hlt, which no process may
    return image;
  }
};

inline const CompileBackend* bad_ones_behind_the_first(std::string_view name) {
  static const BadCandidates backend;
  return name == backend.name() ? &backend : nullptr;
}

/// The model's first schedule behind two that are far slower.
inline const CompileBackend* far_apart(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec&, std::vector<Schedule>& schedules) {
    cpu::OuterProductSchedule slower = slow_schedule();
    slower.k_block = 4;
    schedules = {{encode_choices(slow_schedule()), "slow"}, {encode_choices(slower), "slower"}, schedules.front()};
  });
  return name == backend.name() ? &backend : nullptr;
}

/// One schedule for each product, a slow one where functions are computed behind it.
inline const CompileBackend* slow_when_fused(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec& gemm, std::vector<Schedule>& schedules) {
    const bool is_heavy = std::ranges::any_of(gemm.epilogue.exprs, is_expensive, &ScalarNode::op);
    schedules.resize(1);
    if (is_heavy) schedules = {{encode_choices(slow_schedule()), "planted"}};
  });
  return name == backend.name() ? &backend : nullptr;
}

/// One schedule for each product, a slow one for those of 40 columns.
inline const CompileBackend* slow_when_narrow(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec& gemm, std::vector<Schedule>& schedules) {
    schedules.resize(1);
    if (gemm.n == 40) schedules = {{encode_choices(slow_schedule()), "planted"}};
  });
  return name == backend.name() ? &backend : nullptr;
}

}  // namespace kiln
