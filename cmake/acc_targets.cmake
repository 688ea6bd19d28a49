# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)

# acc_unity(TARGET [COUNT])
# With ACC_UNITY, compiles up to COUNT (default 24) sources of the target together, so that the headers that
# they share are parsed once. That is for fresh builds only: after a change of one file, its whole group is compiled
# again. Names in anonymous namespaces must differ within a group.
function(acc_unity target)
  if(ACC_UNITY)
    set(count 24 ${ARGN})
    list(GET count -1 count)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
    # This warning concerns headers; here one file includes all sources.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# acc_add_library(NAME [SHARED] FOLDERS ... [SOURCES ...] [PUBLIC targets...] [PRIVATE targets...]
#                 [HEADERS public headers without a source of the same name...])
# Target acc_NAME, alias acc::NAME, of all sources in these folders of src/; public headers in include/ of the calling
# folder, internals in src/.
# Who may include whom is written down for the test structure (test/structure).
function(acc_add_library name)
  cmake_parse_arguments(ARG "SHARED" "" "FOLDERS;SOURCES;PUBLIC;PRIVATE;HEADERS" ${ARGN})
  foreach(folder IN LISTS ARG_FOLDERS)
    file(GLOB found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} src/${folder}/*.cpp)
    list(APPEND ARG_SOURCES ${found})
  endforeach()
  set(target acc_${name})
  if(ARG_SHARED)
    add_library(${target} SHARED ${ARG_SOURCES})
  else()
    add_library(${target} STATIC ${ARG_SOURCES})
  endif()
  add_library(acc::${name} ALIAS ${target})
  acc_unity(${target})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC}
                        PRIVATE $<BUILD_INTERFACE:acc_options> ${ARG_PRIVATE})
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_HEADERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND_STRING PROPERTY acc_structure
    "acc::${name}|${ARG_SOURCES}|${ARG_HEADERS}|${ARG_PUBLIC}|${ARG_PRIVATE}\n")
endfunction()

# acc_search_libraries_in(TARGET folders...)
# The folders in which a target searches libraries, in an installation and in the build tree, which have the same layout.
# With another path in the build tree CMake would end that with ':', for the installed path to replace it in place, and
# the loader takes an empty entry for the current folder (test/packaging/search_paths_test.py).
function(acc_search_libraries_in target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${ARGN}" BUILD_WITH_INSTALL_RPATH ON)
endfunction()

# acc_add_headers(NAME HEADERS ... [PUBLIC targets...])
# Target acc_NAME, alias acc::NAME: declarations in include/ that libraries above this one implement.
function(acc_add_headers name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;HEADERS" ${ARGN})
  add_library(acc_${name} INTERFACE)
  add_library(acc::${name} ALIAS acc_${name})
  target_include_directories(acc_${name} INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/include)
  target_link_libraries(acc_${name} INTERFACE ${ARG_PUBLIC})
  list(TRANSFORM ARG_HEADERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND_STRING PROPERTY acc_structure
    "acc::${name}||${ARG_HEADERS}|${ARG_PUBLIC}|\n")
endfunction()

# acc_add_test(NAME SOURCES ... LINK targets... [LABELS ...] [COST seconds] [SRC_OF folder...])
# Defines a doctest binary. SRC_OF adds the src/ folder of a library to the include path. Every test links
# acc_test_main and acc_test_support. ctest starts tests of high cost first; otherwise a long one might run
# alone at the end. Defaults: label unit, cost 60. ctest runs the cases of a source of a unit test in one process,
# and every case of another test in a process of its own.
# scripts/test runs the tests with the labels unit and main, scripts/test --all also those with other labels.
function(acc_add_test name)
  if(name IN_LIST ACC_TESTS_ELSEWHERE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "COST" "SOURCES;LINK;LABELS;SRC_OF" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  if(NOT ACC_CUDA)  # its tests use one name for helpers of several files, and compile sources of the products again
    acc_unity(${name} 8)
  endif()
  if(ACC_UNITY)
    target_precompile_headers(${name} REUSE_FROM acc_test_headers)
  endif()
  target_link_libraries(${name} PRIVATE acc_test_options acc_test_main acc_test_support ${ARG_LINK})
  foreach(folder IN LISTS ARG_SRC_OF)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/${folder}/src)
  endforeach()
  target_compile_definitions(${name} PRIVATE
    ACC_TEST_DATA="${PROJECT_SOURCE_DIR}/test/data" ACC_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    ACC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(timeout 600)  # only guards against hangs
  if(ACC_SANITIZE)
    set(timeout 3000)  # sanitized and unoptimized
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 60)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_LABELS STREQUAL unit)
    acc_add_sources(${name} "${ARG_SOURCES}" TIMEOUT ${timeout} COST ${ARG_COST} LABELS unit)
  else()
    acc_discover_cases(${name} TIMEOUT ${timeout} COST ${ARG_COST} LABELS "${ARG_LABELS}"
                       SKIP_RETURN_CODE 77)
  endif()
endfunction()

# acc_add_sources(NAME SOURCES property value...)
# Registers every source of a doctest binary that has cases as a test with these properties: NAME:SOURCE without
# `.cpp`. The output of a failed test names its cases, with their durations. It counts as skipped if no case of the source can run.
function(acc_add_sources name sources)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} cases REGEX "^ *TEST_CASE" LIMIT_COUNT 1)
    if(cases)
      cmake_path(GET source FILENAME file)
      cmake_path(GET source STEM stem)
      add_test(NAME ${name}:${stem} COMMAND ${name} --source-file=*/${file} --duration=true)
      set_tests_properties(${name}:${stem} PROPERTIES SKIP_REGULAR_EXPRESSION "test cases: +0 " ${ARGN})
    endif()
  endforeach()
  add_dependencies(acc_unit_tests ${name})
endfunction()

# acc_discover_cases(NAME property value...)
# Registers the cases of a doctest binary as tests with these properties. Binaries with the label
# unit, main or cuda are built by the targets acc_unit_tests, acc_main_tests and acc_cuda_tests.
function(acc_discover_cases name)
  doctest_discover_tests(${name} TEST_PREFIX "${name}: " PROPERTIES ${ARGN})
  cmake_parse_arguments(ARG "" "LABELS" "" ${ARGN})
  if(ARG_LABELS MATCHES "^(unit|main|cuda)$" AND TARGET acc_${ARG_LABELS}_tests)
    add_dependencies(acc_${ARG_LABELS}_tests ${name})
  endif()
endfunction()
