// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_SCORES_HPP
#define SPOROS_FLASHATTENTION_SCORES_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// What becomes of a product q k before the softmax, as the problem says:
///
///     s = scale · q k,   then softcap · tanh(s / softcap),   then + ALiBi + bias
///
/// A soft cap is what Gemma 2 has (arXiv:2408.00118), ALiBi is arXiv:2108.12409. A block takes one branch for each. The
/// softmax of scores that nothing happens to scales them itself.
struct AnyScores {
  template <class Head>
  SPOROS_FUNCTION static auto softmax_scale(Head const& head) {
    using C = typename Head::C;
    return head.modifies_scores() ? C(1) : head.scale();
  }

  /// Rows are queries from first_query on, columns keys from first_key on
  template <class Scores, class Head>
  SPOROS_FUNCTION static void modify_queries(Scores& S, Head const& head, int first_query, int first_key) {
    if (head.modifies_scores()) modify<false>(S, head, first_query, first_key);
  }

  /// ... turned around
  template <class Scores, class Head>
  SPOROS_FUNCTION static void modify_keys(Scores& S, Head const& head, int first_key, int first_query) {
    if (head.modifies_scores()) modify<true>(S, head, first_key, first_query);
  }

  template <class Head>
  SPOROS_FUNCTION static bool caps(Head const& head) {
    return head.softcap() > typename Head::C(0);
  }

 private:
  template <bool RowsAreKeys, class Scores, class Head>
  SPOROS_BLOCK_FUNCTION static void modify(Scores& S, Head const& head, int first_row, int first_column) {
    using C = typename Head::C;
    C const scale = head.scale();
    if (caps(head))
      soft_cap(S, scale, head.softcap());
    else
      map(S, [=](int, int, C product) { return scale * product; });
    if (!head.adds_to_scores()) return;
    map(S, [&](int row, int column, C s) {
      int const query = RowsAreKeys ? first_column + column : first_row + row;
      int const key = RowsAreKeys ? first_row + row : first_column + column;
      return s + head.added_to_score(query, key);
    });
  }
};

/// The same, where the gradient of what is added to capped scores is asked for, not that of what was capped
struct AddedScores : AnyScores {
  template <class Head>
  SPOROS_FUNCTION static constexpr bool caps(Head const&) {
    return false;
  }
};

/// Nothing but the scale: for kernels that are compiled once more without the branches, because all registers are taken.
struct PlainScores {
  template <class Head>
  SPOROS_FUNCTION static auto softmax_scale(Head const& head) {
    return head.scale();
  }
  template <class Scores, class Head>
  SPOROS_FUNCTION static void modify_queries(Scores&, Head const&, int, int) {}
  template <class Scores, class Head>
  SPOROS_FUNCTION static void modify_keys(Scores&, Head const&, int, int) {}
  template <class Head>
  SPOROS_FUNCTION static constexpr bool caps(Head const&) {
    return false;
  }
};

/// P of a block of scores S whose rows are keys, from the LSE of the queries: 0 where a query may not see a key
template <class Scores, class Arch, class C, int Rows, int Cols, class Head, class Lse>
SPOROS_BLOCK_FUNCTION void probabilities(Fragment<Arch, C, Rows, Cols>& S, Head const& head, int first_key,
                                         int first_query, bool unmasked, Lse const& lse) {
  Scores::modify_keys(S, head, first_key, first_query);
  exp2_columns(S, Scores::softmax_scale(head) * log2_e<C>, lse);
  if (!unmasked)
    map(S, [&](int row, int column, C p) { return head.allows(first_query + column, first_key + row) ? p : C(0); });
}

/// dP becomes dS = P ∘ (Z ∘ dP − δ), and P becomes Z ∘ P but for the factor of dropout. Where P = 0 a masked dP may be
/// anything, and a select keeps it out. With Scores that cap, dS becomes the gradient of the scores before the cap.
template <class Scores, class Arch, class C, int Rows, int Cols, class Head, class Lse, class Delta>
SPOROS_BLOCK_FUNCTION void score_gradients(Fragment<Arch, C, Rows, Cols>& dP, Fragment<Arch, C, Rows, Cols>& P,
                                           Head const& head, int first_key, int first_query, Lse const& lse,
                                           Delta const& delta) {
  // What is dropped is marked by its sign: the mask is needed twice, and numbers are drawn once.
  if (head.drops()) scale_dropped(P, C(-1), head.mask_of_keys(first_key, first_query));
  C const keep_scale = head.keep_scale();

  if (Scores::caps(head)) {
    // The derivative of the cap is 1 − (capped / softcap)², and what was capped follows from P: exp(capped + added − LSE)
    C const inverse_cap = C(1) / head.softcap();
    update(dP, P, [&](int row, int column, C& dp, C& p) {
      C const weight = p < C(0) ? -p : p;
      C const factor = (p < C(0) ? C(0) : dp * keep_scale) - delta(column);
      C const score = (Arch::log2(weight) + lse(column)) * ln_2<C>;
      C const t = (score - head.added_to_score(first_query + column, first_key + row)) * inverse_cap;
      dp = weight == C(0) ? C(0) : weight * factor * (C(1) - t * t);
      p = p < C(0) ? C(0) : p;
    });
  } else if (head.drops()) {
    update(dP, P, [&](int, int column, C& dp, C& p) {
      C const factor = (p < C(0) ? C(0) : dp * keep_scale) - delta(column);
      dp = p == C(0) ? C(0) : (p < C(0) ? -p : p) * factor;
      p = p < C(0) ? C(0) : p;
    });
  } else {
    update(dP, P, [&](int, int column, C& dp, C& p) { dp = p == C(0) ? C(0) : p * (dp - delta(column)); });
  }
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
