#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

struct AttentionCase {
  int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, k_len = 1, head_dim = 16, value_dim = 0;
  bool causal = false;
  int64_t causal_offset = 0;
  DType dtype = DType::f32;
  bool bias = false;         // a bias load over (h, q, k) in the score expression
  bool interleaved = false;  // [b, len, heads, d] instead of [b, heads, len, d]
  bool strided = false;      // d is not contiguous
  int64_t window = 0;        // where given, the score is -inf for keys as far from the query, or farther
};

class AttentionBuilder {
 public:
  explicit AttentionBuilder(const AttentionCase& c) : m_case(c) {
    if (m_case.value_dim == 0) m_case.value_dim = c.head_dim;
  }

  KernelSpec forward() {
    m_spec.kernel = attention(BufferRole::output);
    return m_spec;
  }
  KernelSpec backward() {
    AttentionBackwardSpec backward;
    backward.forward = attention(BufferRole::input);
    backward.grad_out = tensor(m_case.heads, m_case.q_len, m_case.value_dim, BufferRole::input);
    backward.grad_q = tensor(m_case.heads, m_case.q_len, m_case.head_dim, BufferRole::output);
    backward.grad_k = tensor(m_case.kv_heads, m_case.k_len, m_case.head_dim, BufferRole::output);
    backward.grad_v = tensor(m_case.kv_heads, m_case.k_len, m_case.value_dim, BufferRole::output);
    m_spec.kernel = backward;
    return m_spec;
  }

 private:
  DType accumulator() const { return accumulator_of(m_case.dtype); }
  Access tensor(int64_t heads, int64_t length, int64_t columns, BufferRole role) {
    Access access;
    access.buffer = static_cast<uint32_t>(m_spec.buffers.size());
    const int64_t step = m_case.strided ? 2 : 1, row = columns * step;
    access.strides = m_case.interleaved ? std::vector<int64_t>{length * heads * row, row, heads * row, step}
                                        : std::vector<int64_t>{heads * length * row, length * row, row, step};
    m_spec.buffers.push_back({m_case.dtype, m_case.batch * heads * length * row, role});
    return access;
  }

  AttentionSpec attention(BufferRole results) {
    AttentionSpec spec;
    spec.batch = m_case.batch, spec.heads = m_case.heads, spec.kv_heads = m_case.kv_heads;
    spec.q_len = m_case.q_len, spec.k_len = m_case.k_len;
    spec.head_dim = m_case.head_dim, spec.value_dim = m_case.value_dim;
    spec.dtype = m_case.dtype;
    spec.scale = 1 / std::sqrt(static_cast<double>(m_case.head_dim));
    spec.causal = m_case.causal;
    spec.causal_offset = m_case.causal_offset;
    spec.q = tensor(m_case.heads, m_case.q_len, m_case.head_dim, BufferRole::input);
    spec.k = tensor(m_case.kv_heads, m_case.k_len, m_case.head_dim, BufferRole::input);
    spec.v = tensor(m_case.kv_heads, m_case.k_len, m_case.value_dim, BufferRole::input);
    spec.out = tensor(m_case.heads, m_case.q_len, m_case.value_dim, results);
    spec.lse.buffer = static_cast<uint32_t>(m_spec.buffers.size());
    spec.lse.strides = {m_case.heads * m_case.q_len, m_case.q_len, 1};
    m_spec.buffers.push_back({accumulator(), m_case.batch * m_case.heads * m_case.q_len, results});
    if (m_case.bias) add_bias(spec);
    if (m_case.window > 0) add_window(spec);
    return spec;
  }

  void add_bias(AttentionSpec& spec) {
    Body& body = spec.score;
    body.accesses.push_back(
        {static_cast<uint32_t>(m_spec.buffers.size()), 0, {0, m_case.q_len * m_case.k_len, m_case.k_len, 1}, {}});
    m_spec.buffers.push_back({accumulator(), m_case.heads * m_case.q_len * m_case.k_len, BufferRole::input});
    body.exprs = {{.op = ScalarOp::accumulator, .dtype = accumulator()},
                  {.op = ScalarOp::load, .dtype = accumulator()},
                  {.op = ScalarOp::add, .dtype = accumulator(), .operands = {0, 1, k_no_expr}}};
    spec.score_value = 2;
  }

  void add_window(AttentionSpec& spec) const {
    spec.score.exprs = {
        {.op = ScalarOp::accumulator, .dtype = accumulator()},
        {.op = ScalarOp::index, .dtype = DType::i64, .slot = 2},
        {.op = ScalarOp::index, .dtype = DType::i64, .slot = 3},
        {.op = ScalarOp::sub, .dtype = DType::i64, .operands = {1, 2, k_no_expr}},
        {.op = ScalarOp::abs, .dtype = DType::i64, .operands = {3, k_no_expr, k_no_expr}},
        {.op = ScalarOp::constant, .dtype = DType::i64, .immediate_int = m_case.window},
        {.op = ScalarOp::lt, .dtype = DType::boolean, .operands = {4, 5, k_no_expr}},
        {.op = ScalarOp::constant, .dtype = accumulator(), .immediate = -std::numeric_limits<double>::infinity()},
        {.op = ScalarOp::select, .dtype = accumulator(), .operands = {6, 0, 7}}};
    spec.score_value = 8;
  }

  AttentionCase m_case;
  KernelSpec m_spec;
};

/// Every form of a pass, each around what tiles divide.
inline const std::vector<AttentionCase>& attention_cases() {
  static const std::vector<AttentionCase> list{
      {.q_len = 1, .k_len = 1},
      {.q_len = 64, .k_len = 128, .head_dim = 64},
      {.q_len = 128, .k_len = 128, .head_dim = 64, .causal = true},
      {.heads = 2, .kv_heads = 2, .q_len = 77, .k_len = 77, .head_dim = 32, .causal = true},
      {.q_len = 33, .k_len = 301, .head_dim = 40},
      {.q_len = 5, .k_len = 150, .head_dim = 17, .value_dim = 23},
      {.q_len = 40, .k_len = 150, .head_dim = 16, .causal = true, .causal_offset = 110},
      {.q_len = 60, .k_len = 20, .head_dim = 16, .causal = true},
      {.q_len = 60, .k_len = 60, .head_dim = 16, .causal = true, .causal_offset = -35},  // rows without keys
      {.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 50, .k_len = 50, .head_dim = 24, .causal = true},
      {.batch = 2, .heads = 3, .kv_heads = 3, .q_len = 48, .k_len = 70, .head_dim = 32, .interleaved = true},
      {.heads = 2, .kv_heads = 1, .q_len = 20, .k_len = 37, .head_dim = 12, .causal = true, .strided = true},
      {.heads = 2, .kv_heads = 2, .q_len = 70, .k_len = 90, .head_dim = 32, .bias = true},
      {.heads = 2, .kv_heads = 2, .q_len = 70, .k_len = 70, .head_dim = 32, .causal = true, .bias = true},
      {.q_len = 40, .k_len = 130, .head_dim = 256},
      {.heads = 2, .kv_heads = 1, .q_len = 333, .k_len = 333, .head_dim = 16, .window = 20},
      {.q_len = 200, .k_len = 130, .head_dim = 16, .causal = true, .window = 5},  // rows without keys
      // Few queries of many keys, which may be in parts: the last parts without keys, all but the first, for some rows all.
      {.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 1, .k_len = 1100, .head_dim = 40, .value_dim = 25},
      {.heads = 4, .kv_heads = 2, .q_len = 3, .k_len = 777, .head_dim = 24, .causal = true, .causal_offset = 700},
      {.heads = 2, .kv_heads = 1, .q_len = 5, .k_len = 600, .head_dim = 16, .window = 20},
      {.q_len = 4, .k_len = 600, .head_dim = 16, .causal = true, .causal_offset = -2},
      {.heads = 4, .kv_heads = 1, .q_len = 17, .k_len = 650, .head_dim = 64, .bias = true},
  };
  return list;
}

}  // namespace kiln::conformance
