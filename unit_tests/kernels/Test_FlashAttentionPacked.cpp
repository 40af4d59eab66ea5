// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>

#include "AttentionTesting.hpp"

// Compiled for the host only, in FlashAttentionPacked.cpp
namespace Sporos::packed {
Impl::FlashAttentionForwardHostKernels flash_attention_forward_kernels_of_level();
Impl::FlashAttentionBackwardHostKernels flash_attention_backward_kernels_of_level();
}  // namespace Sporos::packed

namespace {

using namespace Sporos;
using namespace Sporos::Testing;

TEST_CASE("flash attention in pairs of bfloat16 equals the exact result", "[attention]") {
  auto const run = [](AttentionProblem<bfloat16>& problem, int slots) {
    run_host_kernels<bfloat16>(problem, packed::flash_attention_forward_kernels_of_level(),
                               packed::flash_attention_backward_kernels_of_level(), slots);
  };
  check_attention<bfloat16>(attention_cases, run);
  check_attention<bfloat16>(attention_feature_cases, run);
}

}  // namespace
