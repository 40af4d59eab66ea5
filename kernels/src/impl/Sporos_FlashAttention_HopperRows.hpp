// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HOPPERROWS_HPP
#define SPOROS_FLASHATTENTION_HOPPERROWS_HPP

#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "tile/Sporos_Arch_Sm90.hpp"

// What the backward pass on Hopper does before and after its tiles, bound by memory. Device code only.
#if defined(__CUDACC__)
namespace Sporos::inline SPOROS_LEVEL {

/// Eight neighbouring numbers of 16 bits; those from `real` on are zeros
template <class T>
__device__ inline void load_eight(float (&x)[8], T const* from, int real, bool aligned) {
  struct alignas(16) Chunk {
    T value[8];
  };
  if (aligned && real >= 8) {
    Chunk const chunk = *reinterpret_cast<Chunk const*>(from);
    SPOROS_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = float(chunk.value[i]);
  } else {
    SPOROS_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = i < real ? float(from[i]) : 0.0f;
  }
}

/// Before the tiles: δ and LSE log2 e of every row, and zeros for its sums of dQ. Each row by HeadDim / 8 lanes, several
/// rows of a thread under way at once.
template <class T, int HeadDim>
struct FlashAttentionHopperRows {
  static constexpr int threads = 256;
  static constexpr int lanes = HeadDim / 8;
  static constexpr int at_once = 4;
  static constexpr int rows_of_team = at_once * threads / lanes;

  FlashAttentionBackwardArguments<T> m_arguments;
  std::int64_t m_rows;  // batch · heads · padded_queries

  __device__ void operator()(std::int64_t team, int thread) const {
    int const column = thread % lanes * 8;
    float o[at_once][8], d_o[at_once][8];
    SPOROS_UNROLL
    for (int i = 0; i < at_once; ++i) {
      Row const row(*this, team, thread, i);
      load_row(o[i], row.head.o(), row, column);
      load_row(d_o[i], row.head.of_query_head(m_arguments.d_o), row, column);
    }
    SPOROS_UNROLL
    for (int i = 0; i < at_once; ++i) {
      Row const row(*this, team, thread, i);
      float delta = 0;
      SPOROS_UNROLL
      for (int e = 0; e < 8; ++e) delta += o[i][e] * d_o[i][e];
      SPOROS_UNROLL
      for (int mask = 1; mask < lanes; mask *= 2) delta += __shfl_xor_sync(~0u, delta, mask);
      if (!row.in_workspace) continue;
      if (column == 0) store_statistics(row, delta);
      for (int slot = 0; slot < (m_arguments.shared_sums ? 1 : m_arguments.slots); ++slot) {
        auto* const sums =
            reinterpret_cast<float4*>(row.head.dq_sums(m_arguments, slot).row(row.query)) + thread % lanes;
        sums[0] = make_float4(0, 0, 0, 0);
        sums[lanes] = make_float4(0, 0, 0, 0);
      }
    }
  }

 private:
  struct Row {
    int bh, query;
    FlashAttentionHead<T> head;
    bool in_workspace, real;

    __device__ Row(FlashAttentionHopperRows const& rows, std::int64_t team, int thread, int i)
        : Row(rows, team * rows_of_team + i * (threads / lanes) + thread / lanes) {}

   private:
    __device__ Row(FlashAttentionHopperRows const& rows, std::int64_t index)
        : bh(int((index < rows.m_rows ? index : 0) / rows.m_arguments.padded_queries)),
          query(int(index - std::int64_t(bh) * rows.m_arguments.padded_queries)),
          head(rows.m_arguments.forward, bh / rows.m_arguments.forward.heads, bh % rows.m_arguments.forward.heads),
          in_workspace(index < rows.m_rows && query < head.padded_queries(rows.m_arguments)),
          real(index < rows.m_rows && query < head.queries()) {}
  };

  template <class U>
  __device__ static void load_row(float (&x)[8], Matrix<U> const& matrix, Row const& row, int column) {
    bool const aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.stride % 8 == 0;
    load_eight(x, matrix.row(row.real ? row.query : 0) + column, row.real ? matrix.columns - column : 0, aligned);
  }

  __device__ void store_statistics(Row const& row, float delta) const {
    float const none = infinity<float>;
    float const lse = row.real ? *row.head.lse().row(row.query) : -none;
    bool const has_d_lse = row.real && m_arguments.d_lse.data;
    std::int64_t const at = row.head.padded_row(m_arguments) + row.query;
    m_arguments.lse_log2[at] = lse == -none ? none : lse * log2_e<float>;
    m_arguments.delta[at] = delta - (has_d_lse ? *row.head.rows_of_head(m_arguments.d_lse).row(row.query) : 0.0f);
  }
};

/// After the tiles: dQ = scale · Σ over slots, in their order. A warp takes 64 columns of eight queries: sums lie in the order
/// of registers (ColumnSumsOrder), here of four warps; 8 x 8 elements are transposed at a time.
template <class Arch, class T, int HeadDim, class Shape = FlashAttentionBackwardShape<Arch, T, HeadDim>>
struct FlashAttentionHopperSums {
  using Order = ColumnSumsOrder<Team<Arch>::groups, HeadDim, Shape::queries>;

  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int parts_of_group = Order::columns / 8;  // of eight queries
  static constexpr int parts = Team<Arch>::groups * parts_of_group;

  FlashAttentionBackwardArguments<T> m_arguments;
  std::int64_t m_blocks;  // batch · heads · padded_queries / queries

  __device__ void operator()(std::int64_t team, int thread) const {
    std::int64_t const part = team * warps + thread / 32;
    std::int64_t const block = part / parts;
    int const blocks_of_head = m_arguments.padded_queries / Shape::queries;
    if (block < m_blocks)
      sum(int(block / blocks_of_head), int(block % blocks_of_head), int(part - block * parts), thread & 31);
  }

 private:
  __device__ void sum(int bh, int block, int part, int lane) const {
    auto const& a = m_arguments.forward;
    FlashAttentionHead<T> const head(a, bh / a.heads, bh % a.heads);
    if (block * Shape::queries >= head.queries()) return;
    int const group = part / parts_of_group, j = part % parts_of_group;

    float sums[4][4] = {};
    for (int slot = 0; slot < (m_arguments.shared_sums ? 1 : m_arguments.slots); ++slot) {
      float const* const from = head.dq_sums(m_arguments, slot).row(block * Shape::queries);
      SPOROS_UNROLL
      for (int w = 0; w < 4; ++w) {
        float4 const x = *reinterpret_cast<float4 const*>(from + Order::offset(4 * group + w, j, lane));
        sums[w][0] += x.x;
        sums[w][1] += x.y;
        sums[w][2] += x.z;
        sums[w][3] += x.w;
      }
    }

    // Word 2 w + h of a lane: queries of lane / 4, columns 16 w + 8 h + 2 (lane % 4) and the next, after the transposition
    typename Arch::template Registers<std::uint32_t, 4> words[2];
    SPOROS_UNROLL
    for (int w = 0; w < 4; ++w) {
      SPOROS_UNROLL
      for (int h = 0; h < 2; ++h)
        words[w / 2].m_value[w % 2 * 2 + h] =
            transposed(Arch::template pack<T>(a.scale * sums[w][2 * h], a.scale * sums[w][2 * h + 1]));
    }

    int const query = block * Shape::queries + Order::column(4 * group, 4 * j, 0) + lane / 4;
    Matrix<T> const dq = head.of_query_head(m_arguments.dq);
    bool const aligned =
        reinterpret_cast<std::uintptr_t>(dq.data) % 16 == 0 && dq.stride % 8 == 0 && dq.columns % 8 == 0;
    T* const row = dq.row(query);
    SPOROS_UNROLL
    for (int half = 0; half < 2; ++half) {
      Arch::transpose_in_fours(words[half]);
      int const column = Order::row(4 * group, 0, 0) + 32 * half + 8 * (lane & 3);
      if (query >= dq.rows || column >= dq.columns) continue;
      if (aligned) {
        Arch::store_four(row + column, words[half], lane);
      } else {
        for (int e = 0; e < 8 && column + e < dq.columns; ++e)
          row[column + e].bits = std::uint16_t(words[half].m_value[e / 2] >> 16 * (e % 2));
      }
    }
  }

  /// The same fragment of the transposed matrix of 8 x 8
  __device__ static std::uint32_t transposed(std::uint32_t x) {
    std::uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
  }
};

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
