// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ERROR_HPP
#define SPOROS_ERROR_HPP

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace Sporos {

/// Thrown when the arguments of a public function do not fit together. The text names each argument with its extents.
class InvalidArgument : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Thrown when something outside the program is not as it must be: a file, a directory, an option, another rank. The text
/// names the thing and both values, the one found and the one wanted.
class InputError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace Impl {

template <class... Parts>
std::string concatenate(Parts const&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
[[noreturn]] void throw_invalid_argument(std::source_location where, Parts const&... parts) {
  throw InvalidArgument(concatenate(where.function_name(), ": ", parts...));
}

}  // namespace Impl
}  // namespace Sporos

/// Throws InvalidArgument with the streamed parts when `condition` holds; the parts are evaluated only then.
#define SPOROS_THROW_IF(condition, ...)                                                                  \
  do {                                                                                                   \
    if (condition) ::Sporos::Impl::throw_invalid_argument(std::source_location::current(), __VA_ARGS__); \
  } while (false)

/// The same for the outside world: throws InputError. A user reads the text, so it carries no source location.
#define SPOROS_THROW_INPUT_ERROR_IF(condition, ...)                                      \
  do {                                                                                   \
    if (condition) throw ::Sporos::InputError(::Sporos::Impl::concatenate(__VA_ARGS__)); \
  } while (false)

#endif
