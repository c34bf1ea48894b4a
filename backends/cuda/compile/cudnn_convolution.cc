#include "backends/cuda/compile/cudnn_convolution.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "backends/cuda/compile/convolution.h"
#include "backends/cuda/compile/gemm_problem.h"

namespace kiln::cuda {
namespace {

constexpr uint32_t k_most_convolution_plans = 4;
constexpr uint64_t k_begin_bytes = 16;

/// A convolution, and what is added to each of its filters' results.
struct BiasedConvolution {
  Convolution convolution;
  const Access* bias = nullptr;

  const ConvolutionTensor& result() const {
    return convolution.is_of_filters ? convolution.filters : convolution.output;
  }
};

/// Whether there is an element for each filter, and these lie one after another.
bool is_of_filters(const GemmSpec& gemm, const Convolution& convolution, const Access& access) {
  const size_t rank = gemm.batch.size();
  if (access.strides[rank + 1] != 0 || (gemm.m > 1 && access.strides[rank] != 1)) return false;
  int64_t filters = gemm.m;
  for (size_t d = rank; d-- > 0;) {
    if (access.strides[d] == 0) continue;
    if (access.strides[d] != filters) return false;
    filters *= gemm.batch[d];
  }
  return filters == convolution.output.extents[1];
}

/// Reads what comes after the product, from its end: its sum as it is stored, before that a bias.
bool read_epilogue(const GemmSpec& gemm, BiasedConvolution& to) {
  const Body& body = gemm.epilogue;
  const auto is = [&](ExprId id, ScalarOp op) { return body.exprs[id].op == op; };
  ExprId value = gemm.stores.front().value;
  if (is_half(gemm.dtype)) {
    if (!is(value, ScalarOp::cast) || body.exprs[value].dtype != gemm.dtype) return false;
    value = body.exprs[value].operands[0];
  }
  if (is(value, ScalarOp::accumulator)) return true;
  if (!is(value, ScalarOp::add) || to.convolution.is_of_filters) return false;
  const auto& terms = body.exprs[value].operands;
  const size_t sum = is(terms[0], ScalarOp::accumulator) ? 0 : 1;
  ExprId bias = terms[1 - sum];
  if (is_half(gemm.dtype) && is(bias, ScalarOp::cast)) bias = body.exprs[bias].operands[0];
  to.bias = plain_load(body, bias);
  return is(terms[sum], ScalarOp::accumulator) && body.exprs[bias].dtype == gemm.dtype && to.bias != nullptr &&
         is_of_filters(gemm, to.convolution, *to.bias);
}

/// The spec as a graph can say it; nothing where none does.
std::optional<BiasedConvolution> biased_convolution_of(const KernelSpec& spec) {
  const auto convolution = convolution_of(spec);
  if (!convolution) return std::nullopt;
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  if (!is_half(gemm.dtype) && gemm.dtype != DType::f32) return std::nullopt;
  BiasedConvolution result{*convolution};
  if (!read_epilogue(gemm, result)) return std::nullopt;
  // The library reads operands while it writes results.
  std::vector<std::pair<uint32_t, int64_t>> tensors;
  for (const ConvolutionTensor* each : {&convolution->image, &convolution->filters, &convolution->output})
    tensors.emplace_back(each->buffer, each->offset);
  if (result.bias != nullptr) tensors.emplace_back(result.bias->buffer, result.bias->offset);
  const auto is_good = [&](const auto& tensor) {
    return spec.buffers[tensor.first].dtype == gemm.dtype &&
           static_cast<uint64_t>(tensor.second) * size_of(gemm.dtype) % k_begin_bytes == 0;
  };
  const auto is_result = [&](const auto& tensor) { return tensor.first == result.result().buffer; };
  if (!std::ranges::all_of(tensors, is_good) || std::ranges::count_if(tensors, is_result) != 1) return std::nullopt;
  return result;
}

void write_graph(CudnnPlanner& planner, const BiasedConvolution& biased, DType dtype) {
  const Convolution& c = biased.convolution;
  CudnnGraph& graph = planner.graph();
  const auto tensor = [&](const ConvolutionTensor& t) {
    return planner.memory(t.buffer, t.offset, dtype, t.extents, t.strides);
  };
  const CudnnWindows windows{c.stride, c.dilation, c.is_mirrored};
  const CudnnTensor image = tensor(c.image), filters = tensor(c.filters), output = tensor(c.output);
  if (c.is_of_filters) return graph.filter_gradient(windows, image, output, filters);
  if (biased.bias == nullptr) return graph.convolution(windows, image, filters, output);
  std::vector<int64_t> extents(output.extents.size(), 1), strides = extents;
  extents[1] = strides[0] = output.extents[1];
  const CudnnTensor bias = planner.memory(biased.bias->buffer, biased.bias->offset, dtype, extents, strides);
  graph.pointwise(CudnnMode::add, graph.convolution_like(windows, image, filters, output), bias, output);
}

/// Winograd's and Fourier's ways sum what they have rounded before, and turn an infinity into NaN all around it.
std::vector<CudnnNote> refused_notes(DType dtype) {
  std::vector<CudnnNote> notes{CudnnNote::nondeterministic, CudnnNote::rounds_operands, CudnnNote::sums_in_halves,
                               CudnnNote::fourier, CudnnNote::winograd};
  // Their f32 is TF32.
  if (dtype == DType::f32) notes.push_back(CudnnNote::tensor_cores);
  return notes;
}

}  // namespace

const Cudnn* cudnn_for(const KernelSpec& spec, const CudaTarget& target) {
  return biased_convolution_of(spec) ? cudnn_on(target) : nullptr;
}

std::vector<Schedule> cudnn_convolution_schedules() {
  return schedules_of_choices<CudnnChoice>(k_most_convolution_plans);
}

Expected<CudnnPlan> cudnn_plan(const KernelSpec& spec, const CudnnChoice& choice, const CudaTarget& target) {
  const auto convolution = biased_convolution_of(spec);
  const Cudnn* cudnn = convolution ? cudnn_on(target) : nullptr;
  if (cudnn == nullptr) return error(StatusCode::failed_precondition, "cudnn: not here, or not for such a convolution");
  const DType dtype = std::get<GemmSpec>(spec.kernel).dtype;
  CudnnPlanner planner(*cudnn, target);
  write_graph(planner, *convolution, dtype);
  return planner.plan(choice, refused_notes(dtype));
}

}  // namespace kiln::cuda
