#include "client/python/src/exported.h"

#include <omp.h>

#include <string>
#include <vector>

#include "client/include/kiln.h"
#include "client/python/src/error.h"
#include "client/python/src/host_tensor.h"

namespace kiln::python {

namespace {

struct Form {
  std::vector<TensorLayout> inputs, outputs;
};

struct ExportedObject {
  PyObject_HEAD kiln_exported* exported;
  std::vector<Form>* forms;
};

ExportedObject* self_of(PyObject* object) { return reinterpret_cast<ExportedObject*>(object); }

using Describe = kiln_error* (*)(const kiln_exported*, size_t, size_t, kiln_tensor_type*);

PyObject* tuple_of(const int64_t* numbers, size_t count) {
  Handle tuple = Handle::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), number);
  }
  return tuple.release();
}

/// (name, dtype, shape, strides)
PyObject* describe_tensor(const ExportedObject* self, size_t form, size_t index, Describe describe) {
  kiln_tensor_type type{};
  if (kiln_error* error = describe(self->exported, form, index, &type)) {
    set_error(error);
    return nullptr;
  }
  Handle shape = Handle::steal(tuple_of(type.shape, type.rank));
  Handle strides = Handle::steal(tuple_of(type.strides, type.rank));
  if (!shape || !strides) return nullptr;
  return Py_BuildValue("(ssOO)", type.name, type.dtype, shape.get(), strides.get());
}

PyObject* describe_tensors(const ExportedObject* self, size_t form, size_t count, Describe describe) {
  Handle list = Handle::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!list) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    PyObject* tensor = describe_tensor(self, form, i, describe);
    if (tensor == nullptr) return nullptr;
    PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), tensor);
  }
  return list.release();
}

PyObject* forms_of(PyObject* object, void*) {
  const ExportedObject* self = self_of(object);
  const size_t count = kiln_exported_form_count(self->exported);
  Handle list = Handle::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!list) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    Handle inputs =
        Handle::steal(describe_tensors(self, i, kiln_exported_input_count(self->exported), kiln_exported_input));
    Handle outputs =
        Handle::steal(describe_tensors(self, i, kiln_exported_output_count(self->exported), kiln_exported_output));
    PyObject* form = inputs && outputs ? PyTuple_Pack(2, inputs.get(), outputs.get()) : nullptr;
    if (form == nullptr) return nullptr;
    PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), form);
  }
  return list.release();
}

PyObject* target_of(PyObject* object, void*) {
  return PyUnicode_FromString(kiln_exported_target(self_of(object)->exported));
}

bool read_layouts(PyObject* described, std::vector<TensorLayout>& layouts) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(described); ++i) {
    Handle layout = Handle::steal(PyTuple_GetSlice(PyTuple_GetItem(described, i), 1, 4));
    if (!layout || !TensorLayout::from_python(layout.get(), layouts.emplace_back())) return false;
  }
  return true;
}

bool read_forms(PyObject* object) {
  Handle described = Handle::steal(forms_of(object, nullptr));
  if (!described) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(described.get()); ++i) {
    PyObject* form = PyTuple_GetItem(described.get(), i);
    Form& read = self_of(object)->forms->emplace_back();
    if (!read_layouts(PyTuple_GetItem(form, 0), read.inputs) || !read_layouts(PyTuple_GetItem(form, 1), read.outputs)) {
      return false;
    }
  }
  return true;
}

PyObject* load(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"path", nullptr};
  PyObject* path = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&", const_cast<char**>(k_names), PyUnicode_FSConverter,
                                   &path)) {
    return nullptr;
  }
  const Handle owner = Handle::steal(path);
  kiln_exported* exported = nullptr;
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_load(PyBytes_AsString(path), &exported);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  Handle self = Handle::steal(PyType_GenericAlloc(type, 0));
  if (!self) {
    kiln_exported_destroy(exported);
    return nullptr;
  }
  self_of(self.get())->exported = exported;
  self_of(self.get())->forms = new std::vector<Form>;
  return read_forms(self.get()) ? self.release() : nullptr;
}

void destroy(PyObject* object) {
  if (self_of(object)->exported != nullptr) kiln_exported_destroy(self_of(object)->exported);
  delete self_of(object)->forms;
  free_object(object);
}

bool borrow_all(PyObject* objects, bool are_written, std::vector<HostTensor>& tensors) {
  Handle list = Handle::steal(as_tuple(objects, "tensors must be a sequence"));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(list.get()); ++i) {
    if (!tensors.emplace_back().borrow(PyTuple_GetItem(list.get(), i), are_written)) return false;
  }
  return true;
}

PyObject* choose(PyObject* object, PyObject* inputs) {
  std::vector<HostTensor> tensors;
  if (!borrow_all(inputs, false, tensors)) return nullptr;
  std::vector<kiln_tensor_type> types;
  for (const HostTensor& each : tensors) {
    const DLTensor& view = each.view();
    types.push_back({"", name_of(view.dtype).data(), static_cast<size_t>(view.ndim), view.shape, nullptr});
  }
  size_t form = 0;
  if (kiln_error* error = kiln_exported_choose(self_of(object)->exported, types.data(), types.size(), &form)) {
    set_error(error);
    return nullptr;
  }
  return PyLong_FromSize_t(form);
}

bool lay_out_all(std::vector<HostTensor>& tensors, const std::vector<TensorLayout>& layouts, bool may_copy,
                 const std::string& what) {
  if (tensors.size() != layouts.size()) {
    PyErr_Format(PyExc_TypeError, "expected %zu %ss, got %zu", layouts.size(), what.c_str(), tensors.size());
    return false;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].lay_out(layouts[i], may_copy, what + " " + std::to_string(i))) return false;
  }
  return true;
}

PyObject* run(PyObject* object, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"form", "inputs", "outputs", "num_threads", nullptr};
  Py_ssize_t form = 0;
  PyObject* inputs = nullptr;
  PyObject* outputs = nullptr;
  unsigned int threads = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "nOO|I", const_cast<char**>(k_names), &form, &inputs, &outputs,
                                   &threads)) {
    return nullptr;
  }
  const ExportedObject* self = self_of(object);
  if (form < 0 || static_cast<size_t>(form) >= self->forms->size()) {
    PyErr_Format(PyExc_ValueError, "form %zd, the export has %zu", form, self->forms->size());
    return nullptr;
  }
  const Form& layouts = (*self->forms)[static_cast<size_t>(form)];
  std::vector<HostTensor> given, made;
  if (!borrow_all(inputs, false, given) || !lay_out_all(given, layouts.inputs, true, "input") ||
      !borrow_all(outputs, true, made) || !lay_out_all(made, layouts.outputs, false, "output")) {
    return nullptr;
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const HostTensor& each : given) from.push_back(each.data());
  for (const HostTensor& each : made) to.push_back(each.data());
  if (threads == 0) threads = static_cast<unsigned int>(omp_get_max_threads());
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_exported_run(self->exported, static_cast<size_t>(form), from.data(), to.data(), threads);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

// NOLINTBEGIN(bugprone-casting-through-void): Python keeps functions of all forms as one type
PyMethodDef k_methods[] = {
    {"choose", choose, METH_O, "choose(inputs) -> int: the form for these tensors."},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run)), METH_VARARGS | METH_KEYWORDS,
     "run(form, inputs, outputs, num_threads=0): writes the outputs."},
    {nullptr, nullptr, 0, nullptr},
};
// NOLINTEND(bugprone-casting-through-void)

PyGetSetDef k_properties[] = {
    {"forms", forms_of, nullptr, "(inputs, outputs) of each form, of (name, dtype, shape, strides).", nullptr},
    {"target", target_of, nullptr, "Whose kernels run here.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot k_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(load)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, k_methods},
    {Py_tp_getset, k_properties},
    {0, nullptr},
};

PyType_Spec k_spec = {
    .name = "kiln._kiln.Exported",
    .basicsize = sizeof(ExportedObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = k_slots,
};

}  // namespace

bool add_exported_type(PyObject* module) {
  Handle type = Handle::steal(PyType_FromSpec(&k_spec));
  return type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

}  // namespace kiln::python
