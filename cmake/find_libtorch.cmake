# SPDX-License-Identifier: Apache-2.0
# Target acc::libtorch: the LibTorch of Torch_DIR (torch.utils.cmake_prefix_path/Torch), otherwise of the
# package torch of the Python in ACC_TEST_PYTHON (python3 if unset). Sets acc_libtorch to its version, or to a
# false value and acc_libtorch_missing to the reason. Does not call find_package(Torch), which adds flags to all
# targets and, for a wheel, searches libraries that a user of the shared library does not need. Also part of the
# installed package.
set(acc_libtorch FALSE)
if(Torch_DIR)
  get_filename_component(found "${Torch_DIR}/../../.." ABSOLUTE)
  set(ACC_LIBTORCH "${found}" CACHE PATH "Folder of LibTorch, with include/ and lib/" FORCE)
elseif(NOT ACC_LIBTORCH)
  set(python "$ENV{ACC_TEST_PYTHON}")
  if(NOT python)
    set(python python3)
  endif()
  execute_process(COMMAND ${python} -c
    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
    OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(acc_libtorch_missing "Torch_DIR is not set, and '${python}' is no Python with torch")
  else()
    set(ACC_LIBTORCH "${found}" CACHE PATH "Folder of LibTorch, with include/ and lib/")
  endif()
endif()
set(version_header "${ACC_LIBTORCH}/include/torch/headeronly/version.h")
if(NOT EXISTS "${version_header}")
  set(version_header "${ACC_LIBTORCH}/include/torch/csrc/api/include/torch/version.h")
endif()
if(ACC_LIBTORCH AND EXISTS "${version_header}" AND EXISTS "${ACC_LIBTORCH}/lib/libtorch.so")
  file(STRINGS "${version_header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2" acc_libtorch "${lines}")
  if(acc_libtorch VERSION_LESS 2.6)
    set(acc_libtorch_missing "the LibTorch in ${ACC_LIBTORCH} is ${acc_libtorch}")
    set(acc_libtorch FALSE)
  elseif(NOT TARGET acc::libtorch)
    add_library(acc::libtorch INTERFACE IMPORTED GLOBAL)
    target_include_directories(acc::libtorch SYSTEM INTERFACE
      "${ACC_LIBTORCH}/include" "${ACC_LIBTORCH}/include/torch/csrc/api/include")
    # libtorch.so loads the libraries of CUDA; a program names nothing in it.
    target_link_options(acc::libtorch INTERFACE LINKER:--no-as-needed)
    target_link_libraries(acc::libtorch INTERFACE "${ACC_LIBTORCH}/lib/libtorch.so"
      "${ACC_LIBTORCH}/lib/libtorch_cpu.so" "${ACC_LIBTORCH}/lib/libc10.so")
  endif()
elseif(ACC_LIBTORCH)
  set(acc_libtorch_missing "${ACC_LIBTORCH} has no LibTorch (lib/libtorch.so and its headers in include/)")
endif()
