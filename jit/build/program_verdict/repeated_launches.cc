#include "jit/build/program_verdict/repeated_launches.h"

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "frontend/canonical/canonical.h"

namespace kiln {

namespace {

/// An argument of some launch of a call, by which contents are known in every call alike.
using CallPlace = std::pair<uint32_t, uint32_t>;   // launch, argument
using CallPlaces = std::map<uint32_t, CallPlace>;  // by storage: where its call met it first

struct Cell {
  CallPlace place;
  DType dtype;
  std::vector<int64_t> dims, strides;
  auto operator<=>(const Cell&) const = default;
};

struct FragmentMeaning {
  std::vector<uint8_t> graph;
  std::vector<CallPlace> inputs;
  std::vector<std::pair<ValueId, Cell>> targets;
  int64_t reduction_length;
  DType coarsest;
  auto operator<=>(const FragmentMeaning&) const = default;
};

/// All that decides what a launch computes, in words that say nothing of which call it is in.
struct LaunchMeaning {
  const Plan* plan;
  uint32_t launch;
  std::vector<CallPlace> reads;
  std::vector<FragmentMeaning> fragments;
  auto operator<=>(const LaunchMeaning&) const = default;
};

void meet(CallPlaces& places, const ScriptStep& step) {
  for (uint32_t i = 0; i < step.arguments.size(); ++i) {
    const ScriptArgument& argument = step.arguments[i];
    if (argument.read) places.try_emplace(argument.read->storage, step.launch, i);
    if (argument.written != k_none) places.try_emplace(argument.written, step.launch, i);
  }
}

/// Nothing when a fragment begins with what its call has not met.
std::optional<FragmentMeaning> describe(const ScriptFragment& fragment, const CallPlaces& places) {
  FragmentMeaning described{canonical_bytes(fragment.graph), {}, {}, fragment.reduction_length, fragment.coarsest};
  for (const uint32_t storage : fragment.inputs) {
    const auto found = places.find(storage);
    if (found == places.end()) return std::nullopt;
    described.inputs.push_back(found->second);
  }
  for (const ScriptFragment::Target& target : fragment.targets) {
    const auto found = places.find(target.made.storage);
    if (found == places.end()) return std::nullopt;
    const ValueLayout& layout = target.made.layout;
    described.targets.emplace_back(target.value, Cell{found->second, layout.dtype, layout.dims, layout.strides});
  }
  return described;
}

std::optional<LaunchMeaning> describe(const ScriptStep& step, const CallPlaces& places) {
  LaunchMeaning described{step.plan, step.launch, {}, {}};
  for (const ScriptArgument& argument : step.arguments) {
    if (argument.read) described.reads.push_back(places.at(argument.read->storage));
  }
  for (const ScriptFragment& fragment : step.fragments) {
    auto each = describe(fragment, places);
    if (!each) return std::nullopt;
    described.fragments.push_back(std::move(*each));
  }
  return described;
}

}  // namespace

std::vector<uint32_t> find_repeated_launches(const ProgramScript& script) {
  std::vector<uint32_t> first;
  std::map<LaunchMeaning, uint32_t> known;
  std::map<uint32_t, CallPlaces> calls;
  for (uint32_t i = 0; i < script.steps.size(); ++i) {
    const ScriptStep& step = script.steps[i];
    CallPlaces& places = calls[step.call];
    meet(places, step);
    auto described = describe(step, places);
    first.push_back(described ? known.try_emplace(std::move(*described), i).first->second : i);
  }
  return first;
}

}  // namespace kiln
