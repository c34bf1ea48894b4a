#pragma once

#include "client/python/src/python_handle.h"

namespace kiln::python {

/// The Python type `Exported`: a model that kiln_load loaded.
///
///   Exported(path)
///   target, forms       the target's name; for each form (inputs, outputs), each of (name, dtype, shape, strides)
///   choose(inputs)      the number of the form for these tensors
///   run(form, inputs, outputs, num_threads=0)
///
/// A tensor is whatever has the buffer protocol (numpy's arrays, memoryview) or DLPack's, on the host; elements of format
/// H, which no dtype of Kiln's has, are bf16. Inputs in other strides than the form's are copied into these; outputs have
/// them. Errors: TypeError for what is no tensor, has another dtype or shape, or may not be written; IndexError for an
/// index out of range; kiln's Error for the rest. Threading: from any thread at once; the GIL is released while kernels run.
bool add_exported_type(PyObject* module);

}  // namespace kiln::python
