# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The program that README shows is the consumer, word by word: so it compiles and runs. README and CONSUMER are files.
file(READ ${README} readme)
file(READ ${CONSUMER} program)
string(REGEX REPLACE "^//[^\n]*\n//[^\n]*\n" "" program "${program}")  # the SPDX lines
string(FIND "${readme}" "```cpp\n${program}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "The C++ program in ${README} is not that of ${CONSUMER}")
endif()
