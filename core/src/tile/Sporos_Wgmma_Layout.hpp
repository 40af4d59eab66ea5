// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_WGMMA_LAYOUT_HPP
#define SPOROS_WGMMA_LAYOUT_HPP

#include <cstdint>

#include "Sporos_Macros.hpp"

// How warpgroup products (wgmma) want their factors and leave their results: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions". A warpgroup is four warps; warp w of it has rows 16 w ... 16 w + 15 of the 64 of a product.
namespace Sporos::inline SPOROS_LEVEL {

struct WgmmaLayout {
  static constexpr int lanes = 32;
  static constexpr int warps = 4;       // of a warpgroup
  static constexpr int rows = 64;       // of a product
  static constexpr int warp_rows = 16;  // ... in one warp
  static constexpr int depth = 16;      // terms of a product of 16-bit numbers

  /// Register r of an accumulator: row in the warp, and column
  SPOROS_FUNCTION static constexpr int row(int lane, int r) { return (lane >> 2) + 8 * (r / 2 % 2); }
  SPOROS_FUNCTION static constexpr int column(int lane, int r) { return 8 * (r / 4) + 2 * (lane & 3) + r % 2; }

  /// Half e of register r of a left factor: row in the warp, and term
  SPOROS_FUNCTION static constexpr int left_row(int lane, int r) { return (lane >> 2) + 8 * (r % 2); }
  SPOROS_FUNCTION static constexpr int left_term(int lane, int r, int e) { return 8 * (r / 2) + 2 * (lane & 3) + e; }
};

/// A tile in scratch, of 16-bit numbers. Columns come in panels of 64, in which a row has 128 bytes; the 16-byte chunks of a
/// row are exchanged with one another, by its number modulo 8, so that reading down a column meets every bank. Products and
/// tensor maps call this the 128-byte swizzle. Panels start at multiples of 1024 bytes.
template <class T, int Rows, int Cols>
struct SwizzledTile {
  static_assert(sizeof(T) == 2 && Rows % 8 == 0 && Cols % 64 == 0);

  static constexpr int panel_columns = 64;
  static constexpr int row_bytes = 128;
  static constexpr int panel_bytes = Rows * row_bytes;
  static constexpr int bytes = panel_bytes * (Cols / panel_columns);
  static constexpr int chunk_size = 8;  // elements

  /// Address of the chunk that starts at (row, column)
  SPOROS_FUNCTION std::uint32_t chunk(int row, int column) const {
    unsigned const r = unsigned(row), c = unsigned(column);
    return address + c / panel_columns * panel_bytes + r * row_bytes + ((c / chunk_size ^ r) & 7) * 16;
  }

  std::uint32_t address;
};

/// Where a product finds a factor: the lower half of a matrix descriptor. The upper half is the same for all of ours: groups
/// of eight rows are 1024 bytes apart, 128-byte swizzle.
struct MatrixDescriptor {
  static constexpr std::uint32_t upper = 1024 >> 4 | 1u << 30;

  std::uint32_t lower;  // bits 0-13: address / 16, bits 16-29: distance of panels / 16, if terms run down the columns

  SPOROS_FUNCTION MatrixDescriptor operator+(int bytes) const {
    return MatrixDescriptor{lower + (unsigned(bytes) >> 4)};
  }
};

/// The rows of a tile, from first_row on, as rows of a left factor or columns of a right one; terms run along them.
template <class T, int Rows, int Cols>
struct RowsAsVectors {
  using Tile = SwizzledTile<T, Rows, Cols>;
  static constexpr bool transposed = false;

  SPOROS_FUNCTION static MatrixDescriptor descriptor(Tile tile, int first_row) {
    return MatrixDescriptor{(tile.address + unsigned(first_row) * Tile::row_bytes) >> 4 | 1u << 16};
  }
  /// Bytes from the first term to term 16 k
  SPOROS_FUNCTION static constexpr int term(int k) { return k / 4 * Tile::panel_bytes + k % 4 * 32; }
};

/// The columns of a tile, from first_panel on, as rows of a left factor or columns of a right one; terms run down them.
template <class T, int Rows, int Cols>
struct ColumnsAsVectors {
  using Tile = SwizzledTile<T, Rows, Cols>;
  static constexpr bool transposed = true;

  SPOROS_FUNCTION static MatrixDescriptor descriptor(Tile tile, int first_panel) {
    std::uint32_t const address = tile.address + unsigned(first_panel) * Tile::panel_bytes;
    return MatrixDescriptor{address >> 4 | unsigned(Tile::panel_bytes) >> 4 << 16};
  }
  SPOROS_FUNCTION static constexpr int term(int k) { return k * 16 * Tile::row_bytes; }
};

/// A place in a ring of buffers, and whether it came round an odd number of times
template <int Stages>
struct RingPlace {
  int stage = 0;
  int parity = 0;

  SPOROS_FUNCTION void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Buffers through which warpgroups hand a factor to each other
struct ExchangeBuffers {
  static constexpr int count = 3;
};

/// How the sums of products with Rows x Cols elements lie in a block of memory: not as a matrix but in the order of the
/// registers that hold them. Warpgroups have 64 rows each or, where there are only 64, some of the columns.
template <int Groups, int Rows, int Cols>
struct ColumnSumsOrder {
  static constexpr bool splits_rows = Rows == WgmmaLayout::rows * Groups;
  static constexpr int columns = splits_rows ? Cols : Cols / Groups;  // of a warpgroup
  static constexpr int part = WgmmaLayout::rows * 8;                  // elements in eight columns of a warpgroup

  /// Where registers 4 j ... 4 j + 3 of a lane are
  SPOROS_FUNCTION static constexpr int offset(int warp, int j, int lane) {
    int const group = warp / WgmmaLayout::warps, thread = warp % WgmmaLayout::warps * WgmmaLayout::lanes + lane;
    return group * WgmmaLayout::rows * columns + j * part + thread * 4;
  }

  /// What element they are: register r of a lane
  SPOROS_FUNCTION static constexpr int row(int warp, int r, int lane) {
    int const first = splits_rows ? warp : warp % WgmmaLayout::warps;
    return WgmmaLayout::warp_rows * first + WgmmaLayout::row(lane, r);
  }
  SPOROS_FUNCTION static constexpr int column(int warp, int r, int lane) {
    return (splits_rows ? 0 : columns * (warp / WgmmaLayout::warps)) + WgmmaLayout::column(lane, r);
  }
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
