# SPDX-License-Identifier: Apache-2.0
# The install component gpu_bundle: files that scripts/gpu_bundle packs in addition to the ordinary
# installation. This file is included last, when every target is known.

# Wherever an installation is put, programs find its libraries, and those find each other: also the
# ones that came without a path of their own, hence DT_RPATH instead of DT_RUNPATH.
set(installed acclaunch_program acc_doctor_program acc_self_test acc_rendezvous_program acc_runtime acc_gloo acc_s3 acc_cuda train_gpt)
set(bundled acc_cuda train_gpt device_bench group_bench kernel_bench)

# acc_find_gpu_tests(FOLDER): appends the programs of the tests with the label gpu to gpu_tests.
# These tests are named PROGRAM_on_gpu, because CMake cannot read the labels of another folder's
# tests.
function(acc_find_gpu_tests folder)
  get_property(tests DIRECTORY ${folder} PROPERTY TESTS)
  list(FILTER tests INCLUDE REGEX "_on_gpu$")
  list(TRANSFORM tests REPLACE "_on_gpu$" "")
  foreach(test IN LISTS tests)
    if(NOT TARGET ${test})
      message(FATAL_ERROR "${test}_on_gpu must have the name of its program, followed by _on_gpu")
    endif()
    list(APPEND gpu_tests ${test})
  endforeach()
  get_property(children DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    acc_find_gpu_tests(${child})
  endforeach()
  set(gpu_tests ${gpu_tests} PARENT_SCOPE)
endfunction()
set(gpu_tests "")
if(ACC_DEVELOPER)
  acc_find_gpu_tests(${PROJECT_SOURCE_DIR}/test)
endif()
# scripts/gpu_check reads this list and runs the tests.
list(JOIN gpu_tests "\n" names)
file(WRITE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/gpu_tests.txt "${names}\n")
install(FILES ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/gpu_tests.txt DESTINATION bin
        COMPONENT gpu_bundle EXCLUDE_FROM_ALL)

add_custom_target(gpu_bundle_programs)
foreach(target IN LISTS installed bundled gpu_tests)
  if(NOT TARGET ${target})
    continue()
  endif()
  add_dependencies(gpu_bundle_programs ${target})
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    acc_search_libraries_in(${target} "$ORIGIN/../lib")
  else()
    acc_search_libraries_in(${target} "$ORIGIN")
  endif()
endforeach()
# The component gpu_standins: stand-ins for NVIDIA's libraries and programs that run on them, to try
# a bundle where there is no GPU.
add_custom_target(gpu_standins)
foreach(target acc_standin_cudart acc_standin_driver acc_standin_nvml acc_standin_nccl
               acc_standin_cublaslt acc_standin_cudnn acc_cuda_standin train_gpt_standin kernel_bench_standin)
  if(TARGET ${target})
    add_dependencies(gpu_standins ${target})
    target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
    acc_search_libraries_in(${target} "$ORIGIN" "$ORIGIN/.." "$ORIGIN/../../lib/standin" "$ORIGIN/../../lib")
    install(TARGETS ${target} RUNTIME DESTINATION bin/standin COMPONENT gpu_standins EXCLUDE_FROM_ALL
                              LIBRARY DESTINATION lib/standin COMPONENT gpu_standins EXCLUDE_FROM_ALL)
  endif()
endforeach()
if(TARGET acc_cuda_tests)  # includes the programs of tests with the label gpu
  add_dependencies(acc_cuda_tests gpu_bundle_programs gpu_standins)
endif()
foreach(target IN LISTS bundled gpu_tests)
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION bin COMPONENT gpu_bundle EXCLUDE_FROM_ALL
                              LIBRARY DESTINATION lib COMPONENT gpu_bundle EXCLUDE_FROM_ALL)
  endif()
endforeach()
