#pragma once

namespace acc::detail {

/// Sets environment variables so that NCCL (algorithm, protocol, channels) and cuBLAS (workspaces)
/// make the same choices in every run; their own choices may depend on timing, and change the order
/// of sums. Must be called before these libraries are loaded. Variables that the user has set are
/// kept. On the CPU nothing needs to be set: sums run in rank order and over tiles of fixed size,
/// whatever the number of threads.
void pin_choices();

}  // namespace acc::detail
