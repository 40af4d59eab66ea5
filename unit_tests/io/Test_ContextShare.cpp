// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "Sporos_ContextShare.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::ContextShare;

TEST_CASE("Ranks that share a sequence out hold every chunk once, and the same work under a causal mask",
          "[io][context]") {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    std::set<int> held;
    std::set<int> work;  // pairs of chunks, a whole one counting 2 and one on the diagonal 1
    for (int rank = 0; rank < ranks; ++rank) {
      ContextShare const share(rank, ranks);
      int pairs = 0;
      for (int n = 0; n < share.chunks(); ++n) {
        CHECK(held.insert(share.chunk(n)).second);
        CHECK(share.chunk(n) == ContextShare(0, ranks).chunk(n, rank));
        pairs += 2 * share.chunk(n) + 1;
      }
      work.insert(pairs);
      CHECK(share.length(24 * share.all_chunks()) * ranks == 24 * share.all_chunks());
    }
    CHECK(int(held.size()) == ContextShare(0, ranks).all_chunks());
    CHECK(*held.rbegin() == ContextShare(0, ranks).all_chunks() - 1);
    CHECK(work.size() == 1);
  }
}

TEST_CASE("Sequences that do not divide, and ranks that are not there, are refused", "[io][context]") {
  CHECK_THROWS_WITH(ContextShare(0, 3).chunk_length(20), ContainsSubstring("20") && ContainsSubstring("6 chunks"));
  CHECK_THROWS_AS(ContextShare(0, 3).chunk_length(0), Sporos::InvalidArgument);
  CHECK_THROWS_AS(ContextShare(3, 3), Sporos::InvalidArgument);
  CHECK_THROWS_AS(ContextShare(0, 0), Sporos::InvalidArgument);
  CHECK(ContextShare(1, 3).chunk_length(24) == 4);
  CHECK(ContextShare(0, 1).chunk_length(21) == 21);
}

}  // namespace
