#pragma once

#include <random>
#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// Nameless models from the builder, for what must be found without names.
struct StackOptions {
  size_t layers = 12;
  bool attention_mask = false;  // two masks, which layers read by turns
  int changed_eps_layer = -1;   // this layer normalises with another epsilon
  bool symbolic_batch = false;
};

/// Embedding, `layers` of attention and MLP, final norm, logits.
Graph transformer(const StackOptions& options);

/// The same, its mean as loss, and the gradients of all parameters: forward and backward in one graph.
Graph transformer_training(const StackOptions& options);

/// Linear, bias, relu, `layers` times.
Graph mlp(size_t layers);

/// A stack of one kind of layer read by a stack of another.
Graph encoder_decoder(size_t layers);

/// Random ops on random earlier values; outputs are all values that nothing reads.
Graph random_graph(std::mt19937& random, size_t nodes);

/// The same graph, its nodes in a random topological order.
Graph shuffled(const Graph& graph, std::mt19937& random);

}  // namespace kiln
