// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_ATTENTIONCASES_HPP
#define SPOROS_TESTING_ATTENTIONCASES_HPP

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "AttentionReference.hpp"

// What every architecture has to compute, emulated or not: the same cases for all.
namespace Sporos::Testing {

inline void require_as_good_as_plain(AttentionErrors const& errors, double most_of_lse = 2) {
  CHECK(errors.o <= 2);
  CHECK(errors.lse <= most_of_lse);
  CHECK(errors.dq <= 2);
  CHECK(errors.dk <= 2);
  CHECK(errors.dv <= 2);
  CHECK(errors.d_bias <= 2);
  CHECK(errors.d_sink <= 2);
}

/// Runs the case twice by run(problem, slots), which fills all outputs of the problem, and compares.
template <class T, class Run>
void check_attention(AttentionCase const& shape, Run const& run) {
  INFO(text_of(shape));
  AttentionProblem<T> problem(shape);
  AttentionReference<T> const reference(problem);
  for (int const slots : {1, 3}) {
    CAPTURE(slots);
    AttentionProblem<T> result(shape);
    run(result, slots);
    require_as_good_as_plain(reference.errors(result));
  }
}

template <class T, class Run>
void check_attention(std::vector<AttentionCase> const& shapes, Run const& run) {
  for (AttentionCase const& shape : shapes) check_attention<T>(shape, run);
}

// Lengths: 1: a lone pair; 17: less than a block; 64: exactly one; 129: one row in the last; 300: several, and no multiple.
// Jumps: none; 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
// 8, 40: most of a tile is padding; 72, 136: the last columns of a wider one.
inline std::vector<AttentionCase> const attention_cases = {
    {64, 1, 1},
    {64, 17, 17, CausalMask::bottom_right},
    {64, 64, 64, CausalMask::top_left},
    {128, 129, 129, CausalMask::bottom_right, 2},
    {64, 300, 300, CausalMask::bottom_right},
    {64, 300, 300, CausalMask::none, 150},
    {64, 300, 300, CausalMask::bottom_right, 150},
    {128, 300, 300, CausalMask::none, 2},
    {8, 70, 90},
    {40, 90, 70, CausalMask::top_left},
    {72, 65, 129},
    {136, 66, 130, CausalMask::bottom_right},
    {256, 65, 65, CausalMask::bottom_right},
    // Rows without a key, at the start and everywhere; more keys than queries; no query
    {64, 200, 70, CausalMask::bottom_right},
    {64, 200, 70, CausalMask::top_left},
    {64, 70, 0},
    {64, 70, 0, CausalMask::bottom_right},
    {128, 5, 200, CausalMask::bottom_right},
    {64, 0, 70},
    // Batch and heads, grouped
    {64, 100, 130, CausalMask::bottom_right, 150, 2, 6, 2},
    {64, 70, 130, CausalMask::top_left, 0, 2, 4, 1},
    {.head_dim = 64,
     .queries = 130,
     .keys = 130,
     .causal = CausalMask::bottom_right,
     .heads = 2,
     .kv_heads = 2,
     .dropout = 0.2},
    {.head_dim = 64, .queries = 70, .keys = 150, .batch = 2, .heads = 4, .kv_heads = 2, .dropout = 0.5},
};

// Each feature alone, with blocks that are skipped, half masked and whole; and some together. Small, for emulators.
inline std::vector<AttentionCase> const attention_feature_cases = {
    // Values of another width than keys
    {.head_dim = 64, .queries = 70, .keys = 90, .causal = CausalMask::bottom_right, .value_dim = 32},
    {.head_dim = 24, .queries = 40, .keys = 70, .value_dim = 64},
    // Sliding windows: either side, both, with the causal mask in either corner; nothing but the diagonal
    {.head_dim = 64, .queries = 200, .keys = 200, .window = {.left = 30, .right = 20}},
    {.head_dim = 64, .queries = 150, .keys = 200, .window = {.left = 10}},
    {.head_dim = 64, .queries = 200, .keys = 150, .window = {.right = 70}},
    {.head_dim = 64, .queries = 200, .keys = 200, .causal = CausalMask::bottom_right, .window = {.left = 40}},
    {.head_dim = 64, .queries = 130, .keys = 200, .causal = CausalMask::top_left, .window = {.left = 65}},
    {.head_dim = 32, .queries = 70, .keys = 70, .window = {.left = 0, .right = 0}},
    // What becomes of scores
    {.head_dim = 64, .queries = 70, .keys = 130, .spread = 8, .softcap = 5},
    {.head_dim = 32, .queries = 70, .keys = 90, .causal = CausalMask::bottom_right, .softcap = 30},
    {.head_dim = 32, .queries = 70, .keys = 90, .heads = 3, .kv_heads = 3, .alibi = true},
    {.head_dim = 64, .queries = 130, .keys = 130, .causal = CausalMask::top_left, .heads = 2, .alibi = true},
    {.head_dim = 32, .queries = 70, .keys = 90, .bias_batch = 1, .bias_heads = 1},
    {.head_dim = 32, .queries = 70, .keys = 90, .batch = 2, .heads = 2, .bias_batch = 2, .bias_heads = 1},
    {.head_dim = 64,
     .queries = 50,
     .keys = 130,
     .causal = CausalMask::bottom_right,
     .batch = 2,
     .heads = 2,
     .bias_batch = 1,
     .bias_heads = 2},
    {.head_dim = 32,
     .queries = 40,
     .keys = 70,
     .batch = 2,
     .heads = 2,
     .kv_heads = 2,
     .bias_batch = 2,
     .bias_heads = 2},
    // Sinks; and rows that see nothing else
    {.head_dim = 32, .queries = 70, .keys = 90, .heads = 2, .kv_heads = 2, .sink = true},
    {.head_dim = 32, .queries = 90, .keys = 40, .causal = CausalMask::bottom_right, .heads = 2, .sink = true},
    // The gradient of LSE
    {.head_dim = 32, .queries = 70, .keys = 90, .d_lse = true},
    {.head_dim = 32, .queries = 90, .keys = 40, .causal = CausalMask::bottom_right, .sink = true, .d_lse = true},
    // Sequences one after another, some without queries, keys or both
    {.head_dim = 64,
     .queries = 100,
     .keys = 90,
     .causal = CausalMask::bottom_right,
     .batch = 5,
     .heads = 2,
     .query_lengths = {3, 100, 0, 5, 20},
     .key_lengths = {70, 90, 0, 0, 20}},
    {.head_dim = 32,
     .queries = 90,
     .keys = 70,
     .batch = 3,
     .heads = 2,
     .dropout = 0.3,
     .window = {.left = 20, .right = 40},
     .query_lengths = {20, 0, 90},
     .key_lengths = {70, 10, 66}},
    // Shares of the keys
    {.head_dim = 64, .queries = 5, .keys = 300, .causal = CausalMask::bottom_right, .splits = 3},
    {.head_dim = 64, .queries = 1, .keys = 40, .heads = 2, .sink = true, .splits = 4},
    // Together
    {.head_dim = 32,
     .queries = 100,
     .keys = 130,
     .causal = CausalMask::bottom_right,
     .batch = 2,
     .heads = 4,
     .kv_heads = 2,
     .dropout = 0.3,
     .value_dim = 16,
     .window = {.left = 60},
     .spread = 3,
     .softcap = 4,
     .alibi = true,
     .sink = true,
     .d_lse = true,
     .bias_batch = 1,
     .bias_heads = 4},
    {.head_dim = 32,
     .queries = 80,
     .keys = 90,
     .causal = CausalMask::top_left,
     .batch = 3,
     .heads = 2,
     .softcap = 9,
     .alibi = true,
     .sink = true,
     .d_lse = true,
     .query_lengths = {70, 1, 80},
     .key_lengths = {90, 33, 64}},
};

// Where other implementations went wrong
inline std::vector<AttentionCase> const attention_hard_cases = {
    {.head_dim = 64, .queries = 5, .keys = 2, .causal = CausalMask::bottom_right},
    {.head_dim = 32, .queries = 600, .keys = 600, .window = {.left = 10, .right = 0}},
    {.head_dim = 32, .queries = 63, .keys = 65},
    {.head_dim = 32, .queries = 65, .keys = 63, .causal = CausalMask::bottom_right},
    {.head_dim = 32, .queries = 8, .keys = 16, .causal = CausalMask::top_left},
    {.head_dim = 32, .queries = 32, .keys = 441, .causal = CausalMask::bottom_right},
    {.head_dim = 64, .queries = 70, .keys = 130, .spread = 8},
    {.head_dim = 64, .queries = 70, .keys = 130, .spread = 1e4},
    {.head_dim = 64, .queries = 70, .keys = 300, .jump = 400},
    // Nine heads that share three, and not more than one query and key
    {.head_dim = 32,
     .queries = 1,
     .keys = 1,
     .batch = 3,
     .heads = 9,
     .kv_heads = 3,
     .query_lengths = {1, 0, 1},
     .key_lengths = {1, 1, 0}},
};

// Where only the last sequence has queries; large, so once, and in a window
inline AttentionCase const attention_late_sequence_case = {.head_dim = 16,
                                                           .queries = 1023,
                                                           .keys = 2045,
                                                           .batch = 3,
                                                           .window = {.left = 100, .right = 30},
                                                           .query_lengths = {0, 0, 1023},
                                                           .key_lengths = {0, 1, 2045}};

}  // namespace Sporos::Testing

#endif
