// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Processors with a dot product of bfloat16 keep factors as pairs, in other layouts than all others. Few machines have one:
// here the kernels are compiled once more as a level of their own, with the instruction written out.
#define SPOROS_LEVEL packed
#define SPOROS_EMULATE_BFLOAT16_DOT
#include <catch2/catch_message.hpp>

#include "AttentionTesting.hpp"
#include "host/Sporos_FlashAttention_Backward.cpp"
#include "host/Sporos_FlashAttention_Forward.cpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;

static_assert(has_bfloat16_dot && k_per_element<ProductElement<bfloat16>> == 2);

TEST_CASE("flash attention in pairs of bfloat16 equals the exact result", "[attention]") {
  for (AttentionCase const& shape : attention_cases) {
    INFO(text_of(shape));
    AttentionProblem<bfloat16> problem(shape);
    AttentionReference<bfloat16> const reference(problem);
    run_host_kernels<bfloat16>(problem, packed::flash_attention_forward_kernels_of_level(),
                               packed::flash_attention_backward_kernels_of_level(), 2);
    require_as_good_as_plain(reference.errors(problem));
  }
}

}  // namespace
