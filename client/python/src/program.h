#pragma once

#include "client/include/kiln.h"
#include "client/python/src/tensor_exchange.h"

namespace kiln::python {

/// The Python type `Program`: an executable graph, called with a list of tensors, giving a list of tensors.
///
///   program([x, w]) -> [y]
///   program([x, w], [t]) -> [t], or [y] as above
///
/// The second list has a tensor or None for each output. An output is written into its tensor where it can be: the layout
/// is the graph's, and the memory no input's and no other output's, or one that the program may overwrite
/// (kiln_program_may_overwrite). The result then is that very tensor.
/// Inputs are checked against the graph's dtypes, shapes and devices: TypeError names the first that differs.
/// One whose strides or alignment differ is copied into the expected layout first (`relayouts` counts these).
/// Outputs come from the framework's allocator with the strides the graph states; an output that the program
/// declares an alias of an input is that input. Errors: IndexError for an index out of range; kiln's Error
/// for the rest. Threading: from any thread at once; the GIL is released while kernels run.
///
/// On a device a call puts the program on the framework's current queue there (kiln_program_call). Outputs and scratch are
/// the framework's memory.
bool add_program_type(PyObject* module);

/// Where a program's tensors are, and how it is run.
struct Placement {
  kiln_client* client = nullptr;  // the program's; null: the host's
  DLDevice device{kDLCPU, 0};
  uint32_t num_threads = 0;  // of the host; 0: the caller's OpenMP pool
};

/// Wraps `program`, taking it over in any case. `inputs` and `outputs` are sequences of (dtype, shape,
/// strides). `owner` is kept alive as long as the program. Null with a Python error when they do not fit the
/// program.
PyObject* wrap_program(kiln_program* program, PyObject* owner, PyObject* inputs, PyObject* outputs,
                       const Placement& placement);

/// Lends tensors of `tensor_type` from now on; `relayout(tensor, strides) -> tensor` copies one into other
/// strides.
bool attach_tensors(PyObject* tensor_type, PyObject* relayout);

}  // namespace kiln::python
