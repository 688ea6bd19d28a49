# One INTERFACE target carries the language level, warnings and sanitizers of every target of ours.
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

target_compile_options(acc_options INTERFACE
  "$<${cxx}:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wnon-virtual-dtor>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 at -O3 warns of overlapping copies in "text" + std::string (its bug 105651).
  target_compile_options(acc_options INTERFACE $<${cxx}:-Wno-restrict>)
endif()
if(ACC_FUZZ)  # clang of any version: g++ is the one that judges the code
  target_compile_options(acc_options INTERFACE $<${cxx}:-Wno-unknown-warning-option>)
elseif(ACC_WERROR)
  target_compile_options(acc_options INTERFACE $<${cxx}:-Werror>)
endif()
if(ACC_SANITIZE)
  # g++ 12 sees uninitialised memory in instrumented <regex> that is none.
  target_compile_options(acc_options INTERFACE
    "$<${cxx}:-fsanitize=${ACC_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-Wno-maybe-uninitialized>")
  target_link_options(acc_options INTERFACE -fsanitize=${ACC_SANITIZE})
  if(ACC_SANITIZE MATCHES undefined)
    # Half of what a sanitized file takes to compile. The address sanitizer finds what null and
    # object-size would; x86-64 and aarch64 allow unaligned access.
    target_compile_options(acc_options INTERFACE
      $<${cxx}:-fno-sanitize=null,alignment,object-size,vptr>)
  endif()
  if(ACC_SANITIZE MATCHES thread)
    target_compile_options(acc_options INTERFACE $<${cxx}:-Wno-tsan>)  # Asio's fences, which tsan cannot see
  endif()
endif()

find_program(ACC_CCACHE ccache)
if(ACC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ACC_CCACHE})
endif()
