#include "backends/cuda/launch_record.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/bytes.h"
#include "base/ceil_div.h"
#include "base/limits.h"

namespace kiln::cuda {
namespace {

constexpr uint32_t k_magic = 0x6475636b;  // "kcud"
constexpr uint32_t k_version = 5;         // bump with any change of the fields below
constexpr size_t k_head_bytes = 12;
constexpr uint64_t k_stored_alignment = 64;  // of cubins and plans
constexpr uint64_t k_part_alignment = 128;
// Longer lists come from damage only.
constexpr uint32_t k_most_items = 4096;
constexpr size_t k_most_parts = 2;  // one for each operand of a product

/// One walk over the fields serves writing and reading: Visitor::field(x) for plain values, list(x, each) for vectors.
template <typename Visitor, typename Map>
void visit_map(Visitor& visitor, Map& map) {
  visitor.field(map.buffer);
  visitor.field(map.dtype);
  visitor.field(map.offset_bytes);
  for (auto& extent : map.extents) visitor.field(extent);
  for (auto& stride : map.stride_bytes) visitor.field(stride);
  for (auto& box : map.box) visitor.field(box);
  visitor.field(map.is_swizzled);
}

template <typename Visitor, typename Kernel>
void visit_kernel(Visitor& visitor, Kernel& kernel) {
  visitor.text(kernel.entry);
  visitor.field(kernel.blocks);
  visitor.field(kernel.is_persistent);
  visitor.field(kernel.threads);
  visitor.field(kernel.cluster);
  visitor.field(kernel.shared_bytes);
  visitor.field(kernel.is_followed);
  visitor.list(kernel.aligned_buffers, [&](auto& buffer) { visitor.field(buffer); });
  visitor.list(kernel.maps, [&](auto& map) { visit_map(visitor, map); });
  auto& resources = kernel.resources;
  for (auto* value : {&resources.registers, &resources.static_shared_bytes, &resources.stack_bytes,
                      &resources.spill_store_bytes, &resources.spill_load_bytes}) {
    visitor.field(*value);
  }
  visitor.field(kernel.cubin_offset);
  visitor.field(kernel.cubin_bytes);
}

template <typename Visitor, typename Plan>
void visit_plan(Visitor& visitor, Plan& plan) {
  visitor.field(plan.version);
  visitor.field(plan.workspace_bytes);
  visitor.list(plan.tensors, [&](auto& tensor) {
    visitor.field(tensor.number);
    visitor.field(tensor.place);
    visitor.field(tensor.buffer);
    visitor.field(tensor.offset_bytes);
    visitor.field(tensor.value);
  });
  visitor.field(plan.text_offset);
  visitor.field(plan.text_bytes);
}

template <typename Visitor, typename Matrix>
void visit_matrix(Visitor& visitor, Matrix& matrix) {
  visitor.field(matrix.buffer);
  visitor.field(matrix.dtype);
  visitor.field(matrix.offset_bytes);
  visitor.field(matrix.rows);
  visitor.field(matrix.columns);
  visitor.field(matrix.column_stride);
  visitor.field(matrix.batch_stride);
  visitor.field(matrix.is_transposed);
}

template <typename Visitor, typename Product>
void visit_product(Visitor& visitor, Product& product) {
  visitor.field(product.version);
  visitor.field(product.place);
  visitor.field(product.workspace_bytes);
  visitor.field(product.batches);
  for (auto* matrix : {&product.left, &product.right, &product.result}) visit_matrix(visitor, *matrix);
  visitor.field(product.factor);
  visitor.list(product.addends, [&](auto& addend) {
    visit_matrix(visitor, addend.matrix);
    visitor.field(addend.factor);
  });
  visitor.list(product.biases, [&](auto& bias) {
    visitor.field(bias.buffer);
    visitor.field(bias.offset_bytes);
    visitor.field(bias.batch_stride);
  });
  visitor.field(product.activation);
  visitor.list(product.gelu_inputs, [&](auto& input) { visit_matrix(visitor, input); });
}

template <typename Visitor, typename Record>
void visit_record(Visitor& visitor, Record& record) {
  visitor.field(record.buffers);
  visitor.list(record.workspace_parts, [&](auto& bytes) { visitor.field(bytes); });
  visitor.field(record.least_driver);
  visitor.list(record.kernels, [&](auto& kernel) { visit_kernel(visitor, kernel); });
  visitor.list(record.plans, [&](auto& plan) { visit_plan(visitor, plan); });
  visitor.list(record.products, [&](auto& product) { visit_product(visitor, product); });
}

struct Writer {
  ByteWriter bytes;

  template <typename T>
  void field(const T& value) {
    bytes.write(value);
  }
  void text(const std::string& value) { bytes.write(std::string_view(value)); }
  template <typename List, typename Each>
  void list(const List& items, Each each) {
    bytes.write(static_cast<uint32_t>(items.size()));
    for (const auto& item : items) each(item);
  }
};

struct Reader {
  std::span<const uint8_t> bytes;
  bool is_good = true;

  template <typename T>
  void field(T& value) {
    if (bytes.size() < sizeof value) {
      is_good = false;
      return;
    }
    if constexpr (std::is_same_v<T, bool>) {
      value = bytes[0] != 0;
    } else {
      std::memcpy(&value, bytes.data(), sizeof value);
    }
    bytes = bytes.subspan(sizeof value);
  }
  void text(std::string& value) {
    uint32_t length = 0;
    field(length);
    if (length > bytes.size()) is_good = false;
    if (!is_good) return;
    value.assign(reinterpret_cast<const char*>(bytes.data()), length);
    bytes = bytes.subspan(length);
  }
  template <typename List, typename Each>
  void list(List& items, Each each) {
    uint32_t count = 0;
    field(count);
    if (count > k_most_items) is_good = false;
    for (uint32_t i = 0; is_good && i < count; ++i) each(items.emplace_back());
  }
};

/// One that devices launch: whole clusters, blocks along x.
bool has_grid(const KernelRecord& kernel) {
  return kernel.threads > 0 && kernel.threads <= 1024 && kernel.cluster > 0 && kernel.cluster <= 16 &&
         kernel.blocks > 0 && kernel.blocks <= INT32_MAX && kernel.blocks % kernel.cluster == 0;
}

/// As much as a launch may have: in all and, so that the sum is one, each.
bool has_workspace(const LaunchRecord& record) {
  const auto fits = [](uint64_t bytes) { return bytes <= limits::k_launch_workspace_bytes; };
  return record.workspace_parts.size() <= k_most_parts && std::ranges::all_of(record.workspace_parts, fits) &&
         fits(workspace_bytes(record));
}

bool is_within(std::span<const uint8_t> code, uint64_t offset, uint64_t bytes) {
  return offset <= code.size() && bytes <= code.size() - offset;
}

bool has_place(const LaunchRecord& record, const PlanRecord& plan, const PlanTensor& tensor) {
  switch (tensor.place) {
    case PlanTensor::Place::buffer:
      return tensor.buffer < record.buffers;
    case PlanTensor::Place::workspace:
      return tensor.offset_bytes < plan.workspace_bytes;
    case PlanTensor::Place::number:
      return true;
  }
  return false;
}

/// Where it lies, and that its columns neither overlap nor are more than the library counts.
bool is_matrix(const LaunchRecord& record, const MatrixRecord& matrix) {
  constexpr uint64_t k_most = INT32_MAX;
  const bool has_dtype = is_half(matrix.dtype) || matrix.dtype == DType::f32 || matrix.dtype == DType::f64;
  const auto column_stride = static_cast<uint64_t>(matrix.column_stride);
  return matrix.buffer < record.buffers && has_dtype && matrix.rows > 0 && matrix.rows <= k_most &&
         matrix.columns > 0 && matrix.columns <= k_most && column_stride >= matrix.rows && column_stride <= k_most &&
         matrix.batch_stride >= 0;
}

bool is_like(const MatrixRecord& matrix, const MatrixRecord& result) {
  return matrix.dtype == result.dtype && matrix.rows == result.rows && matrix.columns == result.columns &&
         !matrix.is_transposed;
}

/// Whether what follows the product is something that the library computes.
bool is_epilogue(const LaunchRecord& record, const ProductRecord& product) {
  using Activation = ProductRecord::Activation;
  const size_t terms = product.addends.size() + product.biases.size(), inputs = product.gelu_inputs.size();
  for (const ProductRecord::Addend& addend : product.addends) {
    if (!is_matrix(record, addend.matrix) || !is_like(addend.matrix, product.result) || !std::isfinite(addend.factor))
      return false;
  }
  for (const ProductRecord::Bias& bias : product.biases) {
    if (bias.buffer >= record.buffers || bias.batch_stride < 0) return false;
  }
  for (const MatrixRecord& input : product.gelu_inputs) {
    if (!is_matrix(record, input) || !is_gelu_input(input, product.result)) return false;
  }
  if (!std::isfinite(product.factor) || product.addends.size() > 1 || product.biases.size() > 1) return false;
  switch (product.activation) {
    case Activation::none:
      return inputs == 0;
    case Activation::gelu:
      return inputs <= 1;
    case Activation::gelu_gradient:
      return inputs == 1 && terms == 0;
  }
  return false;
}

bool is_product(const LaunchRecord& record, const ProductRecord& product) {
  return product.workspace_bytes <= limits::k_launch_workspace_bytes && product.batches > 0 &&
         product.batches <= INT32_MAX && is_matrix(record, product.left) && is_matrix(record, product.right) &&
         is_matrix(record, product.result) && !product.result.is_transposed && is_epilogue(record, product);
}

size_t pointer_bytes(const LaunchRecord& record) {
  return (record.buffers + record.workspace_parts.size() + 1) * sizeof(void*);
}

bool takes(const KernelRecord& kernel, void* const* pointers) {
  return std::ranges::all_of(kernel.aligned_buffers, [&](uint32_t buffer) { return is_aligned(pointers[buffer]); });
}

}  // namespace

bool is_gelu_input(const MatrixRecord& matrix, const MatrixRecord& result) {
  constexpr int64_t k_step = 8;
  return is_like(matrix, result) && matrix.column_stride % k_step == 0 && matrix.batch_stride % k_step == 0;
}

uint64_t workspace_bytes(const LaunchRecord& record) {
  uint64_t bytes = 0;
  for (const uint64_t each : record.workspace_parts) bytes += round_up(each, k_part_alignment);
  for (const PlanRecord& plan : record.plans) bytes = std::max(bytes, plan.workspace_bytes);
  for (const ProductRecord& product : record.products) bytes = std::max(bytes, product.workspace_bytes);
  return bytes;
}

std::vector<void*> argument_pointers(const LaunchRecord& record, void* const* buffers, void* workspace, void* status) {
  std::vector<void*> pointers(buffers, buffers + record.buffers);
  auto* part = static_cast<uint8_t*>(workspace);
  for (const uint64_t bytes : record.workspace_parts) {
    pointers.push_back(part);
    part += round_up(bytes, k_part_alignment);
  }
  pointers.push_back(status);
  return pointers;
}

std::span<const KernelRecord> alternative_for(const LaunchRecord& record, void* const* pointers) {
  std::span<const KernelRecord> left = record.kernels;
  while (true) {
    const auto last = std::ranges::find(left, false, &KernelRecord::is_followed);
    const auto alternative = left.first(static_cast<size_t>(last - left.begin()) + 1);
    const bool takes_all =
        std::ranges::all_of(alternative, [&](const auto& kernel) { return takes(kernel, pointers); });
    if (takes_all || alternative.size() == left.size()) return alternative;
    left = left.subspan(alternative.size());
  }
}

size_t maps_offset(const LaunchRecord& record) { return round_up(pointer_bytes(record), 64); }

size_t argument_bytes(const LaunchRecord& record, const KernelRecord& kernel) {
  if (kernel.maps.empty()) return pointer_bytes(record);
  return maps_offset(record) + kernel.maps.size() * 128;
}

std::vector<uint8_t> pack(LaunchRecord record, const std::vector<std::vector<uint8_t>>& cubins,
                          const std::vector<std::string>& plan_texts) {
  assert(cubins.size() == record.kernels.size() && plan_texts.size() == record.plans.size());
  Writer measure;
  visit_record(measure, record);
  const size_t record_bytes = measure.bytes.bytes().size();
  uint64_t end = round_up(k_head_bytes + record_bytes, k_stored_alignment);
  const auto place = [&](size_t bytes, uint64_t& offset, uint64_t& kept_bytes) {
    offset = end;
    kept_bytes = bytes;
    end = round_up(end + bytes, k_stored_alignment);
  };
  for (size_t i = 0; i < cubins.size(); ++i)
    place(cubins[i].size(), record.kernels[i].cubin_offset, record.kernels[i].cubin_bytes);
  for (size_t i = 0; i < plan_texts.size(); ++i)
    place(plan_texts[i].size(), record.plans[i].text_offset, record.plans[i].text_bytes);
  Writer writer;
  for (const uint32_t word : {k_magic, k_version, static_cast<uint32_t>(record_bytes)}) writer.field(word);
  visit_record(writer, record);
  std::vector<uint8_t> code = writer.bytes.take();
  code.resize(end);
  for (size_t i = 0; i < cubins.size(); ++i)
    std::ranges::copy(cubins[i], code.begin() + static_cast<long>(record.kernels[i].cubin_offset));
  for (size_t i = 0; i < plan_texts.size(); ++i)
    std::ranges::copy(plan_texts[i], code.begin() + static_cast<long>(record.plans[i].text_offset));
  return code;
}

Expected<LaunchRecord> unpack(std::span<const uint8_t> code) {
  const auto damaged = [](std::string_view what) { return error(StatusCode::data_loss, "cuda code: {}", what); };
  uint32_t head[3] = {};
  if (code.size() < k_head_bytes) return damaged("shorter than its head");
  std::memcpy(head, code.data(), sizeof head);
  if (head[0] != k_magic) return damaged("no launch record");
  if (head[1] != k_version)
    return error(StatusCode::data_loss, "cuda code: version {}, expected {}", head[1], k_version);
  if (head[2] > code.size() - k_head_bytes) return damaged("the launch record is cut short");
  LaunchRecord record;
  Reader reader{code.subspan(k_head_bytes, head[2])};
  visit_record(reader, record);
  if (!reader.is_good || !reader.bytes.empty()) return damaged("the launch record is damaged");
  if (record.kernels.empty()) return damaged("no kernel");
  if (record.buffers > limits::k_kernel_buffers) return damaged("more buffers than a kernel has");
  if (!has_workspace(record)) return damaged("more workspace than a launch has");
  if (record.kernels.back().is_followed) return damaged("the last kernel is followed by one");
  for (const KernelRecord& kernel : record.kernels) {
    if (!is_within(code, kernel.cubin_offset, kernel.cubin_bytes)) return damaged("a cubin is cut short");
    if (kernel.cubin_bytes == 0) return damaged("a kernel without code");
    if (!has_grid(kernel)) return damaged("a kernel has no grid");
    const auto is_absent = [&](uint32_t buffer) { return buffer >= record.buffers + record.workspace_parts.size(); };
    if (std::ranges::any_of(kernel.aligned_buffers, is_absent) ||
        std::ranges::any_of(kernel.maps, is_absent, &TensorMapRecord::buffer)) {
      return damaged("a buffer that is not there");
    }
  }
  if (record.plans.size() + record.products.size() > 1) return damaged("more than one call of a library");
  for (const PlanRecord& plan : record.plans) {
    if (!is_within(code, plan.text_offset, plan.text_bytes)) return damaged("a plan is cut short");
    if (!std::ranges::all_of(plan.tensors, [&](const PlanTensor& tensor) { return has_place(record, plan, tensor); }))
      return damaged("a plan's tensor is nowhere");
  }
  for (const ProductRecord& product : record.products) {
    if (!is_product(record, product)) return damaged("a product that no library computes");
  }
  return record;
}

}  // namespace kiln::cuda
