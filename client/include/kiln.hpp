#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln.h"

/// C++ over the C ABI, header only: handles that destroy themselves, errors as exceptions, and a graph
/// builder.
namespace kiln::api {

class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& message, std::string op = {})
      : std::runtime_error(message), m_code(code), m_op(std::move(op)) {}
  /// One of kiln_code.
  int32_t code() const { return m_code; }
  /// kiln_error_op: the op that could not be had; empty when the failure is not one op's.
  const std::string& op() const { return m_op; }

 private:
  int32_t m_code;
  std::string m_op;
};

namespace detail {
inline void check(kiln_error* error) {
  if (!error) return;
  Error thrown(kiln_error_code(error), kiln_error_message(error), kiln_error_op(error));
  kiln_error_destroy(error);
  throw thrown;
}

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <typename T, auto destroy>
using Handle = std::unique_ptr<T, Destroy<destroy>>;

inline std::string take(kiln_bytes* bytes) {
  Handle<kiln_bytes, kiln_bytes_destroy> owner(bytes);
  return {kiln_bytes_data(bytes), kiln_bytes_size(bytes)};
}
}  // namespace detail

/// A graph as Kiln keeps it: parsed and checked.
class Graph {
 public:
  explicit Graph(std::string_view text) {
    kiln_graph* graph = nullptr;
    detail::check(kiln_graph_parse(text.data(), text.size(), &graph));
    m_graph.reset(graph);
  }

  /// The graph with the gradients of scalar output `loss` with respect to `inputs` as further outputs.
  Graph differentiate(size_t loss, const std::vector<size_t>& inputs) const {
    kiln_graph* graph = nullptr;
    detail::check(kiln_graph_differentiate(m_graph.get(), loss, inputs.data(), inputs.size(), &graph));
    return Graph(graph);
  }

  std::string text() const {
    kiln_bytes* bytes = nullptr;
    detail::check(kiln_graph_print(m_graph.get(), &bytes));
    return detail::take(bytes);
  }

  const kiln_graph* get() const { return m_graph.get(); }

 private:
  explicit Graph(kiln_graph* graph) : m_graph(graph) {}
  detail::Handle<kiln_graph, kiln_graph_destroy> m_graph;
};

/// A value of a graph under construction.
struct Value {
  std::string name;
};

/// Writes a graph op by op; names, operands and attributes as in docs/text_form.md. Shapes are inferred and
/// checked when the graph is finished: build() throws with the op, the operand, expected and got.
class GraphBuilder {
 public:
  /// dtype: "f32", "i64", …
  Value input(std::string_view dtype, const std::vector<int64_t>& shape) {
    Value value{"%i" + std::to_string(m_inputs++)};
    if (m_inputs > 1) m_signature << ", ";
    m_signature << value.name << ": " << dtype << list(shape);
    return value;
  }

  /// One result. `attributes` as text: "{dims = [1], keep_dims = true}".
  Value op(std::string_view name, std::initializer_list<Value> operands, std::string_view attributes = {}) {
    return ops(name, operands, attributes, 1).front();
  }

  std::vector<Value> ops(std::string_view name, std::initializer_list<Value> operands, std::string_view attributes,
                         size_t results) {
    std::vector<Value> values;
    m_body << "  ";
    for (size_t i = 0; i < results; ++i) {
      values.push_back({"%v" + std::to_string(m_values++)});
      m_body << (i ? ", " : "") << values.back().name;
    }
    m_body << " = " << name << "(";
    for (auto it = operands.begin(); it != operands.end(); ++it) {
      m_body << (it == operands.begin() ? "" : ", ") << (it->name.empty() ? "none" : it->name);
    }
    m_body << ")" << (attributes.empty() ? "" : " ") << attributes << "\n";
    return values;
  }

  /// A scalar constant that broadcasts.
  Value constant(double number, std::string_view dtype = "f32") {
    std::ostringstream text;
    text.precision(17);
    text << std::scientific << number;
    return op("full", {}, "{shape = [], value = " + text.str() + ", dtype = " + std::string(dtype) + "}");
  }

  Graph build(const std::vector<Value>& outputs) const {
    std::ostringstream text;
    text << "graph(" << m_signature.str() << ") {\n" << m_body.str() << "  return ";
    for (size_t i = 0; i < outputs.size(); ++i) text << (i ? ", " : "") << outputs[i].name;
    text << "\n}\n";
    return Graph(text.str());
  }

  static std::string list(const std::vector<int64_t>& numbers) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
    return text + "]";
  }

 private:
  size_t m_inputs = 0, m_values = 0;
  std::ostringstream m_signature, m_body;
};

/// An executable graph. Immutable; run from any thread at once.
class Program {
 public:
  explicit Program(kiln_program* program) : m_program(program) {}

  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, uint32_t threads = 1) const {
    check_counts(inputs.size(), outputs.size());
    detail::check(kiln_program_run(m_program.get(), inputs.data(), outputs.data(), threads));
  }

  /// JSON: kernels, digests, how it was found.
  std::string describe() const {
    kiln_bytes* bytes = nullptr;
    detail::check(kiln_program_describe(m_program.get(), &bytes));
    return detail::take(bytes);
  }

  const kiln_program* get() const { return m_program.get(); }

  /// Throws where a call would read past its pointers.
  void check_counts(size_t inputs, size_t outputs) const {
    if (inputs == kiln_program_input_count(get()) && outputs == kiln_program_output_count(get())) return;
    throw Error(3, "program takes " + std::to_string(kiln_program_input_count(get())) + " inputs and " +
                       std::to_string(kiln_program_output_count(get())) + " outputs");
  }

 private:
  detail::Handle<kiln_program, kiln_program_destroy> m_program;
};

class Client {
 public:
  /// `device`: whose programs, a backend's name or name:index; null is the host.
  explicit Client(const char* cache_directory = nullptr, const char* device = nullptr) {
    kiln_client_options options{sizeof options, cache_directory, nullptr, nullptr, device};
    kiln_client* client = nullptr;
    detail::check(kiln_client_create(&options, &client));
    m_client.reset(client);
  }

  Program compile(const Graph& graph, uint32_t deadline_ms = 0) {
    kiln_compile_options options{};
    options.struct_size = sizeof options;
    options.deadline_ms = deadline_ms;
    kiln_program* program = nullptr;
    detail::check(kiln_program_create(m_client.get(), graph.get(), &options, &program));
    return Program(program);
  }

  /// Memory of the client's device, given back with the handle; the client must outlive it.
  using Memory = std::unique_ptr<void, std::function<void(void*)>>;
  Memory allocate(size_t bytes) {
    void* memory = nullptr;
    detail::check(kiln_memory_allocate(m_client.get(), bytes, &memory));
    return Memory(memory, [client = m_client.get()](void* held) { kiln_memory_release(client, held); });
  }
  /// Memory of `bytes` bytes that holds a copy of the host's.
  Memory upload(const void* from_host, size_t bytes) {
    Memory memory = allocate(bytes);
    detail::check(kiln_memory_upload(m_client.get(), memory.get(), from_host, bytes));
    return memory;
  }
  void download(void* to_host, const Memory& from, size_t bytes) {
    detail::check(kiln_memory_download(m_client.get(), to_host, from.get(), bytes));
  }

  /// Puts a program on a queue of the caller's and returns; finish waits, and throws what kernels found wrong with their
  /// data. kiln.h says what `scratch` is.
  void launch(const Program& program, void* queue, const std::vector<const void*>& inputs,
              const std::vector<void*>& outputs, void* scratch = nullptr) {
    program.check_counts(inputs.size(), outputs.size());
    detail::check(kiln_program_launch(m_client.get(), program.get(), queue, inputs.data(), outputs.data(), scratch));
  }
  /// As a framework calls an op: kiln_program_call says what becomes of indices, and of memory that is met again.
  void call(const Program& program, void* queue, const std::vector<const void*>& inputs,
            const std::vector<void*>& outputs, void* scratch = nullptr) {
    program.check_counts(inputs.size(), outputs.size());
    detail::check(kiln_program_call(m_client.get(), program.get(), queue, inputs.data(), outputs.data(), scratch));
  }
  void finish(void* queue) { detail::check(kiln_queue_finish(m_client.get(), queue)); }

  /// JSON: counters of this process.
  std::string stats() const {
    kiln_bytes* bytes = nullptr;
    detail::check(kiln_client_stats(m_client.get(), &bytes));
    return detail::take(bytes);
  }

  kiln_client* get() const { return m_client.get(); }

 private:
  detail::Handle<kiln_client, kiln_client_destroy> m_client;
};

/// A model that was exported (docs/export.md): loaded without daemon, cache or compiler. Immutable; run from any thread.
class Exported {
 public:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape, strides;
  };

  explicit Exported(const std::string& path) {
    kiln_exported* exported = nullptr;
    detail::check(kiln_load(path.c_str(), &exported));
    m_exported.reset(exported);
  }

  /// Whose kernels run here.
  std::string target() const { return kiln_exported_target(get()); }
  size_t form_count() const { return kiln_exported_form_count(get()); }
  std::vector<Tensor> inputs(size_t form = 0) const {
    return describe(form, kiln_exported_input_count(get()), kiln_exported_input);
  }
  std::vector<Tensor> outputs(size_t form = 0) const {
    return describe(form, kiln_exported_output_count(get()), kiln_exported_output);
  }

  /// The form for inputs of these dtypes and shapes; throws invalid_argument, with what is expected, where there is none.
  size_t choose(const std::vector<Tensor>& inputs) const {
    std::vector<kiln_tensor_type> types;
    for (const Tensor& each : inputs) {
      types.push_back({each.name.c_str(), each.dtype.c_str(), each.shape.size(), each.shape.data(), nullptr});
    }
    size_t form = 0;
    detail::check(kiln_exported_choose(get(), types.data(), types.size(), &form));
    return form;
  }

  void run(size_t form, const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           uint32_t threads = 1) const {
    if (inputs.size() != kiln_exported_input_count(get()) || outputs.size() != kiln_exported_output_count(get())) {
      throw Error(KILN_INVALID_ARGUMENT, "the export takes " + std::to_string(kiln_exported_input_count(get())) +
                                             " inputs and " + std::to_string(kiln_exported_output_count(get())) +
                                             " outputs");
    }
    detail::check(kiln_exported_run(get(), form, inputs.data(), outputs.data(), threads));
  }

  const kiln_exported* get() const { return m_exported.get(); }

 private:
  template <typename Ask>
  std::vector<Tensor> describe(size_t form, size_t count, Ask ask) const {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < count; ++i) {
      kiln_tensor_type type{};
      detail::check(ask(get(), form, i, &type));
      tensors.push_back(
          {type.name, type.dtype, {type.shape, type.shape + type.rank}, {type.strides, type.strides + type.rank}});
    }
    return tensors;
  }

  detail::Handle<kiln_exported, kiln_exported_destroy> m_exported;
};

}  // namespace kiln::api
