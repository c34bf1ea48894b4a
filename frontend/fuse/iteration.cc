#include "frontend/fuse/iteration.h"

#include <algorithm>
#include <cassert>

namespace kiln {

IterationSpace::IterationSpace(const std::vector<int64_t>& extents) {
  for (const int64_t extent : extents) {
    m_pieces.push_back(extent == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{extent});
  }
}

IterationSpace IterationSpace::of_pieces(std::vector<std::vector<int64_t>> pieces) {
  IterationSpace space({});
  space.m_pieces = std::move(pieces);
  return space;
}

std::vector<int64_t> IterationSpace::extents() const {
  std::vector<int64_t> result;
  for (const std::vector<int64_t>& pieces : m_pieces) result.insert(result.end(), pieces.begin(), pieces.end());
  return result;
}

Index IterationSpace::index(uint32_t first) const {
  Index result;
  for (const std::vector<int64_t>& pieces : m_pieces) {
    const std::vector<int64_t> strides = dense_strides(pieces);
    Affine affine;
    for (const int64_t stride : strides) affine = affine + Affine::of_dim(first++, stride);
    result.push_back(std::move(affine));
  }
  return result;
}

bool IterationSpace::split(DimSplit split, uint32_t first) {
  if (split.dim < first) return false;
  size_t at = split.dim - first;
  for (std::vector<int64_t>& pieces : m_pieces) {
    if (at >= pieces.size()) {
      at -= pieces.size();
      continue;
    }
    if (split.inner <= 1 || pieces[at] % split.inner != 0 || pieces[at] == split.inner) return false;
    pieces[at] /= split.inner;
    pieces.insert(pieces.begin() + static_cast<ptrdiff_t>(at) + 1, split.inner);
    return true;
  }
  return false;
}

namespace {

bool uses_index(const Body& body, size_t d) {
  return std::any_of(body.exprs.begin(), body.exprs.end(),
                     [&](const ScalarNode& node) { return node.op == ScalarOp::index && node.slot == d; });
}

}  // namespace

bool can_merge(const Body& body, size_t d, int64_t extent) {
  if (uses_index(body, d) || uses_index(body, d + 1)) return false;
  return std::all_of(body.accesses.begin(), body.accesses.end(),
                     [&](const Access& access) { return access.strides[d] == access.strides[d + 1] * extent; });
}

void merge_dims(Body& body, size_t d) {
  for (Access& access : body.accesses) access.strides.erase(access.strides.begin() + static_cast<ptrdiff_t>(d));
  for (ScalarNode& node : body.exprs) {
    if (node.op == ScalarOp::index && node.slot > d) --node.slot;
  }
}

void permute_dims(Body& body, const std::vector<uint32_t>& order) {
  std::vector<uint32_t> place(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (Access& access : body.accesses) {
    std::vector<int64_t> strides(order.size());
    for (size_t i = 0; i < order.size(); ++i) strides[i] = access.strides[order[i]];
    access.strides = std::move(strides);
  }
  for (ScalarNode& node : body.exprs) {
    if (node.op == ScalarOp::index) node.slot = place[node.slot];
  }
}

std::vector<std::vector<int64_t>> merge_what_can(Body& body, const IterationSpace& space) {
  std::vector<std::vector<int64_t>> left;
  size_t d = 0;
  for (std::vector<int64_t> pieces : space.pieces()) {
    if (pieces.empty()) {
      for (Access& access : body.accesses) access.strides.insert(access.strides.begin() + static_cast<ptrdiff_t>(d), 0);
      for (ScalarNode& node : body.exprs) {
        if (node.op == ScalarOp::index && node.slot >= d) ++node.slot;
      }
      pieces = {1};
    }
    for (size_t piece = pieces.size(); piece-- > 1;) {
      if (!can_merge(body, d + piece - 1, pieces[piece])) continue;
      merge_dims(body, d + piece - 1);
      pieces[piece - 1] *= pieces[piece];
      pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(piece));
    }
    d += pieces.size();
    left.push_back(std::move(pieces));
  }
  return left;
}

bool merge_pieces(Body& body, const IterationSpace& space) {
  const std::vector<std::vector<int64_t>> left = merge_what_can(body, space);
  return std::ranges::all_of(left, [](const std::vector<int64_t>& pieces) { return pieces.size() == 1; });
}

bool ignores_dim(const Body& body, size_t d) {
  return !uses_index(body, d) && std::all_of(body.accesses.begin(), body.accesses.end(),
                                             [&](const Access& access) { return access.strides[d] == 0; });
}

void remove_dim(Body& body, size_t d) {
  assert(ignores_dim(body, d) && "a dim in use");
  merge_dims(body, d);
}

void insert_dim(Body& body, size_t d) {
  for (Access& access : body.accesses) access.strides.insert(access.strides.begin() + static_cast<ptrdiff_t>(d), 0);
  for (ScalarNode& node : body.exprs) node.slot += node.op == ScalarOp::index && node.slot >= d;
}

}  // namespace kiln
