#pragma once

#include <string>
#include <vector>

#include "client/python/src/tensor_exchange.h"

namespace kiln::python {

/// A tensor of the host that somebody lent: by the buffer protocol, or by DLPack's. Needs the GIL.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(HostTensor&& other) noexcept;
  HostTensor& operator=(HostTensor&&) = delete;
  ~HostTensor();

  /// Sets a Python error and returns false for what lends nothing.
  bool borrow(PyObject* object, bool is_written);
  /// Has the tensor lie as the layout says, in a copy where it does not. False, with a TypeError that begins with `what`,
  /// where it is of another dtype or shape, or where there is to be no copy.
  bool lay_out(const TensorLayout& layout, bool may_copy, const std::string& what);

  const DLTensor& view() const { return m_view; }
  void* data() const { return m_copy.empty() ? data_of(m_view) : const_cast<uint8_t*>(m_copy.data()); }

 private:
  bool borrow_buffer(PyObject* object, bool is_written);
  bool borrow_dlpack(PyObject* object);
  void copy_into(const TensorLayout& layout);

  Py_buffer m_buffer{};
  Handle m_capsule;
  DLTensor m_view{};
  std::vector<int64_t> m_shape, m_strides;  // of a buffer, as m_view says them
  std::vector<uint8_t> m_copy;
};

}  // namespace kiln::python
