// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ROWTESTING_HPP
#define SPOROS_ROWTESTING_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"

// What the tests of kernels on rows share
namespace Sporos::Testing {

using Space = Kokkos::DefaultExecutionSpace;
template <class T>
using Matrix = Kokkos::View<T**, Kokkos::LayoutStride, Space>;
template <class T>
using Vector = Kokkos::View<T*, Space>;

template <class T>
T to_storage(long double x) {
  if constexpr (is_storage_float<T>)
    return convert<T>(float(x));
  else
    return T(x);
}

/// A matrix on the host, in more precision than any that is tested; a vector is one row
struct Values {
  std::size_t rows, columns;
  std::vector<long double> data;

  Values(std::size_t rows_, std::size_t columns_, long double value = 0)
      : rows(rows_), columns(columns_), data(rows_ * columns_, value) {}
  long double& operator()(std::size_t r, std::size_t c) { return data[r * columns + c]; }
  long double operator()(std::size_t r, std::size_t c) const { return data[r * columns + c]; }
  long double& operator[](std::size_t i) { return data[i]; }
  long double operator[](std::size_t i) const { return data[i]; }
};

/// Uniform in centre ± width, as far as T can tell them apart
template <class T>
Values random_values(std::size_t rows, std::size_t columns, std::uint64_t stream, double centre = 0, double width = 1) {
  Values values(rows, columns);
  RandomStream const random(20240607, stream);
  for (std::size_t i = 0; i < values.data.size(); ++i)
    values[i] = static_cast<long double>(ComputeType<T>(to_storage<T>(centre + width * (2 * random.uniform(i) - 1))));
  return values;
}

/// Rows of the View lie a little apart, and what lies between them is NaN.
template <class T>
Matrix<T> upload(Values const& values) {
  std::size_t const pitch = values.columns + 3;
  Kokkos::View<T**, Kokkos::LayoutRight, Space> const wide("wide", values.rows, pitch);
  auto const host = Kokkos::create_mirror_view(wide);
  for (std::size_t r = 0; r < values.rows; ++r)
    for (std::size_t c = 0; c < pitch; ++c)
      host(r, c) = to_storage<T>(c < values.columns ? values(r, c) : std::numeric_limits<long double>::quiet_NaN());
  Kokkos::deep_copy(wide, host);
  return Kokkos::subview(wide, Kokkos::ALL, std::pair<std::size_t, std::size_t>(0, values.columns));
}

template <class T>
Vector<T> upload_vector(Values const& values) {
  Vector<T> const view("vector", values.data.size());
  auto const host = Kokkos::create_mirror_view(view);
  for (std::size_t i = 0; i < values.data.size(); ++i) host(i) = to_storage<T>(values[i]);
  Kokkos::deep_copy(view, host);
  return view;
}

inline Vector<int> upload_ints(std::vector<int> const& values) {
  Vector<int> const view("ints", values.size());
  auto const host = Kokkos::create_mirror_view(view);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(view, host);
  return view;
}

/// For outputs: an element that is never written must show.
template <class T>
Matrix<T> poisoned(std::size_t rows, std::size_t columns) {
  return upload<T>(Values(rows, columns, std::numeric_limits<long double>::quiet_NaN()));
}
template <class T>
Vector<T> poisoned_vector(std::size_t size) {
  return upload_vector<T>(Values(1, size, std::numeric_limits<long double>::quiet_NaN()));
}

/// Waits for every kernel. (A strided View of a device cannot be copied as it is, so a kernel makes it contiguous first.)
template <class View>
Values download(View const& view) {
  using T = typename View::non_const_value_type;
  Kokkos::fence("Sporos::Testing::download");
  Values values(View::rank() == 2 ? view.extent(0) : 1, view.extent(View::rank() - 1));
  Kokkos::View<T**, Kokkos::LayoutRight, Space> const copy("copy", values.rows, values.columns);
  if constexpr (View::rank() == 2) {
    Kokkos::deep_copy(copy, view);
  } else if (values.columns > 0) {
    Kokkos::deep_copy(Kokkos::subview(copy, 0, Kokkos::ALL), view);
  }
  auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), copy);
  for (std::size_t r = 0; r < values.rows; ++r)
    for (std::size_t c = 0; c < values.columns; ++c) {
      if constexpr (is_storage_float<T>)
        values(r, c) = static_cast<long double>(float(host(r, c)));
      else
        values(r, c) = static_cast<long double>(host(r, c));
    }
  return values;
}

inline long double largest_error(Values const& values, Values const& exact) {
  long double largest = 0;
  for (std::size_t i = 0; i < exact.data.size(); ++i) largest = std::max(largest, std::abs(values[i] - exact[i]));
  return largest;
}

/// Every element of `actual` is within twice the largest error that the plainest loops make in the precision under test.
/// Rounding the result to T, half an ulp of the largest one, is granted to everybody.
template <class T>
void require_close(char const* name, Values const& actual, Values const& exact, long double plain_error) {
  constexpr long double half_ulp = is_storage_float<T> ? 0x1p-9L : std::numeric_limits<ComputeType<T>>::epsilon() / 2;
  long double const largest = largest_error(exact, Values(exact.rows, exact.columns));
  long double const tolerance = 2 * std::max(plain_error, half_ulp * largest);
  REQUIRE(actual.rows == exact.rows);
  REQUIRE(actual.columns == exact.columns);
  INFO(name);
  for (std::size_t i = 0; i < exact.data.size(); ++i) {
    if (std::abs(actual[i] - exact[i]) <= tolerance) continue;
    CAPTURE(i / exact.columns, i % exact.columns, double(actual[i]), double(exact[i]), double(tolerance));
    REQUIRE(std::abs(actual[i] - exact[i]) <= tolerance);
  }
}

/// Bit for bit, but for the payload of a NaN
inline void require_identical(char const* name, Values const& a, Values const& b) {
  REQUIRE(a.rows == b.rows);
  REQUIRE(a.columns == b.columns);
  INFO(name);
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    CAPTURE(i / a.columns, i % a.columns);
    REQUIRE(a[i] == b[i]);
  }
}

/// The gradient by central differences of fourth order of loss(x), to 1e-6 of the largest gradient
template <class Loss>
void require_gradient(char const* name, Values x, Values const& gradient, Loss const& loss) {
  double const step = 1e-3;
  long double largest = 0;
  for (long double g : gradient.data) largest = std::max(largest, std::abs(g));
  REQUIRE(largest > 0);
  REQUIRE(gradient.data.size() == x.data.size());
  INFO(name);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    long double const centre = x[i];
    auto const at = [&](double offset) {
      x[i] = centre + offset;
      return loss(x);
    };
    double const difference = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    x[i] = centre;
    CAPTURE(i, double(gradient[i]), difference);
    REQUIRE(std::abs(double(gradient[i]) - difference) <= 1e-6 * double(largest));
  }
}

inline double dot(Values const& a, Values const& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) sum += a[i] * b[i];
  return double(sum);
}

}  // namespace Sporos::Testing

#endif
