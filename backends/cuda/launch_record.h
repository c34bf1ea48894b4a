#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/dtype.h"

/// What Image::code of this backend holds: a launch record, then the cubins and plans it names. The compile side writes it,
/// the runtime reads it; nobody else looks inside.
///
///     code   = magic:u32  version:u32  record_bytes:u32  record  cubins  plans
///
/// All kernels take one argument, by value (and __grid_constant__): one pointer for each of the spec's buffers and of the
/// workspace's parts, a pointer to the launch's status, then, 64-byte aligned, the tensor maps, then the extents (i64) that the
/// launch carries.
namespace kiln::cuda {

/// How a tensor map is encoded once the buffer's address is known (cuTensorMapEncodeTiled): four dims, the adjacent one
/// first; those that a tensor lacks have one element. Out of bounds reads as zero.
struct TensorMapRecord {
  uint32_t buffer = 0;
  DType dtype = DType::f16;
  uint64_t offset_bytes = 0;
  std::array<uint64_t, 4> extents{};
  std::array<uint64_t, 3> stride_bytes{};  // of dims 1 to 3; multiples of 16
  std::array<uint32_t, 4> box{};
  bool is_swizzled = true;  // by 128 bytes
  bool operator==(const TensorMapRecord&) const = default;
};

/// What the compiler said about a kernel.
struct Resources {
  uint32_t registers = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t stack_bytes = 0;
  uint32_t spill_store_bytes = 0;
  uint32_t spill_load_bytes = 0;
  bool operator==(const Resources&) const = default;
};

/// Whether tensor maps, copies in pieces and libraries take the address.
inline bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

struct KernelRecord {
  std::string entry;
  uint64_t blocks = 1;         // one dimension
  bool is_persistent = false;  // any number of blocks does: at most one a multiprocessor, a multiple of the cluster
  uint32_t threads = 0;        // of a block
  uint32_t cluster = 1;        // blocks
  uint32_t shared_bytes = 0;   // dynamic
  /// The next kernel of the record is launched after this one: both belong to one alternative.
  bool is_followed = false;
  /// Buffers whose address must be aligned (is_aligned); where one is not, the next alternative of the record is taken.
  std::vector<uint32_t> aligned_buffers;
  std::vector<TensorMapRecord> maps;
  Resources resources;
  uint64_t cubin_offset = 0, cubin_bytes = 0;  // from the start of the code
  bool operator==(const KernelRecord&) const = default;
};

/// What a plan's tensor is at its launch: memory of a buffer or of the workspace, or one f32 that the record has.
struct PlanTensor {
  enum class Place : uint8_t { buffer = 0, workspace = 1, number = 2 };
  int64_t number = 0;  // the plan's name for it
  Place place = Place::buffer;
  uint32_t buffer = 0;
  uint64_t offset_bytes = 0;  // in the buffer or the workspace; multiples of 16
  float value = 0;
  bool operator==(const PlanTensor&) const = default;
};

/// A plan of cuDNN, as its text. It takes addresses that are multiples of 16.
struct PlanRecord {
  uint64_t version = 0;          // of the library that made it, and alone reads it: 91900
  uint64_t workspace_bytes = 0;  // the library's own first, then what tensors have there
  std::vector<PlanTensor> tensors;
  uint64_t text_offset = 0, text_bytes = 0;  // from the start of the code
  bool operator==(const PlanRecord&) const = default;
};

/// A matrix of cuBLASLt's: its columns lie one after another, each in one piece.
struct MatrixRecord {
  uint32_t buffer = 0;
  DType dtype = DType::f16;
  uint64_t offset_bytes = 0;
  uint64_t rows = 1, columns = 1;  // in memory
  int64_t column_stride = 1;       // elements, at least a column's
  int64_t batch_stride = 0;        // elements
  bool is_transposed = false;      // the product is of its transpose
  bool operator==(const MatrixRecord&) const = default;
};

/// A product as cuBLASLt is asked for it: result = activation(factor * left * right + its factor * the addend + the bias, which is
/// added to each column). It takes addresses of buffers that are multiples of 16.
struct ProductRecord {
  /// gelu: its tanh form. gelu_gradient: factor * left * right * the derivative of that at GELU's input; nothing is added.
  enum class Activation : uint8_t { none = 0, gelu = 1, gelu_gradient = 2 };
  struct Bias {  // an element for each row of the result, of its dtype
    uint32_t buffer = 0;
    uint64_t offset_bytes = 0;
    int64_t batch_stride = 0;  // elements
    bool operator==(const Bias&) const = default;
  };
  struct Addend {  // of the result's shape and dtype, perhaps the result before
    MatrixRecord matrix;
    double factor = 1;
    bool operator==(const Addend&) const = default;
  };
  uint64_t version = 0;          // of the library that it was judged with: 131000
  uint32_t place = 0;            // of the algorithm among those that the library proposes on the device
  uint64_t workspace_bytes = 0;  // as much as the algorithm may take
  uint32_t batches = 1;
  MatrixRecord left, right, result;
  double factor = 1;            // as f32, where sums are
  std::vector<Addend> addends;  // at most one
  std::vector<Bias> biases;     // at most one
  Activation activation = Activation::none;
  /// What GELU is of (is_gelu_input): gelu may store it, and gelu_gradient reads it. At most one.
  std::vector<MatrixRecord> gelu_inputs;
  bool operator==(const ProductRecord&) const = default;
};

/// Whether cuBLASLt takes the matrix as GELU's input where `result` is its result.
bool is_gelu_input(const MatrixRecord& matrix, const MatrixRecord& result);

/// Alternatives that compute the same: a call of a vendor's library where there is one, a plan or a product, and kernels, best
/// first; the last one takes any address. Most are one kernel.
struct LaunchRecord {
  uint32_t buffers = 0;  // the spec's
  /// Bytes of the parts of the launch's workspace, which are buffers numbered after the spec's: what one kernel leaves for
  /// the next.
  std::vector<uint64_t> workspace_parts;
  uint32_t least_driver = 0;  // as cuDriverGetVersion counts: 13000
  std::vector<KernelRecord> kernels;
  // At most one of both.
  std::vector<PlanRecord> plans;
  std::vector<ProductRecord> products;
  bool operator==(const LaunchRecord&) const = default;
};

/// Executable::workspace_bytes: all parts, each 128-byte aligned when the workspace is.
uint64_t workspace_bytes(const LaunchRecord& record);
/// What every kernel's argument begins with.
std::vector<void*> argument_pointers(const LaunchRecord& record, void* const* buffers, void* workspace, void* status);
/// The kernels of the first alternative that takes the addresses, to be launched one after another.
std::span<const KernelRecord> alternative_for(const LaunchRecord& record, void* const* pointers);
/// Bytes of the argument up to its extents: pointers and maps.
size_t argument_bytes(const LaunchRecord& record, const KernelRecord& kernel);
/// Where the maps begin in it.
size_t maps_offset(const LaunchRecord& record);

/// The code of an image: fills offsets and sizes. One cubin for each kernel, one text for each plan, in order.
std::vector<uint8_t> pack(LaunchRecord record, const std::vector<std::vector<uint8_t>>& cubins,
                          const std::vector<std::string>& plan_texts = {});

/// Errors: data_loss for what is no such code, cut short, or names bytes outside of it.
Expected<LaunchRecord> unpack(std::span<const uint8_t> code);

}  // namespace kiln::cuda
