#include "client/python/src/program.h"

#include <omp.h>
#include <structmember.h>

#include <algorithm>
#include <new>
#include <utility>

#include "client/python/src/error.h"
#include "client/python/src/stopwatch.h"

namespace kiln::python {

namespace {

TensorExchange g_exchange;
PyObject* g_relayout = nullptr;

constexpr size_t k_no_alias = SIZE_MAX;

struct Output {
  TensorLayout layout;
  size_t alias = k_no_alias;  // the input that this output is
};

struct Contract {
  std::vector<TensorLayout> inputs;
  std::vector<Output> outputs;
  TensorLayout scratch;       // of a call on a device
  std::vector<void*> queues;  // that it was put on
};

struct ProgramObject {
  PyObject_HEAD vectorcallfunc call;
  kiln_program* program;
  PyObject* owner;
  Contract* contract;
  Placement placement;
  Py_ssize_t relayouts;
};

PyTypeObject* g_program_type = nullptr;

/// The tensors and addresses of one call. Keeps copies made for it alive until it ends.
struct Call {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<Handle> copies;
};

/// Copies `tensor` into the layout's strides. Null with a Python error on failure.
PyObject* relayout(PyObject* tensor, const TensorLayout& layout) {
  const size_t rank = layout.strides.size();
  Handle strides = Handle::steal(PyTuple_New(static_cast<Py_ssize_t>(rank)));
  if (!strides) return nullptr;
  for (size_t i = 0; i < rank; ++i) {
    PyObject* stride = PyLong_FromLongLong(layout.strides[i]);
    if (stride == nullptr) return nullptr;
    PyTuple_SetItem(strides.get(), static_cast<Py_ssize_t>(i), stride);
  }
  return PyObject_CallFunctionObjArgs(g_relayout, tensor, strides.get(), nullptr);
}

bool bind_input(ProgramObject* self, Call& call, size_t index, PyObject* tensor) {
  const TensorLayout& layout = self->contract->inputs[index];
  DLTensor view;
  if (!g_exchange.view(tensor, view)) return false;
  const DLDevice device = self->placement.device;
  LayoutMatch matched = match(view, layout, device);
  if (matched == LayoutMatch::relayout) {
    Handle copy = Handle::steal(relayout(tensor, layout));
    if (!copy || !g_exchange.view(copy.get(), view)) return false;
    matched = match(view, layout, device);
    call.copies.push_back(std::move(copy));
    ++self->relayouts;
  }
  if (matched != LayoutMatch::equal) {
    PyErr_Format(PyExc_TypeError, "input %zu: expected a %s tensor %s, got a %s tensor %s", index,
                 to_string(device).c_str(), layout.to_string().c_str(), to_string(view.device).c_str(),
                 describe(view).c_str());
    return false;
  }
  call.inputs[index] = data_of(view);
  return true;
}

struct Range {
  const char* begin;
  const char* end;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const void* data, const TensorLayout& layout) {
  const char* begin = static_cast<const char*>(data);
  const int64_t bits = int64_t{layout.dtype.bits} * layout.dtype.lanes;
  return {begin, begin + (layout.empty ? 0 : layout.storage_elements * bits / 8)};
}

/// Whether output `index` may be written at `data`, with outputs before it placed.
bool may_lie_at(const ProgramObject* self, const Call& call, size_t index, const void* data) {
  const Contract& contract = *self->contract;
  const Range wanted = range_of(data, contract.outputs[index].layout);
  for (size_t i = 0; i < contract.inputs.size(); ++i) {
    if (!wanted.overlaps(range_of(call.inputs[i], contract.inputs[i]))) continue;
    if (call.inputs[i] != data || kiln_program_may_overwrite(self->program, index, i) != 1) return false;
  }
  for (size_t i = 0; i < index; ++i) {
    if (wanted.overlaps(range_of(call.outputs[i], contract.outputs[i].layout))) return false;
  }
  return true;
}

/// Places output `index` in the caller's tensor. False where it cannot be, or with a Python error.
bool place_in(const ProgramObject* self, Call& call, size_t index, PyObject* target) {
  DLTensor view;
  if (!g_exchange.view(target, view)) return false;
  if (match(view, self->contract->outputs[index].layout, self->placement.device) != LayoutMatch::equal) return false;
  if (!may_lie_at(self, call, index, data_of(view))) return false;
  call.outputs[index] = data_of(view);
  return true;
}

/// The list of results, with `call.outputs` set to where those that are no alias lie. `targets`: null, or a list.
PyObject* place_outputs(const ProgramObject* self, PyObject* inputs, PyObject* targets, Call& call) {
  const Contract& contract = *self->contract;
  const size_t count = contract.outputs.size();
  Handle results = Handle::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!results) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    const Output& output = contract.outputs[i];
    PyObject* tensor = nullptr;
    if (output.alias != k_no_alias) {
      tensor = Py_NewRef(PyList_GetItem(inputs, static_cast<Py_ssize_t>(output.alias)));
      call.outputs[i] = nullptr;
    } else if (PyObject* target = targets == nullptr ? Py_None : PyList_GetItem(targets, static_cast<Py_ssize_t>(i));
               target != Py_None && place_in(self, call, i, target)) {
      tensor = Py_NewRef(target);
    } else if (PyErr_Occurred() == nullptr) {
      tensor = g_exchange.allocate(output.layout, self->placement.device, &call.outputs[i]);
    }
    if (tensor == nullptr) return nullptr;
    PyList_SetItem(results.get(), static_cast<Py_ssize_t>(i), tensor);
  }
  return results.release();
}

kiln_error* run_on_host(const ProgramObject* self, const Call& call) {
  // The size of this thread's OpenMP pool, which is torch's: what torch.set_num_threads says.
  const uint32_t threads =
      self->placement.num_threads != 0 ? self->placement.num_threads : static_cast<uint32_t>(omp_get_max_threads());
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_program_run(self->program, call.inputs.data(), call.outputs.data(), threads);
  Py_END_ALLOW_THREADS;
  return error;
}

/// Scratch is the framework's memory, which it gives to later work on the same queue only.
/// Sets a Python error and returns false where there is no queue or no memory.
bool launch_on_device(const ProgramObject* self, const Call& call, kiln_error** error) {
  const Placement& placement = self->placement;
  void* queue = nullptr;
  void* scratch = nullptr;
  if (!g_exchange.current_queue(placement.device, &queue)) return false;
  std::vector<void*>& queues = self->contract->queues;
  if (std::ranges::find(queues, queue) == queues.end()) queues.push_back(queue);
  const Handle memory = Handle::steal(g_exchange.allocate(self->contract->scratch, placement.device, &scratch));
  if (!memory) return false;
  Py_BEGIN_ALLOW_THREADS;
  *error = kiln_program_call(placement.client, self->program, queue, call.inputs.data(), call.outputs.data(), scratch);
  Py_END_ALLOW_THREADS;
  return true;
}

/// Only what cannot find fault with its data writes over what it read: else torch could not run it again. Work on a device is
/// not done when the call ends.
bool may_be_told_where(const ProgramObject* self) {
  return self->placement.client == nullptr && kiln_program_checks_indices(self->program) == 0;
}

PyObject* call_program(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* keywords) {
  const InProgram in_program;
  auto* self = reinterpret_cast<ProgramObject*>(object);
  const Contract& contract = *self->contract;
  const Py_ssize_t given = PyVectorcall_NARGS(flags);
  if (given < 1 || given > 2 || keywords != nullptr || !PyList_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "a program takes one list of tensors, and another of where to write");
    return nullptr;
  }
  PyObject* inputs = arguments[0];
  PyObject* targets = may_be_told_where(self) && given == 2 ? arguments[1] : nullptr;
  if (targets != nullptr &&
      (!PyList_Check(targets) || static_cast<size_t>(PyList_Size(targets)) != contract.outputs.size())) {
    PyErr_Format(PyExc_TypeError, "expected a list of %zu tensors to write", contract.outputs.size());
    return nullptr;
  }
  const size_t count = contract.inputs.size();
  if (static_cast<size_t>(PyList_Size(inputs)) != count) {
    PyErr_Format(PyExc_TypeError, "expected %zu inputs, got %zd", count, PyList_Size(inputs));
    return nullptr;
  }
  Call call;
  call.inputs.resize(count);
  call.outputs.resize(contract.outputs.size());
  for (size_t i = 0; i < count; ++i) {
    if (!bind_input(self, call, i, PyList_GetItem(inputs, static_cast<Py_ssize_t>(i)))) return nullptr;
  }
  Handle results = Handle::steal(place_outputs(self, inputs, targets, call));
  if (!results) return nullptr;
  kiln_error* error = nullptr;
  if (self->placement.client == nullptr) {
    error = run_on_host(self, call);
  } else if (!launch_on_device(self, call, &error)) {
    return nullptr;
  }
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  return results.release();
}

PyObject* describe_program(PyObject* object, PyObject*) {
  kiln_bytes* json = nullptr;
  kiln_error* error = kiln_program_describe(reinterpret_cast<ProgramObject*>(object)->program, &json);
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  return take_text(json);
}

void destroy_program(PyObject* object) {
  auto* self = reinterpret_cast<ProgramObject*>(object);
  if (self->contract != nullptr) {
    for (void* queue : self->contract->queues) kiln_error_destroy(kiln_queue_finish(self->placement.client, queue));
  }
  if (self->program != nullptr) kiln_program_destroy(self->program);
  delete self->contract;
  Py_XDECREF(self->owner);
  free_object(object);
}

bool read_layouts(PyObject* descriptions, size_t expected, const char* what, std::vector<TensorLayout>& out) {
  Handle list = Handle::steal(as_tuple(descriptions, "layouts must be a sequence"));
  if (!list) return false;
  const auto count = static_cast<size_t>(PyTuple_Size(list.get()));
  if (count != expected) {
    PyErr_Format(PyExc_ValueError, "the program has %zu %s, %zu described", expected, what, count);
    return false;
  }
  out.resize(count);
  for (size_t i = 0; i < count; ++i) {
    if (!TensorLayout::from_python(PyTuple_GetItem(list.get(), static_cast<Py_ssize_t>(i)), out[i])) {
      return false;
    }
  }
  return true;
}

bool read_contract(kiln_program* program, PyObject* inputs, PyObject* outputs, Contract& out) {
  std::vector<TensorLayout> layouts;
  if (!read_layouts(inputs, kiln_program_input_count(program), "inputs", out.inputs) ||
      !read_layouts(outputs, kiln_program_output_count(program), "outputs", layouts)) {
    return false;
  }
  out.outputs.resize(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    out.outputs[i].layout = std::move(layouts[i]);
    size_t input = 0;
    if (kiln_program_output_alias(program, i, &input) == 1 && input < out.inputs.size()) {
      out.outputs[i].alias = input;
    }
  }
  return true;
}

PyMethodDef k_methods[] = {
    {"describe", describe_program, METH_NOARGS, "Facts for people and tools, as JSON."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef k_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramObject, call), READONLY, nullptr},
    {"relayouts", T_PYSSIZET, offsetof(ProgramObject, relayouts), READONLY,
     "How many inputs were copied into the layout the program expects."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot k_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy_program)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, k_methods},
    {Py_tp_members, k_members},
    {0, nullptr},
};

PyType_Spec k_spec = {
    .name = "kiln._kiln.Program",
    .basicsize = sizeof(ProgramObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = k_slots,
};

}  // namespace

bool add_program_type(PyObject* module) {
  g_program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&k_spec));
  return g_program_type != nullptr && PyModule_AddType(module, g_program_type) == 0;
}

bool attach_tensors(PyObject* tensor_type, PyObject* relayout_function) {
  if (!g_exchange.attach(tensor_type)) return false;
  Py_XDECREF(std::exchange(g_relayout, Py_NewRef(relayout_function)));
  return true;
}

PyObject* wrap_program(kiln_program* program, PyObject* owner, PyObject* inputs, PyObject* outputs,
                       const Placement& placement) {
  ProgramObject* self = PyObject_New(ProgramObject, g_program_type);
  if (self == nullptr) {
    kiln_program_destroy(program);
    return nullptr;
  }
  self->call = call_program;
  self->program = program;
  self->owner = Py_NewRef(owner);
  self->contract = new (std::nothrow) Contract;
  self->placement = placement;
  self->relayouts = 0;
  Handle handle = Handle::steal(reinterpret_cast<PyObject*>(self));
  if (self->contract == nullptr) return PyErr_NoMemory();
  if (!g_exchange.attached()) {
    PyErr_SetString(PyExc_RuntimeError, "attach() a tensor type first");
    return nullptr;
  }
  if (!read_contract(program, inputs, outputs, *self->contract)) return nullptr;
  if (placement.client != nullptr)
    self->contract->scratch = TensorLayout::of_bytes(kiln_program_scratch_bytes(program));
  return handle.release();
}

}  // namespace kiln::python
