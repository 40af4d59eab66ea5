// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_IMPL_HDF5_HPP
#define SPOROS_IMPL_HDF5_HPP

#include <hdf5.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "Sporos_Error.hpp"

namespace Sporos::Impl {

/// The right to call HDF5, which parallel builds let only one thread use at a time. Errors become exceptions, so its own
/// printing is off meanwhile.
class Hdf5Session {
 public:
  Hdf5Session() : m_lock(mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &m_print, &m_print_data);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Session() { H5Eset_auto2(H5E_DEFAULT, m_print, m_print_data); }
  Hdf5Session(Hdf5Session const&) = delete;
  Hdf5Session& operator=(Hdf5Session const&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  std::lock_guard<std::mutex> m_lock;
  H5E_auto2_t m_print = nullptr;
  void* m_print_data = nullptr;
};

/// What HDF5 has to say about its last error: where it began, and what that made impossible
inline std::string hdf5_error_text() {
  std::vector<std::string> texts;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, H5E_error2_t const* error, void* data) -> herr_t {
        if (error->desc && *error->desc) static_cast<std::vector<std::string>*>(data)->push_back(error->desc);
        return 0;
      },
      &texts);
  if (texts.empty()) return "no reason given";
  return texts.front() == texts.back() ? texts.front() : texts.front() + " (" + texts.back() + ")";
}

/// Passes a result of HDF5 on; a negative one becomes an InputError "HDF5 cannot <action>: …".
template <class Result, class... Parts>
Result hdf5_check(Result result, Parts const&... action) {
  if (result < 0) throw InputError(concatenate("HDF5 cannot ", action..., ": ", hdf5_error_text()));
  return result;
}

/// Owns an HDF5 identifier.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  template <class... Parts>
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t), Parts const&... action)
      : m_id(hdf5_check(id, action...)), m_close(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : m_id(std::exchange(other.m_id, H5I_INVALID_HID)), m_close(other.m_close) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(m_id, other.m_id);
    std::swap(m_close, other.m_close);
    return *this;
  }
  ~Hdf5Handle() {
    if (m_id >= 0) m_close(m_id);
  }

  operator hid_t() const { return m_id; }

  /// Closes now; negative where HDF5 reports a failure.
  herr_t close() { return m_id < 0 ? 0 : m_close(std::exchange(m_id, H5I_INVALID_HID)); }

 private:
  hid_t m_id = H5I_INVALID_HID;
  herr_t (*m_close)(hid_t) = nullptr;
};

/// bfloat16 as HDF5 describes floating-point types: sign bit 15, exponent of 8 bits from bit 7, mantissa of 7 bits from bit 0
inline Hdf5Handle hdf5_bfloat16() {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "copy a type");
  hdf5_check(H5Tset_fields(type, 15, 7, 8, 0, 7), "describe bfloat16");
  hdf5_check(H5Tset_precision(type, 16), "describe bfloat16");
  hdf5_check(H5Tset_size(type, 2), "describe bfloat16");
  hdf5_check(H5Tset_ebias(type, 127), "describe bfloat16");
  return type;
}

/// Calls function(start, extent, elements before it) for blocks of a row-major array that together are its elements
/// [first, first + count), at most 2·rank − 1 of them.
template <class Function>
void for_each_block(std::vector<std::int64_t> const& shape, std::int64_t first, std::int64_t count,
                    Function const& function) {
  std::size_t const rank = shape.size();
  std::vector<std::int64_t> stride(rank, 1);
  for (std::size_t d = rank; d-- > 1;) stride[d - 1] = stride[d] * shape[d];

  std::vector<hsize_t> start(rank), extent(rank);
  for (std::int64_t done = 0; done < count;) {
    std::int64_t const position = first + done, left = count - done;
    // The outermost dimension in which whole slices begin here
    std::size_t d = 0;
    while (position % stride[d] != 0 || left < stride[d]) ++d;
    std::int64_t const slices = std::min(left / stride[d], shape[d] - position / stride[d] % shape[d]);
    for (std::size_t e = 0; e < rank; ++e) {
      start[e] = hsize_t(position / stride[e] % shape[e]);
      extent[e] = hsize_t(e < d ? 1 : e == d ? slices : shape[e]);
    }
    function(start, extent, done);
    done += slices * stride[d];
  }
}

/// Applies transfer(memory space, file space, elements before it) to the blocks of elements [first, first + count) of a dataset.
template <class Transfer>
void for_each_selection(hid_t dataset, std::vector<std::int64_t> const& shape, std::int64_t first, std::int64_t count,
                        Transfer const& transfer) {
  if (count == 0) return;
  if (shape.empty()) return transfer(H5S_ALL, H5S_ALL, std::int64_t(0));
  Hdf5Handle const file_space(H5Dget_space(dataset), H5Sclose, "get the extents of a dataset");
  for_each_block(shape, first, count,
                 [&](std::vector<hsize_t> const& start, std::vector<hsize_t> const& extent, std::int64_t done) {
                   hdf5_check(
                       H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start.data(), nullptr, extent.data(), nullptr),
                       "select a part of a dataset");
                   hsize_t elements = 1;
                   for (hsize_t const e : extent) elements *= e;
                   Hdf5Handle const memory_space(H5Screate_simple(1, &elements, nullptr), H5Sclose, "describe memory");
                   transfer(memory_space, file_space, done);
                 });
}

}  // namespace Sporos::Impl

#endif
