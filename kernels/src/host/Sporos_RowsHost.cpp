// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_RowsHost.hpp"

// Compiled once for each instruction set
namespace Sporos::inline SPOROS_LEVEL {
namespace {

template <class Arguments>
void run_host_items(Arguments const& arguments, std::int64_t begin, std::int64_t end) {
  for (std::int64_t item = begin; item < end; ++item) run_item(Impl::HostTeam(), arguments, item);
}

template <class... Arguments>
void fill(Impl::HostItemsTable<Arguments...>& table) {
  ((static_cast<Impl::HostItemsFunction<Arguments>&>(table).run = &run_host_items<Arguments>), ...);
}

}  // namespace

Impl::RowsHostKernels rows_host_of_level() {
  Impl::RowsHostKernels table;
  fill(table);
  return table;
}

}  // namespace Sporos::inline SPOROS_LEVEL
