// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "WgmmaLayoutTables.hpp"
#include "tile/Sporos_Arch_EmulatedSm90.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Emulated = Arch::Emulated<Arch::Sm90>;

constexpr int third_warp = 32;  // its first row

TEST_CASE("the maps of warpgroup products are those of the vendor", "[tile][sm90]") {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 8; ++r) {
      WgmmaTableEntry const at = wgmma_accumulator[8 * lane + r];
      CAPTURE(lane, r);
      CHECK(third_warp + WgmmaLayout::row(lane, r) == at.row);
      CHECK(WgmmaLayout::column(lane, r) == at.column);
    }
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e) {
        WgmmaTableEntry const at = wgmma_left[8 * lane + 2 * r + e];
        CAPTURE(lane, r, e);
        CHECK(third_warp + WgmmaLayout::left_row(lane, r) == at.row);
        CHECK(WgmmaLayout::left_term(lane, r, e) == at.column);
      }
  }
}

// Worked examples of the PTX ISA, bfloat16, from the start at 0x4400
TEST_CASE("matrix descriptors are those of the vendor", "[tile][sm90]") {
  using Rows = RowsAsVectors<bfloat16, 64, 64>;
  using Columns = ColumnsAsVectors<bfloat16, 64, 128>;
  auto const bits = [](MatrixDescriptor d) { return std::uint64_t(MatrixDescriptor::upper) << 32 | d.lower; };
  CHECK(bits(Rows::descriptor({0x4400}, 0)) == 0x4000004000010440u);
  CHECK(bits(Rows::descriptor({0x4400}, 0) + Rows::term(1)) == 0x4000004000010442u);
  CHECK(bits(Columns::descriptor({0x4400}, 0)) == 0x4000004002000440u);
  CHECK(bits(Columns::descriptor({0x4400}, 0) + Columns::term(1)) == 0x40000040020004c0u);
  CHECK(Emulated::element<false>(Rows::descriptor({0x4400}, 0), 5, 20) == 0x4400 + 760);
  CHECK(Emulated::element<true>(Columns::descriptor({0x4400}, 0), 70, 9) == 0x4400 + 9372);
}

TEST_CASE("tiles in scratch lie where products look for them", "[tile][sm90]") {
  using Tile = SwizzledTile<bfloat16, 64, 128>;
  Tile const tile{0x4400};
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 128; ++column) {
      std::uint32_t const at = tile.chunk(row, column / 8 * 8) + 2 * unsigned(column % 8);
      auto const rows = RowsAsVectors<bfloat16, 64, 128>::descriptor(tile, 0);
      auto const columns = ColumnsAsVectors<bfloat16, 64, 128>::descriptor(tile, 0);
      CHECK(Emulated::element<false>(rows + RowsAsVectors<bfloat16, 64, 128>::term(column / 16), row, column % 16) ==
            at);
      CHECK(Emulated::element<true>(columns + ColumnsAsVectors<bfloat16, 64, 128>::term(row / 16), column, row % 16) ==
            at);
    }
}

}  // namespace
