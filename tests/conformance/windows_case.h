#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "frontend/kernel/affine.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

/// Filters times what windows see of images, as convolutions are multiplied, or, where sums run over positions, what came back
/// times that, as gradients of filters are. An operand in pieces.
struct WindowsCase {
  int64_t images = 2, groups = 1, channels = 3, filters = 5;  // channels and filters: of a group
  std::vector<int64_t> extents{9, 11}, kernel{3, 3}, stride{1, 1}, dilation{1, 1};
  DType dtype = DType::f32;
  std::optional<DType> loaded = std::nullopt;  // what the images lie in memory as, where that is not `dtype`
  bool channels_last = false;
  bool images_are_batch = true;  // else positions of all images count as those of one
  bool sums_positions = false;
  bool is_mirrored = false;    // filters lie in memory from their last pixel to their first, but sums of positions
  bool windows_are_a = false;  // as the transposed product has them

  std::vector<int64_t> positions() const {
    std::vector<int64_t> counts;
    for (size_t d = 0; d < kernel.size(); ++d) {
      counts.push_back((extents[d] - (kernel[d] - 1) * dilation[d] - 1) / stride[d] + 1);
    }
    return counts;
  }
};

/// Makes the spec of a WindowsCase.
class WindowsProduct {
 public:
  explicit WindowsProduct(const WindowsCase& c) : m_case(c) {}

  KernelSpec spec() const {
    const WindowsCase& c = m_case;
    const int64_t m = c.filters, k = product(extents_of(steps())), n = product(extents_of(columns()));
    const DType sum = accumulator_of(c.dtype), loaded = c.loaded.value_or(c.dtype);
    const Operand factors = factors_of(k),
                  windows{.buffer = 1, .batch = batch(image(), group()), .outer = columns(), .k = steps()};
    const int64_t matrix = m * n;
    GemmSpec gemm{.m = m, .n = n, .k = k, .dtype = c.dtype};
    if (c.images_are_batch) gemm.batch.push_back(c.images);
    if (c.groups > 1) gemm.batch.push_back(c.groups);
    if (!c.sums_positions) gemm.window = product(c.kernel);
    std::vector<int64_t> result = batch(c.groups * matrix, matrix);
    if (c.windows_are_a) {
      std::swap(gemm.m, gemm.n);
      set(gemm.a, gemm.a_value, gemm.a_pieces, windows, true);
      set(gemm.b, gemm.b_value, gemm.b_pieces, factors, false);
      result.insert(result.end(), {1, n});
    } else {
      set(gemm.a, gemm.a_value, gemm.a_pieces, factors, true);
      set(gemm.b, gemm.b_value, gemm.b_pieces, windows, false);
      result.insert(result.end(), {n, 1});
    }
    gemm.epilogue = {{{.op = ScalarOp::accumulator, .dtype = sum}}, {{.buffer = 2, .strides = std::move(result)}}};
    gemm.stores = {{0, 0, StoreMode::assign}};
    const int64_t all_results = product(gemm.batch) * matrix;
    return {{{c.dtype, c.sums_positions ? c.images * c.groups * m * product(c.positions()) : c.groups * m * k,
              BufferRole::input},
             {loaded, c.images * image(), BufferRole::input},
             {sum, all_results, BufferRole::output}},
            std::move(gemm)};
  }

 private:
  struct Piece {
    int64_t extent, stride;
  };
  using Pieces = std::vector<Piece>;
  struct Operand {
    uint32_t buffer = 0;
    int64_t offset = 0;
    std::vector<int64_t> batch;  // strides
    Pieces outer, k;
  };

  static std::vector<int64_t> extents_of(const Pieces& pieces) {
    std::vector<int64_t> extents;
    for (const Piece& piece : pieces) extents.push_back(piece.extent);
    return extents;
  }

  // Elements from one image, group, channel or pixel to the next.
  int64_t image() const { return m_case.groups * m_case.channels * product(m_case.extents); }
  int64_t group() const { return m_case.channels * channel(); }
  int64_t channel() const { return m_case.channels_last ? 1 : product(m_case.extents); }
  int64_t pixel(size_t d) const {
    const int64_t across = product(std::span(m_case.extents).subspan(d + 1));
    return m_case.channels_last ? across * m_case.groups * m_case.channels : across;
  }

  std::vector<int64_t> batch(int64_t of_image, int64_t of_group) const {
    std::vector<int64_t> strides;
    if (m_case.images_are_batch) strides.push_back(of_image);
    if (m_case.groups > 1) strides.push_back(of_group);
    return strides;
  }

  Pieces window() const {
    Pieces pieces{{m_case.channels, channel()}};
    for (size_t d = 0; d < m_case.kernel.size(); ++d) {
      pieces.push_back({m_case.kernel[d], pixel(d) * m_case.dilation[d]});
    }
    return pieces;
  }
  Pieces places() const {
    Pieces pieces;
    if (!m_case.images_are_batch) pieces.push_back({m_case.images, image()});
    for (size_t d = 0; d < m_case.kernel.size(); ++d) {
      pieces.push_back({m_case.positions()[d], pixel(d) * m_case.stride[d]});
    }
    return pieces;
  }
  Pieces steps() const { return m_case.sums_positions ? places() : window(); }
  Pieces columns() const { return m_case.sums_positions ? window() : places(); }

  /// The operand without windows.
  Operand factors_of(int64_t k) const {
    const int64_t m = m_case.filters, seen = product(m_case.positions());
    if (m_case.sums_positions) {
      const int64_t of_group = m * seen, of_image = m_case.groups * of_group;
      Operand grad{.batch = batch(of_image, of_group), .outer = {{m, seen}}, .k = {{seen, 1}}};
      if (!m_case.images_are_batch) grad.k.insert(grad.k.begin(), {m_case.images, of_image});
      return grad;
    }
    Operand filters{.batch = batch(0, m * k), .outer = {{m, k}}, .k = {{k, 1}}};
    if (!m_case.is_mirrored) return filters;
    const int64_t pixels = product(m_case.kernel);
    filters.offset = pixels - 1;
    filters.k = {{m_case.channels, pixels}, {pixels, -1}};
    return filters;
  }

  void set(Body& body, ExprId& value, GemmPieces& pieces, const Operand& operand, bool is_a) const {
    Access access{operand.buffer, operand.offset, operand.batch, {}};
    const Pieces &rows = is_a ? operand.outer : operand.k, &columns = is_a ? operand.k : operand.outer;
    for (const Pieces* dims : {&rows, &columns}) {
      for (const Piece& piece : *dims) access.strides.push_back(piece.stride);
    }
    if (rows.size() > 1) pieces.rows = extents_of(rows);
    if (columns.size() > 1) pieces.columns = extents_of(columns);
    const DType loaded = operand.buffer == 1 ? m_case.loaded.value_or(m_case.dtype) : m_case.dtype;
    body = {{{.op = ScalarOp::load, .dtype = loaded}}, {std::move(access)}};
    if (loaded != m_case.dtype) {
      body.exprs.push_back({.op = ScalarOp::cast, .dtype = m_case.dtype, .operands = {0, k_no_expr, k_no_expr}});
    }
    value = static_cast<ExprId>(body.exprs.size() - 1);
  }

  const WindowsCase m_case;
};

inline KernelSpec windows_product(const WindowsCase& c) { return WindowsProduct(c).spec(); }

}  // namespace kiln::conformance
