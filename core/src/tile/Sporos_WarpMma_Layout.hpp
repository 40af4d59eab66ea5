// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_WARPMMA_LAYOUT_HPP
#define SPOROS_WARPMMA_LAYOUT_HPP

#include <cstdint>

#include "Sporos_Macros.hpp"

// Where the elements of small matrices lie among the lanes of a warp. Device code and emulator read the same maps, so a
// wrong one fails on a CPU. All factors are of 16-bit elements, two to a register.
namespace Sporos::inline SPOROS_LEVEL {

struct Position {
  int row;
  int column;
  friend constexpr bool operator==(Position, Position) = default;
};

// ------------------------------------------------------------------------------------- instructions

/// mma.sync.m16n8k16: C (16 x 8, float) += A (16 x 16) B (16 x 8). PTX ISA, "Matrix Fragments for mma.m16n8k16"
struct MmaM16N8K16 {
  SPOROS_FUNCTION static constexpr Position accumulator(int lane, int i) {
    return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
  }
  SPOROS_FUNCTION static constexpr Position left(int lane, int e) {
    return {lane / 4 + 8 * (e / 2 % 2), 2 * (lane % 4) + e % 2 + 8 * (e / 4)};
  }
  SPOROS_FUNCTION static constexpr Position right(int lane, int e) {
    return {2 * (lane % 4) + e % 2 + 8 * (e / 2), lane / 4};
  }
};

/// ldmatrix.x4: four 8 x 8 matrices; lanes 8 j ... 8 j + 7 hold the addresses of the rows of matrix j, and register j of a
/// lane receives two elements of it. PTX ISA, "ldmatrix"
struct LoadMatrix {
  /// Two neighbours in a row, or in a column with .trans
  SPOROS_FUNCTION static constexpr Position element(int lane, int e) { return {lane / 4, 2 * (lane % 4) + e}; }
  SPOROS_FUNCTION static constexpr Position element_transposed(int lane, int e) {
    return {2 * (lane % 4) + e, lane / 4};
  }

  /// Which row, and which eight columns, of a 16 x 16 matrix a lane points at, its quarters taken down the columns first
  SPOROS_FUNCTION static constexpr Position down_first(int lane) { return {lane % 8 + 8 * (lane / 8 % 2), lane / 16}; }
  /// ... or along the rows first
  SPOROS_FUNCTION static constexpr Position across_first(int lane) {
    return {lane % 8 + 8 * (lane / 16), lane / 8 % 2};
  }
};

/// v_mfma_f32_32x32x8 and 16x16x16 of bfloat16 (on gfx90a the forms with _1k) and float16, Size = 32 and 16:
/// C (Size x Size, float) += A (Size x 256 / Size) B. AMD matrix instruction calculator
template <int Size>
struct Mfma {
  static constexpr int groups = 64 / Size;  // of lanes: each holds other elements along the depth
  static constexpr int depth = 4 * groups;

  SPOROS_FUNCTION static constexpr Position accumulator(int lane, int i) {
    return {4 * groups * (i / 4) + 4 * (lane / Size) + i % 4, lane % Size};
  }
  SPOROS_FUNCTION static constexpr Position left(int lane, int e) { return {lane % Size, 4 * (lane / Size) + e}; }
  SPOROS_FUNCTION static constexpr Position right(int lane, int e) { return {4 * (lane / Size) + e, lane % Size}; }
};

// ------------------------------------------------------------------------------------- atoms

// What tile code multiplies at once: C (rows x columns) += A (rows x depth) B (depth x columns). A lane holds eight elements
// of either factor, in four registers, and loads them from scratch in chunks of eight elements. Eight accumulators of a
// lane that follow one another (over neighbouring atoms if need be) are a left factor as they lie: P and dS cost no
// exchange between lanes.

/// Two m16n8k16 side by side
struct MmaSyncAtom {
  static constexpr int lanes = 32;
  static constexpr int rows = 16, columns = 16, depth = 16;
  static constexpr int accumulators = 8;

  SPOROS_FUNCTION static constexpr Position accumulator(int lane, int i) {
    Position const at = MmaM16N8K16::accumulator(lane, i % 4);
    return {at.row, at.column + 8 * (i / 4)};
  }

  /// A lane's accumulators lie in so many rows. A row is in all lanes whose numbers differ in bits below row_lanes.
  static constexpr int slots = 2;
  static constexpr int first_row_lane = 1, row_lanes = 4;
  SPOROS_FUNCTION static constexpr int slot(int i) { return i / 2 % 2; }
  SPOROS_FUNCTION static constexpr int slot_row(int lane, int slot) { return lane / 4 + 8 * slot; }

  /// Row and first column of the two elements in a register of a left factor
  SPOROS_FUNCTION static constexpr Position left_pair(int lane, int r) { return MmaM16N8K16::left(lane, 2 * r); }

  /// Row and chunk that a lane points at, for a factor that lies as left factor A, or as B transposed ...
  SPOROS_FUNCTION static constexpr Position left_chunk(int lane) { return LoadMatrix::down_first(lane); }
  SPOROS_FUNCTION static constexpr Position right_transposed_chunk(int lane) { return LoadMatrix::across_first(lane); }
  /// ... or as B, or as A transposed, which ldmatrix.trans turns
  SPOROS_FUNCTION static constexpr Position right_chunk(int lane) { return LoadMatrix::down_first(lane); }
  SPOROS_FUNCTION static constexpr Position left_transposed_chunk(int lane) { return LoadMatrix::across_first(lane); }
};

/// Two MFMA after one another along the depth, with A and B exchanged, so that they yield the transposed: a lane holds one
/// row, and four neighbours in it.
template <int Size>
struct MfmaAtom {
  static constexpr int lanes = 64;
  static constexpr int rows = Size, columns = Size, depth = 2 * Mfma<Size>::depth;
  static constexpr int accumulators = Size * Size / lanes;

  SPOROS_FUNCTION static constexpr Position accumulator(int lane, int i) {
    Position const at = Mfma<Size>::accumulator(lane, i);
    return {at.column, at.row};
  }

  static constexpr int slots = 1;
  static constexpr int first_row_lane = Size, row_lanes = lanes;
  SPOROS_FUNCTION static constexpr int slot(int /*i*/) { return 0; }
  SPOROS_FUNCTION static constexpr int slot_row(int lane, int /*slot*/) { return lane % Size; }

  // A lane has eight neighbours along the depth, where the first instruction takes four and the second four: another order
  // than the instructions', but the same in both factors.
  SPOROS_FUNCTION static constexpr Position left_pair(int lane, int r) {
    return {lane % Size, 8 * (lane / Size) + 2 * r};
  }
  SPOROS_FUNCTION static constexpr Position left_chunk(int lane) { return {lane % Size, lane / Size}; }
  SPOROS_FUNCTION static constexpr Position right_transposed_chunk(int lane) { return left_chunk(lane); }

  /// Where the depth runs along the columns of accumulators, it keeps their order: element e of chunk c, within an atom
  SPOROS_FUNCTION static constexpr int depth_of_accumulator(int c, int e) {
    return Mfma<Size>::depth * (e / 4) + 4 * c + e % 4;
  }
  /// ... and 8 c + e for a given depth
  SPOROS_FUNCTION static constexpr int place_of_row(int depth) {
    constexpr int half = Mfma<Size>::depth;
    return 8 * (depth % half / 4) + 4 * (depth / half) + depth % 4;
  }
};

// ------------------------------------------------------------------------------------- scratch

/// A handle on a Rows x Cols tile in scratch. Panels of 64 columns (rows of 128 bytes, all 32 banks), or one of fewer; the
/// chunks of a row, 16 bytes each, are permuted so that eight lanes that read the same chunk of eight rows meet each bank once.
template <class T, int Rows, int Cols>
struct SwizzledTile {
  static_assert(sizeof(T) == 2 && Rows % 8 == 0 && (Cols % 64 == 0 || Cols == 32 || Cols == 16));
  static constexpr int size = Rows * Cols;
  static constexpr int chunks = Cols / 8;
  static constexpr int panel = chunks < 8 ? chunks : 8;  // chunks side by side
  static constexpr int rows_of_line = 8 / panel;         // that share 128 bytes

  SPOROS_FUNCTION static constexpr int offset(int row, int chunk) {
    return ((chunk / panel * Rows + row) * panel + (chunk % panel ^ row / rows_of_line % panel)) * 8;
  }
  SPOROS_FUNCTION T* chunk(int row, int chunk) const { return data + offset(row, chunk); }
  SPOROS_FUNCTION T& operator()(int row, int column) const { return chunk(row, column / 8)[column % 8]; }

  T* data;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
