#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
exec python3 -IS "${0%.sh}.py" "$@"
