#pragma once

namespace acc::detail {

/// Takes the choices that two runs of one job may make differently from the libraries that make
/// them, before they are loaded: NCCL's algorithm, protocol and channels, cuBLAS's workspaces. What
/// the user chose stays. On the CPU nothing depends on time: sums run in rank order and over tiles
/// of fixed size, whatever the number of threads.
void pin_choices();

}  // namespace acc::detail
