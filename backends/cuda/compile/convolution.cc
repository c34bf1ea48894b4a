#include "backends/cuda/compile/convolution.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "backends/cuda/compile/gemm_problem.h"

namespace kiln::cuda {
namespace {

using Integers = std::vector<int64_t>;

constexpr size_t k_most_window_dims = 3;

/// Dims of an access that make up one dim of the product, outermost first.
struct Run {
  Integers extents, strides;
};

Run run_of(const Access& access, size_t first, const Integers& pieces, int64_t whole) {
  Run run{pieces.empty() ? Integers{whole} : pieces, {}};
  const auto begin = access.strides.begin() + static_cast<ptrdiff_t>(first);
  run.strides.assign(begin, begin + static_cast<ptrdiff_t>(run.extents.size()));
  return run;
}

/// The strides of dims of `extents`, which the run is cut into; nothing where one of them would lie across two of its own.
std::optional<Integers> cut(const Run& run, const Integers& extents) {
  Integers strides(extents.size(), 0);
  size_t piece = run.extents.size();
  int64_t left = 1, stride = 0;
  for (size_t d = extents.size(); d-- > 0;) {
    if (extents[d] == 1) continue;
    for (; left == 1 && piece > 0; stride = run.strides[piece]) left = run.extents[--piece];
    if (left % extents[d] != 0) return std::nullopt;
    strides[d] = stride;
    stride *= extents[d];
    left /= extents[d];
  }
  return strides;
}

/// One of the dims that windows move along: how many elements of a kernel and how many positions there are, and how far they
/// lie apart. Of what there is one alone the stride says nothing.
struct WindowDim {
  int64_t kernel = 1, kernel_stride = 0, positions = 1, position_stride = 0;

  /// From a pixel to the next one.
  int64_t pitch() const {
    if (positions == 1) return kernel_stride;
    return kernel == 1 ? position_stride : std::gcd(kernel_stride, position_stride);
  }
  int64_t stride() const { return positions == 1 ? 1 : position_stride / pitch(); }
  int64_t dilation() const { return kernel == 1 ? 1 : kernel_stride / pitch(); }
  int64_t pixels() const { return (positions - 1) * stride() + (kernel - 1) * dilation() + 1; }
};

/// The place before `end` whose stride has most in common with a kernel's: neighbours in one are neighbours in the other.
size_t partner_of(int64_t kernel_stride, const Run& positions, size_t end) {
  const auto distance = [&](size_t place) {
    const int64_t stride = positions.strides[place];
    return std::max(stride, kernel_stride) / std::gcd(stride, kernel_stride);
  };
  size_t best = end - 1;
  for (size_t place = end - 1; place-- > 0;) {
    if (distance(place) < distance(best)) best = place;
  }
  return best;
}

bool are_positive(const Integers& strides) {
  return std::ranges::all_of(strides, [](int64_t stride) { return stride > 0; });
}

/// Gives dims of one element a stride as if they lay around what is inside of them.
void settle_strides(ConvolutionTensor& tensor) {
  int64_t reach = 1;
  for (size_t d = tensor.extents.size(); d-- > 2;) {
    if (tensor.extents[d] == 1) tensor.strides[d] = reach;
    reach = tensor.extents[d] * tensor.strides[d];
  }
  if (tensor.extents[1] == 1) tensor.strides[1] = reach;
  if (tensor.extents[0] == 1) tensor.strides[0] = std::max(reach, tensor.extents[1] * tensor.strides[1]);
}

/// Extents and strides of the dims with several elements, the nearest first.
std::vector<std::pair<int64_t, int64_t>> dims_in_memory(const ConvolutionTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < tensor.extents.size(); ++d) {
    if (tensor.extents[d] > 1) dims.emplace_back(tensor.strides[d], tensor.extents[d]);
  }
  std::ranges::sort(dims);
  return dims;
}

/// Whether the elements fill a piece of memory, in whatever order.
bool is_dense(const ConvolutionTensor& tensor) {
  int64_t elements = 1;
  for (const auto& [stride, extent] : dims_in_memory(tensor)) {
    if (stride != elements) return false;
    elements *= extent;
  }
  return true;
}

/// Whether no two elements are one in memory.
bool is_apart(const ConvolutionTensor& tensor) {
  int64_t reach = 0;
  for (const auto& [stride, extent] : dims_in_memory(tensor)) {
    if (stride <= reach) return false;
    reach += stride * (extent - 1);
  }
  return true;
}

class ConvolutionReader {
 public:
  ConvolutionReader(const GemmSpec& gemm, const Access& a, const Access& b, const Access& result)
      : m_gemm(gemm), m_a(a), m_b(b), m_result(result), m_rank(gemm.batch.size()) {}

  /// `has_channels`: windows are of several channels.
  std::optional<Convolution> read(bool has_channels) {
    if (!read_batch() || !read_windows(has_channels)) return std::nullopt;
    const Run sums = run_of(m_a, m_rank + 1, m_gemm.a_pieces.columns, m_gemm.k);
    const Run columns = run_of(m_result, m_rank + 1, {}, m_gemm.n);
    const bool is_of_filters = m_convolution.is_of_filters;
    if (!read_image() || !read_filters(is_of_filters ? m_result : m_a, is_of_filters ? columns : sums) ||
        !read_output(is_of_filters ? m_a : m_result, is_of_filters ? sums : columns))
      return std::nullopt;
    for (const WindowDim& dim : m_dims) {
      m_convolution.stride.push_back(dim.stride());
      m_convolution.dilation.push_back(dim.dilation());
    }
    return m_convolution;
  }

 private:
  /// What A has one of for all of the batch are images, what it has one for each of are groups.
  bool read_batch() {
    for (size_t d = 0; d < m_rank; ++d) {
      auto& dim = m_a.strides[d] == 0 ? m_images : m_groups;
      if (dim || m_b.strides[d] <= 0 || m_result.strides[d] <= 0) return false;
      dim = d;
    }
    return true;
  }

  /// Along k or along n lie channels, then the kernel; along the other one images, then positions.
  bool read_windows(bool has_channels) {
    Run kernel = run_of(m_b, m_rank, m_gemm.b_pieces.rows, m_gemm.k);
    Run positions = run_of(m_b, m_rank + kernel.extents.size(), m_gemm.b_pieces.columns, m_gemm.n);
    m_convolution.is_of_filters = m_gemm.window == 1 && positions.extents.back() < kernel.extents.back();
    if (m_convolution.is_of_filters) std::swap(kernel, positions);
    if (!are_positive(kernel.strides) || !are_positive(positions.strides)) return false;
    const size_t first = has_channels ? 1 : 0;
    size_t left = positions.extents.size();
    for (size_t d = kernel.extents.size(); d-- > first;) {
      const size_t partner = left == 0 ? 0 : partner_of(kernel.strides[d], positions, left);
      while (left > partner + 1) add_positions(positions, --left);
      WindowDim dim{.kernel = kernel.extents[d], .kernel_stride = kernel.strides[d]};
      if (left > 0) {
        dim.positions = positions.extents[--left];
        dim.position_stride = positions.strides[left];
      }
      m_dims.insert(m_dims.begin(), dim);
    }
    if (m_dims.empty()) return false;
    if (has_channels) {
      m_channels = kernel.extents.front();
      m_channel_stride = kernel.strides.front();
    }
    while (left > (m_images ? 0 : 1)) add_positions(positions, --left);
    if (left == 1) {
      m_columns_images = positions.extents.front();
      m_columns_image_stride = positions.strides.front();
    }
    if (m_dims.size() == 1) m_dims.insert(m_dims.begin(), WindowDim{.kernel_stride = 1});
    return m_dims.size() <= k_most_window_dims;
  }
  void add_positions(const Run& positions, size_t place) {
    m_dims.insert(m_dims.begin(),
                  WindowDim{.positions = positions.extents[place], .position_stride = positions.strides[place]});
  }

  int64_t extent_of(const std::optional<size_t>& batch_dim) const { return batch_dim ? m_gemm.batch[*batch_dim] : 1; }
  int64_t images() const { return m_images ? extent_of(m_images) : m_columns_images; }

  /// The stride of a dim with all groups' elements; nothing where groups do not lie one after another.
  std::optional<int64_t> stride_of_all_groups(const Access& access, int64_t extent, int64_t stride) const {
    if (!m_groups) return stride;
    const int64_t of_groups = access.strides[*m_groups];
    if (extent == 1) return of_groups;
    return of_groups == extent * stride ? std::optional(stride) : std::nullopt;
  }

  bool read_image() {
    const auto channel_stride = stride_of_all_groups(m_b, m_channels, m_channel_stride);
    if (!channel_stride) return false;
    ConvolutionTensor& image = m_convolution.image;
    image = {m_b.buffer, m_b.offset, {images(), extent_of(m_groups) * m_channels}, {}};
    image.strides = {m_images ? m_b.strides[*m_images] : m_columns_image_stride, *channel_stride};
    for (const WindowDim& dim : m_dims) {
      image.extents.push_back(dim.pixels());
      image.strides.push_back(dim.pitch());
    }
    settle_strides(image);
    return are_positive(image.strides) && is_apart(image);
  }

  /// Of a matrix whose rows are filters and whose columns are channels and kernels.
  bool read_filters(const Access& access, const Run& columns) {
    ConvolutionTensor& filters = m_convolution.filters;
    Integers extents = {m_channels};
    for (const WindowDim& dim : m_dims) extents.push_back(dim.kernel);
    auto strides = cut(columns, extents);
    const auto filter_stride = stride_of_all_groups(access, m_gemm.m, access.strides[m_rank]);
    if (!strides || !filter_stride) return false;
    const auto is_backwards = [](int64_t stride) { return stride < 0; };
    const auto kernel = std::span(*strides).subspan(1);
    m_convolution.is_mirrored = std::ranges::any_of(kernel, is_backwards);
    filters = {access.buffer, access.offset, {extent_of(m_groups) * m_gemm.m}, {*filter_stride}};
    for (size_t d = 1; d < extents.size() && m_convolution.is_mirrored; ++d) {
      filters.offset += (extents[d] - 1) * (*strides)[d];
      (*strides)[d] = -(*strides)[d];
    }
    filters.extents.insert(filters.extents.end(), extents.begin(), extents.end());
    filters.strides.insert(filters.strides.end(), strides->begin(), strides->end());
    settle_strides(filters);
    return are_positive(filters.strides) && is_dense(filters);
  }

  /// Of a matrix whose rows are filters and whose columns are images, where the batch has none, and positions.
  bool read_output(const Access& access, const Run& columns) {
    Integers extents = {m_columns_images};
    for (const WindowDim& dim : m_dims) extents.push_back(dim.positions);
    auto strides = cut(columns, extents);
    const auto filter_stride = stride_of_all_groups(access, m_gemm.m, access.strides[m_rank]);
    if (!strides || !filter_stride) return false;
    if (m_images) strides->front() = access.strides[*m_images];
    extents.front() = images();
    extents.insert(extents.begin() + 1, extent_of(m_groups) * m_gemm.m);
    strides->insert(strides->begin() + 1, *filter_stride);
    m_convolution.output = {access.buffer, access.offset, std::move(extents), std::move(*strides)};
    settle_strides(m_convolution.output);
    return are_positive(m_convolution.output.strides);
  }

  const GemmSpec& m_gemm;
  const Access &m_a, &m_b, &m_result;
  const size_t m_rank;
  std::optional<size_t> m_images, m_groups;  // dims of the batch
  int64_t m_columns_images = 1, m_columns_image_stride = 0;
  int64_t m_channels = 1, m_channel_stride = 0;  // of a group
  std::vector<WindowDim> m_dims;
  Convolution m_convolution;
};

}  // namespace

std::optional<Convolution> convolution_of(const KernelSpec& spec) {
  const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
  if (gemm == nullptr || gemm->b_pieces.empty() || !gemm->a_pieces.rows.empty() || gemm->groups || gemm->k == 0)
    return std::nullopt;
  const bool has_other_dtype =
      gemm->a.exprs[gemm->a_value].dtype != gemm->dtype || gemm->b.exprs[gemm->b_value].dtype != gemm->dtype;
  const Access *a = plain_load(gemm->a, gemm->a_value), *b = plain_load(gemm->b, gemm->b_value);
  if (has_other_dtype || a == nullptr || b == nullptr || gemm->stores.size() != 1 ||
      gemm->stores.front().mode != StoreMode::assign)
    return std::nullopt;
  const Access& result = gemm->epilogue.accesses[gemm->stores.front().access];
  if (!result.indirect.empty()) return std::nullopt;
  // Windows of one channel of which the first dim is taken for channels are of an image that would overlap itself.
  auto convolution = ConvolutionReader(*gemm, *a, *b, result).read(true);
  return convolution ? convolution : ConvolutionReader(*gemm, *a, *b, result).read(false);
}

}  // namespace kiln::cuda
