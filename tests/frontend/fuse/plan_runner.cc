#include "tests/frontend/fuse/plan_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backends/reference/reference.h"
#include "frontend/fuse/facts.h"
#include "frontend/fuse/kernels.h"
#include "frontend/kernel/affine.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {
namespace {

Tensor gather(const std::vector<std::byte>& memory, const std::vector<int64_t>& extents,
              const std::vector<int64_t>& strides, DType dtype) {
  Tensor dense = Tensor::zeros(dtype, extents);
  const size_t size = size_of(dtype);
  for (int64_t i = 0; i < dense.elements(); ++i) {
    std::memcpy(&dense.bytes[static_cast<size_t>(i) * size],
                &memory[static_cast<size_t>(place_of(i, extents, strides)) * size], size);
  }
  return dense;
}

using Memory = std::vector<std::vector<std::byte>>;

void expect_close(double got, double wanted, double tolerance, const std::string& where) {
  const bool is_close = got == wanted || (std::isnan(got) && std::isnan(wanted)) ||
                        std::fabs(got - wanted) <= tolerance * (1 + std::fabs(wanted));
  EXPECT_TRUE(is_close) << where << ": " << got << ", expected " << wanted;
}

// The memory of what the launch reads, before it runs: the inputs of its reference graph.
std::vector<Tensor> launch_inputs(const Plan& plan, const Launch& launch, const Memory& memory) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < launch.buffers.size(); ++i) {
    if (plan.specs[launch.spec].buffers[i].role == BufferRole::output) continue;
    const PlanBuffer& buffer = plan.buffers[launch.buffers[i]];
    inputs.push_back({buffer.dtype, {buffer.elements}, memory[launch.buffers[i]]});
  }
  return inputs;
}

// A kernel is judged by its own part of the graph: that part must say what the kernel computed.
void check_launch(const Plan& plan, const Launch& launch, const std::vector<Tensor>& given, const Memory& memory) {
  const Graph fragment = reference_graph(plan, launch);
  const auto wanted = evaluate_exact(fragment, given);
  EXPECT_TRUE(wanted.ok()) << wanted.status().to_string();
  if (!wanted.ok()) return;
  const bool has_halves =
      std::ranges::any_of(fragment.values(), [](const Value& value) { return is_half(value.type.dtype); });
  size_t output = 0;
  for (size_t i = 0; i < launch.buffers.size(); ++i) {
    if (plan.specs[launch.spec].buffers[i].role == BufferRole::input) continue;
    const PlanBuffer& buffer = plan.buffers[launch.buffers[i]];
    const std::vector<int64_t> extents = constants_of(fragment.type(fragment.outputs()[output]).shape);
    const Tensor got = gather(memory[launch.buffers[i]], extents, buffer.strides, buffer.dtype);
    for (int64_t e = 0; e < got.elements() && !testing::Test::HasFailure(); ++e) {
      expect_close(got.at(e), (*wanted)[output][static_cast<size_t>(e)], has_halves ? 1.0 / 128 : 2e-6,
                   fmt::format("{}, buffer {}, element {}", kernel_name(plan.specs[launch.spec]), i, e));
    }
    ++output;
  }
}

}  // namespace

Expected<std::vector<Tensor>> run_plan(const Plan& plan, const Graph& region, const std::vector<Tensor>& inputs) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<uint32_t> output_buffer(region.outputs().size(), UINT32_MAX);
  for (uint32_t b = 0; b < plan.buffers.size(); ++b) {
    const PlanBuffer& buffer = plan.buffers[b];
    // 0xff everywhere is NaN, -1, or a boolean that is not 0 or 1.
    memory.emplace_back(buffer.bytes(), std::byte{0xff});
    if (buffer.kind == BufferKind::input) memory.back() = inputs[buffer.index].bytes;
    if (buffer.kind == BufferKind::output) output_buffer[buffer.index] = b;
  }
  for (const Launch& launch : plan.launches) {
    std::vector<void*> buffers;
    for (const uint32_t b : launch.buffers) buffers.push_back(memory[b].data());
    const std::vector<Tensor> given = launch_inputs(plan, launch, memory);
    KILN_RETURN_IF_ERROR(run_reference(plan.specs[launch.spec], buffers));
    check_launch(plan, launch, given, memory);
  }
  std::vector<Tensor> outputs;
  for (uint32_t i = 0; i < region.outputs().size(); ++i) {
    const TensorType& type = region.type(region.outputs()[i]);
    const std::vector<int64_t> extents = constants_of(type.shape);
    const std::vector<Dim>& wanted = region.output_strides()[i];
    const std::vector<int64_t> strides = wanted.empty() ? dense_strides(extents) : constants_of(wanted);
    outputs.push_back(gather(memory[output_buffer[i]], extents, strides, type.dtype));
  }
  return outputs;
}

namespace {

void expect_right(const Plan& plan, const Graph& region, const std::vector<Tensor>& inputs,
                  const std::vector<std::vector<double>>& wanted, double tolerance) {
  const auto got = run_plan(plan, region, inputs);
  EXPECT_TRUE(got.ok()) << got.status().to_string();
  for (size_t i = 0; got.ok() && i < wanted.size(); ++i) {
    for (int64_t e = 0; e < (*got)[i].elements(); ++e) {
      expect_close((*got)[i].at(e), wanted[i][static_cast<size_t>(e)], tolerance,
                   fmt::format("output {}, element {}, kernels {}", i, e, kernels_of(plan)));
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// A half that lies between two kernels is rounded once more than in one.
bool has_halves(const Graph& graph) {
  return std::ranges::any_of(graph.values(), [](const Value& value) {
    return is_floating(value.type.dtype) && size_of(value.type.dtype) == 2;
  });
}

}  // namespace

Plan expect_fused(const Graph& region, const std::vector<Tensor>& inputs, double tolerance) {
  Expected<Plan> plan = fuse(region);
  const auto wanted = evaluate_exact(region, inputs);
  EXPECT_TRUE(wanted.ok()) << wanted.status().to_string();
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  if (!plan.ok() || !wanted.ok()) return {};
  for (const FuseChoices& choices : fuse_choices(plan->graph)) {
    if (choices != FuseChoices{} && has_halves(region)) continue;
    const auto chosen = fuse(region, choices);
    EXPECT_TRUE(chosen.ok()) << to_string(choices) << ": " << chosen.status().to_string();
    if (chosen.ok()) expect_right(*chosen, region, inputs, *wanted, tolerance);
  }
  return std::move(*plan);
}

std::vector<Tensor> random_inputs(const Graph& region, uint64_t seed, int64_t bound) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Tensor> inputs;
  for (const ValueId id : region.inputs()) {
    const TensorType& type = region.type(id);
    const std::vector<int64_t> extents = constants_of(type.shape);
    Tensor tensor = Tensor::zeros(type.dtype, extents);
    if (!type.strides.empty()) tensor = Tensor::zeros(type.dtype, {footprint(extents, constants_of(type.strides))});
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double value = is_floating(type.dtype) ? normal(random)
                           : type.dtype == DType::boolean
                               ? static_cast<double>(random() % 2)
                               : static_cast<double>(random() % static_cast<uint64_t>(bound));
      tensor.set(i, value);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

std::string kernels_of(const Plan& plan) {
  std::string names;
  for (const Launch& launch : plan.launches) names += kernel_name(plan.specs[launch.spec]) + " ";
  return names;
}

}  // namespace kiln
