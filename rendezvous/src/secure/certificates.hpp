// SPDX-License-Identifier: Apache-2.0
#pragma once

struct ssl_ctx_st;

namespace acc::rendezvous::secure {

/// Gives a server a key and a certificate that it has signed itself, for the life of the process.
/// Throws Error(internal).
void use_own_certificate(ssl_ctx_st* context);

}  // namespace acc::rendezvous::secure
