// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ONLINESOFTMAX_HPP
#define SPOROS_ONLINESOFTMAX_HPP

#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

template <class C>
inline constexpr C log2_e = C(1.44269504088896340736);
template <class C>
inline constexpr C ln_2 = C(0.69314718055994530942);

/// Softmax of rows that arrive in blocks (Milakov and Gimelshein, arXiv:1805.02867), with an *optimistic* reference.
///
/// Each row keeps an integer m and l = Σ 2^(scale s − m) over its scores s so far, scale including log2 e. Usually m is the
/// running maximum; here it is an integer near it that stays until the row outgrows it. So most blocks need no maximum,
/// no exchange between lanes and no rescaling of O; and where m does move, 2^(m − m') is exact.
template <class Arch, class C, int Rows>
class OnlineSoftmax {
 public:
  SPOROS_FUNCTION explicit OnlineSoftmax(C softmax_scale) : m_scale(softmax_scale * log2_e<C>) {
    fill(m_reference, no_reference);
    fill(m_sum, C(0));
  }

  /// S becomes P under the references as they are. False if a row of this warp outgrew its reference: then P is void and
  /// the state is unchanged; exact() has to see S again.
  template <int Cols>
  SPOROS_FUNCTION bool optimistic(Fragment<Arch, C, Rows, Cols>& S) {
    auto const block_sum = exp2_rows_and_sum(S, m_scale, m_reference);
    bool const fits = !any(block_sum, [](C sum) { return !(sum <= largest_sum); });  // a NaN does not fit
    // A select, not a branch: on Hopper a product is in flight here.
    for_each_row([&](C& sum, C block) { sum += fits ? block : C(0); }, m_sum, block_sum);
    return fits;
  }

  /// S becomes P under references raised to the maximum. Returns 2^(m − m'), by which all earlier sums are to be scaled.
  template <int Cols>
  SPOROS_FUNCTION RowVector<Arch, C, Rows> exact(Fragment<Arch, C, Rows, Cols>& S) {
    RowVector<Arch, C, Rows> factor;
    C const scale = m_scale;
    auto const maximum = row_max(S);
    for_each_row(
        [=](C highest, C& reference, C& factor) {
          C const raised = Arch::max(reference, Arch::ceil(scale * highest));
          factor = Arch::exp2(reference - raised);
          reference = raised;
        },
        maximum, m_reference, factor);
    auto const block_sum = exp2_rows_and_sum(S, m_scale, m_reference);
    for_each_row([](C& sum, C factor, C block) { sum = sum * factor + block; }, m_sum, factor, block_sum);
    return factor;
  }

  /// What O is to be multiplied by, 1 / l, and the natural log Σ e^s; 0 and −∞ for a row that saw no key. Both sums count
  /// one more score, the sink, which may be −∞.
  SPOROS_FUNCTION void finish(C sink, RowVector<Arch, C, Rows>& inverse_sum, RowVector<Arch, C, Rows>& log_sum) const {
    auto const sum = total(m_sum);
    C const sink_log2 = sink * log2_e<C>;
    for_each_row(
        [=](C of_keys, C reference, C& inverse, C& log) {
          C const raised = Arch::max(reference, Arch::ceil(sink_log2));
          C const factor = Arch::exp2(reference - raised);
          C const sum = of_keys * factor + Arch::exp2(sink_log2 - raised);
          bool const empty = sum == C(0);  // not !(sum > 0): a NaN has to come through
          inverse = empty ? C(0) : factor / sum;
          log = empty ? -infinity<C> : (raised + Arch::log2(sum)) * ln_2<C>;
        },
        sum, m_reference, inverse_sum, log_sum);
  }

 private:
  /// Below every score, yet finite: no_reference − no_reference is 0, and 2^(s − no_reference) overflows, which sends a
  /// row that meets its first key to exact().
  static constexpr C no_reference = C(-0x1p126);

  /// One lane's sum over one block that still fits. Any bound below 2^127 / (keys · |V|) keeps float sums finite; P as
  /// bfloat16 is as precise at 2^15 as at 1, and as float16 may not be larger. An 8-bit P needs its format's largest value.
  static constexpr C largest_sum = C(0x1p15);

  C m_scale;
  RowVector<Arch, C, Rows> m_reference;
  RowPartial<Arch, C, Rows> m_sum;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
