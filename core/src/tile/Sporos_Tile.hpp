// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_HPP
#define SPOROS_TILE_HPP

#include <cstdint>

#include "Sporos_Macros.hpp"
#include "Sporos_StorageTypes.hpp"

// The tile layer: what a kernel body may say. An architecture defines the class templates that follow, and the operations
// that the concept TileArchitecture lists at the end. The element-wise operations between need only a walk through a
// fragment; an architecture that knows a faster way overloads them.
//
// T is the type of numbers in memory, C = ComputeType<T> that of accumulators and statistics. The rows of a fragment are
// the side that stays while the other streams past. A body calls everything in the same order in all threads of a team.
namespace Sporos::inline SPOROS_LEVEL {

namespace Arch {
struct Host;
struct Simt;
struct Sm80;              // mma.sync, ldmatrix, cp.async
struct Sm80SmallScratch;  // the same, in tiles for 40 KB of scratch
struct Gfx90a;            // MFMA
struct Gfx942;
template <class A>
struct Emulated;
}  // namespace Arch

template <class C>
inline constexpr C infinity = C(__builtin_huge_val());

/// The places in products where a tile will stand, as flags. An architecture packs, swizzles or transposes accordingly.
enum class Use : unsigned {
  left = 1,              // A in A B and A Bᵀ: its rows stay while B streams past
  left_transposed = 2,   // A in Aᵀ B
  right = 4,             // B in A B and Aᵀ B
  right_transposed = 8,  // B in A Bᵀ
  column_values = 16,    // a value for each column of a fragment
};

SPOROS_FUNCTION constexpr Use operator|(Use a, Use b) { return Use(unsigned(a) | unsigned(b)); }
SPOROS_FUNCTION constexpr bool includes(Use all, Use one) { return (unsigned(all) & unsigned(one)) != 0; }

/// Rows of global memory, unit stride along a row.
template <class T>
struct Matrix {
  T* data;
  std::int64_t stride;
  int rows;
  int columns;
  SPOROS_FUNCTION T* row(std::int64_t r) const { return data + r * stride; }
};

/// Blocks begin ... end - 1 of a matrix
struct BlockRange {
  int begin;
  int end;
  SPOROS_FUNCTION bool contains(int n) const { return begin <= n && n < end; }
};

/// The columns of a fragment that matter: first ... last, shifted by the row. What lies outside is masked afterwards, so
/// an architecture may leave it out of a product or not.
struct Band {
  std::int64_t first;  // column c of row r matters if r + first <= c ...
  std::int64_t last;   // ... and c <= r + last
};

// ------------------------------------------------------------------------------------- what an architecture defines

/// The threads that work on one tile, as one of them sees it.
template <class Arch>
class Team;

/// An accumulator spread over the team. Never copied: on Hopper an asynchronous product may own its registers.
///     Fragment(team)
///     for_each(f)            f(element, slot, row, column) for the elements held here; in `slot` a RowValues keeps their row
///     for_each_with(y, f)    f(element, element of y, slot, row, column); y is of the same type, both may change
template <class Arch, class C, int Rows, int Cols>
class Fragment;

/// A factor made of a fragment: in registers or, where products read their factors from there, in scratch (struct Storage).
///     Operand(team, storage)
template <class Arch, class T, Use use, int Rows, int Cols>
class Operand;

/// One value for each row, wherever elements of that row are held.
///     for_each_slot(f), operator()(slot)
template <class Arch, class C, int Rows>
class RowValues;

/// Sums over several products in global memory, to[first + column][row] += product(row, column), for which this team is
/// the only writer. Rows is the width of the matrix; it has a multiple of Cols rows.
///     ColumnSums(team), open(to, first), add()
template <class Arch, class C, int Rows, int Cols>
class ColumnSums;

/// Blocks of Rows rows of a matrix, on their way through Stages buffers in scratch (struct Storage). They are taken in
/// descending order; so that loops need no special case, a block outside the open range is silently left out.
///     Pipeline(team, storage), open(matrix, range), load(n), prefetch(n), wait(n), release(n)
template <class Arch, class T, Use use, int Rows, int Cols, int Stages>
class Pipeline;

// ------------------------------------------------------------------------------------- what follows from for_each

/// A value for each row, the same in every lane that holds the row.
template <class Arch, class C, int Rows>
class RowVector : public RowValues<Arch, C, Rows> {};

/// Summands of a value for each row, still spread over lanes: cheap to add to, complete after total().
template <class Arch, class C, int Rows>
class RowPartial : public RowValues<Arch, C, Rows> {};

template <class Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION void fill(Fragment<Arch, C, Rows, Cols>& x, C value) {
  x.for_each([&](C& element, auto, int, int) { element = value; });
}

template <class Arch, class C, int Rows>
SPOROS_FUNCTION void fill(RowValues<Arch, C, Rows>& x, C value) {
  x.for_each_slot([&](auto slot) { x(slot) = value; });
}

/// x[row][col] = f(row, col, x[row][col]): masks, bias, dropout
template <class Arch, class C, int Rows, int Cols, class F>
SPOROS_FUNCTION void map(Fragment<Arch, C, Rows, Cols>& x, F const& f) {
  x.for_each([&](C& element, auto, int row, int column) { element = f(row, column, element); });
}

/// x[row][col] *= factor where the mask, a function of (row, col), does not keep it
template <class Arch, class C, int Rows, int Cols, class Mask>
SPOROS_FUNCTION void scale_dropped(Fragment<Arch, C, Rows, Cols>& x, C factor, Mask const& mask) {
  map(x, [&](int row, int column, C element) { return mask.keeps(row, column) ? element : factor * element; });
}

// Products of which a band matters. Outside of it S is undefined, and the factors P and B are zero.

template <class Arch, class C, int Rows, int Cols, class A, class B>
SPOROS_FUNCTION void mma_abt(Fragment<Arch, C, Rows, Cols>& S, A const& a, B const& b, Band const&) {
  mma_abt(S, a, b);
}
template <class Arch, class C, int Rows, int Cols, class P, class B>
SPOROS_FUNCTION void mma_ab(Fragment<Arch, C, Rows, Cols>& O, P& p, B const& b, Band const&) {
  mma_ab(O, p, b);
}
template <class Arch, class C, int Rows, int Cols, class A, class B>
SPOROS_FUNCTION void mma_atb(ColumnSums<Arch, C, Rows, Cols>& sums, A const& a, B& b, Band const&) {
  mma_atb(sums, a, b);
}

/// f(row, col, x[row][col], y[row][col]), which may change both
template <class Arch, class C, int Rows, int Cols, class F>
SPOROS_FUNCTION void update(Fragment<Arch, C, Rows, Cols>& x, Fragment<Arch, C, Rows, Cols>& y, F const& f) {
  x.for_each_with(y,
                  [&](C& x_element, C& y_element, auto, int row, int column) { f(row, column, x_element, y_element); });
}

/// f(values of one row...) for each row
template <class F, class First, class... Others>
SPOROS_FUNCTION void for_each_row(F const& f, First& first, Others&... others) {
  first.for_each_slot([&](auto slot) { f(first(slot), others(slot)...); });
}

/// x = 2^(scale x - reference[row]); returns the sums of its rows
template <class Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION RowPartial<Arch, C, Rows> exp2_rows_and_sum(Fragment<Arch, C, Rows, Cols>& x, C scale,
                                                            RowVector<Arch, C, Rows> const& reference) {
  RowPartial<Arch, C, Rows> sum;
  fill(sum, C(0));
  x.for_each([&](C& element, auto slot, int, int) {
    element = Arch::exp2(Arch::multiply_add(element, scale, -reference(slot)));
    sum(slot) += element;
  });
  return sum;
}

/// x = 2^(scale x - reference[column]), with a handle on column values as reference
template <class Arch, class C, int Rows, int Cols, class ColumnHandle>
SPOROS_FUNCTION void exp2_columns(Fragment<Arch, C, Rows, Cols>& x, C scale, ColumnHandle const& reference) {
  x.for_each([&](C& element, auto, int, int column) {
    element = Arch::exp2(Arch::multiply_add(element, scale, -reference(column)));
  });
}

/// x *= factor[row]
template <class Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION void scale_rows(Fragment<Arch, C, Rows, Cols>& x, RowVector<Arch, C, Rows> const& factor) {
  x.for_each([&](C& element, auto slot, int, int) { element *= factor(slot); });
}

template <class Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION RowVector<Arch, C, Rows> row_max(Fragment<Arch, C, Rows, Cols>& x) {
  RowVector<Arch, C, Rows> maximum;
  fill(maximum, -infinity<C>);
  x.for_each([&](C& element, auto slot, int, int) { maximum(slot) = Arch::max(maximum(slot), element); });
  combine_lanes(maximum, [](C a, C b) { return Arch::max(a, b); });
  return maximum;
}

template <class Arch, class C, int Rows>
SPOROS_FUNCTION RowVector<Arch, C, Rows> total(RowPartial<Arch, C, Rows> const& partial) {
  RowVector<Arch, C, Rows> sum;
  sum.for_each_slot([&](auto slot) { sum(slot) = partial(slot); });
  combine_lanes(sum, [](C a, C b) { return a + b; });
  return sum;
}

// ------------------------------------------------------------------------------------- the whole list, checked

/// What an architecture promises for numbers of type T, in the shapes of an attention tile.
template <class Arch, class T, class C = ComputeType<T>>
concept TileArchitecture = requires(
    Team<Arch>& team, Pipeline<Arch, T, Use::left, 64, 64, 1>& queries,
    Pipeline<Arch, T, Use::left | Use::left_transposed, 64, 64, 1>& both,
    Pipeline<Arch, T, Use::right_transposed, 64, 64, 2>& keys, Pipeline<Arch, T, Use::right, 64, 64, 2>& values,
    Pipeline<Arch, C, Use::column_values, 64, 1, 2>& sums, Fragment<Arch, C, 64, 64>& S, Fragment<Arch, C, 64, 64>& O,
    Operand<Arch, T, Use::left, 64, 64>& P, Operand<Arch, T, Use::left | Use::right, 64, 64>& dS,
    ColumnSums<Arch, C, 64, 64>& dQ, RowVector<Arch, C, 64>& m, Matrix<T const> source,
    Matrix<C const> values_of_columns, Matrix<T> o, Matrix<C> lse, int n, C x, C (*op)(C, C), bool (*predicate)(C)) {
  // From here on block n means rows n Rows ... of this matrix. Every block opened before must have been released;
  // the team comes together here if buffers are to be used again.
  keys.open(source, BlockRange());
  keys.load(n);      // producer: starts the transfer of block n as soon as a buffer is free
  keys.prefetch(n);  // consumer: the same where there is no producer, a hint; allowed after wait(n + 1)
  keys.wait(n);      // a handle on block n, complete, seen by the team; zeros behind the matrix' last row and column
  keys.release(n);   // this thread reads block n no more
  sums.open(values_of_columns, BlockRange());
  sums.wait(n)(n);  // the value of a column; the matrix has one column and a multiple of Rows rows

  // Products are issued, not done: until its join, neither result nor factors in registers may be touched.
  mma_abt(S, queries.wait(n), keys.wait(n));           // S = A Bᵀ
  mma_ab(O, P, values.wait(n));                        // O += P B
  mma_atb(dQ, both.wait(n), dS);                       // dQ = Aᵀ B, to be added to what dQ is open on
  join<1>(S);                                          // at most one product is unfinished; S is the caller's
  join<0>(O, P);                                       // ... none; O and P are
  mma_abt_diverged(S, queries.wait(n), keys.wait(n));  // done on return; other warps need not come along

  // P = S rounded to T, ready as a factor. S may be read, but only a product may write it until P's product is joined.
  convert(P, S);
  dQ.open(lse, n);            // the sums of rows n ...
  dQ.add();                   // after the join
  combine_lanes(m, op);       // each slot becomes op over all lanes that hold its row
  any(m, predicate);          // whether it holds for some row of this warp; the same answer in all its lanes
  store_rows(team, o, n, O);  // rows n ... of a matrix; those behind its last row and column are dropped
  store_rows(team, lse, n, m);
  Arch::max(Arch::exp2(x), Arch::log2(Arch::ceil(Arch::multiply_add(x, x, x))));
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
