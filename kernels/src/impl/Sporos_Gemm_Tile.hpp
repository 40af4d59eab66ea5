// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_TILE_HPP
#define SPOROS_GEMM_TILE_HPP

#include "impl/Sporos_Gelu_Scalar.hpp"
#include "impl/Sporos_Gemm_Arguments.hpp"
#include "tile/Sporos_Tile_Simt.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// One tile of D = alpha · op(A) · op(B) + beta · D + bias, with GELU if wanted, for GPUs without matrix instructions and
/// for their emulator: blocks of op(A) and op(B) of some depth pass through scratch, the tile of D stays in registers.
template <SimtArchitecture Arch, class T, class Output>
class GemmTile {
 public:
  using C = ComputeType<T>;
  using Arguments = Impl::GemmArguments<T, Output>;

  // A thread holds 8 x 8 floats or 8 x 4 doubles of D: 64 registers. Depth: 64 bytes, whole sectors of memory where a
  // row of A or of Bᵀ lies along the depth.
  static constexpr int rows = 64;
  static constexpr int columns = 512 / sizeof(C);
  static constexpr int depth = 64 / sizeof(C);

  using LeftTile = SimtTile<C, rows, depth>;
  using RightTile = SimtTile<C, columns, depth>;

  struct alignas(16) Scratch {
    C left[LeftTile::size];
    C right[RightTile::size];
  };

  SPOROS_FUNCTION GemmTile(Team<Arch>& team, Scratch& scratch)
      : m_team(team), m_left{scratch.left}, m_right{scratch.right} {}

  SPOROS_FUNCTION static std::int64_t tiles(std::int64_t extent, int tile) { return (extent + tile - 1) / tile; }

  SPOROS_FUNCTION void compute(Arguments const& arguments, std::int64_t tile_row, std::int64_t tile_column) {
    std::int64_t const first_row = tile_row * rows;
    std::int64_t const first_column = tile_column * columns;
    // Rows of op(A) and of op(B)ᵀ, which both lie along the depth in scratch
    Side const left{arguments.a, arguments.a_stride, arguments.rows - first_row, first_row,
                    arguments.transpose_a == Transpose::no};
    Side const right{arguments.b, arguments.b_stride, arguments.columns - first_column, first_column,
                     arguments.transpose_b == Transpose::yes};

    Fragment<Arch, C, rows, columns> D(m_team);
    Block<rows> left_block;
    Block<columns> right_block;
    auto const load = [&](std::int64_t k) {
      left_block.load(m_team, left, k, arguments.depth - k);
      right_block.load(m_team, right, k, arguments.depth - k);
    };
    fill(D, C(0));
    load(0);
    for (std::int64_t k = 0; k < arguments.depth; k += depth) {
      m_team.barrier();
      left_block.store(m_team, left, m_left);
      right_block.store(m_team, right, m_right);
      m_team.barrier();
      load(k + depth);  // under way while this block is used
      add_abt(D, m_left, m_right);
    }
    store(arguments, D, first_row, first_column);
  }

 private:
  struct Side {
    T const* data;
    std::int64_t stride;
    std::int64_t rows;  // from the first of this tile to the last of the matrix
    std::int64_t first_row;
    bool along_depth;  // whether neighbours in memory are neighbours in depth
  };

  /// Rows x depth elements on their way from memory to scratch, whichever way the matrix lies
  template <int Rows>
  class Block {
   public:
    SPOROS_FUNCTION void load(Team<Arch> const& team, Side const& side, std::int64_t k, std::int64_t depth_left) {
      if (side.along_depth) {
        T const* const from = side.data + side.first_row * side.stride + k;
        m_share.template for_each<depth>(team, [&](C& element, int row, int column) {
          element = row < side.rows && column < depth_left ? C(from[row * side.stride + column]) : C(0);
        });
      } else {
        T const* const from = side.data + k * side.stride + side.first_row;
        m_share.template for_each<Rows>(team, [&](C& element, int column, int row) {
          element = row < side.rows && column < depth_left ? C(from[column * side.stride + row]) : C(0);
        });
      }
    }

    SPOROS_FUNCTION void store(Team<Arch> const& team, Side const& side, SimtTile<C, Rows, depth> tile) {
      if (side.along_depth)
        m_share.template for_each<depth>(team, [&](C& element, int row, int column) { tile(row, column) = element; });
      else
        m_share.template for_each<Rows>(team, [&](C& element, int column, int row) { tile(row, column) = element; });
    }

   private:
    SimtShare<Arch, C, Rows * depth> m_share;
  };

  SPOROS_FUNCTION static void store(Arguments const& arguments, Fragment<Arch, C, rows, columns>& D,
                                    std::int64_t first_row, std::int64_t first_column) {
    C const alpha = C(arguments.alpha);
    C const beta = C(arguments.beta);
    std::int64_t const down = arguments.rows - first_row, across = arguments.columns - first_column;
    D.for_each([&](C& element, auto, int row, int column) {
      if (row >= down || column >= across) return;
      Output& d = arguments.d[(first_row + row) * arguments.d_stride + first_column + column];
      C x = alpha * element;
      if (beta != C(0)) x += beta * C(d);  // else D is not read: it may hold NaN
      if (arguments.bias) x += C(arguments.bias[first_column + column]);
      if (arguments.z) {
        Output const z = Output(x);
        arguments.z[(first_row + row) * arguments.z_stride + first_column + column] = z;
        d = Output(Impl::gelu_scalar(C(z)));
      } else {
        d = Output(x);
      }
    });
  }

  Team<Arch>& m_team;
  LeftTile m_left;
  RightTile m_right;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
