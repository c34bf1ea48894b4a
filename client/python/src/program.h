#pragma once

#include "client/include/kiln.h"
#include "client/python/src/tensor_exchange.h"

namespace kiln::python {

/// The Python type `Program`: an executable graph, called with a list of tensors, giving a list of tensors.
///
///   program([x, w]) -> [y]
///
/// Inputs are checked against the graph's dtypes, shapes and devices: TypeError names the first that differs.
/// One whose strides or alignment differ is copied into the expected layout first (`relayouts` counts these).
/// Outputs come from the framework's allocator with the strides the graph states; an output that the program
/// declares an alias of an input is that input. Errors: IndexError for an index out of range; kiln's Error
/// for the rest. Threading: from any thread at once; the GIL is released while kernels run.
bool add_program_type(PyObject* module);

/// Wraps `program`, taking it over in any case. `inputs` and `outputs` are sequences of (dtype, shape,
/// strides). `owner` is kept alive as long as the program. Null with a Python error when they do not fit the
/// program.
PyObject* wrap_program(kiln_program* program, PyObject* owner, PyObject* inputs, PyObject* outputs,
                       uint32_t num_threads);

/// Lends tensors of `tensor_type` from now on; `relayout(tensor, strides) -> tensor` copies one into other
/// strides.
bool attach_tensors(PyObject* tensor_type, PyObject* relayout);

}  // namespace kiln::python
