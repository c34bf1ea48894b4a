#include "client/python/src/host_tensor.h"

#include <cstring>
#include <utility>

namespace kiln::python {

namespace {

/// What struct's format characters mean; no bits for what Kiln has no dtype of.
DLDataType dtype_of(const char* format, Py_ssize_t item_bytes) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<')) text.remove_prefix(1);
  if (text.size() != 1) return {};
  const auto bits = static_cast<uint8_t>(item_bytes * 8);
  switch (text[0]) {
    case '?':
      return {kDLBool, bits, 1};
    case 'B':
      return {kDLUInt, bits, 1};
    case 'H':
      return {kDLBfloat, bits, 1};
    case 'b':
    case 'i':
    case 'l':
    case 'q':
      return {kDLInt, bits, 1};
    case 'e':
    case 'f':
    case 'd':
      return {kDLFloat, bits, 1};
    default:
      return {};
  }
}

}  // namespace

HostTensor::HostTensor(HostTensor&& other) noexcept
    : m_buffer(std::exchange(other.m_buffer, Py_buffer{})),
      m_capsule(std::move(other.m_capsule)),
      m_view(other.m_view),
      m_shape(std::move(other.m_shape)),
      m_strides(std::move(other.m_strides)),
      m_copy(std::move(other.m_copy)) {}

HostTensor::~HostTensor() {
  if (m_buffer.obj != nullptr) PyBuffer_Release(&m_buffer);
}

bool HostTensor::borrow(PyObject* object, bool is_written) {
  if (PyObject_CheckBuffer(object) == 1) return borrow_buffer(object, is_written);
  if (PyObject_HasAttrString(object, "__dlpack__") == 1) return borrow_dlpack(object);
  const Handle name = Handle::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  if (name) {
    PyErr_Format(PyExc_TypeError, "a tensor has the buffer protocol or DLPack's, a %U has neither", name.get());
  }
  return false;
}

bool HostTensor::borrow_buffer(PyObject* object, bool is_written) {
  if (PyObject_GetBuffer(object, &m_buffer, is_written ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
    if (is_written && PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
      PyErr_SetString(PyExc_TypeError, "an output cannot be written to");
    }
    return false;
  }
  const DLDataType dtype = dtype_of(m_buffer.format, m_buffer.itemsize);
  if (dtype.bits == 0) {
    PyErr_Format(PyExc_TypeError, "Kiln has no dtype for elements of format '%s'", m_buffer.format);
    return false;
  }
  for (int i = 0; i < m_buffer.ndim; ++i) {
    if (m_buffer.strides[i] % m_buffer.itemsize != 0) {
      PyErr_SetString(PyExc_TypeError, "elements of a tensor do not lie at multiples of their size");
      return false;
    }
    m_shape.push_back(m_buffer.shape[i]);
    m_strides.push_back(m_buffer.strides[i] / m_buffer.itemsize);
  }
  m_view = {m_buffer.buf, {kDLCPU, 0}, m_buffer.ndim, dtype, m_shape.data(), m_strides.data(), 0};
  return true;
}

/// The capsule is never said to be used: it gives the tensor back when it goes.
bool HostTensor::borrow_dlpack(PyObject* object) {
  m_capsule = Handle::steal(PyObject_CallMethod(object, "__dlpack__", nullptr));
  if (!m_capsule) return false;
  // The legacy struct begins with the tensor.
  const auto* tensor = static_cast<const DLTensor*>(PyCapsule_GetPointer(m_capsule.get(), "dltensor"));
  if (tensor == nullptr) return false;
  m_view = *tensor;
  if (m_view.strides == nullptr) {  // dense
    m_strides.resize(static_cast<size_t>(m_view.ndim));
    int64_t stride = 1;
    for (size_t i = m_strides.size(); i-- > 0; stride *= m_view.shape[i]) m_strides[i] = stride;
    m_view.strides = m_strides.data();
  }
  return true;
}

bool HostTensor::lay_out(const TensorLayout& layout, bool may_copy, const std::string& what) {
  const LayoutMatch matched = match(m_view, layout, {kDLCPU, 0});
  if (matched == LayoutMatch::equal) return true;
  if (matched == LayoutMatch::relayout && may_copy && data_of(m_view) != nullptr) {
    copy_into(layout);
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s: expected a tensor %s on cpu, got %s on %s", what.c_str(),
               layout.to_string().c_str(), describe(m_view).c_str(), to_string(m_view.device).c_str());
  return false;
}

/// Element by element; an input that lies otherwise than the model was exported for is the caller's to avoid.
void HostTensor::copy_into(const TensorLayout& layout) {
  const size_t bytes = layout.dtype.bits / 8;
  m_copy.resize(static_cast<size_t>(layout.storage_elements) * bytes);
  std::vector<int64_t> index(layout.shape.size(), 0);
  const auto* from = static_cast<const uint8_t*>(data_of(m_view));
  while (true) {
    int64_t source = 0, target = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      source += index[i] * m_view.strides[i];
      target += index[i] * layout.strides[i];
    }
    std::memcpy(m_copy.data() + target * static_cast<int64_t>(bytes), from + source * static_cast<int64_t>(bytes),
                bytes);
    size_t dim = index.size();
    while (dim > 0 && ++index[dim - 1] == layout.shape[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

}  // namespace kiln::python
