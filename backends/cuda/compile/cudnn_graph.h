#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/cudnn/object.h"
#include "frontend/ir/dtype.h"

namespace kiln::cuda {

/// cudnnPointwiseMode_t.
enum class CudnnMode : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  not_below = 303,
  index = 501,   // of the element along an axis
  select = 601,  // x where t holds, else b
};

/// How windows lie in an image, along each of its dims: how far one is from the next, and its elements from each other. Mirrored,
/// the last element of a kernel meets the first one of a window.
struct CudnnWindows {
  std::vector<int64_t> strides, dilations;
  bool is_mirrored = false;
};

/// cudnnReduceTensorOp_t.
enum class CudnnSum : int { sum = 0, maximum = 3 };

/// A tensor of a graph. Which extent a reduction sums over follows from the extents of its result.
struct CudnnTensor {
  std::vector<int64_t> extents, strides;
  CudnnDescriptor object = nullptr;
};

/// With the last two exchanged; there are two or more.
std::vector<int64_t> exchanged(std::vector<int64_t> values);

/// Ops on tensors, as cuDNN takes them. The first error stays, and finalise() tells it.
class CudnnGraph {
 public:
  explicit CudnnGraph(const Cudnn& cudnn) : m_cudnn(cudnn) {}

  /// Memory that the launch names by `number`.
  CudnnTensor memory(int64_t number, DType dtype, std::vector<int64_t> extents, std::vector<int64_t> strides);
  /// One f32 that the launch gives by value.
  CudnnTensor constant(int64_t number);

  CudnnTensor product(const CudnnTensor& a, const CudnnTensor& b, DType dtype);
  void product(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& to);
  /// Of images without padding, [images, channels, …]; `filters`: [filters, channels of a group, …].
  void convolution(const CudnnWindows& windows, const CudnnTensor& image, const CudnnTensor& filters,
                   const CudnnTensor& to);
  /// In f32, laid out as `like` is.
  CudnnTensor convolution_like(const CudnnWindows& windows, const CudnnTensor& image, const CudnnTensor& filters,
                               const CudnnTensor& like);
  /// The gradient of such filters out of that of the result.
  void filter_gradient(const CudnnWindows& windows, const CudnnTensor& image, const CudnnTensor& output,
                       const CudnnTensor& to);
  /// Of f32; `b` may be broadcast.
  CudnnTensor pointwise(CudnnMode mode, const CudnnTensor& a, const CudnnTensor& b, DType dtype = DType::f32);
  CudnnTensor pointwise(CudnnMode mode, const CudnnTensor& a);
  void pointwise(CudnnMode mode, const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& to);
  /// a where its place along `axis` is not below that along `other`, else b.
  CudnnTensor where_not_below(const CudnnTensor& a, const CudnnTensor& b, int64_t axis, int64_t other);
  /// Along the last axis.
  CudnnTensor reduced(CudnnSum sum, const CudnnTensor& a);
  void reduced(CudnnSum sum, const CudnnTensor& a, const CudnnTensor& to);
  /// The last two axes exchanged.
  CudnnTensor transposed(const CudnnTensor& a, DType dtype);

  /// Errors: what cuDNN refuses, in its words.
  Expected<CudnnObject> finalise();

 private:
  CudnnTensor tensor(int64_t number, DType dtype, std::vector<int64_t> extents, std::vector<int64_t> strides,
                     bool is_virtual, bool is_by_value);
  CudnnDescriptor kept(const CudnnWindows& windows);
  /// What cuDNN calls an op on windows and its parts.
  struct WindowsOperation {
    CudnnKind kind;
    CudnnAttribute alpha, beta, config, filters, image, output;
    std::string_view what;
  };
  void operate(const WindowsOperation& names, const CudnnWindows& windows, const CudnnTensor& image,
               const CudnnTensor& filters, const CudnnTensor& output);
  CudnnTensor between(DType dtype, std::vector<int64_t> extents);
  void operate(CudnnMode mode, DType type, int64_t axis, const CudnnTensor& x, const CudnnTensor* b,
               const CudnnTensor* t, const CudnnTensor& y);
  CudnnDescriptor keep(CudnnObject object, std::string_view what);

  const Cudnn& m_cudnn;
  std::vector<CudnnObject> m_objects;
  std::vector<CudnnDescriptor> m_operations;
  int64_t m_next_number = 1000;  // of tensors that no launch names
  Status m_status;
};

}  // namespace kiln::cuda
