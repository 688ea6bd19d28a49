// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 with the functions that cuDNN looks up when it compiles a plan. They do nothing,
// so that plans for a described GPU can be compiled without a driver, but not executed.
extern "C" {

#define DOES_NOTHING(name) \
  int name() {             \
    return 0;              \
  }
#define GIVES_HANDLE(name)  \
  int name(void** handle) { \
    static int one;         \
    *handle = &one;         \
    return 0;               \
  }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
GIVES_HANDLE(cuKernelGetFunction)
GIVES_HANDLE(cuLibraryGetKernel)
GIVES_HANDLE(cuLibraryLoadData)
GIVES_HANDLE(cuModuleGetFunction)
GIVES_HANDLE(cuModuleLoadData)
DOES_NOTHING(cuCtxGetCurrent)
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDeviceGetCount)
DOES_NOTHING(cuGetErrorName)
DOES_NOTHING(cuGetErrorString)
DOES_NOTHING(cuKernelGetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLibraryLoadFromFile)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxPotentialClusterSize)
DOES_NOTHING(cuStreamGetCtx)
DOES_NOTHING(cuTensorMapEncodeIm2col)
DOES_NOTHING(cuTensorMapEncodeTiled)

}  // extern "C"
