// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "Sporos_Error.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Message;
using Catch::Matchers::MessageMatches;

void checked_function(int rows) { SPOROS_THROW_IF(rows != 3, "rows is ", rows, ", not ", 3); }

TEST_CASE("SPOROS_THROW_IF names the function and streams every part", "[core][error]") {
  CHECK_NOTHROW(checked_function(3));
  CHECK_THROWS_MATCHES(checked_function(4), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("checked_function") && ContainsSubstring("rows is 4, not 3")));
  CHECK_THROWS_AS(checked_function(4), std::invalid_argument);
}

TEST_CASE("The parts of an error text are evaluated only when it is thrown", "[core][error]") {
  int evaluated = 0;
  auto const text = [&] { return ++evaluated; };
  auto const refuse = [&](bool condition) { SPOROS_THROW_IF(condition, text()); };
  refuse(false);
  CHECK(evaluated == 0);
  CHECK_THROWS_AS(refuse(true), Sporos::InvalidArgument);
  CHECK(evaluated == 1);
}

TEST_CASE("The condition is evaluated once, and the macro is one statement", "[core][error]") {
  int evaluated = 0;
  if (evaluated == 0)
    SPOROS_THROW_IF(++evaluated > 1, "twice");
  else
    ++evaluated;
  CHECK(evaluated == 1);
}

TEST_CASE("SPOROS_THROW_INPUT_ERROR_IF throws what a user reads: the text alone", "[core][error]") {
  auto const open = [](int magic) { SPOROS_THROW_INPUT_ERROR_IF(magic != 7, "a.bin: magic ", magic, ", not ", 7); };
  CHECK_NOTHROW(open(7));
  CHECK_THROWS_MATCHES(open(8), Sporos::InputError, Message("a.bin: magic 8, not 7"));
  CHECK_THROWS_AS(open(8), std::runtime_error);
}

}  // namespace
