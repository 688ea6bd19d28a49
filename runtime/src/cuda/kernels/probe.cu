#include <cuda_runtime.h>
#include <nccl.h>
#include <cublasLt.h>
__global__ void probe(float* x) { x[0] = 1; }
int acc_probe() {
  cudaLaunchConfig_t config{};
  config.gridDim = 1; config.blockDim = 32;
  return cudaLaunchKernelEx(&config, probe, static_cast<float*>(nullptr));
}
