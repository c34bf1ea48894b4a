// Faults are put into kernel specs, not into machine code: the backend then generates the wrong kernel as it would if its
// own loop bound, address or operand were wrong, and every candidate runs at full speed. A fault in part of the iteration
// (one tile shifted) becomes a select on indices, an address that depends on data becomes an indirect term.
//
// Every change is tried everywhere; what validate() refuses (addresses outside buffers and the like) is no mutant.

#include "tests/verdict/mutants/mutate.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/verdict/mutants/body_rewrite.h"

namespace kiln::mutants {

namespace {

struct Tile {
  int64_t low, high;
};

/// One body of a kernel: its iteration, and what refers to its expressions.
struct Place {
  Body* body = nullptr;
  std::vector<int64_t> extents;
  std::vector<ExprId*> roots;
  std::vector<Store>* gemm_stores = nullptr;  // the epilogue's
};

void add_store_roots(std::vector<Store>& stores, std::vector<ExprId*>& roots) {
  for (Store& store : stores) roots.push_back(&store.value);
}

std::vector<Place> places_of(KernelSpec& spec) {
  if (auto* loops = std::get_if<LoopsSpec>(&spec.kernel)) {
    Place place{&loops->body, loops->extents, {}, nullptr};
    for (Reduction& reduction : loops->reductions) place.roots.push_back(&reduction.value);
    for (Stage& stage : loops->stages) add_store_roots(stage.stores, place.roots);
    return {place};
  }
  if (auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) {
    const auto with = [&](int64_t rows, int64_t columns) {
      std::vector<int64_t> extents = gemm->batch;
      extents.insert(extents.end(), {rows, columns});
      return extents;
    };
    Place epilogue{&gemm->epilogue, with(gemm->m, gemm->n), {}, &gemm->stores};
    add_store_roots(gemm->stores, epilogue.roots);
    return {{&gemm->a, with(gemm->m, gemm->k), {&gemm->a_value}, nullptr},
            {&gemm->b, with(gemm->k, gemm->n), {&gemm->b_value}, nullptr},
            epilogue};
  }
  if (std::holds_alternative<SortSpec>(spec.kernel)) return {};
  auto* backward = std::get_if<AttentionBackwardSpec>(&spec.kernel);
  AttentionSpec& attention = backward ? backward->forward : std::get<AttentionSpec>(spec.kernel);
  Place score{&attention.score, {attention.batch, attention.heads, attention.q_len, attention.k_len}, {}, nullptr};
  if (attention.score_value == k_no_expr) return {};
  score.roots = {&attention.score_value};
  return {score};
}

std::vector<Store*> stores_of(KernelSpec& spec) {
  std::vector<Store*> stores;
  if (auto* loops = std::get_if<LoopsSpec>(&spec.kernel)) {
    for (Stage& stage : loops->stages) {
      for (Store& store : stage.stores) stores.push_back(&store);
    }
  }
  if (auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) {
    for (Store& store : gemm->stores) stores.push_back(&store);
  }
  return stores;
}

/// Tiles as kernels have them: the first, one in the middle, the tail.
std::vector<Tile> tiles_of(int64_t extent) {
  const int64_t size = std::min<int64_t>(8, (extent + 1) / 2);
  const int64_t middle = extent / 2 / size * size, tail = (extent - 1) / size * size;
  return {{0, size}, {middle, std::min(middle + size, extent)}, {tail, extent}};
}

double identity(Combiner combiner) {
  constexpr double k_infinity = std::numeric_limits<double>::infinity();
  switch (combiner) {
    case Combiner::product:
    case Combiner::logical_and:
      return 1;
    case Combiner::maximum:
      return -k_infinity;
    case Combiner::minimum:
      return k_infinity;
    default:
      return 0;
  }
}

class Mutator {
 public:
  explicit Mutator(const KernelSpec& spec) : m_spec(spec) {}

  std::vector<Mutant> run() {
    std::visit([this](const auto& kernel) { change_kernel(kernel); }, m_spec.kernel);
    KernelSpec original = m_spec;
    for (size_t p = 0; p < places_of(original).size(); ++p) change_body(p, places_of(original)[p]);
    change_stores();
    return std::move(m_mutants);
  }

 private:
  template <typename Change>
  void add(Kind kind, std::string what, Change change) {
    KernelSpec spec = m_spec;
    change(spec);
    if (spec == m_spec || !validate(spec).ok()) return;
    m_mutants.push_back({kind, std::move(what), std::move(spec)});
  }

  template <typename Kernel, typename Change>
  void add_in(Kind kind, std::string what, Change change) {
    add(kind, std::move(what), [&](KernelSpec& spec) { change(std::get<Kernel>(spec.kernel)); });
  }

  /// Changes body `p` after expression `at`.
  template <typename Change>
  void add_rewritten(Kind kind, std::string what, size_t p, ExprId at, Change change) {
    add(kind, std::move(what), [&](KernelSpec& spec) {
      const Place place = places_of(spec)[p];
      Rewritten result = rewrite(*place.body, at, change);
      for (ExprId* root : place.roots) *root = result.map[*root];
      *place.body = std::move(result.body);
    });
  }

  // --- extents, reductions, masks of whole kernels

  template <typename Kernel>
  void shorten(Kind kind, const char* name, int64_t Kernel::* extent, std::initializer_list<int64_t> steps) {
    for (int64_t step : steps) {
      const int64_t whole = std::get<Kernel>(m_spec.kernel).*extent;
      const int64_t less = step == 1 ? whole - 1 : whole / step * step;
      if (less < 1) continue;
      add_in<Kernel>(kind, fmt::format("{} {} of {}", name, less, whole), [&](Kernel& k) { k.*extent = less; });
    }
  }

  void change_kernel(const LoopsSpec& loops) {
    for (size_t d = 0; d < loops.extents.size(); ++d) {
      const Kind kind = d < loops.parallel_rank ? Kind::tail_dropped : Kind::last_k_step_dropped;
      for (int64_t step : {1, 4, 8, 16}) {
        const int64_t less = step == 1 ? loops.extents[d] - 1 : loops.extents[d] / step * step;
        if (less < 1) continue;
        add_in<LoopsSpec>(kind, fmt::format("dim {} ends at {} of {}", d, less, loops.extents[d]),
                          [&](LoopsSpec& k) { k.extents[d] = less; });
      }
    }
    for (uint32_t r = 0; r < loops.reductions.size(); ++r) change_reduction(loops, r);
  }

  void change_reduction(const LoopsSpec& loops, uint32_t r) {
    const Reduction& reduction = loops.reductions[r];
    for (Combiner combiner : {Combiner::sum, Combiner::product, Combiner::maximum, Combiner::minimum}) {
      add_in<LoopsSpec>(Kind::wrong_combiner, fmt::format("reduction {}", r),
                        [&](LoopsSpec& k) { k.reductions[r].combiner = combiner; });
    }
    const DType dtype = loops.body.exprs[reduction.value].dtype;
    for (uint32_t d = loops.parallel_rank; d < loops.extents.size(); ++d) {
      const int64_t extent = loops.extents[d];
      for (Tile kept : {Tile{0, extent - 1}, Tile{0, 1}, Tile{0, extent / 2}, Tile{extent / 2, extent}}) {
        add_reduction_over(fmt::format("reduction {} over [{}, {}) of dim {}", r, kept.low, kept.high, d), r, dtype, d,
                           kept);
      }
    }
    // Read before it was made: what the register held.
    for (ExprId id = 0; id < loops.body.exprs.size(); ++id) {
      const ScalarNode& node = loops.body.exprs[id];
      if (node.op != ScalarOp::reduced || node.slot != r) continue;
      add_rewritten(Kind::missing_pass, fmt::format("reduction {} is not there yet", r), 0, id,
                    [&](Appender& out, ExprId) {
                      const double start = identity(reduction.combiner);
                      return out.number(node.dtype, std::isfinite(start) ? start : 0);
                    });
    }
  }

  /// Only this reduction's value changes, wherever else its expression is used.
  void add_reduction_over(std::string what, uint32_t r, DType dtype, uint32_t dim, Tile kept) {
    add(Kind::missing_pass, std::move(what), [&](KernelSpec& spec) {
      auto& loops = std::get<LoopsSpec>(spec.kernel);
      const ExprId value = loops.reductions[r].value;
      ExprId partial = k_no_expr;
      Rewritten result = rewrite(loops.body, value, [&](Appender& out, ExprId copy) {
        partial = out.op(ScalarOp::select, dtype, out.inside(dim, kept.low, kept.high), copy,
                         out.number(dtype, identity(loops.reductions[r].combiner)));
        return copy;
      });
      const Place place = places_of(spec)[0];
      for (ExprId* root : place.roots) *root = result.map[*root];
      loops.reductions[r].value = partial;
      loops.body = std::move(result.body);
    });
  }

  void change_kernel(const GemmSpec& gemm) {
    shorten<GemmSpec>(Kind::tail_dropped, "m", &GemmSpec::m, {1, 6, 8});
    shorten<GemmSpec>(Kind::tail_dropped, "n", &GemmSpec::n, {1, 8, 16});
    shorten<GemmSpec>(Kind::last_k_step_dropped, "k", &GemmSpec::k, {1, 4, 8, 64});
    for (bool in_a : {true, false}) {
      add_in<GemmSpec>(Kind::last_k_step_dropped, "k of one operand begins at 1", [&](GemmSpec& k) {
        --k.k;
        Body& body = in_a ? k.a : k.b;
        for (Access& access : body.accesses) access.offset += access.strides[access.strides.size() - (in_a ? 1 : 2)];
      });
    }
    change_accumulator(gemm);
  }

  /// A tile whose partial sums of one panel were lost.
  void change_accumulator(const GemmSpec& gemm) {
    for (ExprId id = 0; id < gemm.epilogue.exprs.size(); ++id) {
      const ScalarNode& node = gemm.epilogue.exprs[id];
      if (node.op != ScalarOp::accumulator || !is_floating(node.dtype)) continue;
      const auto rank = static_cast<uint32_t>(gemm.batch.size());
      for (double kept : {0.0, 0.5}) {
        for (Tile rows : tiles_of(gemm.m)) {
          for (Tile columns : tiles_of(gemm.n)) {
            add_rewritten(Kind::missing_pass, fmt::format("panel lost in tile {},{}", rows.low, columns.low), 2, id,
                          [&](Appender& out, ExprId copy) {
                            const ExprId here =
                                out.op(ScalarOp::bitwise_and, DType::boolean, out.inside(rank, rows.low, rows.high),
                                       out.inside(rank + 1, columns.low, columns.high));
                            const ExprId part = out.op(ScalarOp::mul, node.dtype, copy, out.number(node.dtype, kept));
                            return out.op(ScalarOp::select, node.dtype, here, part, copy);
                          });
          }
        }
      }
    }
  }

  void change_kernel(const AttentionSpec&) {
    change_attention([](KernelSpec& spec) -> AttentionSpec& { return std::get<AttentionSpec>(spec.kernel); });
  }

  void change_kernel(const AttentionBackwardSpec&) {
    change_attention(
        [](KernelSpec& spec) -> AttentionSpec& { return std::get<AttentionBackwardSpec>(spec.kernel).forward; });
    using Backward = AttentionBackwardSpec;
    const auto swap_buffers = [&](const char* what, Access Backward::* x, Access Backward::* y) {
      add_in<Backward>(Kind::wrong_operand, what, [&](Backward& k) { std::swap((k.*x).buffer, (k.*y).buffer); });
    };
    swap_buffers("grad_q and grad_k", &Backward::grad_q, &Backward::grad_k);
    swap_buffers("grad_k and grad_v", &Backward::grad_k, &Backward::grad_v);
    add_in<Backward>(Kind::wrong_operand, "grad_out and out",
                     [](Backward& k) { std::swap(k.grad_out.buffer, k.forward.out.buffer); });
    for (Access Backward::* access : {&Backward::grad_out, &Backward::grad_q, &Backward::grad_k, &Backward::grad_v}) {
      for (size_t d = 0; d + 1 < 4; ++d) {
        add_in<Backward>(Kind::transposed_strides, "of a gradient",
                         [&](Backward& k) { std::swap((k.*access).strides[d], (k.*access).strides[d + 1]); });
      }
    }
  }

  void change_kernel(const SortSpec& sort) {
    add_in<SortSpec>(Kind::swapped_operands, "the other way round", [](SortSpec& k) { k.descending = !k.descending; });
    if (sort.topk) {
      add_in<SortSpec>(Kind::swapped_operands, "all as they stand", [](SortSpec& k) { k.topk.reset(); });
      add_in<SortSpec>(Kind::tail_dropped, "one place less", [](SortSpec& k) { --k.topk->k; });
    }
    for (size_t d = 0; d < sort.extents.size(); ++d) {
      for (int64_t less : {sort.extents[d] - 1, sort.extents[d] / 8 * 8}) {
        if (less < 1) continue;
        add_in<SortSpec>(Kind::tail_dropped, fmt::format("dim {} ends at {}", d, less),
                         [&](SortSpec& k) { k.extents[d] = less; });
      }
      for (Access SortSpec::* access : {&SortSpec::x, &SortSpec::order}) {
        for (size_t other = d + 1; other < sort.extents.size(); ++other) {
          add_in<SortSpec>(Kind::transposed_strides, fmt::format("dims {} and {}", d, other),
                           [&](SortSpec& k) { std::swap((k.*access).strides[d], (k.*access).strides[other]); });
        }
      }
    }
  }

  template <typename Get>
  void change_attention(Get get) {
    using A = AttentionSpec;
    KernelSpec copy = m_spec;
    const A original = get(copy);
    const auto add_a = [&](Kind kind, std::string what, auto change) {
      add(kind, std::move(what), [&](KernelSpec& spec) { change(get(spec)); });
    };
    const auto shorten_a = [&](Kind kind, const char* name, int64_t A::* extent, std::initializer_list<int64_t> steps) {
      for (int64_t step : steps) {
        const int64_t less = step == 1 ? original.*extent - 1 : original.*extent / step * step;
        if (less < 1) continue;
        add_a(kind, fmt::format("{} {} of {}", name, less, original.*extent), [&](A& k) { k.*extent = less; });
      }
    };
    shorten_a(Kind::tail_dropped, "q_len", &A::q_len, {1, 4, 8, 16, 32});
    shorten_a(Kind::tail_dropped, "value_dim", &A::value_dim, {1, 8});
    shorten_a(Kind::tail_dropped, "batch", &A::batch, {1});
    shorten_a(Kind::last_k_step_dropped, "k_len", &A::k_len, {1, 4, 8, 16, 32});
    shorten_a(Kind::last_k_step_dropped, "head_dim", &A::head_dim, {1, 8});
    add_a(Kind::mask_off_by_one, "one key more", [](A& k) { ++k.causal_offset; });
    add_a(Kind::mask_off_by_one, "one key less", [](A& k) { --k.causal_offset; });
    add_a(Kind::mask_off_by_one, "causal or not", [](A& k) { k.causal = !k.causal; });
    add_a(Kind::wrong_constant, "scale", [](A& k) { k.scale *= 1.001; });
    add_a(Kind::wrong_operand, "q and k", [](A& k) { std::swap(k.q.buffer, k.k.buffer); });
    add_a(Kind::wrong_operand, "k and v", [](A& k) { std::swap(k.k.buffer, k.v.buffer); });
    add_a(Kind::wrong_operand, "q for v", [](A& k) { k.v.buffer = k.q.buffer; });
    for (Access A::* access : {&A::q, &A::k, &A::v, &A::out, &A::lse}) {
      for (size_t d = 0; d + 1 < (original.*access).strides.size(); ++d) {
        add_a(Kind::transposed_strides, fmt::format("dims {} and {}", d, d + 1),
              [&](A& k) { std::swap((k.*access).strides[d], (k.*access).strides[d + 1]); });
      }
      for (size_t d = 0; d < (original.*access).strides.size(); ++d) {
        add_a(Kind::wrong_stride, fmt::format("dim {}", d), [&](A& k) { (k.*access).strides[d] = 0; });
      }
    }
  }

  // --- expressions

  void change_body(size_t p, const Place& place) {
    for (ExprId id = 0; id < place.body->exprs.size(); ++id) {
      const ScalarNode& node = place.body->exprs[id];
      if (node.op == ScalarOp::load) {
        change_load(p, place, id);
      } else if (node.op == ScalarOp::constant) {
        change_constant(p, id, node);
      } else {
        change_operator(p, id, node);
      }
    }
  }

  void replace_node(Kind kind, std::string what, size_t p, ExprId id, ScalarNode node) {
    add(kind, std::move(what), [&](KernelSpec& spec) { places_of(spec)[p].body->exprs[id] = node; });
  }

  void change_constant(size_t p, ExprId id, ScalarNode node) {
    const std::string what = fmt::format("expression {}, {}", id, node.immediate);
    if (is_floating(node.dtype) && std::isfinite(node.immediate)) {
      node.immediate = node.immediate == 0 ? 1e-3 : node.immediate * 1.001;
      replace_node(Kind::wrong_constant, what, p, id, node);
    } else if (node.dtype == DType::i64 || node.dtype == DType::i32) {
      for (int64_t off : {-1, 1}) {
        ScalarNode changed = node;
        changed.immediate_int += off;
        replace_node(Kind::mask_off_by_one, fmt::format("expression {}, {}", id, changed.immediate_int), p, id,
                     changed);
      }
    }
  }

  void change_operator(size_t p, ExprId id, ScalarNode node) {
    const std::string what = fmt::format("expression {}, {}", id, kiln::to_string(node.op));
    ScalarNode swapped = node;
    switch (node.op) {
      case ScalarOp::sub:
      case ScalarOp::div:
      case ScalarOp::floor_div:
      case ScalarOp::remainder:
      case ScalarOp::pow:
        std::swap(swapped.operands[0], swapped.operands[1]);
        replace_node(Kind::swapped_operands, what, p, id, swapped);
        break;
      case ScalarOp::select:
        std::swap(swapped.operands[1], swapped.operands[2]);
        replace_node(Kind::swapped_operands, what, p, id, swapped);
        break;
      case ScalarOp::lt:
      case ScalarOp::gt:
        swapped.op = node.op == ScalarOp::lt ? ScalarOp::le : ScalarOp::ge;
        replace_node(Kind::mask_off_by_one, what, p, id, swapped);
        break;
      case ScalarOp::le:
      case ScalarOp::ge:
        swapped.op = node.op == ScalarOp::le ? ScalarOp::lt : ScalarOp::gt;
        replace_node(Kind::mask_off_by_one, what, p, id, swapped);
        break;
      default:
        break;
    }
  }

  void change_load(size_t p, const Place& place, ExprId id) {
    const ScalarNode& node = place.body->exprs[id];
    const Access& access = place.body->accesses[node.slot];
    const auto change_access = [&](Kind kind, std::string what, auto change) {
      add(kind, fmt::format("load {}: {}", id, what),
          [&](KernelSpec& spec) { change(places_of(spec)[p].body->accesses[node.slot]); });
    };
    for (uint32_t other = 0; other < m_spec.buffers.size(); ++other) {
      change_access(Kind::wrong_operand, fmt::format("buffer {}", other), [&](Access& a) { a.buffer = other; });
    }
    for (size_t d = 0; d < access.strides.size(); ++d) {
      change_access(Kind::wrong_stride, fmt::format("dim {}", d), [&](Access& a) { a.strides[d] = 0; });
      for (size_t e = d + 1; e < access.strides.size(); ++e) {
        change_access(Kind::transposed_strides, fmt::format("dims {} and {}", d, e),
                      [&](Access& a) { std::swap(a.strides[d], a.strides[e]); });
      }
      if (access.strides[d] == 0) continue;
      for (Tile tile : tiles_of(place.extents[d])) {
        shift_load(p, id, static_cast<uint32_t>(d), {tile.low, std::min(tile.high, place.extents[d] - 1)});
      }
    }
  }

  /// In the tile the load reads one further along dim `d`.
  void shift_load(size_t p, ExprId id, uint32_t d, Tile tile) {
    if (tile.low >= tile.high) return;
    add_rewritten(Kind::tile_shifted, fmt::format("load {}, dim {} in [{}, {})", id, d, tile.low, tile.high), p, id,
                  [&](Appender& out, ExprId copy) {
                    ScalarNode shifted = out.at(copy);
                    ExprId here = out.inside(d, tile.low, tile.high);
                    if (shifted.operands[0] != k_no_expr) {
                      here = out.op(ScalarOp::bitwise_and, DType::boolean, here, shifted.operands[0]);
                    }
                    shifted.operands[0] = here;
                    shifted.slot = out.copy_access(shifted.slot);
                    out.access(shifted.slot).offset += out.access(shifted.slot).strides[d];
                    return out.op(ScalarOp::select, shifted.dtype, here, out.add(shifted), copy);
                  });
  }

  // --- stores

  void change_stores() {
    KernelSpec original = m_spec;
    const size_t count = stores_of(original).size();
    for (size_t s = 0; s < count; ++s) {
      drop_store(s);
      change_mode(s);
      const Place place = places_of(original).back();
      const Access& access = place.body->accesses[stores_of(original)[s]->access];
      for (size_t d = 0; d < access.strides.size(); ++d) {
        if (access.strides[d] == 0 || place.extents[d] < 2) continue;
        move_store(Kind::store_to_neighbour, s, d, {0, place.extents[d]}, place.extents[d]);
        for (Tile tile : tiles_of(place.extents[d])) move_store(Kind::tile_shifted, s, d, tile, place.extents[d]);
        for (size_t e = d + 1; e < access.strides.size(); ++e) {
          add(Kind::transposed_strides, fmt::format("store {}, dims {} and {}", s, d, e), [&](KernelSpec& spec) {
            auto& strides = places_of(spec).back().body->accesses[stores_of(spec)[s]->access].strides;
            std::swap(strides[d], strides[e]);
          });
        }
      }
    }
  }

  void drop_store(size_t s) {
    add(Kind::store_dropped, fmt::format("store {}", s), [&](KernelSpec& spec) {
      const Store* victim = stores_of(spec)[s];
      const auto erase_from = [&](std::vector<Store>& stores) {
        std::erase_if(stores, [&](const Store& store) { return &store == victim; });
      };
      if (auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) erase_from(gemm->stores);
      if (auto* loops = std::get_if<LoopsSpec>(&spec.kernel)) {
        for (Stage& stage : loops->stages) erase_from(stage.stores);
      }
    });
  }

  void change_mode(size_t s) {
    add(Kind::wrong_store_mode, fmt::format("store {}", s), [&](KernelSpec& spec) {
      Store& store = *stores_of(spec)[s];
      const Access& access = places_of(spec).back().body->accesses[store.access];
      store.mode = store.mode == StoreMode::add ? StoreMode::assign : StoreMode::add;
      spec.buffers[access.buffer].role = BufferRole::inout;
    });
  }

  /// Inside the tile, what belongs to index i of dim `d` is stored at i + 1, or at the front from the end.
  void move_store(Kind kind, size_t s, size_t d, Tile tile, int64_t extent) {
    add(kind, fmt::format("store {}, dim {} in [{}, {})", s, d, tile.low, tile.high), [&](KernelSpec& spec) {
      const Place place = places_of(spec).back();
      Store& store = *stores_of(spec)[s];
      Rewritten result = rewrite(*place.body, k_no_expr, [&](Appender& out, ExprId) {
        const ExprId i = out.index(static_cast<uint32_t>(d));
        const ExprId next = out.op(ScalarOp::remainder, DType::i64,
                                   out.op(ScalarOp::add, DType::i64, i, out.integer(1)), out.integer(extent));
        const ExprId here = out.inside(static_cast<uint32_t>(d), tile.low, tile.high);
        const ExprId index = out.op(ScalarOp::select, DType::i64, here, next, i);
        store.access = out.copy_access(store.access);
        Access& access = out.access(store.access);
        access.indirect.push_back({index, std::exchange(access.strides[d], 0), extent});
        return k_no_expr;
      });
      *place.body = std::move(result.body);
    });
  }

  const KernelSpec& m_spec;
  std::vector<Mutant> m_mutants;
};

}  // namespace

const char* to_string(Kind kind) {
  constexpr const char* k_names[] = {"tail dropped",     "last K step dropped", "tile shifted",    "wrong operand",
                                     "wrong stride",     "missing pass",        "mask off by one", "wrong combiner",
                                     "wrong constant",   "swapped operands",    "store dropped",   "store to neighbour",
                                     "wrong store mode", "transposed strides"};
  return k_names[static_cast<size_t>(kind)];
}

std::vector<Mutant> mutants_of(const KernelSpec& spec) { return Mutator(spec).run(); }

}  // namespace kiln::mutants
