# SPDX-License-Identifier: Apache-2.0
# The INTERFACE target acc_options carries the language level, warnings and sanitizers of every
# target of this project.
add_library(acc_options INTERFACE)
target_compile_features(acc_options INTERFACE cxx_std_20)
set(cxx $<COMPILE_LANGUAGE:CXX>)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# CMake's default for Release is -O3, which takes half as much time again. The files whose loops gain from it name it.
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()

if(ACC_UNITY)
  # g++ spends a tenth of its time on collecting garbage unless it may use more memory: about 1 GB for the largest groups.
  target_compile_options(acc_options INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=400;--param=ggc-min-heapsize=1500000>")
endif()
target_compile_options(acc_options INTERFACE
  "$<${cxx}:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wnon-virtual-dtor>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 at -O3 warns falsely of overlapping copies in "text" + std::string (GCC bug 105651).
  target_compile_options(acc_options INTERFACE $<${cxx}:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # any version: only warnings of g++ are treated as errors
  target_compile_options(acc_options INTERFACE "$<${cxx}:-Wno-unknown-warning-option;-Wno-sign-conversion>")
elseif(ACC_WERROR)
  target_compile_options(acc_options INTERFACE $<${cxx}:-Werror>)
endif()
if(ACC_SANITIZE)
  # g++ 12 warns falsely of uninitialized memory in instrumented <regex>.
  target_compile_options(acc_options INTERFACE
    "$<${cxx}:-fsanitize=${ACC_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-Wno-maybe-uninitialized>")
  target_link_options(acc_options INTERFACE -fsanitize=${ACC_SANITIZE})
  if(ACC_SANITIZE MATCHES undefined)
    # These checks take half of the compile time of a sanitized file. The address sanitizer finds
    # the errors of null and object-size too, and x86-64 and aarch64 permit unaligned access.
    target_compile_options(acc_options INTERFACE
      $<${cxx}:-fno-sanitize=null,alignment,object-size,vptr>)
  endif()
  if(ACC_SANITIZE MATCHES thread)
    target_compile_options(acc_options INTERFACE $<${cxx}:-Wno-tsan>)  # tsan does not support the fences in Asio
  endif()
endif()

# Options of tests, and of all code in a quick build. -Og takes three fifths of the time of -O2. nvcc does not know it.
add_library(acc_quick_options INTERFACE)
if(NOT ACC_SANITIZE)  # the presets with sanitizers do not optimize at all
  # These warnings of g++ 12 are wrong about std::string and std::optional at this level.
  target_compile_options(acc_quick_options INTERFACE
    $<$<AND:$<CONFIG:Release,RelWithDebInfo>,$<COMPILE_LANGUAGE:C,CXX>>:-Og>
    "$<${cxx}:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-maybe-uninitialized>")
endif()
if(ACC_QUICK_BUILD)
  target_link_libraries(acc_options INTERFACE acc_quick_options)
endif()

find_program(ACC_CCACHE ccache)
if(ACC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ACC_CCACHE})
endif()
