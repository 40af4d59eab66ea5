// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "RowTesting.hpp"
#include "Sporos_Embedding.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::bfloat16;
using Sporos::ComputeType;

constexpr std::size_t vocabulary = 11, context = 9, width = 67, sequences = 5, length = 7, rows = sequences * length;

/// Some tokens often, some never
std::vector<int> some_tokens() {
  std::vector<int> tokens(rows);
  for (std::size_t r = 0; r < rows; ++r) tokens[r] = r % 3 == 0 ? 4 : int(r * r % (vocabulary - 2));
  return tokens;
}

TEMPLATE_TEST_CASE("An embedding is the sum of two rows, rounded once", "[kernels][embedding]", double, float,
                   bfloat16) {
  using C = ComputeType<TestType>;
  Values const token_table = random_values<TestType>(vocabulary, width, 1);
  Values const position_table = random_values<TestType>(context, width, 2);
  std::vector<int> const tokens = some_tokens();
  auto const y = poisoned<TestType>(rows, width);
  Sporos::embedding(Space(), upload_ints(tokens), upload<TestType>(token_table), upload<TestType>(position_table),
                    length, y);

  Values expected(rows, width);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < width; ++c)
      expected(r, c) =
          C(to_storage<TestType>(C(token_table(std::size_t(tokens[r]), c)) + C(position_table(r % length, c))));
  require_identical("y", download(y), expected);
}

TEMPLATE_TEST_CASE("Embedding's gradients are added in the order of the rows", "[kernels][embedding]", double, float,
                   bfloat16) {
  using C = ComputeType<TestType>;
  std::vector<int> const tokens = some_tokens();
  Values const dy = random_values<TestType>(rows, width, 3);
  Values token_gradient = random_values<C>(vocabulary, width, 4);
  Values position_gradient = random_values<C>(context, width, 5);
  auto const dtoken_table = upload<C>(token_gradient);
  auto const dposition_table = upload<C>(position_gradient);
  Sporos::embedding_backward(Space(), upload_ints(tokens), upload<TestType>(dy), length, dtoken_table, dposition_table);

  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < width; ++c) {
      auto& of_token = token_gradient(std::size_t(tokens[r]), c);
      of_token = C(C(of_token) + C(dy(r, c)));
      auto& of_position = position_gradient(r % length, c);
      of_position = C(C(of_position) + C(dy(r, c)));
    }
  require_identical("dtoken_table", download(dtoken_table), token_gradient);
  require_identical("dposition_table", download(dposition_table), position_gradient);
}

TEST_CASE("Embedding's gradients agree with central differences", "[kernels][embedding]") {
  auto const tokens = upload_ints(some_tokens());
  Values const token_table = random_values<double>(vocabulary, width, 1);
  Values const position_table = random_values<double>(context, width, 2);
  Values const dy = random_values<double>(rows, width, 3);
  auto const loss = [&](Values const& token_table_, Values const& position_table_) {
    auto const y = poisoned<double>(rows, width);
    Sporos::embedding(Space(), tokens, upload<double>(token_table_), upload<double>(position_table_), length, y);
    return dot(download(y), dy);
  };
  auto const dtoken_table = upload<double>(Values(vocabulary, width));
  auto const dposition_table = upload<double>(Values(context, width));
  Sporos::embedding_backward(Space(), tokens, upload<double>(dy), length, dtoken_table, dposition_table);
  require_gradient("token_table", token_table, download(dtoken_table),
                   [&](Values const& v) { return loss(v, position_table); });
  require_gradient("position_table", position_table, download(dposition_table),
                   [&](Values const& v) { return loss(token_table, v); });
}

TEST_CASE("A token outside the vocabulary gives NaN and reaches no gradient", "[kernels][embedding]") {
  auto const tokens = upload_ints({0, -1, int(vocabulary)});
  auto const y = upload<float>(Values(3, width));
  Sporos::embedding(Space(), tokens, upload<float>(Values(vocabulary, width, 1)),
                    upload<float>(Values(context, width, 1)), 3, y);
  Values const result = download(y);
  for (std::size_t c = 0; c < width; ++c) {
    CHECK(result(0, c) == 2);
    CHECK(std::isnan(result(1, c)));
    CHECK(std::isnan(result(2, c)));
  }
  auto const dtoken_table = upload<float>(Values(vocabulary, width)),
             dposition_table = upload<float>(Values(context, width));
  Sporos::embedding_backward(Space(), tokens, upload<float>(Values(3, width, 1)), 3, dtoken_table, dposition_table);
  Values expected(vocabulary, width);
  for (std::size_t c = 0; c < width; ++c) expected(0, c) = 1;
  require_identical("dtoken_table", download(dtoken_table), expected);
}

TEST_CASE("Embedding refuses what does not fit, and says what", "[kernels][embedding]") {
  using Catch::Matchers::ContainsSubstring;
  using Catch::Matchers::MessageMatches;
  auto const tokens = upload_ints({0, 1, 2});
  auto const table = upload<float>(Values(vocabulary, width));
  auto const position = upload<float>(Values(context, width));
  auto const y = poisoned<float>(3, width);
  CHECK_THROWS_MATCHES(Sporos::embedding(Space(), tokens, table, position, 10, y), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("the sequence length is 10, position_table is (9, 67)")));
  CHECK_THROWS_MATCHES(Sporos::embedding(Space(), tokens, table, position, 0, y), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("the sequence length is 0")));
  CHECK_THROWS_MATCHES(Sporos::embedding(Space(), tokens, table, position, 3, poisoned<float>(4, width)),
                       Sporos::InvalidArgument, MessageMatches(ContainsSubstring("y is (4, 67); (3, 67) is needed")));
  CHECK_THROWS_MATCHES(Sporos::embedding_backward(Space(), tokens, y, 3, table, poisoned<float>(context, 2)),
                       Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("dposition_table is (9, 2); (9, 67) is needed")));
}

}  // namespace
