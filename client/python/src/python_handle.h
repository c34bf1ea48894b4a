#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace kiln::python {

/// Owns one reference to a Python object, or none. Needs the GIL wherever it is copied into or destroyed.
class Handle {
 public:
  Handle() = default;
  /// Takes over the reference that the caller holds.
  static Handle steal(PyObject* object) { return Handle(object); }
  static Handle borrow(PyObject* object) { return Handle(Py_XNewRef(object)); }
  Handle(Handle&& other) noexcept : m_object(std::exchange(other.m_object, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(m_object, other.m_object);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { Py_XDECREF(m_object); }

  PyObject* get() const { return m_object; }
  PyObject* release() { return std::exchange(m_object, nullptr); }
  explicit operator bool() const { return m_object != nullptr; }

 private:
  explicit Handle(PyObject* object) : m_object(object) {}
  PyObject* m_object = nullptr;
};

/// The items of a sequence, whose references the tuple holds. Null, with a TypeError of these words, for what is none.
inline PyObject* as_tuple(PyObject* sequence, const char* otherwise) {
  PyObject* items = PySequence_Tuple(sequence);
  if (items == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) PyErr_SetString(PyExc_TypeError, otherwise);
  return items;
}

/// Appends the sizes of a graph's symbols that a caller gave: a sequence of integers, None, or nothing. Sets a Python error and
/// returns false for anything else.
inline bool read_symbols(PyObject* object, std::vector<int64_t>& out) {
  if (object == nullptr || object == Py_None) return true;
  Handle list = Handle::steal(as_tuple(object, "symbol_values must be a sequence of integers"));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(list.get()); ++i) {
    out.push_back(PyLong_AsLongLong(PyTuple_GetItem(list.get(), i)));
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

/// What a type's dealloc ends with.
inline void free_object(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

}  // namespace kiln::python
