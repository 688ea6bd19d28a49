int acc_probe();
extern "C" __attribute__((visibility("default"))) int acc_cuda_backend() { return acc_probe(); }
