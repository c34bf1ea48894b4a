#include "tests/jit/build/planted/overwrite_faults.h"

#include <algorithm>
#include <compare>

#include "frontend/kernel/overwrites.h"
#include "tests/jit/build/planted/uses.h"

namespace kiln::planted {

namespace {

/// A launch, among all that the program makes.
struct Turn {
  uint32_t call = 0;
  size_t launch = 0;
  auto operator<=>(const Turn&) const = default;
};

/// Who reads the caller's inputs, and who writes outputs, in the order of turns; by number.
struct Turns {
  std::map<uint32_t, std::vector<Turn>> reads, writes;

  explicit Turns(const Linked& subject) {
    const Uses uses(subject);
    for (uint32_t call = 0; call < uses.calls(); ++call) {
      const Plan& plan = subject.plan(uses.parts().program.calls[call]->plan);
      for (size_t launch = 0; launch < plan.launches.size(); ++launch) {
        for (uint32_t b = 0; b < plan.launches[launch].buffers.size(); ++b) {
          const fb::BufferT* buffer = of_caller(uses, plan, call, launch, b);
          if (buffer == nullptr) continue;
          (buffer->place == fb::Place::input ? reads : writes)[buffer->index].push_back({call, launch});
        }
      }
    }
  }

  /// The program's buffer behind argument `b` of a launch, where it is an input or an output of the program.
  static const fb::BufferT* of_caller(const Uses& uses, const Plan& plan, uint32_t call, size_t launch, uint32_t b) {
    const PlanBuffer& buffer = plan.buffers[plan.launches[launch].buffers[b]];
    if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::output) return nullptr;
    const size_t first = buffer.kind == BufferKind::input ? 0 : uses.inputs_of(call);
    const fb::BufferT& behind = uses.buffer(uses.arguments(call)[first + buffer.index]);
    return behind.place == fb::Place::input || behind.place == fb::Place::output ? &behind : nullptr;
  }
};

}  // namespace

std::vector<Fault> wrong_overwrite(Linked& subject) {
  const Uses uses(subject);
  Turns turns(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    const uint32_t number = uses.parts().program.calls[call]->plan;
    const Plan& plan = subject.plan(number);
    for (size_t launch = 0; launch < plan.launches.size(); ++launch) {
      const std::vector<Overwrite> allowed = overwrites(plan.specs[plan.launches[launch].spec]);
      const auto count = static_cast<uint32_t>(plan.launches[launch].buffers.size());
      for (uint32_t pair = 0; pair < count * count; ++pair) {
        const Overwrite wrong{pair / count, pair % count};
        if (std::ranges::find(allowed, wrong) != allowed.end()) continue;
        const fb::BufferT* output = Turns::of_caller(uses, plan, call, launch, wrong.output);
        const fb::BufferT* input = Turns::of_caller(uses, plan, call, launch, wrong.input);
        if (output == nullptr || input == nullptr) continue;
        if (output->place != fb::Place::output || input->place != fb::Place::input) continue;
        const Turn now{call, launch};
        const auto &reads = turns.reads[input->index], &writes = turns.writes[output->index];
        if (reads.back() != now || std::ranges::count(reads, now) != 1 || writes.front() != now) continue;
        faults.push_back({fmt::format("plan {}, launch {}: {} over {}", number, launch, wrong.output, wrong.input),
                          [=](Parts& mutant) {
                            auto& pairs = mutant.plans[number].launches[launch]->overwrites;
                            pairs.push_back(std::make_unique<fb::AliasT>());
                            pairs.back()->output = wrong.output;
                            pairs.back()->input = wrong.input;
                          }});
      }
    }
  }
  return faults;
}

}  // namespace kiln::planted
