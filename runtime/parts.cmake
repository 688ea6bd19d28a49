# acc_runtime_parts: the parts of the runtime below collectives and sharding. Position independent
# and linked whole into libacc_runtime.so; unit tests link it directly.
set(kernel_sources src/kernels/kernels_generic.cpp)
# -O3 in every build type: unoptimised, the vectorised loops would be 20 times slower in tests.
# Interchanging the loops over sources and elements (g++ 12 does at -O3) makes a sum of 4 arrays in
# cache 3 times slower.
set(kernel_flags -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_flags -fno-loop-interchange -fno-loop-unroll-and-jam)
endif()
set_source_files_properties(src/kernels/kernels_generic.cpp src/initializer.cpp
  PROPERTIES COMPILE_OPTIONS "${kernel_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND kernel_sources src/kernels/kernels_avx2.cpp src/kernels/kernels_avx512.cpp)
  set_source_files_properties(src/kernels/kernels_avx2.cpp
    PROPERTIES COMPILE_OPTIONS "${kernel_flags};-mavx2;-mfma;-mf16c")
  set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
    -mprefer-vector-width=512)
  set_source_files_properties(src/kernels/kernels_avx512.cpp
    PROPERTIES COMPILE_OPTIONS "${kernel_flags};${avx512_flags}")
endif()

acc_add_library(runtime_parts
  SOURCES
    ${kernel_sources}
    src/kernels/kernels.cpp
    src/optim/from_settings.cpp
    src/optim/loss_scaler.cpp
    src/optim/lr_schedule.cpp
    src/optim/parameter_groups.cpp
    src/optim/update.cpp
    src/initializer.cpp
    src/sharding/gradient_scaling.cpp
  PUBLIC acc::base acc::settings)
