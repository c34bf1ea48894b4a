#include "client/python/src/tensor_exchange.h"

#include <array>
#include <cstring>
#include <span>
#include <string_view>

namespace kiln::python {

namespace {

struct DTypeName {
  std::string_view name;
  DLDataType dtype;
};

constexpr std::array<DTypeName, 9> k_dtypes = {{
    {"bool", {kDLBool, 8, 1}},
    {"u8", {kDLUInt, 8, 1}},
    {"i8", {kDLInt, 8, 1}},
    {"i32", {kDLInt, 32, 1}},
    {"i64", {kDLInt, 64, 1}},
    {"f16", {kDLFloat, 16, 1}},
    {"bf16", {kDLBfloat, 16, 1}},
    {"f32", {kDLFloat, 32, 1}},
    {"f64", {kDLFloat, 64, 1}},
}};

bool same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

bool same(DLDevice a, DLDevice b) { return a.device_type == b.device_type && a.device_id == b.device_id; }

void append_list(std::string& out, std::span<const int64_t> numbers, char open, char close) {
  out += open;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(numbers[i]);
  }
  out += close;
}

std::string layout_text(DLDataType dtype, std::span<const int64_t> shape, std::span<const int64_t> strides) {
  std::string out(name_of(dtype));
  append_list(out, shape, '[', ']');
  append_list(out, strides, '{', '}');
  return out;
}

bool read_integers(PyObject* object, std::vector<int64_t>& out) {
  Handle list = Handle::steal(as_tuple(object, "shape and strides must be sequences of integers"));
  if (!list) return false;
  const Py_ssize_t count = PyTuple_Size(list.get());
  out.resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    out[static_cast<size_t>(i)] = PyLong_AsLongLong(PyTuple_GetItem(list.get(), i));
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

void raise_allocation_error(void*, const char* kind, const char* message) {
  PyErr_Format(strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, "%s", message);
}

}  // namespace

std::string_view name_of(DLDataType dtype) {
  for (const DTypeName& row : k_dtypes) {
    if (same(row.dtype, dtype)) return row.name;
  }
  return "unsupported";
}

bool TensorLayout::from_python(PyObject* description, TensorLayout& out) {
  const char* dtype = nullptr;
  PyObject* shape = nullptr;
  PyObject* strides = nullptr;
  if (!PyTuple_Check(description)) {
    PyErr_SetString(PyExc_TypeError, "a layout is a tuple (dtype, shape, strides)");
    return false;
  }
  if (!PyArg_ParseTuple(description, "sOO", &dtype, &shape, &strides)) return false;
  out.dtype = {};
  for (const DTypeName& row : k_dtypes) {
    if (row.name == dtype) out.dtype = row.dtype;
  }
  if (out.dtype.bits == 0) {
    PyErr_Format(PyExc_ValueError, "no dtype is called '%s'", dtype);
    return false;
  }
  if (!read_integers(shape, out.shape) || !read_integers(strides, out.strides)) return false;
  if (out.shape.size() != out.strides.size()) {
    PyErr_Format(PyExc_ValueError, "%zu extents but %zu strides", out.shape.size(), out.strides.size());
    return false;
  }
  out.storage_elements = 1;
  out.empty = false;
  for (size_t i = 0; i < out.shape.size(); ++i) {
    if (out.shape[i] < 0 || out.strides[i] < 0) {
      PyErr_SetString(PyExc_ValueError, "extents and strides must not be negative");
      return false;
    }
    out.empty |= out.shape[i] == 0;
    out.storage_elements += (out.shape[i] - 1) * out.strides[i];
  }
  if (out.empty) out.storage_elements = 0;
  return true;
}

TensorLayout TensorLayout::of_bytes(size_t bytes) {
  const auto extent = static_cast<int64_t>(bytes);
  return {{kDLUInt, 8, 1}, {extent}, {1}, extent, extent == 0};
}

std::string TensorLayout::to_string() const { return layout_text(dtype, shape, strides); }

std::string describe(const DLTensor& tensor) {
  const auto rank = static_cast<size_t>(tensor.ndim);
  std::span<const int64_t> strides;
  if (tensor.strides != nullptr) strides = {tensor.strides, rank};
  return layout_text(tensor.dtype, {tensor.shape, rank}, strides);
}

std::string to_string(DLDevice device) {
  if (device.device_type == kDLCPU) return "cpu";
  return "device " + std::to_string(device.device_type) + ":" + std::to_string(device.device_id);
}

bool TensorExchange::attach(PyObject* tensor_type) {
  Handle capsule = Handle::steal(PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__"));
  if (!capsule) return false;
  const auto* api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (api == nullptr) return false;
  // A newer table may lead back to the one of the major version known here.
  while (api != nullptr && api->header.version.major != DLPACK_MAJOR_VERSION) {
    api = reinterpret_cast<const DLPackExchangeAPI*>(api->header.prev_api);
  }
  if (api == nullptr || api->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_Format(PyExc_RuntimeError, "no DLPack exchange table of major version %d", DLPACK_MAJOR_VERSION);
    return false;
  }
  m_api = api;
  return true;
}

bool TensorExchange::view(PyObject* tensor, DLTensor& out) const {
  return m_api->dltensor_from_py_object_no_sync(tensor, &out) == 0;
}

bool TensorExchange::current_queue(DLDevice device, void** queue) const {
  if (m_api->current_work_stream != nullptr) {
    return m_api->current_work_stream(device.device_type, device.device_id, queue) == 0;
  }
  PyErr_SetString(PyExc_RuntimeError, "the framework does not tell its streams");
  return false;
}

PyObject* TensorExchange::allocate(const TensorLayout& layout, DLDevice device, void** data) const {
  // The allocator knows dense tensors only: allocate the storage, then hand it over under the layout's own
  // shape and strides. The deleter uses the managed tensor's context alone, and to_py_object copies what the
  // pointers show.
  int64_t elements = layout.storage_elements;
  DLTensor prototype{nullptr, device, 1, layout.dtype, &elements, nullptr, 0};
  DLManagedTensorVersioned* managed = nullptr;
  if (m_api->managed_tensor_allocator(&prototype, &managed, nullptr, raise_allocation_error) != 0) {
    if (PyErr_Occurred() == nullptr) PyErr_NoMemory();
    return nullptr;
  }
  managed->dl_tensor.ndim = static_cast<int32_t>(layout.shape.size());
  managed->dl_tensor.shape = const_cast<int64_t*>(layout.shape.data());
  managed->dl_tensor.strides = const_cast<int64_t*>(layout.strides.data());
  *data = data_of(managed->dl_tensor);
  void* object = nullptr;
  if (m_api->managed_tensor_to_py_object_no_sync(managed, &object) != 0) {
    managed->deleter(managed);
    return nullptr;
  }
  return static_cast<PyObject*>(object);
}

LayoutMatch match(const DLTensor& tensor, const TensorLayout& layout, DLDevice device) {
  if (!same(tensor.device, device) || !same(tensor.dtype, layout.dtype)) return LayoutMatch::wrong;
  const size_t rank = layout.shape.size();
  if (static_cast<size_t>(tensor.ndim) != rank) return LayoutMatch::wrong;
  if (rank > 0 && memcmp(tensor.shape, layout.shape.data(), rank * sizeof(int64_t)) != 0) return LayoutMatch::wrong;
  if (layout.empty) return LayoutMatch::equal;
  if (data_of(tensor) == nullptr) return LayoutMatch::relayout;  // elements that the framework only imagines, as zeros
  const size_t element_bytes = layout.dtype.bits / 8;
  if (reinterpret_cast<uintptr_t>(data_of(tensor)) % element_bytes != 0) return LayoutMatch::relayout;
  if (rank == 0) return LayoutMatch::equal;
  if (tensor.strides == nullptr) return LayoutMatch::relayout;
  for (size_t i = 0; i < rank; ++i) {
    if (layout.shape[i] > 1 && tensor.strides[i] != layout.strides[i]) return LayoutMatch::relayout;
  }
  return LayoutMatch::equal;
}

}  // namespace kiln::python
