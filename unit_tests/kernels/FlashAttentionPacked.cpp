// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Processors with a dot product of bfloat16 keep factors as pairs, in other layouts than all others. Few machines have one:
// here the kernels are compiled once more as a level of their own, with the instruction written out.
#define SPOROS_LEVEL packed
#define SPOROS_EMULATE_BFLOAT16_DOT
#include "host/Sporos_FlashAttention_Backward.cpp"
#include "host/Sporos_FlashAttention_Forward.cpp"

static_assert(Sporos::has_bfloat16_dot && Sporos::k_per_element<Sporos::ProductElement<Sporos::bfloat16>> == 2);
